//! Mount options: one table that parses, helps and suggests.

mod table;

use std::path::PathBuf;
use std::time::Duration;

use fuse::Transport;
use native::{Durability, Journaling};
use nvm::{PersistMethod, Technology, VolumeKind};

use crate::retention::Policy;
use table::{Effect, TABLE};

/// How a volume is to be mounted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// Where who gave them was: paths among them are meant from there.
    pub(crate) directory: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) journaling: Journaling,
    pub(crate) commit_interval: Duration,
    /// Bytes of DRAM that caches of the volume may take; None: as many as they like.
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) read_only: bool,
    /// Operations on names are durable when they return.
    pub(crate) dirsync: bool,
    /// Of a volume of kind ext: synced bytes of files go to the disk before the sync returns.
    pub(crate) sync_on_disk: bool,
    /// Of a volume of kind ext: when metadata whose place is fixed comes to NVM.
    pub(crate) fetch: ext::Fetch,
    /// Of a volume of kind ext: DRAM for synced bytes of files that are not on the disk yet.
    pub(crate) synced_bytes: Option<u64>,
    /// Of a volume of kind ext: DRAM for bytes of files as the disk has them.
    pub(crate) clean_bytes: Option<u64>,
    /// Of a volume of kind ext, in process: metadata is not versioned, to measure what that takes.
    pub(crate) without_consistency: bool,
    /// An option that was given and that only a volume of kind ext has, if one was.
    pub(crate) of_ext: Option<&'static str>,
    /// The same, of a native volume.
    of_native: Option<&'static str>,
    /// Of a volume of kind ext: where its disk is now.
    pub(crate) disk: Option<String>,
    /// Show this snapshot of the volume, and nothing else.
    pub(crate) snapshot: Option<String>,
    /// Snapshots are taken and let go of as this says.
    pub(crate) keep: Option<Policy>,
    /// Also when nothing has changed.
    pub(crate) keep_unchanged: bool,
    /// It is mounted already, and only this list is to change.
    pub(crate) remount: bool,
    /// Where there is no such zone or disk, that is no failure.
    pub(crate) nofail: bool,
    /// None leaves it to who mounts: root does, others as /etc/fuse.conf allows.
    pub(crate) allow_other: Option<bool>,
    pub(crate) threads: Option<usize>,
    pub(crate) transport: Transport,
    /// Show when inodes were created.
    pub(crate) birth_times: bool,
    /// Files can be opened by handle.
    pub(crate) opens_by_handle: bool,
    /// Direct I/O that nobody waits for goes on side by side.
    pub(crate) async_direct_io: bool,
    /// `close` always says what of a file's pages was refused.
    pub(crate) checked_close: bool,
    pub(crate) technology: Technology,
    pub(crate) persist: Option<PersistMethod>,
    pub(crate) nosuid: bool,
    pub(crate) nosymfollow: bool,
    pub(crate) nodev: bool,
    pub(crate) noexec: bool,
    pub(crate) noatime: bool,
    pub(crate) log: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            directory: PathBuf::new(),
            durability: Durability::Fsync,
            journaling: Journaling::default(),
            commit_interval: Duration::from_secs(5),
            cache_bytes: None,
            read_only: false,
            dirsync: false,
            sync_on_disk: false,
            fetch: ext::Fetch::Touch,
            synced_bytes: None,
            clean_bytes: None,
            without_consistency: false,
            of_ext: None,
            of_native: None,
            disk: None,
            snapshot: None,
            keep: None,
            keep_unchanged: false,
            remount: false,
            nofail: false,
            allow_other: None,
            threads: None,
            transport: Transport::default(),
            birth_times: false,
            opens_by_handle: false,
            async_direct_io: false,
            checked_close: false,
            technology: Technology::Dram,
            persist: None,
            nosuid: false,
            nosymfollow: false,
            nodev: false,
            noexec: false,
            noatime: false,
            log: None,
        }
    }
}

impl Options {
    /// Reads lists of options, separated by commas. Later ones win. With `sloppy`, unknown ones are skipped
    /// (mount(8) `-s`).
    pub(crate) fn parse<S: AsRef<str>>(lists: &[S], sloppy: bool) -> Result<Options, String> {
        Options::parse_from(std::env::current_dir().unwrap_or_default(), lists, sloppy)
    }

    /// The same, of lists that somebody gave in another directory.
    pub(crate) fn parse_from<S: AsRef<str>>(
        directory: PathBuf,
        lists: &[S],
        sloppy: bool,
    ) -> Result<Options, String> {
        let mut options = Options { directory, ..Options::default() };
        for text in texts(lists) {
            options.set(text, sloppy)?;
        }
        refuse_contradiction(lists)?;
        // Wherever it stands among them: nobody can change a snapshot.
        options.read_only |= options.snapshot.is_some();
        Ok(options)
    }

    /// These, of what is mounted, with those of a remount on top; or which of them a remount cannot change. mount(8) repeats
    /// what fstab and the kernel say of the mount: what is so already may be there.
    pub(crate) fn remounted<S: AsRef<str>>(
        &self,
        directory: PathBuf,
        lists: &[S],
        sloppy: bool,
    ) -> Result<Options, String> {
        // What a word that says so leads to.
        let allow_other = Some(self.allow_other.unwrap_or(fuse::MountOptions::default().allow_other));
        let mounted = Options { directory, allow_other, ..self.clone() };
        let mut wanted = mounted.clone();
        // These are what the list says, not what they were.
        wanted.read_only = false;
        for text in texts(lists) {
            wanted.set(text, sloppy)?;
            // What is so already may be said in other words.
            if wanted.lasting() != mounted.lasting() {
                return Err(format!(
                    "mount option '{text}' cannot be had by a remount: it is mounted otherwise"
                ));
            }
        }
        refuse_contradiction(lists)?;
        wanted.read_only |= texts(lists).any(|text| text.starts_with("snapshot="));
        Ok(wanted)
    }

    /// Those that no remount changes.
    fn lasting(&self) -> Options {
        Options {
            read_only: false,
            remount: false,
            nofail: false,
            nosuid: false,
            nosymfollow: false,
            nodev: false,
            noexec: false,
            noatime: false,
            of_ext: None,
            of_native: None,
            ..self.clone()
        }
    }

    /// What they mean for a native volume.
    pub(crate) fn native(&self) -> native::MountOptions {
        native::MountOptions {
            durability: if self.dirsync { Durability::Operation } else { self.durability },
            journaling: self.journaling,
            commit_interval: self.commit_interval,
            cache_bytes: self.cache_bytes,
            read_only: self.read_only,
            ..native::MountOptions::default()
        }
    }

    /// What they mean for a native volume on such a medium that is mounted.
    ///
    /// Where a fence costs less than a message to the server, each operation is durable when it is answered, with `durability=fsync` as well:
    /// then an `fsync` of a directory needs no message. The kernel still keeps written pages back until those of files.
    pub(crate) fn mounted(&self, method: PersistMethod) -> native::MountOptions {
        let options = self.native();
        match (options.durability, method) {
            (durability, PersistMethod::Msync) | (durability @ Durability::Snapshot, _) => {
                native::MountOptions { durability, ..options }
            }
            _ => native::MountOptions { durability: Durability::Operation, ..options },
        }
    }

    /// Whether what a volume of such a kind, on such a medium, has been asked is durable when it answers.
    pub(crate) fn is_durable_at_once(&self, kind: VolumeKind, method: PersistMethod) -> bool {
        let durability = match kind {
            VolumeKind::Ext => self.durability,
            _ => self.mounted(method).durability,
        };
        durability == Durability::Operation
    }

    /// What they mean for a disk with its metadata in NVM.
    pub(crate) fn ext(&self) -> ext::Options {
        let sync = match (self.durability, self.dirsync) {
            (Durability::Operation, _) => ext::Sync::Sync,
            (_, true) => ext::Sync::Dirsync,
            (_, false) => ext::Sync::Nosync,
        };
        let default = ext::Options::default();
        ext::Options {
            cache_bytes: self.cache_bytes.unwrap_or(default.cache_bytes),
            synced_bytes: self.synced_bytes.unwrap_or(default.synced_bytes),
            clean_bytes: self.clean_bytes.unwrap_or(default.clean_bytes),
            sync,
            sync_in_nvm: !self.sync_on_disk,
            fetch: self.fetch,
            versions: !self.without_consistency,
            ..default
        }
    }

    /// Whether a disk can have them.
    ///
    /// # Errors
    /// What only a native volume has.
    pub(crate) fn check_ext(&self) -> Result<(), String> {
        let option = match (self.durability, self.of_native) {
            (Durability::Snapshot, _) => "durability=snapshot",
            (_, Some(option)) => option,
            (_, None) => return Ok(()),
        };
        Err(format!(
            "mount option '{option}': only a native volume has that, not a disk with ext2, ext3 or ext4"
        ))
    }

    /// What they mean for one that is mounted: the kernel's page cache keeps what is clean, and nothing is kept twice.
    ///
    /// # Errors
    /// As [`Options::check_ext`]; what is for benchmarks alone.
    pub(crate) fn mounted_ext(&self) -> Result<ext::Options, String> {
        self.check_ext()?;
        if self.without_consistency {
            return Err("mount option 'consistency=none': a crash would leave anything; only 'amberfs bench' takes it, for a volume \
                        in process that it makes itself"
                .to_string());
        }
        Ok(ext::Options { clean_bytes: self.clean_bytes.unwrap_or(0), ..self.ext() })
    }

    fn set(&mut self, text: &str, sloppy: bool) -> Result<(), String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        // What others put into fstab for themselves.
        if name.starts_with("x-") || name.starts_with("X-") {
            return Ok(());
        }
        let Some(option) = TABLE.iter().find(|option| option.name == name) else {
            return if sloppy { Ok(()) } else { Err(unknown(name)) };
        };
        let wrong = |what: String| format!("mount option '{text}': {what}");
        match (&option.effect, value) {
            (Effect::Accepted, _) => Ok(()),
            (Effect::Refused(_), _) if sloppy => Ok(()),
            (Effect::Refused(why), _) => Err(format!("mount option '{name}': {why}")),
            // As the kernel has it.
            (Effect::Value("1", _), None) => Ok(()),
            (Effect::Word(effect), None) => {
                effect(self);
                Ok(())
            }
            // As libmount notes who it was, and gives it back for a remount.
            (Effect::Word(effect), Some(_)) if name == "user" => {
                effect(self);
                Ok(())
            }
            (Effect::Word(_), Some(_)) => Err(format!("mount option '{name}' takes no value")),
            (
                Effect::Value(values, _) | Effect::OfExt(values, _) | Effect::OfNative(values, _),
                None | Some(""),
            ) => Err(format!("mount option '{name}' needs a value: {name}={values}")),
            (Effect::Value(_, effect), Some(value)) => effect(self, value).map_err(wrong),
            (Effect::OfExt(_, effect), Some(value)) => {
                self.of_ext = self.of_ext.or(Some(option.name));
                effect(self, value).map_err(wrong)
            }
            (Effect::OfNative(_, effect), Some(value)) => {
                self.of_native = self.of_native.or(Some(option.name));
                effect(self, value).map_err(wrong)
            }
        }
    }
}

/// Each option of the lists.
fn texts<S: AsRef<str>>(lists: &[S]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.as_ref().split(',')).map(str::trim).filter(|text| !text.is_empty())
}

/// `sync` and `nosync` are words of mount(8), of which later ones win; beside `durability=` they have to promise the same, or what was promised
/// would hang on their order.
fn refuse_contradiction<S: AsRef<str>>(lists: &[S]) -> Result<(), String> {
    let Some(durability) = texts(lists).filter(|text| text.starts_with("durability=")).last() else {
        return Ok(());
    };
    let against: &[&str] =
        if durability.ends_with("=snapshot") { &["sync", "nosync", "dirsync"] } else { &["sync", "nosync"] };
    let word = texts(lists).filter(|text| against.contains(text)).last();
    match (durability, word) {
        (_, None) | ("durability=op", Some("sync")) | ("durability=fsync", Some("nosync")) => Ok(()),
        (_, Some(word)) => {
            Err(format!("mount options '{durability}' and '{word}' contradict each other: give one of them"))
        }
    }
}

fn unknown(name: &str) -> String {
    let nearest = TABLE.iter().map(|option| (distance(name, option.name), option.name)).min();
    match nearest {
        // With a half of the letters wrong, a guess misleads.
        Some((wrong, nearest)) if wrong * 2 < nearest.len().max(3) => {
            format!("unknown mount option '{name}': did you mean '{nearest}'?")
        }
        _ => format!("unknown mount option '{name}': 'amberfs mount --help' lists those there are"),
    }
}

/// Insertions, deletions, replacements and swaps of neighbours that make one word of the other.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut rows = vec![vec![0; right.len() + 1]; left.len() + 1];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
                let mut least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                    least = least.min(rows[i - 2][j - 2] + 1);
                }
                least
            };
        }
    }
    rows[left.len()][right.len()]
}

/// The table as help shows it.
pub(crate) fn help() -> String {
    let each = documented().into_iter().map(|(option, what)| format!("  {option}\n        {what}\n"));
    format!("Mount options (-o, separated by commas):\n{}", each.collect::<String>())
}

/// What help and man page tell: each option with its values, and what it does.
pub(crate) fn documented() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for option in TABLE.iter().filter(|option| !option.help.is_empty()) {
        let (name, of) = match option.effect {
            Effect::Value(values, _) => (format!("{}={values}", option.name), ""),
            Effect::OfExt(values, _) => (format!("{}={values}", option.name), "for a volume of kind ext: "),
            Effect::OfNative(values, _) => (format!("{}={values}", option.name), "for a native volume: "),
            _ => (option.name.to_string(), ""),
        };
        all.push((name, format!("{of}{}", option.help)));
    }
    let others = [
        (
            "user, users, owner, group",
            "as in fstab: the first two are nosuid, nodev and noexec, the others nosuid and nodev, unless what follows says otherwise",
        ),
        (
            "defaults, noauto, _netdev, relatime, x-* and other options of mount(8)",
            "accepted; those that concern mount(8) and fstab alone change nothing here",
        ),
        (
            "acl, user_xattr, delalloc, nodiscard, noquota, sysvgroups",
            "accepted, as it is so anyhow; their opposites are refused",
        ),
    ];
    all.extend(others.map(|(names, what)| (names.to_string(), what.to_string())));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, String> {
        Options::parse(&[list], false)
    }

    #[test]
    fn options_are_read_in_order() {
        let options = parse("rw,nosuid,durability=op,commit=0.5,threads=4,ro,technology=pcm").unwrap();
        assert!(options.read_only && options.nosuid && !options.nodev);
        assert_eq!(options.commit_interval, Duration::from_millis(500));
        assert_eq!(options.threads, Some(4));
        assert!(matches!(options.durability, Durability::Operation));
        assert!(!parse("ro,rw").unwrap().read_only);
        assert_eq!(options.cache_bytes, None);
        for (list, bytes) in [("cache=64M", 64 << 20), ("cache=1024K", 1 << 20), ("cache=1.5G", 3 << 29)] {
            assert_eq!(parse(list).unwrap().cache_bytes, Some(bytes));
        }
        let clean = |list| {
            let options = parse(list)?;
            Ok::<_, String>((options.ext().clean_bytes, options.mounted_ext()?.clean_bytes))
        };
        assert_eq!(clean(""), Ok((256 << 20, 0)), "the kernel's page cache is above a mount");
        assert_eq!(clean("clean=8M"), Ok((8 << 20, 8 << 20)));
        assert!(clean("consistency=versions").is_ok() && !parse("consistency=none").unwrap().ext().versions);
        assert!(clean("consistency=none").unwrap_err().contains("a crash would leave anything"));
        let keep = parse("keep=hourly=24:daily=7,commit=1,keep_unchanged").unwrap();
        assert_eq!(keep.keep.unwrap().to_string(), "hourly=24,daily=7");
        assert!(keep.keep_unchanged);
        assert!(parse("snapshot=monday,rw").unwrap().read_only, "nobody can change a snapshot");
        let remounted = parse("ro,user=alice").unwrap();
        assert!(remounted.nosuid && remounted.nodev && remounted.noexec, "as libmount notes who mounted it");
        assert!(parse("nosuid=1").is_err());
        assert!(
            parse("nosymfollow").unwrap().nosymfollow && !parse("nosymfollow,symfollow").unwrap().nosymfollow
        );
    }

    #[test]
    fn what_fstab_may_carry_is_accepted() {
        let list =
            "defaults,noauto,nofail,_netdev,x-systemd.automount,X-mount.mkdir,comment=mine,relatime,lazytime";
        assert!(parse(list).is_ok());
        let options = parse("user,exec").unwrap();
        assert!(
            options.nosuid && options.nodev && !options.noexec,
            "later options win over what user implies"
        );
    }

    /// What people have in the line of the disk that they attach now.
    #[test]
    fn options_of_the_kernels_ext4_are_accepted_or_told_why_not() {
        assert_eq!(parse("noatime,data=ordered,acl").unwrap().of_ext, Some("data"));
        assert_eq!(parse("noatime,acl,commit=3").unwrap().of_ext, None);
        let remounted = |list| parse("").unwrap().remounted(PathBuf::new(), &[list], false);
        assert!(remounted("remount,journal=adaptive").is_ok() && remounted("remount,journal=diff").is_err());
        assert!(remounted("remount,data=ordered").is_ok() && remounted("remount,synced=1M").is_err());
        for list in ["journal=diff", "durability=snapshot"] {
            let told = parse(list).unwrap().mounted_ext().unwrap_err();
            assert!(told.contains("only a native volume"), "{list}: {told}");
        }
        for list in [
            "defaults,noatime,user_xattr,acl,barrier=1,nofail,_netdev,x-systemd.device-timeout=5",
            "rw,relatime,lazytime,barrier,delalloc,nodiscard,errors=continue,commit=30,data=ordered",
        ] {
            parse(list).unwrap();
        }
        for (list, instead) in [
            ("data=journal", "Synced bytes of files go to NVM first"),
            ("data=writeback", "before the metadata that leads to them: data=ordered"),
            ("data=", "data=ordered"),
            ("errors=remount-ro", "changes nothing and fails with EUCLEAN"),
            ("barrier=0", "flushed"),
            ("nobarrier", "flushed"),
            ("discard", "fstrim"),
            ("noacl", "always"),
            ("nouser_xattr", "always"),
            ("usrquota", "no quotas"),
            ("grpid", "group"),
            ("noload", "replayed, in memory"),
            ("norecovery", "replayed, in memory"),
            ("journal_checksum", "no journal"),
        ] {
            let told = parse(list).unwrap_err();
            assert!(told.starts_with("mount option '") && told.contains(instead), "{list}: {told}");
        }
        assert!(Options::parse(&["discard,ro"], true).unwrap().read_only, "sloppy skips it");
        assert!(Options::parse(&["data=journal"], true).is_err(), "and nothing that promises more");
    }

    /// What was promised hung on their order, and nobody was told.
    #[test]
    fn options_that_promise_different_things_are_refused() {
        for list in [
            "durability=op,nosync",
            "nosync,durability=op",
            "sync,durability=fsync",
            "durability=snapshot,dirsync",
        ] {
            assert!(parse(list).unwrap_err().contains("contradict each other"), "{list}");
        }
        for list in [
            "sync,nosync",
            "durability=op,sync",
            "durability=fsync,dirsync",
            "durability=fsync,nosync",
            "sync,dirsync",
        ] {
            parse(list).unwrap();
        }
    }

    #[test]
    fn an_unknown_option_is_named_with_its_neighbour() {
        assert_eq!(
            parse("durabilty=op").unwrap_err(),
            "unknown mount option 'durabilty': did you mean 'durability'?"
        );
        assert_eq!(
            parse("raed").unwrap_err(),
            "unknown mount option 'raed': 'amberfs mount --help' lists those there are"
        );
        assert_eq!(
            parse("thraeds=2").unwrap_err(),
            "unknown mount option 'thraeds': did you mean 'threads'?"
        );
        assert_eq!(parse("cahce=64M").unwrap_err(), "unknown mount option 'cahce': did you mean 'cache'?");
        assert!(Options::parse(&["nonsense,ro"], true).unwrap().read_only, "sloppy skips it");
    }

    #[test]
    fn a_wrong_value_is_explained() {
        for list in [
            "threads=0",
            "threads",
            "threads=",
            "commit=never",
            "commit=0",
            "cache=",
            "cache=lots",
            "cache=64X",
            "cache=1023K",
            "durability=maybe",
            "keep=hourly",
            "keep=never=1",
            "ro=1",
            "transport=pigeon",
        ] {
            let message = parse(list).unwrap_err();
            assert!(message.contains(list.split('=').next().unwrap()), "{message}");
        }
    }
}
