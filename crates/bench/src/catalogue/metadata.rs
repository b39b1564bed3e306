//! Operations on names, one after the other on the same files: what each costs by itself.

use super::{Entry, THREADS_MAX};
use crate::flow::{Extent, FileSet, Op, Order, Pass, Phase, Pick, Unit, Workload};
use crate::parameters::Parameters;
use crate::random::Size;

pub(super) fn entries() -> Vec<Entry> {
    vec![Entry {
        name: "metadata",
        about: "create, stat, open and close, readdir, rename, unlink, mkdir, rmdir: each on every file",
        parameters: &[("files", "100000"), ("width", "1000"), ("threads", "1")],
        build,
    }]
}

fn build(parameters: &Parameters) -> Result<Workload, String> {
    let unit = Unit::Turns("operations");
    let each = |name, order, flow| Phase::new(name, unit, Pass::new(Extent::Each(order, 100), flow));
    let turn = Pick::Turn;
    Ok(Workload {
        name: String::new(),
        set: FileSet {
            files: parameters.files()?,
            width: parameters.count("width", usize::MAX)?,
            size: Size::Exact(0),
            present: 0,
        },
        threads: parameters.count("threads", THREADS_MAX)?,
        by_bytes: false,
        phases: vec![
            each("create, close", Order::Forward, vec![Op::Create(turn), Op::Close]),
            each("stat", Order::Shuffled, vec![Op::Stat(turn)]),
            each("open, close", Order::Shuffled, vec![Op::Open(turn), Op::Close]),
            Phase::new("readdir", Unit::Turns("directories"), Pass::new(Extent::Dirs, vec![Op::List(turn)])),
            each("rename", Order::Shuffled, vec![Op::Rename(turn)]),
            each("unlink", Order::Shuffled, vec![Op::Unlink(turn)]),
            each("mkdir", Order::Forward, vec![Op::MakeDir]),
            each("rmdir", Order::Shuffled, vec![Op::RemoveDir]),
        ],
        varies: None,
    })
}
