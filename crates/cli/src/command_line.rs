//! The one table of commands: it parses, helps, completes and makes the man pages.

mod snapshot;

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use nvm::VolumeKind;

pub(crate) use self::snapshot::{SnapshotCommand, SnapshotDiff, SnapshotNamed};
use crate::place::{MountSource, Place, VolumePlace};
use crate::{options, size};

/// Of commands that have no others.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 it was done, 1 it failed, 2 usage.";
const EXIT_CODES_OF_MOUNT: &str = "Exit codes: 0 it is mounted, or what was to be mounted is not there and 'nofail' was given, 1 usage, 2 a system error, 8 interrupted, 32 the \
                                   mount failed.";

/// File systems in byte-addressable non-volatile memory.
///
/// A zone is one piece of NVM: a DAX device, a file on a DAX file system, a file in tmpfs, or a plain file. It
/// holds volumes, each a file system: ZONE:VOLUME names one.
#[derive(Parser, Debug)]
#[command(
    name = "amberfs",
    version,
    max_term_width = 110,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make, list, show and change zones
    #[command(subcommand)]
    Zone(ZoneCommand),
    /// Make a file system on a volume; makes the volume, too
    #[command(after_help = "'mkfs -t amberfs' runs it as mkfs.amberfs.\n\n\
                      Exit codes: 0 it was made, 1 it could not be, and as mkfs.amberfs usage, too, 2 usage.")]
    Mkfs(Mkfs),
    /// Give an ext2, ext3 or ext4 disk its metadata in NVM: from now on a volume is mounted in its place
    #[command(
        after_help = "While it is attached, the disk carries a mark that keeps the kernel and e2fsck from using it: its newest metadata \
                      is in NVM, and so are synced writes that are not on the disk yet. 'amberfs detach' brings all of it to the disk."
    )]
    Attach(Attach),
    /// Make an attached disk a plain ext disk again
    Detach(Detach),
    /// Mount a volume on a directory, or a disk to be read
    #[command(after_help = EXIT_CODES_OF_MOUNT, after_long_help = format!("{}\n{EXIT_CODES_OF_MOUNT}", options::help()))]
    Mount(Mount),
    /// Unmount, and wait until the volume is closed
    #[command(
        after_help = "Exit codes: 0 it is unmounted, 1 usage, 2 it is, but what came behind that failed: closing the volume, or detaching its disk; 32 it is not \
                      unmounted."
    )]
    Umount(Umount),
    /// Check a volume, and repair it where asked
    #[command(
        after_help = "Without -p or -y nothing is changed. -p (-a, as at boot) replays the log, if all of it can be replayed, and writes anew what is \
                      there twice (superblock, root slot, the zone's entrance) or follows from the files (which blocks are in use, and whose \
                      they are). -y also drops what of the log cannot be replayed, and makes the list of snapshots and that of files without a \
                      name anew. Of an attached disk -y gives up what of the log is damaged, and e2fsck mends the rest when it is detached. \
                      What is repaired with loss says so.\n\n\
                      Exit codes, as fsck(8) has them: 0 no errors, 1 errors corrected, 4 errors left, 8 could not check, 16 usage; 5 is 1 and 4."
    )]
    Fsck(Fsck),
    /// Tell what a zone, a volume or an ext disk is
    Info(Info),
    /// Tell how much space is used, and what snapshots have alone and share
    Df(Df),
    /// Print a structure of a volume that is not mounted, or of a zone, as it is in NVM
    Dump(Dump),
    /// Tell what a mounted volume has done: bytes, lines, fences, operations
    Stats(Stats),
    /// Take, list, show, keep and remove snapshots of a volume, or return to one
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Cut the power of a volume in memory at every moment of a workload, and see whether it keeps its promises
    #[command(
        after_help = "Exit codes: 0 every promise was kept, 1 one was broken or a workload failed, 2 usage, 130 interrupted, and none broken until then."
    )]
    Crash(Crash),
    /// Measure a file system beside others: directories of mounted ones, volumes in this process, and peers that it sets up
    #[command(
        after_help = "What it makes is gone when it ends, however it ends but by SIGKILL: what that leaves (mounts, loop devices, servers of Amberfs) is in \
        directories named amberfs-bench-*, in $TMPDIR (/tmp), or /dev/shm without root, and in that of --disk: unmount, detach, and remove them.\n\n\
                      Exit codes: 0 it was measured, 1 it could not be, 2 usage, 130 interrupted."
    )]
    Bench(Bench),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Write the man pages to a directory
    Man(Man),
}

#[derive(Subcommand, Debug)]
pub(crate) enum ZoneCommand {
    /// Make a zone of a file or a device
    Create(ZoneCreate),
    /// List zones and their volumes
    List(ZoneList),
    /// Tell what a zone really is: on what, persisted how, holding which volumes
    #[command(
        after_help = "An unfinished volume is being made, or that was cut off: then the next command that opens the zone for writing removes it."
    )]
    Show(ZoneShow),
    /// Make a zone larger, also while its volumes are mounted
    Grow(ZoneGrow),
    /// Remove a volume and everything in it
    RemoveVolume(RemoveVolume),
}

#[derive(Args, Debug)]
pub(crate) struct ZoneCreate {
    /// File (made if it is not there) or DAX device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: PathBuf,
    /// Bytes, or with K, M, G, T; without it, all that is there
    #[arg(long, value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Overwrite what is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ZoneList {
    /// Zones, or directories to look in; without them, DAX devices and zones being served by this user (as root: by anybody)
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ZoneShow {
    /// The zone
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ZoneGrow {
    /// The zone
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: PathBuf,
    /// Its new size in bytes, or with K, M, G, T; without it, all that is there
    #[arg(long, value_parser = some_bytes)]
    pub(crate) size: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct RemoveVolume {
    /// The zone and the volume's name
    #[arg(value_name = "ZONE:VOLUME")]
    pub(crate) place: Place,
    /// The volume's name, if it does not stand behind the zone
    pub(crate) name: Option<String>,
    /// Needed if there is a file system on it
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Mkfs {
    /// The zone and the volume's name
    #[arg(value_name = "ZONE:VOLUME")]
    pub(crate) place: VolumePlace,
    /// What kind of file system: native; 'amberfs attach' makes one of kind ext, flash is not there yet
    #[arg(long, default_value = "native")]
    pub(crate) kind: VolumeKind,
    /// The volume's bytes, or with K, M, G, T; without it, the largest free piece of the zone
    #[arg(long, value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// A name for people
    #[arg(long, short = 'L', default_value = "")]
    pub(crate) label: String,
    /// Overwrite the file system that is there
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Say nothing of what was made
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Mount {
    /// The zone and the volume's name; or, with -o ro, a disk with ext2, ext3 or ext4 by itself: an image, a block device, an NBD URI
    #[arg(value_name = "ZONE:VOLUME|DISK")]
    pub(crate) source: MountSource,
    /// Where
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Mount options, separated by commas: see the list of them
    #[arg(short = 'o', long = "options")]
    pub(crate) options: Vec<String>,
    /// Serve in this process instead of in the background
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Skip mount options that are not known
    #[arg(short = 's', long)]
    pub(crate) sloppy: bool,
    /// Do all but mount
    #[arg(long)]
    pub(crate) fake: bool,
    /// Tell what recovery did
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// In a server started in the background: report on standard output, then leave the caller's terminal
    #[arg(long, hide = true)]
    pub(crate) report: bool,
    /// Mount in another mount namespace: a process's number, or a file that stands for the namespace; paths are those there
    #[arg(short = 'N', long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Attach {
    /// The zone and the name of a volume, which is made if it is not there
    #[arg(value_name = "ZONE:VOLUME", required_unless_present = "force_from_disk")]
    pub(crate) place: Option<VolumePlace>,
    /// A disk with ext2, ext3 or ext4: an image, a block device, an NBD URI
    #[arg(value_name = "DISK", required_unless_present = "force_from_disk", value_hint = ValueHint::AnyPath)]
    pub(crate) disk: Option<String>,
    /// Bytes of NVM for a new volume, or with K, M, G, T; without it, all that the zone has left
    #[arg(long, value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Instead: make a disk usable without its NVM, which is lost with all that only it had
    #[arg(long, value_name = "DISK", conflicts_with_all = ["place", "disk", "size"])]
    pub(crate) force_from_disk: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Detach {
    /// The zone and the volume's name
    #[arg(value_name = "ZONE:VOLUME")]
    pub(crate) place: VolumePlace,
    /// Where the disk is now, if it is no longer where it was
    #[arg(long, value_hint = ValueHint::AnyPath)]
    pub(crate) disk: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Umount {
    /// Where it is mounted, or ZONE:VOLUME
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Take it out of the tree at once; it ends when the last file is closed
    #[arg(long, short)]
    pub(crate) lazy: bool,
    /// Say nothing of where, and until when, it stays in service
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Then make its disk a plain ext disk again, as 'amberfs detach' does
    #[arg(long, conflicts_with_all = ["lazy", "namespace"])]
    pub(crate) detach: bool,
    /// Unmount in another mount namespace: a process's number, or a file that stands for the namespace; the path is there
    #[arg(short = 'N', long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Fsck {
    /// The zone and the volume's name
    #[arg(value_name = "ZONE:VOLUME")]
    pub(crate) place: VolumePlace,
    /// Repair what can be repaired, and give up what is damaged where the rest can be used without it
    #[arg(long, short = 'y', conflicts_with_all = ["no", "preen"], overrides_with = "repair")]
    pub(crate) repair: bool,
    /// Repair only that by which nothing is lost; if anything else is wrong, change nothing, and exit with 4
    #[arg(long, short = 'p', visible_short_alias = 'a', conflicts_with = "no", overrides_with = "preen")]
    pub(crate) preen: bool,
    /// Change nothing (the default)
    #[arg(short = 'n')]
    pub(crate) no: bool,
    /// Check even if it was unmounted cleanly (it always is)
    #[arg(short = 'f', hide = true)]
    pub(crate) force: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Info {
    /// A zone, a volume of it, where one is mounted; or a disk with ext2, ext3 or ext4: an image, a block device, an NBD URI
    #[arg(value_name = "ZONE[:VOLUME]|DIR|DISK")]
    pub(crate) place: Place,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Df {
    /// A zone, a volume of it, or a directory in a mounted volume; one in DIR/.snapshots/NAME is that of a snapshot
    #[arg(value_name = "ZONE[:VOLUME]|DIR")]
    pub(crate) place: Place,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Dump {
    /// The zone and the volume's name; of the entrance, the zone
    #[arg(value_name = "ZONE[:VOLUME]")]
    pub(crate) place: Place,
    /// entrance, superblock, checkpoint, log, nat, sit, sit-journal, snapshots, bia:SEGMENT, node:NID or inode:NUMBER
    pub(crate) structure: String,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Stats {
    /// A mounted volume, or where it is mounted
    #[arg(value_name = "ZONE:VOLUME|DIR")]
    pub(crate) place: Place,
    /// Tell every second what was done in it, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Crash {
    /// What is crashed: native; ext or ext2, a disk with an ext4 or ext2 that is attached to NVM, of which both are crashed together; ext-tight, the
    /// same with so little NVM that metadata is always given up and the log used again
    #[arg(long, value_name = "KIND", default_value = "native", value_parser = ["native", "ext", "ext2", "ext-tight"],
          conflicts_with_all = ["concurrent", "program", "replay"])]
    pub(crate) volume: String,
    /// Workloads: names of operations as --list shows them, joined by '+'; or random-COUNT
    #[arg(conflicts_with_all = ["one", "two", "three", "random", "replay", "list"])]
    pub(crate) names: Vec<String>,
    /// Each operation of --list by itself, crashed at each of its moments (the default)
    #[arg(long)]
    pub(crate) one: bool,
    /// All sequences of two operations, of which the second is crashed (the first by itself is one of --one); or so many of them, spread over all
    #[arg(long, value_name = "COUNT", num_args = 0..=1, value_parser = some, conflicts_with = "one")]
    #[allow(clippy::option_option, reason = "the option may come without a value")]
    pub(crate) two: Option<Option<usize>>,
    /// So many sequences of three operations, of which the third is crashed, chosen by the seed
    #[arg(long, value_name = "COUNT", value_parser = some, conflicts_with_all = ["one", "two"])]
    pub(crate) three: Option<usize>,
    /// Random sequences of 30 operations, chosen by the seed, for so many seconds, of which each promise has its share
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["one", "two", "three"])]
    pub(crate) random: Option<u64>,
    /// Two operations at the same time, on two threads that take turns by a schedule: each pair of a list, an operation with itself included, first
    /// without and then with one or two interruptions, so many schedules a pair, spread over all; a native volume, durability=op
    #[arg(long, value_name = "SCHEDULES", value_parser = some, conflicts_with_all = ["one", "two", "three", "random"])]
    pub(crate) concurrent: Option<usize>,
    /// Repairs of a native volume: one bit is turned in each word that a check reads, or in every SHAREth, and what fsck stores to mend it is
    /// cut short
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..),
          conflicts_with_all = ["names", "one", "two", "three", "random", "concurrent", "replay", "list", "program", "volume",
                                "depth", "exact", "durability", "journal", "threads", "seed"])]
    pub(crate) repairs: Option<u64>,
    /// How deep recoveries are crashed in their turn: 1 not at all, 2 once
    #[arg(long, default_value_t = crash::Id::DEPTH, value_parser = clap::value_parser!(u32).range(1..=i64::from(crash::Id::DEPTH_MAX)),
          conflicts_with_all = ["concurrent", "program", "replay", "list"])]
    pub(crate) depth: u32,
    /// Crash recoveries once for each difference that one which is cut short could see, not once for all that store the same: that takes several
    /// times as long
    #[arg(long, conflicts_with_all = ["concurrent", "program", "list"])]
    pub(crate) exact: bool,
    /// The promise: op, fsync or snapshot; without it, each that the volume makes: native all three, ext op and fsync
    #[arg(long, conflicts_with_all = ["concurrent", "replay", "list"])]
    pub(crate) durability: Option<crash::Promise>,
    /// How a native volume logs bytes: adaptive (without it), block, diff or block-switch
    #[arg(long, conflicts_with_all = ["concurrent", "program", "replay", "list"])]
    pub(crate) journal: Option<native::Journaling>,
    /// Threads at work; without it, as many as there are processors
    #[arg(long, value_parser = some, conflicts_with_all = ["concurrent", "program", "replay", "list"])]
    pub(crate) threads: Option<usize>,
    /// Chooses what is random: sequences, schedules, and states where not all are tried
    #[arg(long, default_value_t = 1, conflicts_with_all = ["replay", "list"])]
    pub(crate) seed: u64,
    /// Judge one state again, by the name that a failure printed
    #[arg(long, value_name = "STATE", conflicts_with_all = ["one", "two", "three", "random", "concurrent", "list"])]
    pub(crate) replay: Option<crash::Id>,
    /// With --replay: find the smallest sequence of its operations that still fails
    #[arg(long, requires = "replay")]
    pub(crate) shrink: bool,
    /// Let a program work on a recorded mount, and judge itself what power cuts leave: a command that knows the verbs
    /// `run DIR STEPS` and `judge`, as those in tests/programs
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["names", "one", "two", "three", "random", "concurrent", "replay", "list"])]
    pub(crate) program: Option<String>,
    /// With --program: steps it makes
    #[arg(long, default_value_t = 40, requires = "program")]
    pub(crate) steps: u64,
    /// With --program: states to judge at least
    #[arg(long, default_value_t = 10_000, requires = "program")]
    pub(crate) states: u64,
    /// With --program: keep the recording of what it did in this file
    #[arg(long, value_name = "FILE", requires_all = ["program", "durability"], value_hint = ValueHint::FilePath)]
    pub(crate) record: Option<PathBuf>,
    /// With --program: judge what power cuts leave of the life in this file, which --record wrote, or a broken promise
    #[arg(long, value_name = "FILE", requires = "program", conflicts_with_all = ["record", "durability", "steps"],
          value_hint = ValueHint::FilePath)]
    pub(crate) recording: Option<PathBuf>,
    /// List the operations that workloads are made of
    #[arg(long, conflicts_with_all = ["one", "two", "three", "random", "concurrent"])]
    pub(crate) list: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// Directories of mounted file systems, or volumes that are not mounted
    #[arg(value_name = "DIR|ZONE:VOLUME", value_hint = ValueHint::DirPath)]
    pub(crate) targets: Vec<Place>,
    /// Set up file systems to compare with, measure them in the same rounds, and take them down: all but those in brackets, or
    /// some of volume, amberfs, (amberfs-op), (volume-ext), (amberfs-ext), (fuse), tmpfs, ext4, xfs, btrfs, (fuse2fs), (volume-ext-disk),
    /// (amberfs-ext-disk), ext4-disk, (ext3-disk), (ext2-disk), xfs-disk, btrfs-disk, (fuse2fs-disk) (needs root; but for volume, amberfs, fuse and tmpfs they are on
    /// loop devices, over tmpfs or a file on disk). Mount options stand behind a colon, with a plus between them:
    /// ext4-disk:dirsync+noatime; 'nojournal' makes an ext4 without one, amberfs-ext-disk:ext3 an ext3
    #[arg(long, value_name = "NAMES", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    pub(crate) peers: Option<Vec<String>>,
    /// A workload or group of --list, with parameters: varmail:threads=1/4/16 is a series of three, varmail:files=~10000 has so many
    /// times --scale
    #[arg(short, long, value_name = "NAME[:KEY=VALUE,...]")]
    pub(crate) workload: Vec<String>,
    /// Run another program in each directory instead of our own workloads: fio, postmark, fs_mark, dbench, sqlite or pgbench
    #[arg(long, value_name = "NAME", conflicts_with_all = ["workload", "turns", "scale"])]
    pub(crate) tool: Vec<bench::Tool>,
    /// Less of everything: a look, in less than a minute; other programs run once on each target, a second or more
    #[arg(long)]
    pub(crate) quick: bool,
    /// Rounds, in each of which every target has its turn; without it 5, with --quick 3, or 1 of other programs
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Seconds that a workload without an end goes on in each round; without it 0.3, with --quick 0.04
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Times that each thread of a workload without an end repeats it, instead of a time
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) turns: Option<u64>,
    /// How much of the published number of files and bytes is worked on, where a workload's parameters do not say it; without
    /// it 0.1, with --quick 0.02
    #[arg(long, value_parser = scale)]
    pub(crate) scale: Option<f64>,
    /// Chooses what is random
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Bytes of each peer, or with K, M, G, T; without it up to 1G (512M with --quick), as memory allows
    #[arg(long, value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Where peers on disk have their files
    #[arg(long, default_value = "/var/tmp", value_hint = ValueHint::DirPath)]
    pub(crate) disk: PathBuf,
    /// Add a table of how many times the rate of this target the others have; several, several tables
    #[arg(long, value_name = "TARGET", conflicts_with = "details")]
    pub(crate) against: Vec<String>,
    /// List workloads, their parameters and groups
    #[arg(long)]
    pub(crate) list: bool,
    /// One line for each figure on each target: quartiles, CPU time, latencies
    #[arg(long)]
    pub(crate) details: bool,
    /// Tables in Markdown, with the command, the machine and the date, as docs/performance.md has them
    #[arg(long, conflicts_with_all = ["details", "json"])]
    pub(crate) markdown: bool,
    /// A word on what is measured, for the head of the report: a commit
    #[arg(long, default_value = "")]
    pub(crate) note: String,
    /// Write a page with plots, which needs nothing else to be looked at
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A size that is not 0, which would mean something else.
fn some_bytes(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes == 0 {
        Err("a zone of 0 bytes is none; without --size it takes all that is there".to_string())
    } else {
        Ok(bytes)
    }
}

/// More than nothing, and no more than an hour.
fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is no number of seconds"))?;
    if number > 0.0 && number <= 3600.0 {
        Ok(number)
    } else {
        Err(format!("{text} is not more than 0, and 3600 at most"))
    }
}

fn scale(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is no number"))?;
    if number > 0.0 && number <= 1000.0 {
        Ok(number)
    } else {
        Err(format!("{text} is not more than 0, and 1000 at most"))
    }
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Where to
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

/// The table, for what is made of it.
pub(crate) fn table() -> clap::Command {
    CommandLine::command()
}

/// A count of something, of which there has to be some.
fn some(text: &str) -> Result<usize, String> {
    let count = text.parse().map_err(|error| format!("{error}"))?;
    if count == 0 { Err("there has to be one at least".to_string()) } else { Ok(count) }
}
