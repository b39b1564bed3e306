//! PostMark, fs_mark and FFSB.

use super::data::PIECE_MAX;
use super::{Entry, FLAT, THREADS_MAX};
use crate::flow::{At, Extent, FileSet, Op, Order, Pass, Phase, Pick, Unit, Workload};
use crate::parameters::Parameters;
use crate::random::Size;

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "postmark",
            about: "PostMark 1.5: small files made, then transactions (read or append, and create or delete), then removed",
            parameters: &[
                ("files", "5000"),
                ("dirs", "1"),
                ("least", "500"),
                ("most", "10000"),
                ("io", "512"),
                ("threads", "1"),
            ],
            build: postmark,
        },
        Entry {
            name: "fs_mark",
            about: "fs_mark 3.3: files written and synced as its -S says (0 none, 1 fsync before close ... 6)",
            parameters: &[
                ("files", "10000"),
                ("width", FLAT),
                ("size", "50K"),
                ("io", "16K"),
                ("threads", "1"),
                ("sync", "1"),
            ],
            build: fs_mark,
        },
        Entry {
            name: "ffsb",
            about: "FFSB's mail server: read whole, create and fsync, delete two, by weights 4, 2, 1; mix=even: ten operations, each as often",
            parameters: &[
                ("files", "10000"),
                ("width", "100"),
                ("io", "4K"),
                ("threads", "16"),
                ("mix", "mail"),
            ],
            build: ffsb,
        },
    ]
}

fn pieces(parameters: &Parameters) -> Result<u64, String> {
    parameters.count("io", PIECE_MAX).map(|bytes| bytes as u64)
}

/// PostMark makes a transaction of two halves, each of which is one of two kinds, equally likely. Half of the numbers have files
/// at first, so that there is room for those it makes.
fn postmark(parameters: &Parameters) -> Result<Workload, String> {
    let (least, most) = (parameters.number("least")?, parameters.number("most")?);
    if least > most || most > 1 << 40 {
        return Err(format!("files of {least} to {most} bytes: there are none"));
    }
    let io = pieces(parameters)?;
    let files = parameters.files()? * 2;
    let dirs = parameters.count("dirs", files)?;
    let (any, turn) = (Pick::Any, Pick::Turn);
    let read = vec![Op::Open(any), Op::ReadWhole(io), Op::Close];
    let append = vec![Op::Open(any), Op::Append(Size::UpTo(most - least)), Op::Trim(10 * most), Op::Close];
    let create = vec![Op::Create(any), Op::WriteWhole(io), Op::Close];
    let halves = vec![
        Op::OneOf(vec![(1, read), (1, append)]),
        Op::OneOf(vec![(1, create), (1, vec![Op::Unlink(any)])]),
    ];
    let made = vec![Op::Create(turn), Op::WriteWhole(io), Op::Close];
    let half = Extent::Each(Order::Forward, 50);
    let all = Extent::Each(Order::Forward, 100);
    Ok(Workload {
        name: String::new(),
        set: FileSet { files, width: files.div_ceil(dirs), size: Size::Between(least, most), present: 0 },
        threads: parameters.count("threads", THREADS_MAX)?,
        by_bytes: false,
        phases: vec![
            Phase::new("create", Unit::Turns("files"), Pass::new(half, made)),
            Phase::new("transactions", Unit::Turns("transactions"), Pass::new(Extent::Loop, halves)),
            Phase::unmeasured(Pass::new(all, vec![Op::Unlink(turn)])),
        ],
        varies: None,
    })
}

/// The ways of fs_mark's `-S`: 1 syncs each file before it is closed; 2 syncs everything, then one file; 3 and 5 open all files
/// again, last or first one first, and sync them; 4 and 6 sync everything before that.
fn fs_mark(parameters: &Parameters) -> Result<Workload, String> {
    let way = parameters.word("sync", &["0", "1", "2", "3", "4", "5", "6"])?;
    let io = pieces(parameters)?;
    let turn = Pick::Turn;
    let sync = Op::Sync { data_only: false };
    let mut write = vec![Op::Create(turn), Op::WriteWhole(io)];
    if way == 1 {
        write.push(sync.clone());
    }
    write.push(Op::Close);
    let each = |order, flow| Pass::new(Extent::Each(order, 100), flow);
    let mut passes = vec![each(Order::Forward, write)];
    if matches!(way, 2 | 4 | 6) {
        passes.push(Pass::new(Extent::Once, vec![Op::SyncAll]));
    }
    let again = |pick| vec![Op::Open(pick), sync.clone(), Op::Close];
    match way {
        2 => passes.push(Pass::new(Extent::Once, again(Pick::First))),
        3 | 4 => passes.push(each(Order::Reverse, again(turn))),
        5 | 6 => passes.push(each(Order::Forward, again(turn))),
        _ => {}
    }
    let size = Size::Exact(parameters.number("size")?);
    let width = parameters.count("width", usize::MAX)?;
    Ok(Workload {
        name: String::new(),
        set: FileSet { files: parameters.files()?, width, size, present: 0 },
        threads: parameters.count("threads", THREADS_MAX)?,
        by_bytes: false,
        phases: vec![
            Phase { name: "", measured: true, unit: Unit::Turns("files"), passes },
            Phase::unmeasured(each(Order::Forward, vec![Op::Unlink(turn)])),
        ],
        varies: None,
    })
}

/// FSMAC §V.B has ten of FFSB's operations, without saying which: these leave as many files as there were.
fn ten_operations(io: u64) -> [Vec<Op>; 10] {
    let any = Pick::Any;
    let sync = Op::Sync { data_only: false };
    let open = |step: Op| vec![Op::Open(any), step, Op::Close];
    let synced = |step: Op| vec![Op::Open(any), step, sync.clone(), Op::Close];
    [
        open(Op::Read(io, At::Random)),
        open(Op::ReadWhole(io)),
        open(Op::Write(io, At::Random)),
        synced(Op::Write(io, At::Random)),
        open(Op::Append(Size::Exact(io))),
        synced(Op::Append(Size::Exact(io))),
        vec![Op::Create(any), Op::WriteWhole(io), Op::Close],
        vec![Op::Unlink(any)],
        vec![Op::Stat(any)],
        vec![Op::Open(any), Op::Close],
    ]
}

/// Sizes by weight, without those above 1 MiB, which would be most of all bytes.
fn ffsb(parameters: &Parameters) -> Result<Workload, String> {
    let io = pieces(parameters)?;
    let sizes = [(33, 4), (21, 8), (13, 16), (10, 32), (8, 64), (5, 128), (4, 256)];
    let any = Pick::Any;
    let read = vec![Op::Open(any), Op::ReadWhole(io), Op::Close];
    let create = vec![Op::Create(any), Op::WriteWhole(io), Op::Sync { data_only: false }, Op::Close];
    // By its weights files become more and more; with two removals for one they stay as many.
    let remove = vec![Op::Unlink(any), Op::Unlink(any)];
    let flow = match parameters.word("mix", &["mail", "even"])? {
        0 => vec![Op::OneOf(vec![(4, read), (2, create), (1, remove)])],
        _ => vec![Op::OneOf(ten_operations(io).map(|operation| (1, operation)).to_vec())],
    };
    Ok(Workload {
        name: String::new(),
        set: FileSet {
            files: parameters.files()?,
            width: parameters.count("width", usize::MAX)?,
            size: Size::Weighted(sizes.map(|(weight, kib)| (weight, kib << 10)).to_vec()),
            present: 50,
        },
        threads: parameters.count("threads", THREADS_MAX)?,
        by_bytes: false,
        phases: vec![Phase::new("", Unit::Operations, Pass::new(Extent::Loop, flow))],
        varies: None,
    })
}
