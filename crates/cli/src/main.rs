//! The command `amberfs`: zones, volumes, mounts, checks and accounts, from the shell, mount(8) and fstab.
#![forbid(unsafe_code)]
// A macro that panics when whoever reads standard error is gone.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

mod admin;
mod alone;
mod attached;
mod command_line;
mod commands;
mod control;
mod exit;
mod failure;
mod find_server;
mod launch;
mod log;
mod metering;
mod mount_namespace;
mod mount_request;
mod mount_table;
mod options;
mod pages;
mod personality;
mod place;
mod read_disk;
mod report;
mod retention;
mod runtime_directory;
mod schedule;
mod served;
mod server;
mod size;
mod zone_access;
mod zone_file;

use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use command_line::{Command, CommandLine};
use failure::{Failure, tell};
use personality::Personality;
use zone_access::{ENDING_PATIENCE, ENDING_PAUSE};

/// Runs a command again that met a server which was just ending.
fn patiently(command: &Command) -> Result<u8, Failure> {
    let patience = Instant::now() + ENDING_PATIENCE;
    loop {
        match commands::run(command) {
            Err(failure) if failure.again && Instant::now() < patience => std::thread::sleep(ENDING_PAUSE),
            done => return done,
        }
    }
}

fn main() -> ExitCode {
    // A limit on the size of files is an error to be told (EFBIG), not the end of a server.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let arguments: Vec<_> = std::env::args_os().collect();
    let personality = Personality::of(arguments.first());
    let parsed = match personality.translate(arguments) {
        Ok(arguments) => CommandLine::try_parse_from(arguments.iter()).map_err(|error| {
            let printed = error.print();
            match error.use_stderr() {
                true => personality.usage_exit(&arguments),
                // Who reads no further has seen enough.
                false => u8::from(printed.is_err_and(|error| error.kind() != ErrorKind::BrokenPipe)),
            }
        }),
        Err(message) => {
            tell(format_args!("{}: {message}", personality.name()));
            Err(personality.usage_exit(&[]))
        }
    };
    let code = match parsed {
        Ok(CommandLine { command }) => patiently(&command).unwrap_or_else(|failure| {
            tell(format_args!("{}: {failure}", personality.name()));
            failure.exit
        }),
        Err(code) => code,
    };
    ExitCode::from(code)
}
