//! Filebench's personalities, version 1.5: their flows, files, sizes and threads as its `workloads` directory has them.

use super::data::PIECE_MAX;
use super::{Entry, FLAT, THREADS_MAX};
use crate::flow::{Extent, FileSet, Op, Order, Pass, Phase, Pick, Unit, Workload};
use crate::parameters::Parameters;
use crate::random::Size;

/// Pieces in which whole files are read and written: `iosize`.
const WHOLE: u64 = 1 << 20;

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "fileserver",
            about: "create and write, append, read whole, delete, stat",
            parameters: &[
                ("files", "10000"),
                ("width", "20"),
                ("mean", "128K"),
                ("threads", "50"),
                ("append", "16K"),
            ],
            build: |parameters| looping(parameters, 80, fileserver(append(parameters)?)),
        },
        Entry {
            name: "webserver",
            about: "read ten whole files, append to one log",
            parameters: &[
                ("files", "1000"),
                ("width", "20"),
                ("mean", "16K"),
                ("threads", "100"),
                ("append", "16K"),
            ],
            build: |parameters| {
                let read = Op::Repeat(10, read_whole());
                looping(parameters, 100, vec![read, Op::AppendLog(append(parameters)?)])
            },
        },
        Entry {
            name: "webproxy",
            about: "delete, create and append, read five whole files",
            parameters: &[
                ("files", "10000"),
                ("width", FLAT),
                ("mean", "16K"),
                ("threads", "100"),
                ("append", "16K"),
            ],
            build: |parameters| {
                let append = Op::Append(append(parameters)?);
                let mut flow = vec![Op::Unlink(Pick::Any), Op::Create(Pick::Any), append, Op::Close];
                flow.push(Op::Repeat(5, read_whole()));
                looping(parameters, 80, flow)
            },
        },
        Entry {
            name: "varmail",
            about: "delete; create, append, fsync; read, append, fsync; read",
            parameters: &[
                ("files", "1000"),
                ("width", FLAT),
                ("mean", "16K"),
                ("threads", "16"),
                ("append", "16K"),
            ],
            build: |parameters| looping(parameters, 80, varmail(append(parameters)?)),
        },
        Entry {
            name: "createfiles",
            about: "create and write files until all are there",
            parameters: &[("files", "50000"), ("width", "100"), ("mean", "16K"), ("threads", "16")],
            build: createfiles,
        },
        Entry {
            name: "listdirs",
            about: "list directories",
            parameters: &[("files", "50000"), ("width", "5"), ("threads", "16")],
            build: |parameters| {
                let mut made = looping_on(parameters, Size::Exact(0), 100, vec![Op::List(Pick::Any)])?;
                made.phases[0].unit = Unit::Turns("directories");
                Ok(made)
            },
        },
        Entry {
            name: "openfiles",
            about: "open and close",
            parameters: &[("files", "50000"), ("width", "100"), ("threads", "16")],
            build: |parameters| {
                looping_on(parameters, Size::Exact(0), 100, vec![Op::Open(Pick::Any), Op::Close])
            },
        },
        Entry {
            name: "statfiles",
            about: "stat",
            parameters: &[("files", "10000"), ("width", "20"), ("threads", "20")],
            build: |parameters| looping_on(parameters, Size::Exact(0), 100, vec![Op::Stat(Pick::Any)]),
        },
        Entry {
            name: "append",
            about: "append pieces of io bytes to a file of each thread's own, up to size bytes each",
            parameters: &[("io", "8K"), ("threads", "1"), ("size", "1G")],
            build: |parameters| appending(parameters, |append| append),
        },
        Entry {
            name: "writefsync",
            about: "append 8 KiB, and fsync after every so many",
            parameters: &[("io", "8K"), ("every", "1024"), ("threads", "1"), ("size", "1G")],
            build: |parameters| {
                let every = parameters.count("every", 1 << 20)? as u32;
                let sync = Op::Sync { data_only: false };
                appending(parameters, |append| vec![Op::Repeat(every, append), sync])
            },
        },
    ]
}

fn append(parameters: &Parameters) -> Result<Size, String> {
    parameters.count("append", PIECE_MAX).map(|bytes| Size::UpTo(bytes as u64))
}

fn read_whole() -> Vec<Op> {
    vec![Op::Open(Pick::Any), Op::ReadWhole(WHOLE), Op::Close]
}

fn fileserver(append: Size) -> Vec<Op> {
    let mut flow = vec![Op::Create(Pick::Any), Op::WriteWhole(WHOLE), Op::Close];
    flow.extend([Op::Open(Pick::Any), Op::Append(append), Op::Close]);
    flow.extend(read_whole());
    flow.extend([Op::Unlink(Pick::Any), Op::Stat(Pick::Any)]);
    flow
}

fn varmail(append: Size) -> Vec<Op> {
    let sync = Op::Sync { data_only: false };
    let mut flow = vec![Op::Unlink(Pick::Any)];
    flow.extend([Op::Create(Pick::Any), Op::Append(append.clone()), sync.clone(), Op::Close]);
    flow.extend([Op::Open(Pick::Any), Op::ReadWhole(WHOLE), Op::Append(append), sync, Op::Close]);
    flow.extend(read_whole());
    flow
}

/// Repeats a flow on files of the mean size.
fn looping(parameters: &Parameters, present: usize, flow: Vec<Op>) -> Result<Workload, String> {
    let mean = parameters.count("mean", 1 << 40)? as u64;
    looping_on(parameters, Size::Gamma(mean), present, flow)
}

fn looping_on(
    parameters: &Parameters,
    size: Size,
    present: usize,
    flow: Vec<Op>,
) -> Result<Workload, String> {
    let set =
        FileSet { files: parameters.files()?, width: parameters.count("width", usize::MAX)?, size, present };
    let pass = Pass::new(Extent::Loop, flow);
    Ok(Workload {
        name: String::new(),
        set,
        threads: parameters.count("threads", THREADS_MAX)?,
        by_bytes: false,
        phases: vec![Phase::new("", Unit::Operations, pass)],
        varies: None,
    })
}

fn createfiles(parameters: &Parameters) -> Result<Workload, String> {
    let mut made = looping(parameters, 0, Vec::new())?;
    let each = Extent::Each(Order::Forward, 100);
    let flow = vec![Op::Create(Pick::Turn), Op::WriteWhole(WHOLE), Op::Close];
    made.phases = vec![
        Phase::new("", Unit::Turns("files"), Pass::new(each, flow)),
        Phase::unmeasured(Pass::new(each, vec![Op::Unlink(Pick::Turn)])),
    ];
    Ok(made)
}

/// Each thread adds to a file of its own, from nothing up to its share of the size, over and over; `flow` is made of how one piece is added.
fn appending(parameters: &Parameters, flow: impl FnOnce(Vec<Op>) -> Vec<Op>) -> Result<Workload, String> {
    let threads = parameters.count("threads", THREADS_MAX)?;
    let limit = (parameters.size()? / threads as u64).max(1);
    let io = parameters.count("io", PIECE_MAX)? as u64;
    // What is full begins anew before something is added: behind it, nothing would be left for an fsync.
    let flow = flow(vec![Op::Trim(limit), Op::Append(Size::Exact(io))]);
    let pass = Pass { before: vec![Op::Open(Pick::Own), Op::Trim(0)], flow, extent: Extent::Loop };
    Ok(Workload {
        name: String::new(),
        set: FileSet { files: threads, width: threads, size: Size::Exact(0), present: 100 },
        threads,
        by_bytes: true,
        phases: vec![Phase::new("", Unit::Operations, pass)],
        varies: None,
    })
}
