//! Set-user-ID and set-group-ID go when somebody without privileges changes what a file has.

use std::fs;
use std::io::{Write, stderr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use super::support::{Mounted, disturbing};

/// A group that a file has.
const GROUP: u32 = 4242;

/// Whether this runs as root, who alone can become others.
fn can_be_others(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        // Past the harness, which keeps back what a test that passes prints.
        let _ = writeln!(stderr(), "LEFT OUT: {test}: only root can become other users");
    }
    is_root
}

/// What `script` prints, run in `dir` as somebody else with these supplementary groups.
fn as_others(dir: &Path, groups: &str, script: &str) -> String {
    let mut others = Command::new("setpriv");
    others.args(["--reuid=65534", "--regid=65534", groups, "sh", "-ec", script]).current_dir(dir);
    let disturbed = disturbing();
    let output = others.output().unwrap();
    drop(disturbed);
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The answer to a change of contents has no mode in it: the kernel ran the program with the one that it knew.
#[test]
fn a_program_ran_with_the_set_user_id_that_a_write_had_taken() {
    if !can_be_others("a_program_ran_with_the_set_user_id_that_a_write_had_taken") {
        return;
    }
    for mounted in [Mounted::new(), Mounted::writing_back()] {
        let ran_after = |change: &str| {
            let program = mounted.path("id");
            fs::copy("/usr/bin/id", &program).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o4777)).unwrap();
            as_others(mounted.dir(), "--clear-groups", &format!("{change}; exec ./id -u"))
        };
        assert_eq!(ran_after("true"), "0\n");
        assert_eq!(ran_after("printf '\\177' 1<>id"), "65534\n");
        assert_eq!(ran_after("fallocate --keep-size --length 1 id"), "65534\n");
    }
}

/// Where the group may not execute the file, set-group-ID stays for its members (Linux's `setattr_should_drop_sgid`): the supplementary
/// groups of who asks come with no message.
#[test]
fn set_group_id_without_execution_stays_for_members_as_in_the_kernels_own() {
    if !can_be_others("set_group_id_without_execution_stays_for_members_as_in_the_kernels_own") {
        return;
    }
    let kernels = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(kernels.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let member = format!("--groups={GROUP}");
    for mounted in [Mounted::new(), Mounted::writing_back()] {
        for mode in [0o6666, 0o6676, 0o2666] {
            for groups in ["--clear-groups", &member] {
                for change in [
                    "printf a 1<>f",
                    "truncate -s 1 f",
                    "fallocate -l 9 f",
                    "fallocate -pl 1 f",
                    "chown 65534 f",
                    "chgrp 65534 f",
                ] {
                    let mode_after = |dir: &Path| {
                        let file = dir.join("f");
                        fs::write(&file, [7; 5000]).unwrap();
                        chown(&file, Some(65534), Some(GROUP)).unwrap();
                        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
                        as_others(dir, groups, &format!("{change}; stat -c %a f"))
                    };
                    let as_kernel = mode_after(kernels.path());
                    assert_eq!(mode_after(mounted.dir()), as_kernel, "{mode:o}, {groups}, {change}");
                }
            }
        }
    }
}
