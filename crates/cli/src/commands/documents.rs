//! `amberfs completions` and `amberfs man`: what is made of the table of commands.

use std::path::Path;

use clap::{Arg, ArgAction, Command};

use crate::command_line::{Completions, EXIT_CODES, Man, table};
use crate::failure::Failure;
use crate::{options, report};

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
    let page = page(command, name)
        .map_err(|error| Failure::new(format!("cannot make the page of {name}: {error}")))?;
    write(dir, &format!("{name}.8"), &page)?;
    let mut pages = 1;
    for sub in command.get_subcommands().filter(|sub| is_shown(sub)) {
        pages += write_pages(dir, sub, &format!("{name}-{}", sub.get_name()))?;
    }
    Ok(pages)
}

fn is_shown(command: &Command) -> bool {
    command.get_name() != "help" && !command.is_hide_set()
}

/// The page of a command, which is called `name` there.
fn page(command: &Command, name: &str) -> std::io::Result<Vec<u8>> {
    let titled = command
        .clone()
        .name(name.to_string())
        .display_name(name.to_string())
        .override_usage(synopsis(command))
        .disable_help_subcommand(true);
    let version = concat!("amberfs ", env!("CARGO_PKG_VERSION"));
    let man = clap_mangen::Man::new(titled).section("8").source(version).manual("Amberfs");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(is_shown) {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(further_sections(command).into_bytes());
    Ok(page)
}

/// One line that says what may be given, with values by their names.
fn synopsis(command: &Command) -> String {
    let mut words = vec![command.get_bin_name().unwrap_or_else(|| command.get_name()).to_string()];
    let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let (places, flags): (Vec<&Arg>, Vec<&Arg>) = arguments.partition(|arg| arg.is_positional());
    words.extend(flags.into_iter().filter(|arg| !is_help(arg)).map(flag));
    words.extend(places.into_iter().map(|arg| {
        let dots = if arg.get_num_args().is_some_and(|many| many.max_values() > 1) { "..." } else { "" };
        let named = format!("{}{dots}", value_of(arg));
        if arg.is_required_set() { named } else { format!("[{named}]") }
    }));
    if command.get_subcommands().any(is_shown) {
        words.push("COMMAND".to_string());
    }
    words.join(" ")
}

fn is_help(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong)
}

fn value_of(arg: &Arg) -> String {
    arg.get_value_names().map_or_else(|| arg.get_id().to_string().to_uppercase(), |names| names.join(" "))
}

/// `[-L|--label LABEL]`
fn flag(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let name = short.into_iter().chain(long).collect::<Vec<_>>().join("|");
    let value = match arg.get_num_args() {
        Some(many) if many.takes_values() => {
            let before = if arg.is_require_equals_set() { "=" } else { " " };
            match many.min_values() {
                0 if before == "=" => format!("[={}]", value_of(arg)),
                0 => format!(" [{}]", value_of(arg)),
                _ => format!("{before}{}", value_of(arg)),
            }
        }
        _ => String::new(),
    };
    let dots = if matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" };
    format!("[{name}{value}]{dots}")
}

/// What stands below the options in `--help`, under headings: mount options, notes, exit codes.
fn further_sections(command: &Command) -> String {
    let mut text = String::new();
    if command.get_name() == "mount" {
        text.push_str(".SH \"MOUNT OPTIONS\"\nThese stand behind \\fB\\-o\\fR, separated by commas.\n");
        for (option, help) in options::documented() {
            text.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", escaped(&option), escaped(&help)));
        }
    }
    let below = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let is_of_codes = |part: &&str| part.starts_with("Exit codes");
    let (codes, notes): (Vec<&str>, Vec<&str>) = below.split("\n\n").partition(is_of_codes);
    if notes.iter().any(|note| !note.is_empty()) {
        text.push_str(".SH NOTES\n");
        notes.iter().for_each(|note| text.push_str(&paragraph(note)));
    }
    text.push_str(".SH \"EXIT STATUS\"\n");
    text + &exit_status(codes.first().copied().unwrap_or(EXIT_CODES))
}

/// Lines that are laid out stay as they are.
fn paragraph(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(escaped).collect();
    match text.lines().any(|line| line.starts_with(' ')) {
        true => format!(".PP\n.nf\n{}\n.fi\n", lines.join("\n")),
        false => format!(".PP\n{}\n", lines.join("\n")),
    }
}

/// `Exit codes: 0 done, 1 failed; 5 both.`, each of them by itself.
fn exit_status(text: &str) -> String {
    let text = text.split_once(": ").map_or(text, |(_, codes)| codes).trim_end().trim_end_matches('.');
    let mut codes: Vec<String> = Vec::new();
    for part in text.split_inclusive([',', ';']) {
        match codes.last_mut() {
            // It goes on within what a code means.
            Some(last) if !part.trim_start().starts_with(|first: char| first.is_ascii_digit()) => {
                last.push_str(part)
            }
            _ => codes.push(part.trim_start().to_string()),
        }
    }
    let each = codes.iter().map(|code| {
        let (number, meaning) = code.trim_end_matches([',', ';']).split_once(' ').unwrap_or((code, ""));
        format!(".TP\n\\fB{}\\fR\n{}\n", escaped(number), escaped(meaning))
    });
    each.collect()
}

/// A line of text for troff.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let path = dir.join(name);
    std::fs::write(&path, bytes).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}
