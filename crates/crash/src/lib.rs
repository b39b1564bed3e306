//! The crash explorer: no power cut at any moment breaks a promise.
//!
//! A workload is recorded below the volume: every store, flush and fence. At every fence and at every store, the states
//! that a power cut could leave are built in one piece of memory, recovered, checked, compared with the model, used,
//! and their recoveries crashed in turn. `docs/crash.md` has the fault model in prose.
//!
//! ```text
//! campaign    workloads, threads, totals           report, shrink
//! lab         one workload: record, then its crash points
//! judge       one state: recover, check, compare, use, crash the recovery         memo
//! search      which states are tried, by reading order
//! cut         what a power cut may leave of each line (unit)    machine: the x86 model
//! lag         what may be left where files' contents are durable apart from all else
//! arena       patches and undo                      tree, usage
//! subject     a kind of volume                      native_subject, ext_subject (platter), running
//! operation, catalogue, scene, workload: what is done           ground: on what
//! pair        two operations at the same time         schedule: who runs when
//! repair      what fsck stores, cut short
//! unwind      operations that panic
//! program     programs that judge their own files     nand: what a power cut leaves of flash
//! ```
#![forbid(unsafe_code)]

mod arena;
mod campaign;
mod catalogue;
mod cut;
mod ext_subject;
mod faults;
mod ground;
mod hash;
mod judge;
mod lab;
mod lag;
mod machine;
mod memo;
mod nand;
mod native_subject;
mod operation;
mod oracle;
mod pair;
mod platter;
mod program;
mod random;
mod repair;
mod running;
mod scene;
mod schedule;
mod search;
mod shrink;
mod subject;
mod tree;
mod unit;
mod unwind;
mod usage;
mod violation;
mod workload;

pub use campaign::{Campaign, Failure, Progress, Report};
pub use catalogue::{Entry, catalogue};
pub use ext_subject::Ext;
pub use faults::MediaFault;
pub use ground::{Chore, Ground};
pub use judge::Counts;
pub use lab::{Explored, Lab, WorkloadError};
pub use nand::{Geometry, Nand, NandError};
pub use native_subject::Native;
pub use operation::Operation;
pub use pair::{Pair, PairFailure, PairReport, explore_pair, pairs, replay_pair};
pub use program::{
    Judge, Life, LifeError, Program, ProgramError, ProgramFailure, ProgramOptions, ProgramReport, Verdict,
    done_mark, explore as explore_program,
};
pub use random::Random;
pub use repair::{RepairFailure, RepairReport, explore_repairs};
pub use scene::Scene;
pub use schedule::{Deadlock, Schedule, Turns, run_two, schedules};
pub use shrink::shrink;
pub use subject::{Mounted, Promise, Subject};
pub use tree::Tree;
pub use unwind::{UnwindViolation, Unwound};
pub use violation::Violation;
pub use workload::{Id, Workload, subject};
