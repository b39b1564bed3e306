//! All that a mount does, with requests by way of `/dev/fuse`.

mod mounted;

/// By which way requests come.
fn transport() -> fuse::Transport {
    fuse::Transport::Device
}
