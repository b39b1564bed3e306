//! Workloads as data, in the manner of Filebench: a set of files, and flows of operations that threads repeat.

use crate::random::Size;

/// The files that a workload works on. They have numbers; whether a file is there changes as the workload runs.
#[derive(Clone, Debug)]
pub struct FileSet {
    /// Files there can be.
    pub files: usize,
    /// Files in one directory.
    pub width: usize,
    /// How long files are.
    pub size: Size,
    /// How many of the files are there from the start, per cent.
    pub present: usize,
}

/// Which file an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The one whose turn it is, in a pass over all files.
    Turn,
    /// Any that fits: one that is there, or is not, for what makes one.
    Any,
    /// The one with the thread's number.
    Own,
    /// The first: all threads work on one.
    First,
}

/// Where in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Behind the last one; at the end, from the start.
    Next,
    /// Before the last one; at the start, from the end.
    Previous,
    /// Anywhere, at multiples of the length.
    Random,
    /// So many bytes behind the last one: iozone's strided read.
    Stride(u64),
    /// At the start: iozone's record rewrite.
    Start,
}

/// One step of a flow. A thread has one file open at a time; steps that name no file are about that one, and are left out if
/// there is none.
#[derive(Clone, Debug)]
pub enum Op {
    /// Makes a file and opens it.
    Create(Pick),
    /// Opens a file.
    Open(Pick),
    /// Closes the open file.
    Close,
    /// Writes the open file anew, as long as the file set has it, in pieces of so many bytes.
    WriteWhole(u64),
    /// Reads the open file from start to end, in pieces of so many bytes.
    ReadWhole(u64),
    /// Reads so many bytes of the open file.
    Read(u64, At),
    /// Overwrites so many bytes of the open file.
    Write(u64, At),
    /// Adds to the open file.
    Append(Size),
    /// Truncates the open file if it has become so long.
    Trim(u64),
    /// Makes the open file durable; only what is needed to read it, or all.
    Sync {
        /// `fdatasync(2)`.
        data_only: bool,
    },
    /// Makes everything durable.
    SyncAll,
    /// Adds to a file that all threads have open to append to.
    AppendLog(Size),
    /// Asks for a file's attributes.
    Stat(Pick),
    /// Lists a directory of the file set: that of the file whose turn it is, or any.
    List(Pick),
    /// Gives a file another name in its directory.
    Rename(Pick),
    /// Removes a file.
    Unlink(Pick),
    /// Makes a directory beside the file whose turn it is.
    MakeDir,
    /// Removes that directory.
    RemoveDir,
    /// Repeats steps.
    Repeat(u32, Vec<Op>),
    /// Does one of these, each as likely as its weight.
    OneOf(Vec<(u32, Vec<Op>)>),
}

/// How often a pass repeats its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Once for each of the first files, so many per cent of all, which the threads share out.
    Each(Order, usize),
    /// Once for each directory of the file set, with the turn of its first file.
    Dirs,
    /// Again and again, each thread for itself, as long as asked for.
    Loop,
    /// Once, on one thread.
    Once,
}

/// In which order a pass takes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they are numbered.
    Forward,
    /// The other way.
    Reverse,
    /// In one that a seed chooses.
    Shuffled,
}

/// Threads that repeat a flow.
#[derive(Clone, Debug)]
pub struct Pass {
    /// What each thread does before all are let go; not measured.
    pub before: Vec<Op>,
    /// What is repeated.
    pub flow: Vec<Op>,
    /// How often.
    pub extent: Extent,
}

impl Pass {
    /// A pass without anything before it.
    pub fn new(extent: Extent, flow: Vec<Op>) -> Pass {
        Pass { before: Vec::new(), flow, extent }
    }
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Each operation, as Filebench does.
    Operations,
    /// Each time that a flow was done; the word for it.
    Turns(&'static str),
}

impl Unit {
    /// The word for what is counted.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Operations => "operations",
            Unit::Turns(name) => name,
        }
    }
}

/// Passes that are one figure.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What the figure is called; empty if the workload has only this one.
    pub name: &'static str,
    /// Whether it is a figure at all, or puts things back where the next round needs them.
    pub measured: bool,
    /// What it counts.
    pub unit: Unit,
    /// One after the other.
    pub passes: Vec<Pass>,
}

impl Phase {
    /// A figure from one pass.
    pub fn new(name: &'static str, unit: Unit, pass: Pass) -> Phase {
        Phase { name, measured: true, unit, passes: vec![pass] }
    }

    /// A pass that is not measured.
    pub fn unmeasured(pass: Pass) -> Phase {
        Phase { name: "", measured: false, unit: Unit::Operations, passes: vec![pass] }
    }
}

/// A workload: its file set, its threads, and what they do in each round.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name with the parameters that were given.
    pub name: String,
    /// The files.
    pub set: FileSet,
    /// Threads of each pass.
    pub threads: usize,
    /// Whether bytes per second say more than operations per second.
    pub by_bytes: bool,
    /// One after the other, in each round.
    pub phases: Vec<Phase>,
    /// If it is one of a series: the parameter that differs, and its value here.
    pub varies: Option<(String, f64)>,
}
