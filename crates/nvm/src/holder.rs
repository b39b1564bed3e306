//! Who holds a zone's file, as `/proc/locks` and `/proc` tell.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// The process that holds a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Its command name, where it can be read.
    pub command: Option<String>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.command {
            _ if self.pid == std::process::id() => write!(f, "this process ({})", self.pid),
            Some(command) => write!(f, "process {} ({command})", self.pid),
            None => write!(f, "process {}", self.pid),
        }
    }
}

/// How often `/proc/locks` is asked: the kernel tells a page at a time, and passes a lock over when one before it goes meanwhile.
const LOOKS: usize = 8;

/// Who has the lock that `file` could not get.
pub(crate) fn holder(file: &File) -> Option<Holder> {
    let metadata = file.metadata().ok()?;
    let (dev, inode) = (metadata.dev(), metadata.ino());
    let pid = (0..LOOKS).find_map(|_| {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        holder_pid(&locks, rustix::fs::major(dev), rustix::fs::minor(dev), inode)
    })?;
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    Some(Holder {
        pid,
        command: command.map(|command| command.trim_end().replace(char::is_control, "\u{FFFD}")),
    })
}

/// The holder of a `flock` on an inode, from the text of `/proc/locks`. Some file systems show another
/// device there than `stat` does, so a lock on the same inode number elsewhere is the second choice.
fn holder_pid(locks: &str, major: u32, minor: u32, inode: u64) -> Option<u32> {
    let device = format!("{major:02x}:{minor:02x}");
    let mut elsewhere = None;
    for line in locks.lines() {
        // "12: FLOCK  ADVISORY  WRITE 4711 00:2f:1234 0 EOF"; a waiter has "->" after its number.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = fields[..] else { continue };
        let (Some((on_device, on_inode)), Ok(pid)) = (file.rsplit_once(':'), pid.parse::<u32>()) else {
            continue;
        };
        if pid == 0 || on_inode.parse() != Ok(inode) {
            continue;
        }
        if on_device == device {
            return Some(pid);
        }
        elsewhere = elsewhere.or(Some(pid));
    }
    elsewhere
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF
2: FLOCK  ADVISORY  WRITE 22 00:2f:77 0 EOF
2: -> FLOCK  ADVISORY  WRITE 23 fe:00:77 0 EOF
3: FLOCK  ADVISORY  READ 33 fe:00:77 0 EOF
4: FLOCK  ADVISORY  WRITE 0 fe:00:78 0 EOF
";

    #[test]
    fn the_holder_is_found_by_device_and_inode() {
        assert_eq!(holder_pid(LOCKS, 0xfe, 0, 77), Some(33));
        assert_eq!(holder_pid(LOCKS, 0, 0x2f, 77), Some(22));
        assert_eq!(holder_pid(LOCKS, 9, 9, 77), Some(22), "the second choice");
        assert_eq!(holder_pid(LOCKS, 0xfe, 0, 78), None, "pid 0 is in another namespace");
        assert_eq!(holder_pid("nonsense\n1: FLOCK", 0xfe, 0, 77), None);
    }
}
