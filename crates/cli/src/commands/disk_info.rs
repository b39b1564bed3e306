//! What a disk is, by its superblock and its journal's: the part of `amberfs info` that is about ext.

use std::path::Path;
use std::sync::Arc;

use disk::{Disk, OpenOptions, Source};

use crate::failure::{Explain, Failure};
use crate::report::{self, Fields, Value};

/// Tells of the disk at `path`, which is no zone because of `no_zone`: that is said of a file in which there is no ext, either.
pub(crate) fn describe(path: &Path, no_zone: Failure) -> Result<Fields, Failure> {
    let source = match path.to_str().map(str::parse::<Source>) {
        Some(Ok(source)) => source,
        Some(Err(error)) => return Err(Failure::new(error)),
        None => return Err(no_zone),
    };
    let is_file = matches!(&source, Source::Path(path) if !is_block_device(path));
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let disk = match Disk::open(&source, &options) {
        Err(error @ disk::Error::Busy { .. }) => return Err(Failure::new(error).doing("opening the disk")),
        Err(_) if is_file => return Err(no_zone),
        opened => opened.doing("opening the disk")?,
    };
    let disk = Arc::new(disk);
    let info = match ext::info(&disk) {
        Err(ext::Error::NotExt { .. }) if is_file => return Err(no_zone),
        found => found.doing("reading the superblock")?,
    };
    Ok(Fields::new()
        .with("disk", disk.name())
        .with("kind", info.generation)
        .with("uuid", report::hyphenated(info.uuid))
        .with("label", info.label)
        .with("created", Value::Time(info.created))
        .with("clean", info.clean)
        .with("has_errors", info.has_errors)
        .with("disk_bytes", Value::Bytes(disk.bytes()))
        .with("bytes", Value::Bytes(info.blocks * info.block_bytes))
        .with("block_bytes", Value::Bytes(info.block_bytes))
        .with("blocks", Value::Count(info.blocks))
        .with("inodes", Value::Count(info.inodes.into()))
        .with("inode_bytes", Value::Bytes(info.inode_bytes as u64))
        .with("features", info.features.names().join(" "))
        .with("not_supported", or_none(&info.features.unsupported()))
        .with("only_read", or_none(&info.features.only_read())))
}

fn or_none(names: &[String]) -> Value {
    if names.is_empty() { Value::None } else { Value::Text(names.join(" ")) }
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}
