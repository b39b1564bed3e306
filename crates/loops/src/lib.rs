//! Loop devices: the same bytes have two names then, and who has one of them to himself has to have the other.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The image that a loop device shows as a whole, and where it is; none if it shows a part, of which another may show another part, or if the
/// image cannot be opened, from another mount namespace for instance.
pub fn image_behind(device: &File) -> Option<(File, PathBuf)> {
    let stat = rustix::fs::fstat(device).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let told = |what: &str| {
        let told = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/loop/{what}")).ok()?;
        Some(told.trim_end_matches('\n').to_owned())
    };
    let is_whole = told("offset")? == "0" && told("sizelimit")? == "0";
    let path = PathBuf::from(told("backing_file")?);
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let image = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&path).ok()?;
    let is_file = image.metadata().is_ok_and(|of| of.is_file());
    (is_whole && is_file).then_some((image, path))
}

/// The loop device that shows this file's bytes, if there is one.
pub fn device_of(file: &File) -> Option<PathBuf> {
    let this = file.metadata().ok()?;
    std::fs::read_dir("/sys/block").ok()?.flatten().find_map(|entry| {
        let name = entry.file_name();
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let backing = std::fs::metadata(backing.trim_end_matches('\n')).ok()?;
        let same = (backing.dev(), backing.ino()) == (this.dev(), this.ino());
        same.then(|| Path::new("/dev").join(name))
    })
}
