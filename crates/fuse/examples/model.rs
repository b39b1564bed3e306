//! Mounts the model file system, so that suites and strangers can run against the front end alone.
//!
//! `cargo run --release -p amberfs-fuse --example model -- DIR [OPTION...]`, until `umount DIR`. Options: `writeback`,
//! `durable`, `ro`, `threads=N`, `capacity=MIB`; `io_uring` or `device`, by which requests have to come.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use vfs::model::Model;
use vfs::{Caller, FileSystem, SetAttr};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("model: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: model DIR [OPTION...]")?);
    let mut options = fuse::MountOptions { fs_name: "model".to_owned(), ..Default::default() };
    let mut capacity_mib = 4096;
    for argument in arguments {
        match argument.split_once('=').unwrap_or((&argument, "")) {
            ("writeback", "") => options.writeback_cache = true,
            ("durable", "") => options.durable_operations = true,
            ("ro", "") => options.read_only = true,
            ("io_uring", "") => options.transport = fuse::Transport::Ring,
            ("device", "") => options.transport = fuse::Transport::Device,
            ("threads", count) => options.threads = count.parse()?,
            ("capacity", mib) => capacity_mib = mib.parse()?,
            _ => return Err(format!("unknown option {argument}").into()),
        }
    }
    let model = Model::new().with_capacity(capacity_mib << 20);
    // The root directory is root's; make it the user's who mounts.
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    model.setattr(&Caller::root(), vfs::ROOT_INO, &owner, None)?;
    let mount = fuse::mount(Arc::new(model), &dir, &options)?;
    eprintln!("model: mounted on {}", mount.dir().display());
    let counts = mount.counts();
    mount.wait()?;
    eprintln!("model: unmounted after these requests: {}", counts());
    Ok(())
}
