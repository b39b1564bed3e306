//! What is mounted where, as the kernel tells in `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type that a mounted volume has.
pub(crate) const TYPE: &str = "fuse.amberfs";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    pub(crate) dir: PathBuf,
    pub(crate) kind: String,
    /// For a volume: `ZONE:VOLUME`.
    pub(crate) source: String,
    /// Of a FUSE mount: who mounted it.
    pub(crate) user: Option<u32>,
    /// Nobody changes anything through it.
    pub(crate) read_only: bool,
}

/// All mounts, in the order in which they were made.
pub(crate) fn read() -> std::io::Result<Vec<MountEntry>> {
    Ok(std::fs::read("/proc/self/mountinfo")?.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// What is mounted on `dir` (the newest, where several are), if anything is.
pub(crate) fn at(dir: &Path) -> std::io::Result<Option<MountEntry>> {
    Ok(read()?.into_iter().rev().find(|entry| entry.dir == dir))
}

/// Where a volume is mounted that was on `dir`: there, or elsewhere (`mount --bind`); nowhere, if it was detached.
pub(crate) fn place_of(source: &str, dir: &Path) -> Option<PathBuf> {
    let Ok(mounts) = read() else { return Some(dir.to_path_buf()) };
    let shows = |entry: &MountEntry| entry.kind == TYPE && entry.source == source;
    let there = |entry: &&MountEntry| entry.dir == dir;
    match mounts.iter().rev().find(there) {
        Some(newest) if shows(newest) => Some(dir.to_path_buf()),
        _ => mounts.into_iter().rev().find(shows).map(|entry| entry.dir),
    }
}

/// Whether the newest mount on `dir` is one of `source` that is read-only, also by a remount of which only the kernel knows.
pub(crate) fn is_read_only(source: &str, dir: &Path) -> bool {
    let newest = at(dir).ok().flatten();
    newest.is_some_and(|entry| entry.kind == TYPE && entry.source == source && entry.read_only)
}

/// Whether `path` is a directory: that a volume is mounted there tells it without asking the volume, which may not be able to
/// answer.
pub(crate) fn is_directory(path: &Path) -> bool {
    let entry = resolve(path).and_then(|dir| at(&dir));
    entry.is_ok_and(|entry| entry.is_some_and(|entry| entry.kind == TYPE)) || path.is_dir()
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
    let dir = fields.nth(4)?;
    let of_mount = String::from_utf8_lossy(fields.next()?).into_owned();
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let options = rest.next().map(String::from_utf8_lossy).unwrap_or_default();
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    let read_only = of_mount.split(',').chain(options.split(',')).any(|option| option == "ro");
    Some(MountEntry { read_only, dir: OsString::from_vec(unescape(dir)).into(), kind, source, user })
}

/// The kernel writes blanks, newlines and backslashes as three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let octal = text
            .get(at + 1..at + 4)
            .filter(|digits| text[at] == b'\\' && digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        if let Some(digits) = octal {
            plain.push(
                digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
            );
            at += 4;
        } else {
            plain.push(text[at]);
            at += 1;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_and_without_optional_fields() {
        let line = b"36 35 0:52 / /mnt/my\\040files rw,nosuid shared:1 master:2 - fuse.amberfs /dev/shm/a\\134b:home rw,user_id=1000,group_id=100";
        let entry = parse(line).unwrap();
        assert_eq!(entry.dir, Path::new("/mnt/my files"));
        assert_eq!(entry.user, Some(1000));
        assert_eq!((entry.kind.as_str(), entry.source.as_str()), (TYPE, "/dev/shm/a\\b:home"));
        assert!(
            !entry.read_only
                && parse(b"1 2 0:5 / /m rw shared:1 - fuse.amberfs z:v ro,user_id=0").unwrap().read_only
        );
        assert_eq!(parse(b"36 35 0:52 / /mnt rw - proc proc rw").unwrap().kind, "proc");
        assert_eq!(parse(b""), None);
    }
}
