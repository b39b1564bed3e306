//! The commands about snapshots.

use clap::{Args, Subcommand};

use crate::place::Place;
use crate::retention::Policy;

#[derive(Subcommand, Debug)]
pub(crate) enum SnapshotCommand {
    /// Keep a volume as it is now, all that was written to its mount included
    Take(SnapshotTake),
    /// List the snapshots of a volume, oldest first, and what each has alone and shares
    List(SnapshotList),
    /// Tell what a snapshot is, and what it takes
    Show(SnapshotNamed),
    /// Tell what differs between two snapshots, or between one and what the volume is now
    #[command(after_help = DIFF_HELP)]
    Diff(SnapshotDiff),
    /// Remove a snapshot that nobody holds and in which no file is open; its space comes back in the background
    Remove(SnapshotRemove),
    /// Remove the snapshots that a policy had taken and another one, or the same, would not keep
    Prune(SnapshotPrune),
    /// Keep a snapshot from being removed until its tag is released
    Hold(SnapshotTagged),
    /// Take a hold back
    Release(SnapshotTagged),
    /// Make a volume what it was when a snapshot was taken; a mounted one if no file of it is open and nobody works in it
    Rollback(SnapshotRollback),
    /// Copy a snapshot to a new volume of the zone
    #[command(
        after_help = "If it is cut off, what there is of the new volume is unfinished; the next command that opens the zone for writing removes it."
    )]
    Clone(SnapshotClone),
}

#[derive(Args, Debug)]
pub(crate) struct SnapshotList {
    /// The volume, or where it is mounted
    #[arg(value_name = "ZONE:VOLUME|DIR")]
    pub(crate) place: Place,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SnapshotNamed {
    /// The volume, or where it is mounted
    #[arg(value_name = "ZONE:VOLUME|DIR")]
    pub(crate) place: Place,
    /// The snapshot's name: that of its directory in DIR/.snapshots
    pub(crate) name: String,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SnapshotTake {
    #[command(flatten)]
    pub(crate) named: SnapshotNamed,
    /// What is to be remembered of it
    #[arg(long, default_value = "")]
    pub(crate) comment: String,
}

const DIFF_HELP: &str = "\
Lines, in the order of their paths:
  - PATH         the name is gone
  + PATH         the name is new
  R OLD -> PATH  the name is new, and what it names had another, which is gone
  M PATH         what the path names is in both, and is not the same: --json says what of it (data, entries, links,
                 mode, owner, times, xattrs). A file with several names is told by one of them.

Paths begin at the volume's root directory; those of directories end with '/'. A backslash with three octal digits
stands for a byte: of a blank, a backslash, and what cannot be shown.";

#[derive(Args, Debug)]
pub(crate) struct SnapshotDiff {
    #[command(flatten)]
    pub(crate) named: SnapshotNamed,
    /// The snapshot to compare it with; without it, what the volume is now
    #[arg(value_name = "OTHER")]
    pub(crate) to: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct SnapshotRemove {
    #[command(flatten)]
    pub(crate) named: SnapshotNamed,
    /// Wait until its space has come back
    #[arg(long)]
    pub(crate) wait: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SnapshotPrune {
    /// The volume, or where it is mounted
    #[arg(value_name = "ZONE:VOLUME|DIR")]
    pub(crate) place: Place,
    /// What to keep, as the mount option of this name: hourly=24,daily=7
    #[arg(long, value_name = "PERIOD=N,...")]
    pub(crate) keep: Policy,
    /// Tell what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SnapshotRollback {
    #[command(flatten)]
    pub(crate) named: SnapshotNamed,
    /// Snapshots that were taken later may go: they have to
    #[arg(long)]
    pub(crate) discard_newer: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SnapshotClone {
    #[command(flatten)]
    pub(crate) named: SnapshotNamed,
    /// The new volume's name
    #[arg(value_name = "NEW-VOLUME")]
    pub(crate) to: String,
}

#[derive(Args, Debug)]
pub(crate) struct SnapshotTagged {
    #[command(flatten)]
    pub(crate) named: SnapshotNamed,
    /// Who holds it, or why
    pub(crate) tag: String,
}
