//! What a server is not given by whoever starts it: descriptors, memory. It is told, and nothing is left half mounted.

use std::io::Write;
use std::process::Command;

use crate::support::mounted::{place, shell};
use crate::support::{PROGRAM, eventually, run};

/// Whether it mounts with each of `limits`, which `line` has a command run with, and what it said; then it is unmounted.
fn mounts_within(
    limits: impl Iterator<Item = u32>,
    options: &str,
    line: impl Fn(u32) -> String,
) -> Vec<(bool, String)> {
    let Some((_scratch, zone, dir)) = place() else { return Vec::new() };
    let tries = limits.map(|limit| {
        let line = line(limit);
        // A thread that finds no memory for a backtrace waits for the lock under which it writes one, for ever: std's affair.
        let quiet = "env -u RUST_BACKTRACE";
        let mount =
            format!("{quiet} timeout 60 {PROGRAM} mount -o {options} {zone}:home {dir} </dev/null 2>&1");
        let tried = shell(&format!("{line} {mount}"));
        let is_mounted = shell(&format!("grep -qF ' {dir} ' /proc/mounts")).code == 0;
        assert!(tried.code != 124, "{line}: it hangs: {}", tried.out);
        assert_eq!(is_mounted, tried.code == 0, "{line}: ended with {}: {}", tried.code, tried.out);
        if is_mounted {
            // One that finds no memory for closing the volume is gone; the next mount recovers it.
            let unmounted = run(&format!("umount {dir}"));
            let is_gone = unmounted.err.contains("the server ended before it said that the volume is closed");
            assert!(unmounted.code == i32::from(is_gone) * 2, "{line}: {}", unmounted.err);
            // One without a socket is not waited for.
            eventually("the server has ended", || {
                let server = Command::new("pgrep").args(["-f", &format!("mount .*{zone}:home")]).output();
                server.unwrap().stdout.is_empty()
            });
        }
        (is_mounted, format!("{line}: {}", tried.out))
    });
    let tries: Vec<_> = tries.collect();
    run(&format!("fsck {zone}:home")).ok();
    tries
}

/// Where some were too little, and one was enough, so were all behind it.
fn more_is_enough(tries: &[(bool, String)]) {
    let first = tries.iter().position(|(is_mounted, _)| *is_mounted).unwrap_or(0);
    assert!(tries.is_empty() || first > 0, "all or none were enough: {tries:?}");
    for (is_mounted, said) in &tries[first..] {
        assert!(is_mounted, "less was enough than {said}");
    }
}

/// The ways in which requests can be asked to come, here and now.
fn transports() -> impl Iterator<Item = &'static str> {
    let switch = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring").unwrap_or_default();
    let rings = (switch.trim() == "Y").then_some("transport=io_uring");
    if rings.is_none() {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: limits of a server of rings: the kernel offers none");
    }
    ["rw", "transport=device"].into_iter().chain(rings)
}

/// Rings had taken the last descriptor, and none was left to unmount with: a mount stayed that nobody served.
#[test]
fn a_server_that_gets_no_descriptor_leaves_no_mount() {
    for options in transports() {
        more_is_enough(&mounts_within(4..28, options, |limit| format!("prlimit --nofile={limit}")));
    }
}

/// The process ended at once, though there was room enough without rings. A server that had no memory for its messages hung as it died, or left a mount that
/// nobody served: somewhere among these limits each step of mounting fails.
#[test]
fn a_server_that_gets_no_memory_for_rings_does_without() {
    for options in transports() {
        let limits = (100..500).step_by(5);
        let tries = mounts_within(limits, options, |limit| format!("prlimit --as={limit}000000"));
        for (_, said) in &tries {
            // Whoever has no room for less may end.
            assert!(!said.contains("allocation of 1048576 bytes"), "{said}");
        }
        let is_bound = |wanted| tries.is_empty() || tries.iter().any(|(is_mounted, _)| *is_mounted == wanted);
        assert!(is_bound(true) && is_bound(false), "all or none were enough: {tries:?}");
    }
}
