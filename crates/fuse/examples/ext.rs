//! Mounts an ext2, ext3 or ext4 on a disk, read-only: an image file, a block device, an NBD URI.
//!
//! `cargo run --release -p amberfs-fuse --example ext -- DISK DIR`, until `umount DIR`. Nothing is written to the disk.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use disk::{Disk, OpenOptions, Purpose, Source};
use ext::{Options, Volume};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ext: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(source), Some(dir), None) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: ext DISK DIR".into());
    };
    let source: Source = source.parse()?;
    let disk = Arc::new(Disk::open(&source, &OpenOptions { read_only: true, ..OpenOptions::default() })?);
    let volume = Volume::open(disk.clone(), &Options::default())?;
    let recovery = volume.recovery();
    let options =
        fuse::MountOptions { fs_name: source.to_string(), read_only: true, ..fuse::MountOptions::default() };
    let mount = fuse::mount(Arc::new(volume), &PathBuf::from(dir), &options)?;
    eprintln!(
        "ext: mounted on {}; {} transactions of the journal replayed in memory",
        mount.dir().display(),
        recovery.transactions
    );
    mount.wait()?;
    let account = disk.account();
    let (data, metadata) = (account.of(Purpose::Data), account.of(Purpose::Metadata));
    eprintln!(
        "ext: unmounted after {} reads of data ({} bytes) and {} of metadata ({} bytes)",
        data.reads, data.bytes_read, metadata.reads, metadata.bytes_read
    );
    Ok(())
}
