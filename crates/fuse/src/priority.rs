//! At what priority the threads of rings run: the lowest, while the machine has nothing better to do.
//!
//! A ring's thread and who asks take turns on one processor ([`crate::ring`]). But when an answer wakes who asked, the kernel looks for a
//! processor with nothing to do, and if there is another one it wakes him there; his next request goes to that one's ring, and so he is
//! sent from one to the other with each. To wake a processor that sleeps costs more than the request: in a virtual machine some 30 µs
//! where the whole request takes 10. A processor on which nothing but `SCHED_IDLE` threads run counts as idle to the kernel
//! (`select_idle_sibling` in `kernel/sched/fair.c`, `sched(7)`), and it is the first that it looks at: so who is woken by a thread of that
//! kind stays where he is.
//!
//! Such a thread hardly runs at all where others compute, and who asked would wait for it. So it is one only while requests come thick.
//! When they don't any more, it looks how long it had to wait for a processor; and a guard looks after all of them: a thread that has made
//! no progress between two of its looks, [`TICK`] apart, gets the usual priority again. Where others turn out to be at work, it keeps the
//! usual priority for a while: not long, as it may have been the volume's own checkpoint, but twice as long each time that this happens
//! again before the low priority has been good for as long.
//!
//! And it is not one while several ask side by side. Whoever of them can run would keep it from serving another, who may hold what they all
//! wait for: the kernel makes and removes the names of a directory one at a time. With more of them than processors none of these has nothing
//! to do anyhow.
//!
//! What such a thread starts has its priority, and nobody raises that: a volume whose calls start threads, or have the kernel start some,
//! sees to it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::thread::Pid;
use scheduling::{Policy, policy, set};

/// Between two looks of the guard. Nobody waits for a thread of low priority for longer than two of them.
const TICK: Duration = Duration::from_millis(2);
/// Requests that follow each other by less than `APART` before a thread gets the low priority.
const THICK: u32 = 8;
const APART: Duration = Duration::from_millis(1);
/// Behind so many requests of others than whoever asked before, or twice as many of the same, it is known whether several ask.
const OTHERS: u32 = 16;
/// Ticks for which a thread keeps the usual priority, when others were at work: at first, and at most.
const CROWDED: u32 = 2;
const CROWDED_MAX: u32 = 800;

/// What the threads of one mount's rings and their guard share.
pub(crate) struct Priorities {
    seats: Vec<Seat>,
    /// The guard, which waits to be woken as long as nobody has the low priority.
    guard: OnceLock<Thread>,
    waits: AtomicBool,
}

/// A ring's thread, as the guard sees it. By itself in its lines, because it is written to with each request.
#[derive(Default)]
#[repr(align(128))]
struct Seat {
    thread: OnceLock<Pid>,
    /// Counts: a request has been answered, the next one has come.
    turns: AtomicU64,
    /// Has been given the low priority. Whoever sets it does so *before* that: the guard may be wrong about a thread that has the usual
    /// one, never about one that has not.
    low: AtomicBool,
    /// Ticks before it may have the low priority.
    crowded: AtomicU32,
    /// For how many it was crowded last; 0 if the low priority has been good for as long since.
    last: AtomicU32,
}

impl Priorities {
    /// For so many rings, and their guard's thread; `None` where threads keep the priority that they have: on a single processor; if
    /// whoever started the server has chosen one; without the right to have the usual one again (`RLIMIT_NICE`, for an ordinary user).
    pub(crate) fn new(rings: u16) -> Option<(Arc<Priorities>, JoinHandle<io::Result<()>>)> {
        let probe = thread::Builder::new().name("ring-probe".into()).spawn(can_change).ok()?;
        if !probe.join().unwrap_or(false) || rings < 2 {
            return None;
        }
        let seats = (0..rings).map(|_| Seat::default()).collect();
        let priorities =
            Arc::new(Priorities { seats, guard: OnceLock::new(), waits: AtomicBool::new(false) });
        let watched = Arc::downgrade(&priorities);
        let guard = thread::Builder::new().name("ring-guard".into()).spawn(move || {
            watch(&watched);
            Ok(())
        });
        let guard = guard.ok()?;
        let _ = priorities.guard.set(guard.thread().clone());
        Some((priorities, guard))
    }

    fn wake_guard(&self) {
        if let Some(guard) = self.guard.get() {
            guard.unpark();
        }
    }
}

impl Drop for Priorities {
    /// Has the guard see that it is over.
    fn drop(&mut self) {
        self.wake_guard();
    }
}

/// The calling thread's part: one that serves a ring. `None` if it is to keep the priority it has.
pub(crate) struct Priority(Option<Own>);

struct Own {
    all: Arc<Priorities>,
    number: usize,
    /// When the last request came, and how many have come thick.
    last: Instant,
    thick: u32,
    /// Who asked last, and whether others ask, too: twice those that were of another than the one before, less those that were not.
    client: u32,
    others: u32,
    /// How long it had waited for a processor, when that was looked at last.
    waited: Duration,
}

impl Priority {
    /// Of the thread that calls it, which serves ring `number`.
    pub(crate) fn new(priorities: Option<Arc<Priorities>>, number: u16) -> Priority {
        Priority(priorities.map(|all| {
            let number = usize::from(number);
            let _ = all.seats[number].thread.set(rustix::thread::gettid());
            Own { all, number, last: Instant::now(), thick: 0, client: 0, others: 0, waited: waited() }
        }))
    }

    /// The thread serves a request of this thread of somebody's; 0 if the kernel does not say whose.
    pub(crate) fn serves(&mut self, client: u32) {
        if let Some(own) = &mut self.0
            && client != 0
        {
            let is_another = std::mem::replace(&mut own.client, client) != client;
            own.others =
                if is_another { (own.others + 2).min(2 * OTHERS) } else { own.others.saturating_sub(1) };
        }
    }

    /// The thread is about to answer, and to wait for what comes next.
    pub(crate) fn answers(&mut self) {
        if let Some(own) = &mut self.0 {
            own.answers();
        }
    }

    /// Something has come.
    pub(crate) fn goes_on(&mut self) {
        let Some(own) = &self.0 else { return };
        let seat = own.seat();
        seat.turns.fetch_add(1, Ordering::Relaxed);
        if seat.crowded.load(Ordering::Relaxed) > 0 && seat.low.load(Ordering::Relaxed) {
            // The guard has found it ready to run, perhaps between two lines of `lower`.
            own.raise();
        }
    }
}

impl Drop for Priority {
    /// What is left to do when the mount has ended is done with the usual priority.
    fn drop(&mut self) {
        if let Some(own) = &self.0 {
            own.raise();
        }
    }
}

impl Own {
    fn seat(&self) -> &Seat {
        &self.all.seats[self.number]
    }

    fn answers(&mut self) {
        self.seat().turns.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let since = now - self.last;
        self.last = now;
        self.thick = if since < APART { self.thick.saturating_add(1) } else { 0 };
        let is_low = self.seat().low.load(Ordering::Relaxed);
        if is_low && self.thick == 0 {
            let before = std::mem::replace(&mut self.waited, waited());
            if self.waited.saturating_sub(before) > since / 4 {
                self.seat().crowd();
                self.raise();
            }
        }
        if is_low && self.others >= OTHERS {
            self.raise();
        }
        if !is_low
            && self.thick >= THICK
            && self.others == 0
            && self.seat().crowded.load(Ordering::Relaxed) == 0
        {
            self.waited = waited();
            self.lower();
        }
    }

    fn lower(&self) {
        let seat = self.seat();
        // In this order with the guard's own, which says that it waits and then looks whether anybody has the low priority.
        seat.low.store(true, Ordering::SeqCst);
        if self.all.waits.swap(false, Ordering::SeqCst) {
            self.all.wake_guard();
        }
        set(None, Policy::Idle);
        // The guard may have thought meanwhile that it rests. It says so, and then looks at the priority.
        if !seat.low.load(Ordering::SeqCst) {
            set(None, Policy::Usual);
        }
    }

    fn raise(&self) {
        if set(None, Policy::Usual) {
            self.seat().low.store(false, Ordering::SeqCst);
        }
    }
}

/// What the guard remembers of a seat.
#[derive(Clone, Copy, Default)]
struct Memory {
    turns: u64,
    /// Ticks in which it has had the low priority, and got on, since it was crowded.
    well: u32,
}

/// The guard's work, until nobody serves any more.
fn watch(priorities: &Weak<Priorities>) {
    let mut memories = Vec::new();
    loop {
        let wait = {
            let Some(all) = priorities.upgrade() else { return };
            memories.resize(all.seats.len(), Memory::default());
            let looks = all.seats.iter().zip(&mut memories).map(|(seat, memory)| seat.look(memory));
            let busy = looks.fold(false, |busy, again| busy | again);
            // Said before the last look, so that nobody who gets the low priority behind it finds the guard at work.
            all.waits.store(!busy, Ordering::SeqCst);
            !busy && !all.seats.iter().any(|seat| seat.low.load(Ordering::SeqCst))
        };
        if wait { thread::park() } else { thread::park_timeout(TICK) }
    }
}

impl Seat {
    /// Others have been found at work beside it.
    fn crowd(&self) {
        if self.crowded.load(Ordering::Relaxed) == 0 {
            let ticks = (2 * self.last.load(Ordering::Relaxed)).clamp(CROWDED, CROWDED_MAX);
            self.last.store(ticks, Ordering::Relaxed);
            self.crowded.store(ticks, Ordering::Relaxed);
        }
    }

    /// One look of the guard at a thread. Tells whether it has to look again.
    fn look(&self, memory: &mut Memory) -> bool {
        let crowded = self.crowded.load(Ordering::Relaxed);
        if crowded > 0 {
            self.crowded.store(crowded - 1, Ordering::Relaxed);
            memory.well = 0;
        }
        if !self.low.load(Ordering::SeqCst) {
            return crowded > 1;
        }
        let turns = self.turns.load(Ordering::Relaxed);
        if turns != memory.turns {
            memory.turns = turns;
            memory.well += 1;
            if memory.well >= self.last.load(Ordering::Relaxed) {
                self.last.store(0, Ordering::Relaxed);
            }
            return true;
        }
        let Some(&thread) = self.thread.get() else { return true };
        let before = policy(Some(thread));
        set(Some(thread), Policy::Usual);
        if is_ready(thread) {
            // Still marked, as it may be about to take the low priority: it puts that right when it goes on.
            self.crowd();
        } else if before == Some(Policy::Usual) {
            // It rests. If it was about to take the low priority all the same, it sees this, or this sees that.
            self.low.store(false, Ordering::SeqCst);
            if policy(Some(thread)) == Some(Policy::Idle) {
                self.low.store(true, Ordering::SeqCst);
            }
        }
        true
    }
}

/// Whether a thread of this process runs or could, as far as is known.
fn is_ready(thread: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/self/task/{}/stat", thread.as_raw_nonzero()));
    // Behind the name, which is in parentheses and may have some in it.
    status.map_or(true, |status| status.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('R')))
}

/// How long the calling thread has been ready to run and did not, since it began; nothing where the kernel does not say.
fn waited() -> Duration {
    let told = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = told.split_whitespace().nth(1).and_then(|waited| waited.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

/// Whether a thread may have the low priority and then the usual one. To be asked in one that has nothing else to do: it may stay low.
fn can_change() -> bool {
    policy(None) == Some(Policy::Usual) && set(None, Policy::Idle) && set(None, Policy::Usual)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::thread::{CpuSet, sched_setaffinity};

    use super::*;

    /// Long enough for any machine, however busy.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A guard of two rings; says so where there is none.
    fn priorities() -> Option<(Arc<Priorities>, JoinHandle<io::Result<()>>)> {
        let new = Priorities::new(2);
        if new.is_none() {
            eprintln!(
                "LEFT OUT: this process may not change priorities of its threads (RLIMIT_NICE, or a policy of its own)"
            );
        }
        new
    }

    fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
            thread::sleep(TICK);
        }
    }

    #[test]
    fn who_serves_much_has_the_low_priority_and_who_rests_the_usual_one() {
        let Some((all, guard)) = priorities() else { return };
        let (low, is_low) = mpsc::channel::<()>();
        let (rest, resting) = mpsc::channel::<()>();
        let seats = all.clone();
        let serving = thread::spawn(move || {
            let mut priority = Priority::new(Some(seats), 0);
            while policy(None) == Some(Policy::Usual) {
                priority.answers();
                priority.goes_on();
            }
            let _ = low.send(());
            let _ = resting.recv();
        });
        is_low.recv_timeout(PATIENCE).expect("the low priority");
        wait_until("the usual priority, when it rests", || {
            let thread = *all.seats[0].thread.get().unwrap();
            policy(Some(thread)) == Some(Policy::Usual) && !all.seats[0].low.load(Ordering::SeqCst)
        });
        drop(rest);
        serving.join().unwrap();
        drop(all);
        guard.join().unwrap().unwrap();
    }

    #[test]
    fn who_serves_several_has_the_usual_priority() {
        let Some((all, guard)) = priorities() else { return };
        let seats = all.clone();
        let serving = thread::spawn(move || {
            let mut priority = Priority::new(Some(seats), 0);
            let mut serve = |client: u32| {
                priority.serves(client);
                priority.answers();
                priority.goes_on();
            };
            let begun = Instant::now();
            while policy(None) == Some(Policy::Usual) {
                serve(1);
                assert!(begun.elapsed() < PATIENCE, "one asks, and it has the usual priority");
            }
            for turn in 0..OTHERS {
                serve(turn % 2 + 1);
            }
            assert_eq!(policy(None), Some(Policy::Usual), "two ask");
            for turn in 0..10 * THICK {
                serve(turn % 2 + 1);
                assert_eq!(policy(None), Some(Policy::Usual), "two ask still");
            }
            // Nobody in particular is no other.
            while policy(None) == Some(Policy::Usual) {
                serve(1);
                serve(0);
                assert!(begun.elapsed() < PATIENCE, "one asks again, and it has the usual priority");
            }
        });
        serving.join().unwrap();
        drop(all);
        guard.join().unwrap().unwrap();
    }

    /// On its processor others compute all the time: with the low priority alone it would get a three-hundredth of it.
    #[test]
    fn who_is_kept_waiting_by_others_has_the_usual_priority_again() {
        let Some((all, guard)) = priorities() else { return };
        let bind = || {
            let mut first = CpuSet::new();
            let mine = rustix::thread::sched_getaffinity(None).unwrap();
            first.set((0..CpuSet::MAX_CPU).find(|&cpu| mine.is_set(cpu)).unwrap());
            sched_setaffinity(None, &first).unwrap();
        };
        let over = Arc::new(AtomicBool::new(false));
        let computing = {
            let over = over.clone();
            thread::spawn(move || {
                bind();
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let seats = all.clone();
        let ended = over.clone();
        let serving = thread::spawn(move || {
            bind();
            let mut priority = Priority::new(Some(seats), 0);
            while !ended.load(Ordering::Relaxed) {
                priority.answers();
                priority.goes_on();
            }
        });
        wait_until("crowded", || all.seats[0].crowded.load(Ordering::Relaxed) > 0);
        // From then on it gets half of the processor, and puts right what the guard could not know.
        wait_until("the usual priority", || {
            let thread = *all.seats[0].thread.get().unwrap();
            policy(Some(thread)) == Some(Policy::Usual) && !all.seats[0].low.load(Ordering::SeqCst)
        });
        over.store(true, Ordering::Relaxed);
        computing.join().unwrap();
        serving.join().unwrap();
        drop(all);
        guard.join().unwrap().unwrap();
    }
}
