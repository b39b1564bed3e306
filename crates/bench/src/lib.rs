//! How fast Amberfs is beside what its users would pick instead, on their machine.
//!
//! ```text
//! campaign     targets × workloads × rounds, in turns          progress
//! peers        file systems set up to be compared with         target
//! tool         other people's generators on the same mounts
//! stage        one workload on one target: its files, its threads, what it took
//! worker       one thread: interprets a flow, times each operation
//! catalogue    the workloads, by name and parameters           request
//! flow, files  workloads as data; their files while they run
//! ground       what workloads stand on                         directory, in_process
//! statistics   medians, latencies                              clock, block_device, random
//! table, page  what was measured, as text and as a page        markdown, plot
//! ```
#![forbid(unsafe_code)]

mod block_device;
mod campaign;
mod catalogue;
mod clock;
mod directory;
mod error;
mod files;
mod floor;
mod flow;
mod gate;
mod ground;
mod in_process;
mod machine;
pub mod markdown;
mod page;
mod parameters;
mod peers;
mod plot;
mod random;
mod request;
mod stage;
mod statistics;
mod table;
mod target;
mod tool;
mod worker;

pub use block_device::{BlockDevice, Traffic};
pub use campaign::{Figure, Plan, Progress, Report, Series, run};
pub use catalogue::{Entry, catalogue, groups};
pub use directory::Directory;
pub use error::{Error, Fault};
pub use flow::{At, Extent, FileSet, Op, Order, Pass, Phase, Pick, Unit, Workload};
pub use ground::{Ground, Open};
pub use in_process::InProcess;
pub use machine::machine;
pub use page::page;
pub use peers::{ExtOptions, PEERS, Peer, Peers, Setup, available_bytes, fitting_bytes};
pub use random::Size;
pub use request::workloads;
pub use stage::{Amount, Below, Measured, Settle, Stage, Terms, prepare};
pub use statistics::{Kind, Latencies, Reach, Sample, Spread, Tally};
pub use table::{details, headline, ratio};
pub use target::{Guard, Server, Target};
pub use tool::{Tool, run_tools};
