//! One module per command; each takes its arguments from the table and gives the process's exit code.

mod attach;
mod bench;
mod bench_report;
mod crash;
mod crash_program;
mod df;
mod disk_info;
mod documents;
mod dump;
mod fsck;
mod info;
mod mkfs;
mod mount;
mod snapshot;
mod snapshot_diff;
mod stats;
mod umount;
mod zone;

use crate::command_line::{Command, ZoneCommand};
use crate::failure::Failure;

pub(crate) fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Zone(ZoneCommand::Create(arguments)) => zone::create(arguments)?,
        Command::Zone(ZoneCommand::List(arguments)) => zone::list(arguments)?,
        Command::Zone(ZoneCommand::Show(arguments)) => zone::show(arguments)?,
        Command::Zone(ZoneCommand::Grow(arguments)) => zone::grow(arguments)?,
        Command::Zone(ZoneCommand::RemoveVolume(arguments)) => zone::remove_volume(arguments)?,
        Command::Mkfs(arguments) => mkfs::run(arguments)?,
        Command::Attach(arguments) => attach::attach(arguments)?,
        Command::Detach(arguments) => attach::detach(arguments)?,
        Command::Mount(arguments) => return mount::run(arguments),
        Command::Umount(arguments) => return umount::run(arguments),
        Command::Fsck(arguments) => return fsck::run(arguments),
        Command::Info(arguments) => info::run(arguments)?,
        Command::Df(arguments) => df::run(arguments)?,
        Command::Dump(arguments) => dump::run(arguments)?,
        Command::Stats(arguments) => stats::run(arguments)?,
        Command::Snapshot(command) => snapshot::run(command)?,
        Command::Crash(arguments) => return crash::run(arguments),
        Command::Bench(arguments) => return bench::run(arguments),
        Command::Completions(arguments) => documents::completions(arguments)?,
        Command::Man(arguments) => documents::man(arguments)?,
    }
    Ok(0)
}
