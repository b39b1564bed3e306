//! Mount options: one table that parses, helps and suggests.

use std::path::PathBuf;
use std::time::Duration;

use fuse::Transport;
use native::{Durability, Journaling};
use nvm::{PersistMethod, Technology, VolumeKind};

use crate::retention::Policy;
use crate::size;

/// How a volume is to be mounted.
#[derive(Clone, Debug)]
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
    /// None leaves it to who mounts: root does, others as /etc/fuse.conf allows.
    pub(crate) allow_other: Option<bool>,
    pub(crate) threads: Option<usize>,
    pub(crate) transport: Transport,
    /// Show when inodes were created.
    pub(crate) birth_times: bool,
    pub(crate) technology: Technology,
    pub(crate) persist: Option<PersistMethod>,
    pub(crate) nosuid: bool,
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
            disk: None,
            snapshot: None,
            keep: None,
            keep_unchanged: false,
            remount: false,
            allow_other: None,
            threads: None,
            transport: Transport::default(),
            birth_times: false,
            technology: Technology::Dram,
            persist: None,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            log: None,
        }
    }
}

/// What an option does with its value (which is empty for a word).
enum Effect {
    /// A word: `ro`.
    Word(fn(&mut Options)),
    /// A name and a value: `threads=N`. The text says what a value is.
    Value(&'static str, fn(&mut Options, &str) -> Result<(), String>),
    /// Meant for mount(8), systemd or fstab; nothing to do here.
    Accepted,
}

struct MountOption {
    name: &'static str,
    effect: Effect,
    help: &'static str,
}

const fn word(name: &'static str, help: &'static str, effect: fn(&mut Options)) -> MountOption {
    MountOption { name, effect: Effect::Word(effect), help }
}

const fn accepted(name: &'static str) -> MountOption {
    MountOption { name, effect: Effect::Accepted, help: "" }
}

/// A parsed value, or what its type says is wrong with it.
fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

const TABLE: &[MountOption] = &[
    MountOption {
        name: "durability",
        help: "what survives a crash: each operation when it returns (op), what was fsynced (fsync, the default), \
               or the last checkpoint (snapshot)",
        effect: Effect::Value("op|fsync|snapshot", |options, value| {
            options.durability = parsed(value)?;
            Ok(())
        }),
    },
    MountOption {
        name: "journal",
        help: "how bytes are logged: small changes as such and large ones as blocks that stay where they are (adaptive, \
               the default); or, to compare, as blocks (block) or changes (diff) that are written twice, or always as \
               blocks that stay (block-switch)",
        effect: Effect::Value("adaptive|block|diff|block-switch", |options, value| {
            options.journaling = parsed(value)?;
            Ok(())
        }),
    },
    MountOption {
        name: "commit",
        help: "seconds between checkpoints (5)",
        effect: Effect::Value("SECONDS", |options, value| {
            let seconds: f64 = value.parse().map_err(|_| "a number of seconds belongs there".to_string())?;
            if !(0.01..=3600.0).contains(&seconds) {
                return Err("choose from 0.01 to 3600 seconds".to_string());
            }
            options.commit_interval = Duration::from_secs_f64(seconds);
            Ok(())
        }),
    },
    MountOption {
        name: "cache",
        help: "DRAM that caches of the volume may take, 1M at least; without it, what they need: 16 bytes for each node \
               (1.1 for a small file, 8 KiB for a GiB of a large one) and 200 for each 2 MiB that is written to. \
               'amberfs stats' tells what they take",
        effect: Effect::Value("SIZE", |options, value| {
            let bytes = size::parse(value)?;
            if bytes < native::MountOptions::CACHE_MIN {
                return Err("choose 1M or more".to_string());
            }
            options.cache_bytes = Some(bytes);
            Ok(())
        }),
    },
    MountOption {
        name: "threads",
        help: "server threads where requests come through /dev/fuse (one a processor, at most 4)",
        effect: Effect::Value("N", |options, value| match value.parse() {
            Ok(threads @ 1..=256) => {
                options.threads = Some(threads);
                Ok(())
            }
            _ => Err("choose from 1 to 256 threads".to_string()),
        }),
    },
    MountOption {
        name: "transport",
        help: "how requests come from the kernel: through io_uring, which takes about half the time, if the kernel offers \
               it (auto, the default); not otherwise (io_uring); or through /dev/fuse (device). Linux 6.14 and later offer it \
               once 'Y' has been written to /sys/module/fuse/parameters/enable_uring",
        effect: Effect::Value("auto|io_uring|device", |options, value| {
            options.transport = match value {
                "auto" => Transport::Automatic,
                "io_uring" => Transport::Ring,
                "device" => Transport::Device,
                _ => return Err("choose auto, io_uring or device".to_string()),
            };
            Ok(())
        }),
    },
    word(
        "btime",
        "show when files were created, at the price of a request for each file that a program asks it of, as those written \
         in Rust do whenever they look at a file",
        |options| options.birth_times = true,
    ),
    word("sync", "every operation is durable when it returns: durability=op", |options| {
        options.durability = Durability::Operation;
    }),
    word("dirsync", "operations on names are durable when they return", |options| options.dirsync = true),
    word("nosync", "what was fsynced is durable (the default): durability=fsync", |options| {
        (options.durability, options.dirsync) = (Durability::Fsync, false);
    }),
    MountOption {
        name: "sync_writes",
        help: "for a volume of kind ext: where bytes of files are when fsync returns: in NVM, from where they go to the disk \
               later (nvm, the default), or on the disk (disk)",
        effect: Effect::Value("nvm|disk", |options, value| {
            options.sync_on_disk = match value {
                "nvm" => false,
                "disk" => true,
                _ => return Err("choose nvm or disk".to_string()),
            };
            Ok(())
        }),
    },
    MountOption {
        name: "fetch",
        help: "for a volume of kind ext: when group descriptors, bitmaps and inodes come to NVM: block by block, each when it is \
               first needed (touch, the default), or all of them as far as they fit, in large requests, before the mount \
               returns (eager)",
        effect: Effect::Value("eager|touch", |options, value| {
            options.fetch = match value {
                "eager" => ext::Fetch::Eager,
                "touch" => ext::Fetch::Touch,
                _ => return Err("choose eager or touch".to_string()),
            };
            Ok(())
        }),
    },
    MountOption {
        name: "synced",
        help: "for a volume of kind ext: DRAM that blocks of files may take which were synced to NVM and are not on the disk \
               yet, 1M at least (64M): who syncs more waits for the disk",
        effect: Effect::Value("SIZE", |options, value| {
            let bytes = size::parse(value)?;
            if bytes < 1 << 20 {
                return Err("choose 1M or more".to_string());
            }
            options.synced_bytes = Some(bytes);
            Ok(())
        }),
    },
    MountOption {
        name: "disk",
        help: "for a volume of kind ext: where its disk is, if it is no longer where it was attached",
        effect: Effect::Value("DISK", |options, value| {
            let source: disk::Source = parsed(value)?;
            let source = source.seen_from(&options.directory).map_err(|error| error.to_string())?;
            options.disk = Some(source.to_string());
            Ok(())
        }),
    },
    MountOption {
        name: "snapshot",
        help: "show the snapshot of this name alone, read-only, and change nothing in NVM, whatever the volume needs",
        effect: Effect::Value("NAME", |options, value| {
            options.snapshot = Some(value.to_string());
            Ok(())
        }),
    },
    MountOption {
        name: "keep",
        help: "take snapshots at the beginning of each period of UTC in which something has changed, and keep the first of \
               so many periods: hourly, daily, weekly, monthly, yearly, or less than a day such as 15min or 6h, as \
               keep=hourly=24:daily=7. Others than those taken so are left alone, and so are those that somebody holds",
        effect: Effect::Value("PERIOD=N[:PERIOD=N...]", |options, value| {
            options.keep = Some(parsed(value)?);
            Ok(())
        }),
    },
    word(
        "keep_unchanged",
        "with keep: take snapshots also when nothing has changed since the last one",
        |options| {
            options.keep_unchanged = true;
        },
    ),
    MountOption {
        name: "technology",
        help: "emulate a memory's latencies: dram (none, the default), stt-mram, pcm, memristor, optane, cxl",
        effect: Effect::Value("NAME", |options, value| {
            options.technology = parsed(value)?;
            Ok(())
        }),
    },
    MountOption {
        name: "persist",
        help: "how lines leave the caches, instead of the best way found: clwb, clflushopt, clflush, msync",
        effect: Effect::Value("METHOD", |options, value| {
            options.persist = if value == "auto" { None } else { Some(parsed(value)?) };
            Ok(())
        }),
    },
    MountOption {
        name: "log",
        help: "where the server writes what it has to say (without --foreground it says nothing otherwise)",
        effect: Effect::Value("FILE", |options, value| {
            let path = std::path::absolute(options.directory.join(value));
            options.log = Some(path.map_err(|error| error.to_string())?);
            Ok(())
        }),
    },
    word("ro", "no changes", |options| options.read_only = true),
    word("rw", "changes (the default)", |options| options.read_only = false),
    word(
        "remount",
        "change ro, rw, nosuid, nodev, noexec and noatime of what is mounted (only root may)",
        |options| {
            options.remount = true;
        },
    ),
    word("allow_other", "other users may use the mount (the default for root)", |options| {
        options.allow_other = Some(true);
    }),
    word("noallow_other", "only who mounts may use the mount", |options| options.allow_other = Some(false)),
    word("nosuid", "ignore set-user-ID and set-group-ID bits", |options| options.nosuid = true),
    word("suid", "", |options| options.nosuid = false),
    word("nodev", "device nodes cannot be opened", |options| options.nodev = true),
    word("dev", "", |options| options.nodev = false),
    word("noexec", "programs cannot be run", |options| options.noexec = true),
    word("exec", "", |options| options.noexec = false),
    word(
        "noatime",
        "show noatime (access times are not kept by the kernel on a FUSE mount in any case)",
        |options| {
            options.noatime = true;
        },
    ),
    word("atime", "", |options| options.noatime = false),
    // An entry of fstab that ordinary users may mount implies these (mount(8)).
    word("user", "", untrusted),
    word("users", "", untrusted),
    word("owner", "", |options| (options.nosuid, options.nodev) = (true, true)),
    word("group", "", |options| (options.nosuid, options.nodev) = (true, true)),
    accepted("defaults"),
    accepted("auto"),
    accepted("noauto"),
    accepted("nouser"),
    accepted("nofail"),
    accepted("_netdev"),
    accepted("relatime"),
    accepted("norelatime"),
    accepted("strictatime"),
    accepted("nostrictatime"),
    accepted("diratime"),
    accepted("nodiratime"),
    accepted("lazytime"),
    accepted("nolazytime"),
    accepted("async"),
    accepted("silent"),
    accepted("loud"),
    accepted("comment"),
    // What the kernel shows of a mount, which mount(8) repeats for a remount.
    accepted("user_id"),
    accepted("group_id"),
    accepted("default_permissions"),
    accepted("max_read"),
];

fn untrusted(options: &mut Options) {
    (options.nosuid, options.nodev, options.noexec) = (true, true, true);
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
        let texts = lists.iter().flat_map(|list| list.as_ref().split(',')).map(str::trim);
        for text in texts.filter(|text| !text.is_empty()) {
            options.set(text, sloppy)?;
        }
        // Wherever it stands among them: nobody can change a snapshot.
        options.read_only |= options.snapshot.is_some();
        Ok(options)
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
    /// then an `fsync` needs no message of its own. The kernel still keeps written pages back until then.
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
            sync,
            sync_in_nvm: !self.sync_on_disk,
            fetch: self.fetch,
            ..default
        }
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
        match (&option.effect, value) {
            (Effect::Accepted, _) => Ok(()),
            (Effect::Word(effect), None) => {
                effect(self);
                Ok(())
            }
            (Effect::Word(_), Some(_)) => Err(format!("mount option '{name}' takes no value")),
            (Effect::Value(values, _), None | Some("")) => {
                Err(format!("mount option '{name}' needs a value: {name}={values}"))
            }
            (Effect::Value(_, effect), Some(value)) => {
                effect(self, value).map_err(|wrong| format!("mount option '{text}': {wrong}"))
            }
        }
    }
}

fn unknown(name: &str) -> String {
    let nearest = TABLE.iter().map(|option| (distance(name, option.name), option.name)).min();
    match nearest {
        // Beyond a half of the letters wrong, a guess misleads.
        Some((wrong, nearest)) if wrong * 2 <= nearest.len().max(2) => {
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

/// The table as help and man page show it.
pub(crate) fn help() -> String {
    let mut text = String::from("Mount options (-o, separated by commas):\n");
    for option in TABLE.iter().filter(|option| !option.help.is_empty()) {
        let name = match option.effect {
            Effect::Value(values, _) => format!("{}={values}", option.name),
            _ => option.name.to_string(),
        };
        text.push_str(&format!("  {name}\n        {}\n", option.help));
    }
    text.push_str(
        "  defaults, noauto, nofail, user, _netdev, relatime, x-* and other options of mount(8)\n        \
         accepted; those that concern mount(8) and fstab alone change nothing here\n",
    );
    text
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
        let keep = parse("keep=hourly=24:daily=7,commit=1,keep_unchanged").unwrap();
        assert_eq!(keep.keep.unwrap().to_string(), "hourly=24,daily=7");
        assert!(keep.keep_unchanged);
        assert!(parse("snapshot=monday,rw").unwrap().read_only, "nobody can change a snapshot");
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
