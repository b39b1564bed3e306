//! `amberfs completions` and `amberfs man`: what is made of the table of commands.

use std::path::Path;

use clap::Command;

use crate::command_line::{Completions, Man, table};
use crate::failure::Failure;
use crate::report;

pub(crate) fn completions(arguments: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut table(), "amberfs", &mut script);
    report::print_text(&String::from_utf8_lossy(&script))
}

/// Writes `amberfs.8` and a page for each command, and those of the helpers, which refer to them.
pub(crate) fn man(arguments: &Man) -> Result<(), Failure> {
    let dir = &arguments.dir;
    std::fs::create_dir_all(dir).map_err(|error| Failure::new(format!("{}: {error}", dir.display())))?;
    let mut root = table();
    root.build();
    let pages = write_pages(dir, &root, "amberfs")?;
    for helper in ["mount", "mkfs", "fsck"] {
        write(dir, &format!("{helper}.amberfs.8"), format!(".so man8/amberfs-{helper}.8\n").as_bytes())?;
    }
    report::print_text(&format!("{}: {} pages\n", dir.display(), pages + 3))
}

fn write_pages(dir: &Path, command: &Command, name: &str) -> Result<usize, Failure> {
    let mut page = Vec::new();
    let titled =
        command.clone().name(name.to_string()).display_name(name.to_string()).disable_help_subcommand(true);
    let made = clap_mangen::Man::new(titled).section("8").manual("Amberfs").render(&mut page);
    made.map_err(|error| Failure::new(format!("cannot make the page of {name}: {error}")))?;
    write(dir, &format!("{name}.8"), &page)?;
    let mut pages = 1;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()) {
        pages += write_pages(dir, sub, &format!("{name}-{}", sub.get_name()))?;
    }
    Ok(pages)
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let path = dir.join(name);
    std::fs::write(&path, bytes).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}
