//! A workload set up on one target: its files in a directory of its own, which goes with it.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::block_device::{BlockDevice, Traffic};
use crate::clock;
use crate::error::Fault;
use crate::files::Files;
use crate::flow::{Extent, Op, Order, Pass, Phase, Pick, Unit, Workload};
use crate::gate::Gate;
use crate::ground::{Ground, remove_tree};
use crate::random::Random;
use crate::statistics::{Reach, Sample, Tally};
use crate::worker::Worker;

/// The first pass of a phase over files ends after so many times the time of a loop, where a target is slow. Later ones are over what is there, and go
/// to their end: what a phase counts has been through all of them.
const PASS_TIMES: u32 = 2;

/// How long a pass without an end of its own goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Until so much time has passed; each thread completes its turn.
    Time(Duration),
    /// So many turns of each thread.
    Turns(u64),
}

/// What all stages of a benchmark need to know.
#[derive(Clone, Debug)]
pub struct Terms {
    /// How long loops go on.
    pub amount: Amount,
    /// Chooses what is random.
    pub seed: u64,
    /// Set when someone wants it to end: asked between operations.
    pub interrupted: Arc<AtomicBool>,
}

/// Has what waits for a disk, in NVM or in a server's caches, brought there, or tells why not.
pub type Settle = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a target stands on, as far as it is looked at.
#[derive(Default)]
pub struct Below {
    /// The process whose CPU time counts besides our own.
    pub server: Option<u32>,
    /// The disk, if it has one that nobody else uses.
    pub disk: Option<BlockDevice>,
    /// What a `syncfs` does not reach goes to the disk by this, behind each turn: it is not to be done in somebody else's.
    pub settle: Option<Settle>,
}

impl Below {
    fn traffic(&self) -> Option<Traffic> {
        self.disk.as_ref()?.traffic()
    }

    /// Begins to count what the machine does, and its disk.
    pub(crate) fn account(&self) -> Account<'_> {
        Account { below: self, busy_before: clock::machine_ns(), asked_before: self.traffic() }
    }
}

/// What goes on below the operations, until all that they did is where it belongs.
pub(crate) struct Account<'a> {
    below: &'a Below,
    busy_before: u64,
    asked_before: Option<Traffic>,
}

impl Account<'_> {
    /// Brings there what is not yet, and notes what that and all before it took.
    pub(crate) fn close(self, ground: &impl Ground, sample: &mut Sample) -> Result<(), Fault> {
        let began = Instant::now();
        ground.sync_all().map_err(|errno| Fault::new("syncfs", errno))?;
        if let Some(settle) = &self.below.settle {
            let doing = "bring to its disk what waits for it";
            settle().map_err(|why| Fault { why: Some(why), ..Fault::new(doing, Errno::IO) })?;
        }
        sample.settle_ns = began.elapsed().as_nanos() as u64;
        sample.machine_ns = clock::machine_ns().saturating_sub(self.busy_before);
        let asked = self.below.traffic().zip(self.asked_before);
        sample.disk = asked.map(|(after, before)| after.since(before));
        Ok(())
    }
}

/// One figure of a round.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The phase.
    pub phase: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// What it took.
    pub sample: Sample,
    /// What was done.
    pub tally: Tally,
}

/// A workload that is ready to run on some target.
pub trait Stage {
    /// One round: all phases. `part` is the part of the terms' time that loops get.
    fn round(&mut self, terms: &Terms, part: f64) -> Result<Vec<Measured>, Fault>;
    /// Removes everything it made.
    fn remove(self: Box<Self>) -> Result<(), Fault>;
}

/// Numbers the directories of this process.
static STAGES: AtomicUsize = AtomicUsize::new(0);

struct Prepared<'a, G: Ground> {
    ground: &'a G,
    workload: &'a Workload,
    below: &'a Below,
    home: Home<'a, G>,
    files: Option<Files<G>>,
    rounds: u64,
}

/// The directory of a stage. It goes when this is dropped.
struct Home<'a, G: Ground> {
    ground: &'a G,
    name: CString,
    exists: bool,
}

impl<G: Ground> Home<'_, G> {
    fn remove(&mut self) -> Result<(), Fault> {
        if !std::mem::take(&mut self.exists) {
            return Ok(());
        }
        let removed = remove_tree(self.ground, self.ground.top(), &self.name);
        removed.map_err(|errno| Fault::new("remove what the benchmark made", errno))
    }
}

impl<G: Ground> Drop for Home<'_, G> {
    fn drop(&mut self) {
        let _ = self.remove(); // who wants to know calls it
    }
}

/// Sets a workload up.
pub fn prepare<'a, G: Ground>(
    ground: &'a G,
    workload: &'a Workload,
    below: &'a Below,
    terms: &Terms,
) -> Result<Box<dyn Stage + 'a>, Fault> {
    let number = STAGES.fetch_add(1, Ordering::Relaxed);
    let name = CString::new(format!("amberfs-bench-{}-{number}", std::process::id())).expect("no NUL");
    let fault = |errno| Fault::new("make the workload's files", errno);
    ground.make_dir(ground.top(), &name).map_err(fault)?;
    let home = Home { ground, name, exists: true };
    let top = ground.open_dir(ground.top(), &home.name).map_err(fault)?;
    let stop = || terms.interrupted.load(Ordering::Relaxed);
    let files =
        Files::make(ground, &top, &workload.set, &mut Random::new(terms.seed), &stop).map_err(fault)?;
    ground.sync_all().map_err(fault)?;
    Ok(Box::new(Prepared { ground, workload, below, home, files: Some(files), rounds: 0 }))
}

impl<G: Ground> Stage for Prepared<'_, G> {
    fn round(&mut self, terms: &Terms, part: f64) -> Result<Vec<Measured>, Fault> {
        self.rounds += 1;
        let (mut measured, mut made) = (Vec::new(), None);
        for phase in &self.workload.phases {
            let (mut sample, tally) = self.phase(phase, terms, part)?;
            if let Some(found) = self.made(phase) {
                made = Some(found);
            } else if !phase.passes.iter().any(|pass| matches!(pass.extent, Extent::Each(..))) {
                // It has no turn for each file, and goes on with those that were made.
                sample.reach = [sample.reach, made].into_iter().flatten().reduce(Reach::least);
            }
            if phase.measured {
                measured.push(Measured { phase: phase.name, unit: phase.unit, sample, tally });
            }
        }
        Ok(measured)
    }

    fn remove(mut self: Box<Self>) -> Result<(), Fault> {
        if let Some(files) = self.files.take() {
            files.close(self.ground).map_err(|errno| Fault::new("close", errno))?;
        }
        self.home.remove()
    }
}

impl<G: Ground> Drop for Prepared<'_, G> {
    fn drop(&mut self) {
        if let Some(files) = self.files.take() {
            let _ = files.close(self.ground);
        }
    }
}

impl<G: Ground> Prepared<'_, G> {
    /// Behind a phase that makes files: how many of them are there.
    fn made(&self, phase: &Phase) -> Option<Reach> {
        let pass = phase.passes.first()?;
        let (Extent::Each(_, share), Some(Op::Create(Pick::Turn))) = (pass.extent, pass.flow.first()) else {
            return None;
        };
        let files = self.files.as_ref()?;
        let of = files.part(share);
        Some(Reach { done: (0..of).filter(|number| files.is_there(*number)).count() as u64, of: of as u64 })
    }

    fn phase(&self, phase: &Phase, terms: &Terms, part: f64) -> Result<(Sample, Tally), Fault> {
        let (mut sample, mut tally) = (Sample::default(), Tally::default());
        // What is not measured puts things back for the next round, however long that takes.
        let amount = phase.measured.then_some(match terms.amount {
            Amount::Time(time) => Amount::Time(time.mul_f64(part)),
            turns => turns,
        });
        let account = self.below.account();
        for (number, pass) in phase.passes.iter().enumerate() {
            let is_bounded = number == 0 || pass.extent == Extent::Loop;
            let amount = amount.filter(|_| is_bounded);
            let seed = terms.seed.wrapping_mul(1009).wrapping_add(self.rounds * 31 + number as u64);
            let (took, mut did) = self.pass(pass, terms, amount, seed)?;
            let files = self.files.as_ref().expect("there until it is removed");
            let of = match pass.extent {
                Extent::Each(_, share) => Some(files.part(share)),
                Extent::Dirs => Some(files.dirs.len()),
                Extent::Loop | Extent::Once => None,
            };
            let reach = of.map(|of| Reach { done: did.turns, of: of as u64 });
            sample.reach = [sample.reach, reach].into_iter().flatten().reduce(Reach::least);
            if number > 0 {
                did.turns = 0; // those of the first pass are what a figure counts
            }
            sample.wall_ns += took.wall_ns;
            sample.cpu_ns += took.cpu_ns;
            sample.server_ns = took.server_ns.map(|ns| ns + sample.server_ns.unwrap_or(0));
            tally.add(&did);
        }
        account.close(self.ground, &mut sample)?;
        sample.bytes = tally.bytes;
        sample.operations = match phase.unit {
            Unit::Operations => tally.operations(),
            Unit::Turns(_) => tally.turns,
        };
        Ok((sample, tally))
    }

    fn pass(
        &self,
        pass: &Pass,
        terms: &Terms,
        amount: Option<Amount>,
        seed: u64,
    ) -> Result<(Sample, Tally), Fault> {
        let files = self.files.as_ref().expect("there until it is removed");
        let threads = if pass.extent == Extent::Once { 1 } else { self.workload.threads.max(1) };
        let turns = match pass.extent {
            Extent::Each(order, share) => {
                let mut turns = order_of(order, files.part(share), seed);
                // To find that nothing can be done takes time, too.
                turns.retain(|number| pass.flow.first().is_none_or(|op| is_possible(files, op, *number)));
                turns
            }
            Extent::Dirs => (0..files.dirs.len()).map(|dir| dir * files.set.width).collect(),
            Extent::Loop | Extent::Once => Vec::new(),
        };
        let gate = Gate::default();
        let work = |number: usize| {
            let mut place = gate.place();
            let mut worker =
                Worker::new(self.ground, files, number, seed, [&terms.interrupted, &gate.failed]);
            let prepared = worker.perform(&pass.before);
            worker.tally = Tally::default();
            let is_open = place.wait();
            let began = Instant::now();
            let mine = &turns[number * turns.len() / threads..(number + 1) * turns.len() / threads];
            let result = match is_open {
                true => prepared.and_then(|()| repeat(&mut worker, pass, mine, amount)),
                false => Ok(()),
            };
            let ended = Instant::now();
            let result = worker.finish().and(result);
            if result.is_err() {
                // One that fails stops the others.
                gate.failed.store(true, Ordering::Relaxed);
            }
            result.map(|()| (worker.tally, began, ended))
        };
        let (results, before) = std::thread::scope(|scope| {
            let work = &work;
            let start = |number| Builder::new().spawn_scoped(scope, move || work(number));
            let (mut handles, mut refused) = (Vec::new(), None);
            for number in 0..threads {
                match start(number) {
                    Ok(handle) => handles.push(handle),
                    Err(error) => {
                        refused = Some(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
                        break;
                    }
                }
            }
            gate.gather(handles.len());
            let before = (self.below.server.and_then(clock::server_ns), clock::process_ns());
            gate.open(refused.is_none());
            let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
                handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let results: Vec<_> = handles.into_iter().map(join).collect();
            match refused {
                Some(errno) => Err(Fault::new(crate::error::STARTING, errno)),
                None => Ok((results, before)),
            }
        })?;
        let cpu_ns = clock::process_ns() - before.1;
        let server_ns = self.below.server.and_then(clock::server_ns);
        let server_ns = server_ns.zip(before.0).map(|(after, before)| after.saturating_sub(before));
        let (mut tally, mut span) = (Tally::default(), None);
        let mut fault: Option<Fault> = None;
        for result in results {
            match result {
                Ok((did, began, ended)) => {
                    tally.add(&did);
                    let (first, last) = span.unwrap_or((began, ended));
                    span = Some((began.min(first), ended.max(last)));
                }
                // The reason itself, not that the others were told to stop because of it.
                Err(found) if fault.as_ref().is_none_or(|fault| fault.errno == Errno::INTR) => {
                    fault = Some(found)
                }
                Err(_) => {}
            }
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        let wall_ns = span.map_or(0, |(first, last)| (last - first).as_nanos() as u64);
        Ok((Sample { wall_ns, cpu_ns, server_ns, ..Sample::default() }, tally))
    }
}

/// Repeats a pass's flow on one thread, which has these turns; `amount` is `None` where no end but that of the turns counts.
fn repeat<G: Ground>(
    worker: &mut Worker<'_, G>,
    pass: &Pass,
    turns: &[usize],
    amount: Option<Amount>,
) -> Result<(), Fault> {
    let began = Instant::now();
    let is_over = |worker: &Worker<'_, G>, times: u32| match amount {
        Some(Amount::Time(time)) => worker.now >= began + time * times,
        _ => false,
    };
    match (pass.extent, amount) {
        (Extent::Each(..) | Extent::Dirs, _) => {
            for number in turns {
                let did_something = worker.turn(*number, &pass.flow)?;
                if did_something && is_over(worker, PASS_TIMES) {
                    break;
                }
            }
            Ok(())
        }
        (Extent::Loop, Some(Amount::Turns(turns))) => {
            (0..turns).try_for_each(|_| worker.turn(0, &pass.flow).map(drop))
        }
        (Extent::Loop, Some(Amount::Time(_))) => loop {
            worker.turn(0, &pass.flow)?;
            if is_over(worker, 1) {
                return Ok(());
            }
        },
        (Extent::Once, _) | (Extent::Loop, None) => worker.turn(0, &pass.flow).map(drop),
    }
}

/// Whether the first step of a turn has something to be done to.
fn is_possible<G: Ground>(files: &Files<G>, first: &Op, number: usize) -> bool {
    match first {
        Op::Create(Pick::Turn) => !files.is_there(number),
        Op::Open(Pick::Turn) | Op::Stat(Pick::Turn) | Op::Rename(Pick::Turn) | Op::Unlink(Pick::Turn) => {
            files.is_there(number)
        }
        Op::MakeDir => !files.has_inner_dir(number),
        Op::RemoveDir => files.has_inner_dir(number),
        _ => true,
    }
}

/// The numbers below `count` in some order.
fn order_of(order: Order, count: usize, seed: u64) -> Vec<usize> {
    match order {
        Order::Forward => (0..count).collect(),
        Order::Reverse => (0..count).rev().collect(),
        Order::Shuffled => Random::new(seed).shuffled(count),
    }
}
