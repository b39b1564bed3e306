//! What is mounted where, as the kernel tells in `/proc/self/mountinfo`.
//!
//! **A mount is known by its device, not by its path**: bound to a second directory, moved, or below another mount, it has the same one, and no
//! other has it until it ends, which its server knows ([`fuse::Unmounter::has_ended`]). Which mount a path leads to is told from the table alone,
//! so that no server is asked, which may be dead.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use fuse::unescape;

/// The type that a mounted volume has.
pub(crate) const TYPE: &str = "fuse.amberfs";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    id: u64,
    /// The mount on which this one is.
    parent: u64,
    /// As `major:minor`: of all that shows the same file system.
    pub(crate) device: String,
    /// What of the file system it shows: all of it, or a directory that was bound.
    pub(crate) root: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) kind: String,
    /// For a volume: `ZONE:VOLUME`.
    pub(crate) source: String,
    /// Of a FUSE mount: who mounted it.
    pub(crate) user: Option<u32>,
    /// Nobody changes anything through it.
    pub(crate) read_only: bool,
}

/// Where a mount is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// Its directory shows it.
    Shown(PathBuf),
    /// Something else is mounted over it.
    Covered(PathBuf),
    /// It was detached, or is in another mount namespace.
    Nowhere,
}

/// All mounts, in the order in which they were made.
pub(crate) fn read() -> std::io::Result<Vec<MountEntry>> {
    Ok(std::fs::read("/proc/self/mountinfo")?.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// What is mounted on `dir`, if anything is: of several, the one that is seen.
pub(crate) fn at(dir: &Path) -> std::io::Result<Option<MountEntry>> {
    Ok(seen_at(dir, &read()?).cloned())
}

fn seen_at<'a>(dir: &Path, mounts: &'a [MountEntry]) -> Option<&'a MountEntry> {
    mounts.iter().rev().find(|entry| entry.dir == dir && !entry.is_hidden(mounts))
}

/// The mount to which a path without symbolic links leads.
pub(crate) fn around(path: &Path) -> std::io::Result<Option<MountEntry>> {
    let mounts = read()?;
    Ok(path.ancestors().find_map(|above| seen_at(above, &mounts)).cloned())
}

/// The mounts that show the file system of `device`, so that a path leads to them; those that show all of it come first.
pub(crate) fn showing(device: &str) -> std::io::Result<Vec<MountEntry>> {
    Ok(showing_among(device, &read()?))
}

fn showing_among(device: &str, mounts: &[MountEntry]) -> Vec<MountEntry> {
    let shows = |entry: &&MountEntry| entry.device == device && !entry.is_hidden(mounts);
    let mut showing: Vec<MountEntry> = mounts.iter().filter(shows).cloned().collect();
    showing.sort_by_key(|entry| entry.root != Path::new("/"));
    showing
}

/// Where a volume is that was mounted on `dir`, and has this device: there, or elsewhere (`mount --bind`, `mount --move`).
pub(crate) fn whereabouts(device: &str, dir: &Path) -> Whereabouts {
    let Ok(mounts) = read() else { return Whereabouts::Shown(dir.into()) };
    let showing = showing_among(device, &mounts);
    if let Some(shown) = showing.iter().find(|entry| entry.dir == dir).or(showing.first()) {
        return Whereabouts::Shown(shown.dir.clone());
    }
    let covered = |entry: &&MountEntry| entry.device == device;
    mounts.iter().find(covered).map_or(Whereabouts::Nowhere, |entry| Whereabouts::Covered(entry.dir.clone()))
}

/// Something that is mounted within the file system of `device`.
pub(crate) fn within(device: &str) -> std::io::Result<Option<MountEntry>> {
    let mounts = read()?;
    let is_its = |id: u64| mounts.iter().any(|entry| entry.id == id && entry.device == device);
    // What is mounted on its root covers it, and is not within it.
    let on_root =
        |other: &MountEntry| mounts.iter().any(|entry| entry.id == other.parent && entry.dir == other.dir);
    Ok(mounts.iter().find(|other| is_its(other.parent) && !on_root(other)).cloned())
}

impl MountEntry {
    /// Whether it is a mounted volume, or disk, of ours.
    pub(crate) fn is_amberfs(&self) -> bool {
        self.kind == TYPE
    }

    /// Whether no path leads to it: something is mounted on it, or on a directory above it, so that it is beside the way.
    fn is_hidden(&self, mounts: &[MountEntry]) -> bool {
        // The root of an initramfs is on itself, and covers nothing.
        let is_on = |other: &MountEntry, id: u64| other.parent == id && other.id != id;
        if mounts.iter().any(|other| is_on(other, self.id) && other.dir == self.dir) {
            return true;
        }
        let mut below = self;
        loop {
            let covers = |other: &MountEntry| {
                is_on(other, below.parent) && other.dir != below.dir && below.dir.starts_with(&other.dir)
            };
            if mounts.iter().any(covers) {
                return true;
            }
            match mounts.iter().find(|entry| entry.id == below.parent && entry.id != below.id) {
                Some(parent) => below = parent,
                None => return false,
            }
        }
    }
}

/// Whether nobody changes anything through any mount of `device`, also by a remount of which only the kernel knows.
pub(crate) fn is_read_only(device: &str) -> bool {
    let mounts = read().unwrap_or_default();
    let mut its = mounts.iter().filter(|entry| entry.device == device).peekable();
    its.peek().is_some() && its.all(|entry| entry.read_only)
}

/// Whether `path` is a directory: that a volume is mounted there tells it without asking the volume, which may not be able to
/// answer.
pub(crate) fn is_directory(path: &Path) -> bool {
    let entry = resolve(path).and_then(|dir| at(&dir));
    entry.is_ok_and(|entry| entry.is_some_and(|entry| entry.is_amberfs())) || path.is_dir()
}

/// Whether that is what the kernel says of a mount whose server is gone; or of one whose requests came through rings, which are aborted or taken
/// back.
pub(crate) fn is_dead(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// A directory's path without symbolic links, without asking what is mounted on it: its server may be dead.
pub(crate) fn resolve(dir: &Path) -> std::io::Result<PathBuf> {
    if let Ok(path) = std::fs::canonicalize(dir) {
        return Ok(path);
    }
    let path = std::path::absolute(dir)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(std::fs::canonicalize(parent)?.join(name)),
        _ => Ok(path),
    }
}

/// `36 35 98:0 /root /mount/point options optional... - type source options`
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut text = || Some(String::from_utf8_lossy(fields.next()?).into_owned());
    let (id, parent, device) = (text()?.parse().ok()?, text()?.parse().ok()?, text()?);
    let mut path = || Some(PathBuf::from(OsString::from_vec(unescape(fields.next()?))));
    let (root, dir) = (path()?, path()?);
    let of_mount = String::from_utf8_lossy(fields.next()?).into_owned();
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let options = rest.next().map(String::from_utf8_lossy).unwrap_or_default();
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    let read_only = of_mount.split(',').chain(options.split(',')).any(|option| option == "ro");
    Some(MountEntry { id, parent, device, root, dir, kind, source, user, read_only })
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use rustix::io::Errno;

    use super::*;

    /// A mount whose requests came through rings says `ECANCELED` while these are taken down, which was not taken for its server's death.
    #[test]
    fn a_mount_over_rings_was_not_known_to_be_dead() {
        for errno in [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED] {
            assert!(is_dead(&errno.into()), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::IO, Errno::ACCESS, Errno::INTR] {
            assert!(!is_dead(&errno.into()), "{errno}");
        }
        assert!(!is_dead(&Error::other("of no errno")));
    }

    #[test]
    fn a_line_is_read_with_and_without_optional_fields() {
        let line = b"36 35 0:52 / /mnt/my\\040files rw,nosuid shared:1 master:2 - fuse.amberfs /dev/shm/a\\134b:home rw,user_id=1000,group_id=100";
        let entry = parse(line).unwrap();
        assert_eq!((entry.id, entry.parent, &*entry.device), (36, 35, "0:52"));
        assert_eq!((&*entry.root, &*entry.dir), (Path::new("/"), Path::new("/mnt/my files")));
        assert_eq!(entry.user, Some(1000));
        assert_eq!((entry.kind.as_str(), entry.source.as_str()), (TYPE, "/dev/shm/a\\b:home"));
        assert!(
            !entry.read_only
                && parse(b"1 2 0:5 / /m rw shared:1 - fuse.amberfs z:v ro,user_id=0").unwrap().read_only
        );
        assert_eq!(parse(b"36 35 0:52 / /mnt rw - proc proc rw").unwrap().kind, "proc");
        assert_eq!(parse(b""), None);
    }

    /// The newest in the table is not the one that is seen, if an older one was moved over it; nor is one below a directory that is covered.
    #[test]
    fn of_mounts_over_each_other_the_one_that_is_seen_is_found() {
        let table = "1 0 8:1 / / rw - ext4 /dev/sda rw\n\
                     20 1 0:52 / /a rw - fuse.amberfs z:a rw\n\
                     21 1 0:53 / /b rw - fuse.amberfs z:b rw\n\
                     10 21 0:54 / /b rw - fuse.amberfs z:moved rw\n\
                     22 1 0:55 / /c/d rw - fuse.amberfs z:c rw\n\
                     23 1 0:56 / /c rw - tmpfs tmpfs rw\n\
                     24 20 0:57 / /a/in rw - tmpfs tmpfs rw\n";
        let mounts: Vec<MountEntry> = table.split('\n').filter_map(|line| parse(line.as_bytes())).collect();
        let seen = |dir: &str| seen_at(Path::new(dir), &mounts).map(|entry| entry.source.as_str());
        assert_eq!(seen("/a"), Some("z:a"), "that something is mounted in it does not hide it");
        assert_eq!(seen("/b"), Some("z:moved"));
        assert_eq!(seen("/c"), Some("tmpfs"));
        assert_eq!((seen("/c/d"), seen("/a/in"), seen("/")), (None, Some("tmpfs"), Some("/dev/sda")));
    }

    /// It is mounted on itself, and was taken for something that covers everything.
    #[test]
    fn the_root_of_an_initramfs_covers_nothing() {
        let table = "1 1 0:2 / / rw - rootfs none rw\n20 1 0:52 / /mnt rw - fuse.amberfs z:v rw\n";
        let mounts: Vec<MountEntry> = table.split('\n').filter_map(|line| parse(line.as_bytes())).collect();
        let seen = |dir: &str| seen_at(Path::new(dir), &mounts).map(|entry| entry.source.as_str());
        assert_eq!((seen("/"), seen("/mnt")), (Some("none"), Some("z:v")));
        assert_eq!(showing_among("0:52", &mounts).len(), 1);
    }
}
