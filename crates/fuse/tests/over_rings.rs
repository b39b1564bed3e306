//! All that a mount does, with requests by way of io_uring. `scripts/test.sh` has the kernel offer it.

use std::fs;
use std::io::Write;
use std::sync::Once;

mod mounted;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// By which way requests come.
fn transport() -> fuse::Transport {
    static SAY: Once = Once::new();
    if fs::read_to_string(SWITCH).is_ok_and(|switch| switch.trim() == "Y") {
        return fuse::Transport::Ring;
    }
    SAY.call_once(|| {
        let _ = writeln!(
            std::io::stderr(),
            "LEFT OUT: requests through io_uring: {SWITCH} is not there or not 'Y'"
        );
    });
    fuse::Transport::Device
}

#[test]
fn requests_come_through_rings() {
    if transport() == fuse::Transport::Ring {
        assert!(mounted::support::Mounted::new().mount().over_io_uring());
    }
}
