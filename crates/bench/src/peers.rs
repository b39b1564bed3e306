//! File systems to be compared with: made, mounted, and taken down again when they are dropped, whatever happens.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::error::Error;
use crate::target::{Server, Target};

mod amberfs;
mod kernel;
mod scaffold;

use amberfs::{attached, mounted, volume, volume_ext};
use kernel::{floor, fuse2fs, loop_mount, tmpfs};
use scaffold::Memory;

/// All that there are, in the order of reports: name, what it is.
pub const PEERS: [(&str, &str); 19] = [
    ("volume", "Amberfs in process, durability=op: no kernel, no FUSE"),
    ("amberfs", "Amberfs mounted, durability=fsync"),
    ("amberfs-op", "Amberfs mounted, durability=op"),
    (
        "volume-ext",
        "ext4 on a loop device over tmpfs, its metadata and synced writes in NVM by Amberfs in process",
    ),
    ("amberfs-ext", "ext4 on a loop device over tmpfs, its metadata and synced writes in NVM by Amberfs"),
    (
        "fuse",
        "the floor under FUSE: a server that keeps names and sizes, by the library fuser, in the benchmark's own process",
    ),
    ("tmpfs", "tmpfs"),
    ("ext4", "ext4 on a loop device over tmpfs"),
    ("xfs", "xfs on a loop device over tmpfs"),
    ("btrfs", "btrfs on a loop device over tmpfs"),
    ("fuse2fs", "ext4 by fuse2fs, on a loop device over tmpfs"),
    (
        "volume-ext-disk",
        "ext4 on a loop device over a file on disk, its metadata and synced writes in NVM by Amberfs in process",
    ),
    (
        "amberfs-ext-disk",
        "ext4 on a loop device over a file on disk, its metadata and synced writes in NVM by Amberfs",
    ),
    ("ext4-disk", "ext4 on a loop device over a file on disk"),
    ("ext3-disk", "ext3 on a loop device over a file on disk"),
    ("ext2-disk", "ext2 on a loop device over a file on disk"),
    ("xfs-disk", "xfs on a loop device over a file on disk"),
    ("btrfs-disk", "btrfs on a loop device over a file on disk"),
    ("fuse2fs-disk", "ext4 by fuse2fs, on a loop device over a file on disk"),
];
/// Those that are set up unless some are named.
const USUAL: [&str; 9] =
    ["volume", "amberfs", "tmpfs", "ext4", "xfs", "btrfs", "ext4-disk", "xfs-disk", "btrfs-disk"];

/// Options of what is made on a disk, not of mounting it, and what mke2fs calls them: to see what a journal costs (FSMAC §V.G), and what the
/// older two gain (§V.F).
const MADE: [(&str, [&str; 2]); 3] =
    [("nojournal", ["-O", "^has_journal"]), ("ext3", ["-t", "ext3"]), ("ext2", ["-t", "ext2"])];
/// What stands between two options. A comma stands between two peers.
const BETWEEN: char = '+';

/// A peer as it is asked for: one of [`PEERS`], perhaps with options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What reports call it: all of what was asked for.
    pub name: String,
    kind: &'static str,
    about: &'static str,
    options: Vec<String>,
}

impl Peer {
    /// Those that are set up unless some are named.
    pub fn usual() -> Vec<Peer> {
        let named = |name: &&str| PEERS.iter().find(|(peer, _)| peer == name);
        let peer = |(kind, about): &(&'static str, &'static str)| Peer {
            name: kind.to_string(),
            kind,
            about,
            options: Vec::new(),
        };
        USUAL.iter().filter_map(named).map(peer).collect()
    }

    /// Reads `NAME[:OPTION[+OPTION...]]`. Options are those of mount(8); an ext4 can also be made with `nojournal`, and one that the kernel does
    /// not mount as an `ext3` or `ext2`.
    ///
    /// # Errors
    /// No peer has this name; it takes no options, or the kernel says that not this one. What `amberfs mount` takes is for its caller to check,
    /// by [`Peer::amberfs_options`].
    pub fn parse(text: &str) -> Result<Peer, String> {
        let (name, options) = match text.split_once(':') {
            Some((name, options)) => (name, Some(options)),
            None => (text, None),
        };
        let known = PEERS.iter().find(|(peer, _)| *peer == name).ok_or_else(|| {
            let all: Vec<&str> = PEERS.iter().map(|(name, _)| *name).collect();
            format!("there is no peer '{name}': there are {}", all.join(", "))
        })?;
        let options = options.map(|list| list.split(BETWEEN).map(str::to_string).collect::<Vec<_>>());
        let peer = Peer {
            name: text.to_string(),
            kind: known.0,
            about: known.1,
            options: options.unwrap_or_default(),
        };
        peer.options.iter().try_for_each(|option| peer.check(option))?;
        Ok(peer)
    }

    fn check(&self, option: &str) -> Result<(), String> {
        let Peer { name, kind, .. } = self;
        let wrong = |why: &str| Err(format!("peer '{name}': {why}"));
        match option {
            "" => wrong(&format!("an option is missing: write {kind}:OPTION, or {kind}:OPTION+OPTION")),
            "ro" => wrong("a benchmark has to make files: 'ro' keeps it from that"),
            "nojournal" if self.is_ext4() => Ok(()),
            "nojournal" => wrong("only an ext4 can be made with 'nojournal'"),
            "ext3" | "ext2" if self.is_ext4() && self.kernel_type().is_none() => Ok(()),
            "ext3" | "ext2" => wrong(&format!("it is not made as an {option}: there is {option}-disk")),
            _ if *kind == "fuse" => wrong("it has no mount options"),
            option => match self.kernel_type().and_then(|kind| kernel::complaint(kind, option)) {
                Some(why) => wrong(&format!("mount option '{option}': {why}")),
                None => Ok(()),
            },
        }
    }

    /// Whether it is in this process, where no other program can reach it.
    pub fn is_in_process(&self) -> bool {
        self.kind.starts_with("volume")
    }

    /// Whether all of its bytes are in memory.
    pub fn is_in_memory(&self) -> bool {
        !self.kind.ends_with("-disk") && self.kind != "fuse"
    }

    /// If Amberfs itself is what is mounted, or opened: with these options.
    pub fn amberfs_options(&self) -> Option<Vec<String>> {
        (self.is_in_process() || self.kind.starts_with("amberfs")).then(|| self.mount_options())
    }

    /// The kernel's name of the file system, if it is one of the kernel's.
    fn kernel_type(&self) -> Option<&'static str> {
        let kind = self.kind.trim_end_matches("-disk");
        ["tmpfs", "ext4", "ext3", "ext2", "xfs", "btrfs"].into_iter().find(|known| *known == kind)
    }

    /// Whether it is an ext4, whoever serves it.
    fn is_ext4(&self) -> bool {
        ["-ext", "-ext-disk"].iter().any(|end| self.kind.ends_with(end))
            || ["ext4", "fuse2fs"].contains(&self.kind.trim_end_matches("-disk"))
    }

    /// Those of its options that mke2fs is told.
    fn made_with(&self) -> impl Iterator<Item = &'static str> {
        let of = |option: &String| MADE.iter().find(|(name, _)| name == option);
        let told: Vec<&str> = self.options.iter().filter_map(of).flat_map(|(_, told)| *told).collect();
        told.into_iter()
    }

    /// The options of mounting it.
    fn mount_options(&self) -> Vec<String> {
        let is_made = |option: &String| MADE.iter().any(|(name, _)| name == option);
        self.options.iter().filter(|option| !is_made(option)).cloned().collect()
    }

    /// Its name, as files can have it.
    fn slug(&self) -> String {
        self.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
    }

    fn about(&self) -> String {
        let with: Vec<&str> = self.options.iter().map(String::as_str).collect();
        if with.is_empty() {
            self.about.to_string()
        } else {
            format!("{}; with {}", self.about, with.join(", "))
        }
    }
}

/// How an ext volume is opened, and how often it commits.
pub type ExtOptions = (ext::Options, Duration);

/// How peers are set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program `amberfs`, for what is mounted.
    pub program: PathBuf,
    /// Bytes of each.
    pub bytes: u64,
    /// Where those on disk have their files.
    pub disk: PathBuf,
    /// Tells who serves a mount of Amberfs.
    pub server: fn(&Path) -> Option<Server>,
    /// What mount options mean for a native volume in process.
    pub native_options: fn(&[String]) -> Result<native::MountOptions, String>,
    /// What they mean for an ext volume in process.
    pub ext_options: fn(&[String]) -> Result<ExtOptions, String>,
    /// Set when the benchmark is to end.
    pub interrupted: Arc<AtomicBool>,
}

/// Peers, and what is to be said of those that are not there.
#[derive(Default)]
pub struct Peers {
    /// Those that are there.
    pub targets: Vec<Target>,
    /// Which are left out and why, a line each.
    pub notes: Vec<String>,
    // Dropped last: the memory in which they are.
    _memory: Option<Memory>,
    _disk: Option<TempDir>,
}

impl Peers {
    /// Sets up those that are asked for, one after the other.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; what all of them stand in cannot be made.
    pub fn set_up(asked: &[Peer], setup: &Setup) -> Result<Peers, Error> {
        let mut peers = Peers::default();
        let memory = Memory::new(&mut peers.notes)
            .map_err(|error| Error::Target { target: "peers".to_string(), why: error.to_string() })?;
        let memory = peers._memory.insert(memory).dir.path().to_path_buf();
        for peer in asked {
            let made = match peer.kind.strip_suffix("-disk") {
                Some(kind) => {
                    peers.disk(&setup.disk).and_then(|disk| make(kind, peer, &memory, &disk, setup))
                }
                None => make(peer.kind, peer, &memory, &memory, setup),
            };
            // One that was ended is none that cannot be had.
            if setup.interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            match made {
                Ok(target) => peers.targets.push(target.named(peer.about())),
                Err(why) => peers.notes.push(format!("left out: {}: {why}", peer.name)),
            }
        }
        Ok(peers)
    }

    fn disk(&mut self, parent: &Path) -> Result<PathBuf, String> {
        if self._disk.is_none() {
            let dir = tempfile::Builder::new().prefix("amberfs-bench-").tempdir_in(parent);
            self._disk = Some(dir.map_err(|error| format!("{}: {error}", parent.display()))?);
        }
        Ok(self._disk.as_ref().map(|dir| dir.path().to_path_buf()).unwrap_or_default())
    }
}

/// Makes one of a kind, whose disk, if it has one, is a file in `parent`.
fn make(kind: &str, peer: &Peer, memory: &Path, parent: &Path, setup: &Setup) -> Result<Target, String> {
    match kind {
        "volume" => volume(peer, memory, setup),
        "volume-ext" => volume_ext(peer, memory, parent, setup),
        "amberfs-ext" => attached(peer, memory, parent, setup),
        "fuse2fs" => fuse2fs(peer, memory, parent, setup),
        "fuse" => floor(peer, memory),
        "tmpfs" => tmpfs(peer, memory, setup),
        _ if kind.starts_with("amberfs") => mounted(peer, memory, setup),
        _ => loop_mount(kind, peer, parent, parent == memory, setup),
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.targets.clear(); // before what they are in
    }
}

/// Bytes of memory that can be had (`MemAvailable` of proc(5)).
pub fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Bytes of each of so many peers in memory that it has room for: between 320 MiB, the least that xfs takes, and 1 GiB.
pub fn fitting_bytes(peers: usize) -> u64 {
    // All of them are there from the start; the machine keeps a quarter.
    let each = available_bytes() / 4 * 3 / peers.max(1) as u64;
    each.clamp(320 << 20, 1 << 30) & !(nvm::SEGMENT - 1)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_peer_is_a_name_and_options() {
        let peer = Peer::parse("amberfs-ext-disk:sync_writes=disk+nojournal+commit=5").unwrap();
        assert_eq!(peer.name, "amberfs-ext-disk:sync_writes=disk+nojournal+commit=5");
        assert_eq!(peer.amberfs_options().unwrap(), ["sync_writes=disk", "commit=5"]);
        assert_eq!(peer.made_with().collect::<Vec<_>>(), ["-O", "^has_journal"]);
        assert!(!peer.slug().contains([':', '+', '=']));
        assert!(peer.about().ends_with("; with sync_writes=disk, nojournal, commit=5"), "{}", peer.about());
        let peer = Peer::parse("ext4-disk").unwrap();
        assert!(!peer.is_in_memory() && Peer::parse("ext4:sync").unwrap().is_in_memory());
        assert!(
            peer.made_with().next().is_none() && peer.amberfs_options().is_none() && !peer.is_in_process()
        );
        assert!(Peer::parse("volume-ext-disk:sync").unwrap().is_in_process());
    }

    #[test]
    fn what_is_no_peer_is_told_why() {
        for (text, words) in [
            ("ntfs", "no peer 'ntfs'"),
            ("ntfs:sync", "no peer 'ntfs'"),
            ("", "no peer ''"),
            ("ext4:", "an option is missing"),
            ("ext4:sync+", "an option is missing"),
            ("ext4:ro", "has to make files"),
            ("xfs:nojournal", "only an ext4"),
            ("ext4-disk:ext3", "there is ext3-disk"),
            ("amberfs:ext2", "there is ext2-disk"),
            ("fuse:sync", "no mount options"),
        ] {
            let error = Peer::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn the_kernel_says_what_it_does_not_take() {
        use rustix::mount::{FsOpenFlags, fsopen};
        if let Err(errno) = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC) {
            eprintln!("left out: the kernel cannot be asked about ext4 here: {errno}");
            return;
        }
        for text in ["ext4:sync", "ext4-disk:dirsync+noatime", "ext4:commit=30", "tmpfs:huge=always"] {
            assert_eq!(Peer::parse(text).unwrap().name, text);
        }
        let error = Peer::parse("ext4-disk:snyc").unwrap_err();
        assert!(error.contains("peer 'ext4-disk:snyc'") && error.contains("mount option 'snyc'"), "{error}");
    }

    #[test]
    fn those_set_up_unless_some_are_named_are_there() {
        assert_eq!(Peer::usual().iter().map(|peer| peer.name.as_str()).collect::<Vec<_>>(), USUAL);
    }

    /// What was being set up was waited for, however long it took.
    #[test]
    fn who_interrupts_does_not_wait_for_what_is_set_up() {
        for step in ["zone", "mkfs", "mount"] {
            let dir = tempfile::tempdir().unwrap();
            let program = dir.path().join("program");
            let script = format!("#!/bin/sh\n[ $1 != {step} ] || exec sleep 60\n[ $1 != zone ] || : > $3\n");
            std::fs::write(&program, script).unwrap();
            std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
            let setup = Setup {
                program,
                bytes: 32 << 20,
                disk: dir.path().to_path_buf(),
                server: |_| None,
                native_options: |_| Err(String::new()),
                ext_options: |_| Err(String::new()),
                interrupted: Arc::default(),
            };
            let interrupted = setup.interrupted.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(500));
                interrupted.store(true, Ordering::Relaxed);
            });
            let began = Instant::now();
            let peers = Peers::set_up(&[Peer::parse("amberfs").unwrap()], &setup);
            assert_eq!(peers.err(), Some(Error::Interrupted), "{step}");
            assert!(began.elapsed() < Duration::from_secs(30), "{step}: {:?}", began.elapsed());
        }
    }
}
