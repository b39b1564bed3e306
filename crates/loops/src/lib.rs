//! Block devices to oneself. Of what a loop device shows the same bytes have two names, and who has one of them has to have the other.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// How long who ends may take to let go of a device: it closes one file after the other, and the lock that others wait for may be the first.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(10);

/// What `open` gives, which opens a device alone (`O_EXCL`), also if somebody who ends just now has it.
pub fn when_let_go<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) && begun.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            opened => return opened,
        }
    }
}

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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn who_is_about_to_let_go_is_waited_for_and_nobody_else() {
        let asked = Cell::new(0);
        let busy_until = |number| {
            asked.set(asked.get() + 1);
            if asked.get() < number { Err(Errno::BUSY.into()) } else { Ok(asked.get()) }
        };
        assert_eq!(when_let_go(|| busy_until(4)).unwrap(), 4);
        let begun = Instant::now();
        let refused = when_let_go(|| busy_until(u32::MAX)).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::BUSY));
        assert!(begun.elapsed() >= PATIENCE);
        asked.set(0);
        assert!(when_let_go(|| busy_until(0).and_then(|_| Err::<(), _>(Errno::ACCESS.into()))).is_err());
        assert_eq!(asked.get(), 1);
    }
}
