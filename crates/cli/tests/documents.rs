//! What is made of the table of commands: help, completions, man pages.

use crate::support::{Scratch, amberfs, run};

/// All commands, as the help lists them.
fn commands() -> Vec<String> {
    let help = run("--help").ok().out;
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let words = lines.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    words.filter(|word| *word != "help").map(str::to_string).collect()
}

#[test]
fn help_lists_every_command_and_each_has_its_own() {
    let commands = commands();
    for command in
        ["attach", "bench", "detach", "fsck", "mkfs", "mount", "snapshot", "stats", "umount", "zone"]
    {
        assert!(commands.iter().any(|there| there == command), "{command} is not in {commands:?}");
    }
    for command in commands {
        assert!(run(&format!("{command} --help")).ok().out.contains("Usage: amberfs"), "{command}");
    }
    for command in ["create", "list", "show", "grow", "remove-volume"] {
        run(&format!("zone {command} --help")).ok();
    }
}

#[test]
fn mount_help_lists_the_mount_options() {
    let help = run("mount --help").ok().out;
    for option in
        ["durability=op|fsync|snapshot", "commit=SECONDS", "threads=N", "technology=", "allow_other", "ro\n"]
    {
        assert!(help.contains(option), "{option} is not in:\n{help}");
    }
}

#[test]
fn completions_are_made_for_each_shell() {
    for (shell, word) in [("bash", "_amberfs"), ("zsh", "#compdef amberfs"), ("fish", "complete -c amberfs")]
    {
        let script = run(&format!("completions {shell}")).ok().out;
        assert!(script.contains(word) && script.contains("remove-volume"), "{shell}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let scratch = Scratch::new();
    let dir = scratch.text("man8");
    amberfs(&["man", &dir]).ok();
    let page = |name: &str| std::fs::read_to_string(scratch.path("man8").join(format!("{name}.8"))).unwrap();
    assert!(page("amberfs").contains(".TH amberfs 8"));
    for command in commands() {
        assert!(page(&format!("amberfs-{command}")).contains(&format!("amberfs\\-{command}")), "{command}");
    }
    assert!(page("amberfs-mount").contains("durability"));
    assert!(
        page("amberfs-zone-create").contains("[\\-\\-size SIZE]"),
        "a synopsis says that there is a value"
    );
    assert_eq!(page("mount.amberfs"), ".so man8/amberfs-mount.8\n");
}

/// Mount options and exit codes stood together in one section, as lines that ran into each other.
#[test]
fn man_pages_have_sections_for_mount_options_and_exit_codes() {
    let scratch = Scratch::new();
    let dir = scratch.text("man8");
    amberfs(&["man", &dir]).ok();
    let page = |name: &str| std::fs::read_to_string(scratch.path("man8").join(format!("{name}.8"))).unwrap();
    for command in commands() {
        assert!(
            page(&format!("amberfs-{command}")).contains(".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\n"),
            "{command}"
        );
    }
    assert!(page("amberfs-fsck").contains("\\fB16\\fR\nusage\n"));
    let mount = page("amberfs-mount");
    assert!(mount.contains(".SH \"MOUNT OPTIONS\""));
    assert!(mount.contains(".TP\n\\fBtransport=auto|io_uring|device\\fR\n"), "{mount}");
    assert!(mount.contains("\\fB32\\fR\n"), "{mount}");
}
