//! The table of mount options.

use super::{Durability, Options, Transport};
use crate::size;
use std::time::Duration;

/// What an option does with its value (which is empty for a word).
pub(super) enum Effect {
    /// A word: `ro`.
    Word(fn(&mut Options)),
    /// A name and a value: `threads=N`. The text says what a value is.
    Value(&'static str, fn(&mut Options, &str) -> Result<(), String>),
    /// The same, and only a volume of kind ext has it.
    OfExt(&'static str, fn(&mut Options, &str) -> Result<(), String>),
    /// The same, and only a native volume has it.
    OfNative(&'static str, fn(&mut Options, &str) -> Result<(), String>),
    /// Meant for mount(8), systemd or fstab, or what is done anyhow; nothing to do here.
    Accepted,
    /// Of the kernel's ext4, and not done here: what is, or what to do instead.
    Refused(&'static str),
}

pub(super) struct MountOption {
    pub(super) name: &'static str,
    pub(super) effect: Effect,
    pub(super) help: &'static str,
}

const fn word(name: &'static str, help: &'static str, effect: fn(&mut Options)) -> MountOption {
    MountOption { name, effect: Effect::Word(effect), help }
}

const fn accepted(name: &'static str) -> MountOption {
    MountOption { name, effect: Effect::Accepted, help: "" }
}

const fn refused(name: &'static str, why: &'static str) -> MountOption {
    MountOption { name, effect: Effect::Refused(why), help: "" }
}

/// A parsed value, or what its type says is wrong with it.
fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

pub(super) const TABLE: &[MountOption] = &[
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
        effect: Effect::OfNative("adaptive|block|diff|block-switch", |options, value| {
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
        help: "server threads where requests come through /dev/fuse (one a processor, but 2 to 4); with one alone, who finds no space waits for nothing that is about to be free",
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
        help: "how requests come from the kernel: through io_uring where the kernel offers that, else through /dev/fuse (auto, the default); \
               through io_uring, and where the kernel does not offer it the mount fails (io_uring); always through /dev/fuse (device). io_uring \
               takes a half to a third of the time. Linux 6.14 and later offer it once root has written 'Y' to \
               /sys/module/fuse/parameters/enable_uring; 'amberfs stats' tells which it is",
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
    word(
        "async_dio",
        "direct I/O that programs don't wait for (O_DIRECT with libaio or io_uring) goes on side by side, up to twice as fast. Only where \
         nobody reads the same files in the usual way: behind such a write the kernel keeps what was read while it was under way, older \
         than the file",
        |options| options.async_direct_io = true,
    ),
    word(
        "checked_close",
        "close says what of a file did not fit on a full volume, also to a program that was told before and went on, when it set the file's \
         times, owner or mode ('mv' between file systems, 'install -p', 'gzip', 'xz', which then remove their source). At the price of a \
         request for each close; with durability=op there is no need of it",
        |options| options.checked_close = true,
    ),
    word(
        "nfs_export",
        "files can be opened by handle (open_by_handle_at(2)), as NFS servers do. With overlays, containers' for instance, whose lower layer \
         is in the mount, it does not go together: what was changed in them becomes a stale file handle when the kernel needs memory \
         (seen with Linux 6.18)",
        |options| options.opens_by_handle = true,
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
        help: "where bytes of files are when fsync returns: in NVM, from where they go to the disk \
               later (nvm, the default), or on the disk (disk)",
        effect: Effect::OfExt("nvm|disk", |options, value| {
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
        help: "when group descriptors, bitmaps and inodes come to NVM: block by block, each when it is \
               first needed (touch, the default), or all of them as far as they fit, in large requests, before the mount \
               returns (eager)",
        effect: Effect::OfExt("eager|touch", |options, value| {
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
        help: "DRAM that blocks of files may take which were synced to NVM and are not on the disk \
               yet, 1M at least (64M): who syncs more waits for the disk; a quarter of that stays for later ones",
        effect: Effect::OfExt("SIZE", |options, value| {
            let bytes = size::parse(value)?;
            if bytes < 1 << 20 {
                return Err("choose 1M or more".to_string());
            }
            options.synced_bytes = Some(bytes);
            Ok(())
        }),
    },
    MountOption {
        name: "clean",
        help: "DRAM for blocks of files as the disk has them (0: the kernel's page cache keeps them; in \
               process, where there is none, 256M)",
        effect: Effect::OfExt("SIZE", |options, value| {
            options.clean_bytes = Some(size::parse(value)?);
            Ok(())
        }),
    },
    MountOption {
        name: "consistency",
        help: "metadata has versions until it is committed: always so on a mount, which refuses anything else (versions). 'amberfs bench' takes \
               consistency=none, UNSAFE, for a volume in process that it makes itself, to measure what versions cost: without them a crash leaves \
               anything",
        effect: Effect::OfExt("versions|none", |options, value| {
            options.without_consistency = match value {
                "versions" => false,
                "none" => true,
                _ => return Err("choose versions".to_string()),
            };
            Ok(())
        }),
    },
    MountOption {
        name: "data",
        help: "bytes of files are on the disk, or in NVM, before the metadata that leads to them, as always \
               here (ordered)",
        effect: Effect::OfExt("ordered", |_, value| {
            match value {
            "ordered" => Ok(()),
            "journal" => Err("there is no journal on the disk. Synced bytes of files go to NVM first, and all others to the disk \
                              before the metadata that leads to them: data=ordered"
                .to_string()),
            "writeback" => Err("bytes of files are always on the disk, or in NVM, before the metadata that leads to them: \
                                data=ordered"
                .to_string()),
            _ => Err("choose ordered".to_string()),
        }
        }),
    },
    MountOption {
        name: "errors",
        help: "for a volume of kind ext: an operation that meets damaged metadata changes nothing and fails with EUCLEAN, and others \
               go on, as always here (continue)",
        effect: Effect::Value("continue", |_, value| match value {
            "continue" => Ok(()),
            "remount-ro" | "panic" => {
                Err("an operation that meets damaged metadata changes nothing and fails with EUCLEAN, and \
                                           others go on: errors=continue"
                    .to_string())
            }
            _ => Err("choose continue".to_string()),
        }),
    },
    MountOption {
        name: "barrier",
        help: "caches on the way to NVM and disk are flushed, as always here (1)",
        effect: Effect::Value("1", |_, value| match value {
            "1" => Ok(()),
            "0" => Err("what is durable has been flushed through all caches, always".to_string()),
            _ => Err("choose 1".to_string()),
        }),
    },
    MountOption {
        name: "disk",
        help: "where its disk is, if it is no longer where it was: from then on it is looked for there",
        effect: Effect::OfExt("DISK", |options, value| {
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
        help: "where the server writes what it has to say (without --foreground it says nothing otherwise); one server has all \
               mounted volumes of a zone, and the log of the first; a FIFO needs a reader, and what that does not read is lost",
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
        "change ro, rw, nosuid, nosymfollow, nodev, noexec and noatime of what is mounted (only root may); others may be repeated, and are \
         refused if it is mounted otherwise",
        |options| {
            options.remount = true;
        },
    ),
    word(
        "nofail",
        "that there is no such zone or disk is no failure, nor that a volume's disk is not where it was: nothing is mounted \
         then, and the exit code is 0",
        |options| {
            options.nofail = true;
        },
    ),
    word("allow_other", "other users may use the mount (the default for root)", |options| {
        options.allow_other = Some(true);
    }),
    word("noallow_other", "only who mounts may use the mount", |options| options.allow_other = Some(false)),
    word("nosuid", "ignore set-user-ID and set-group-ID bits", |options| options.nosuid = true),
    word("suid", "", |options| options.nosuid = false),
    word("nosymfollow", "symbolic links lead nowhere", |options| options.nosymfollow = true),
    word("symfollow", "", |options| options.nosymfollow = false),
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
    accepted("_netdev"),
    accepted("relatime"),
    accepted("norelatime"),
    accepted("strictatime"),
    accepted("nostrictatime"),
    accepted("diratime"),
    accepted("nodiratime"),
    accepted("mand"),
    accepted("nomand"),
    accepted("lazytime"),
    accepted("nolazytime"),
    accepted("async"),
    accepted("silent"),
    accepted("loud"),
    accepted("comment"),
    accepted("iversion"),
    accepted("noiversion"),
    // Of the kernel's ext4: what is so here, too, and what is not.
    accepted("user_xattr"),
    refused("nouser_xattr", "files have extended attributes, always"),
    accepted("acl"),
    refused("noacl", "ACLs are heeded, always"),
    refused("nobarrier", "what is durable has been flushed through all caches, always"),
    accepted("delalloc"),
    refused("nodelalloc", "blocks are chosen when bytes go to the disk, always"),
    accepted("nodiscard"),
    refused(
        "discard",
        "freed blocks are not discarded; of a detached disk, mounted by the kernel, fstrim(8) discards them",
    ),
    refused("noload", JOURNAL),
    refused("norecovery", JOURNAL),
    refused("journal_checksum", LOG),
    refused("journal_async_commit", LOG),
    accepted("noquota"),
    refused("quota", QUOTA),
    refused("usrquota", QUOTA),
    refused("grpquota", QUOTA),
    refused("prjquota", QUOTA),
    accepted("sysvgroups"),
    accepted("nogrpid"),
    refused("bsdgroups", GROUPS),
    refused("grpid", GROUPS),
    // What the kernel shows of a mount, which mount(8) repeats for a remount.
    accepted("user_id"),
    accepted("group_id"),
    accepted("default_permissions"),
    accepted("max_read"),
];

const JOURNAL: &str = "a journal that has to be replayed is replayed, in memory, and a disk that is mounted read-only is not written to";
const LOG: &str = "there is no journal on an attached disk, and what its log in NVM has is always checked";
const QUOTA: &str = "no quotas are kept";
const GROUPS: &str = "a new file has the group of who makes it, or of a set-group-ID directory";

fn untrusted(options: &mut Options) {
    (options.nosuid, options.nodev, options.noexec) = (true, true, true);
}
