//! Reading and writing files that are there, in pieces of one length; and iozone's ways through a file.

use super::{Entry, THREADS_MAX};
use crate::flow::{At, Extent, FileSet, Op, Order, Pass, Phase, Pick, Unit, Workload};
use crate::parameters::Parameters;
use crate::random::Size;

/// Largest piece of one read or write.
pub(super) const PIECE_MAX: usize = 64 << 20;
/// iozone's stride: 17 records.
const STRIDE_RECORDS: u64 = 17;

const ATS: [&str; 2] = ["next", "random"];
const FILES: [&str; 2] = ["own", "one"];

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "read",
            about: "reads pieces of io bytes, at the next place or a random one, of each thread's own file or one",
            parameters: &[("at", "random"), ("io", "4K"), ("threads", "1"), ("size", "1G"), ("file", "own")],
            build: |parameters| {
                let (io, at) = (piece(parameters)?, at(parameters)?);
                workload(parameters, vec![Op::Read(io, at)])
            },
        },
        Entry {
            name: "write",
            about: "overwrites pieces of io bytes; sync=each makes each durable (fdatasync)",
            parameters: &[
                ("at", "random"),
                ("io", "4K"),
                ("threads", "1"),
                ("size", "1G"),
                ("file", "own"),
                ("sync", "none"),
            ],
            build: |parameters| {
                let (io, at) = (piece(parameters)?, at(parameters)?);
                let mut flow = vec![Op::Write(io, at)];
                if parameters.word("sync", &["none", "each"])? == 1 {
                    flow.push(Op::Sync { data_only: true });
                }
                workload(parameters, flow)
            },
        },
        Entry {
            name: "iozone",
            about: "iozone's patterns: write, rewrite, reread, random read and write, backward read, record rewrite, strided read",
            parameters: &[("io", "4K"), ("threads", "1"), ("size", "1G"), ("file", "own")],
            build: iozone,
        },
    ]
}

fn piece(parameters: &Parameters) -> Result<u64, String> {
    parameters.count("io", PIECE_MAX).map(|bytes| bytes as u64)
}

fn at(parameters: &Parameters) -> Result<At, String> {
    Ok([At::Next, At::Random][parameters.word("at", &ATS)?])
}

/// Repeats a flow on open files that share `size` bytes.
fn workload(parameters: &Parameters, flow: Vec<Op>) -> Result<Workload, String> {
    let io = piece(parameters)?;
    let threads = parameters.count("threads", THREADS_MAX)?;
    let (files, pick) = match parameters.word("file", &FILES)? {
        0 => (threads, Pick::Own),
        _ => (1, Pick::First),
    };
    // Whole pieces, at least one.
    let bytes = (parameters.size()? / files as u64 / io).max(1) * io;
    let open = vec![Op::Open(pick)];
    let pass = Pass { before: open, flow, extent: Extent::Loop };
    Ok(Workload {
        name: String::new(),
        set: FileSet { files, width: files, size: Size::Exact(bytes), present: 100 },
        threads,
        by_bytes: true,
        phases: vec![Phase::new("", Unit::Turns("operations"), pass)],
        varies: None,
    })
}

fn iozone(parameters: &Parameters) -> Result<Workload, String> {
    let io = piece(parameters)?;
    let mut made = workload(parameters, Vec::new())?;
    let pattern = made.phases.remove(0);
    let phase = |name, op| {
        let mut phase = pattern.clone();
        phase.name = name;
        phase.passes[0].flow = vec![op];
        phase
    };
    // Its first test writes files that are not there.
    let (all, turn) = (Extent::Each(Order::Forward, 100), Pick::Turn);
    let write = Pass::new(all, vec![Op::Create(turn), Op::WriteWhole(io), Op::Close]);
    made.phases = vec![
        Phase::unmeasured(Pass::new(all, vec![Op::Unlink(turn)])),
        Phase::new("write", Unit::Turns("files"), write),
        phase("rewrite", Op::Write(io, At::Next)),
        phase("reread", Op::Read(io, At::Next)),
        phase("random read", Op::Read(io, At::Random)),
        phase("random write", Op::Write(io, At::Random)),
        phase("backward read", Op::Read(io, At::Previous)),
        phase("record rewrite", Op::Write(io, At::Start)),
        phase("strided read", Op::Read(io, At::Stride(STRIDE_RECORDS * io))),
    ];
    Ok(made)
}
