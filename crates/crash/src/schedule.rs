//! Two threads that take turns as a schedule says, so that a run of both can be repeated.
//!
//! Each thread calls [`Turns::step`] before every event of the medium. One of them runs at a time: the first, until it has
//! made as many steps as the schedule's first number says; then the other, for the second number of steps; and so on.
//! Each number is one preemption. A thread that ends, or that waits for a lock which the other holds, hands over without
//! that being one. Which is the case is not guessed from the time that it takes: the kernel says whether the thread
//! sleeps, and on what: the address of the lock's word.
//!
//! Between two steps, a thread that was let go by the other's releasing a lock runs at the same time as it, until its next
//! step; neither goes beyond that before both have come to rest.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

const RUNNING: u8 = 0;
const ARRIVED: u8 = 1;
const FINISHED: u8 = 2;

/// After how many steps of the thread that runs the other one's turn comes; after the last number nobody is preempted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule(pub Vec<u32>);

/// Both threads wait for each other: the one bug that a schedule shows without any crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("both threads wait for locks that the other one holds")]
pub struct Deadlock;

/// The turns of two threads.
pub struct Turns {
    players: [Player; 2],
    controller: Thread,
}

struct Player {
    state: AtomicU8,
    steps: AtomicU32,
    /// Where the kernel says in which call the thread sleeps, and how often it was let run.
    syscall: OnceLock<File>,
    schedstat: OnceLock<File>,
    thread: OnceLock<Thread>,
}

/// One sleep of a thread: two that differ in anything are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sleep {
    /// The kernel's call that it is in.
    call: u64,
    /// What that was given first: of a thread that waits for a lock, the address of the lock's word.
    address: u64,
    /// How often it was let run before; 0 from a kernel that does not count.
    runs: u64,
}

impl Player {
    fn new() -> Player {
        Player {
            state: AtomicU8::new(RUNNING),
            steps: AtomicU32::new(0),
            syscall: OnceLock::new(),
            schedstat: OnceLock::new(),
            thread: OnceLock::new(),
        }
    }

    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Acquire) == state
    }

    /// If it sleeps without having arrived anywhere, which sleep that is. It waits for a lock, then; or, for a moment, for the
    /// allocator's own. A glance, that allocates nothing.
    fn sleeps(&self) -> Option<Sleep> {
        fn words<'t>(file: &OnceLock<File>, text: &'t mut [u8]) -> impl Iterator<Item = &'t str> {
            let length = file.get().map_or(0, |file| file.read_at(text, 0).unwrap_or(0));
            std::str::from_utf8(&text[..length]).unwrap_or_default().split_ascii_whitespace()
        }
        let (mut text, mut counts) = ([0; 512], [0; 128]);
        // Of a thread that does not sleep it says "running".
        let mut said = words(&self.syscall, &mut text);
        let call = said.next()?.parse().ok()?;
        let address = u64::from_str_radix(said.next()?.strip_prefix("0x")?, 16).ok()?;
        if !self.is(RUNNING) {
            return None;
        }
        let runs = words(&self.schedstat, &mut counts).nth(2).and_then(|word| word.parse().ok()).unwrap_or(0);
        Some(Sleep { call, address, runs })
    }

    /// Has the kernel tell of the calling thread from now on.
    fn be_told_of(&self) {
        let open = |name: &str| File::open(format!("/proc/thread-self/{name}"));
        let syscall = open("syscall");
        let _ = self
            .syscall
            .set(syscall.expect("without /proc/thread-self/syscall nobody sees who waits for a lock"));
        if let Ok(schedstat) = open("schedstat") {
            let _ = self.schedstat.set(schedstat);
        }
    }

    fn go(&self) {
        self.state.store(RUNNING, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Looks after which a thread that sleeps all the time is taken to wait for a lock, and the time between them.
const LOOKS: u32 = 8;
const BETWEEN_LOOKS: Duration = Duration::from_micros(60);

/// Looks after which two threads of which none can go on are taken to wait for each other: some ten seconds. What they wait
/// for may be neither's: a panic is told under a lock of the process, which another thread's long account of its own holds.
const LOOKS_AT_A_DEADLOCK: u32 = 100_000;

impl Turns {
    /// Waits for this thread's turn. `player` is 0 or 1.
    pub fn step(&self, player: usize) {
        let me = &self.players[player];
        me.steps.fetch_add(1, Ordering::Relaxed);
        self.arrive(me, ARRIVED);
        while !me.is(RUNNING) {
            thread::park();
        }
    }

    fn arrive(&self, me: &Player, state: u8) {
        me.state.store(state, Ordering::Release);
        self.controller.unpark();
    }

    /// Waits until no thread runs: each has arrived, has finished, or sleeps on at every look. One that was seen to wait before
    /// and is in the same sleep still was not let go since, so one look at it will do. `waits` says which sleeps these are,
    /// before and after.
    fn rest(&self, looks: u32, waits: &mut [Option<Sleep>; 2]) {
        let (mut seen, mut last) = (0, [None; 2]);
        let mut glances = 0u32;
        loop {
            let running = [0, 1].map(|player| self.players[player].is(RUNNING));
            if running == [false; 2] {
                return;
            }
            let sleeps =
                [0, 1].map(|player| if running[player] { self.players[player].sleeps() } else { None });
            let asleep = sleeps.map(|sleep| sleep.is_some()) == running;
            seen = if asleep && (seen == 0 || sleeps == last) { seen + 1 } else { u32::from(asleep) };
            last = sleeps;
            if seen >= looks || (asleep && sleeps == *waits) {
                *waits = sleeps;
                return;
            }
            glances += 1;
            match glances < 50 && seen == 0 {
                true => thread::yield_now(),
                false => thread::park_timeout(BETWEEN_LOOKS),
            }
        }
    }

    /// Hands out the turns until both have finished.
    fn conduct(&self, schedule: &Schedule) -> Result<(), Deadlock> {
        let mut switches = schedule.0.iter().copied();
        let mut turn = 0;
        let mut left = switches.next();
        let mut waits = [None; 2];
        loop {
            self.rest(LOOKS, &mut waits);
            if self.players.iter().all(|player| player.is(FINISHED)) {
                return Ok(());
            }
            if left == Some(0) {
                turn = 1 - turn;
                left = switches.next();
            }
            let runs = [turn, 1 - turn].into_iter().find(|player| self.players[*player].is(ARRIVED));
            let Some(runs) = runs else {
                // Neither of the two is left to wake the other.
                waits = [None; 2];
                self.rest(LOOKS_AT_A_DEADLOCK, &mut waits);
                let arrived = self.players.iter().any(|player| player.is(ARRIVED));
                if arrived || self.players.iter().all(|player| !player.is(RUNNING)) {
                    continue;
                }
                return Err(Deadlock);
            };
            if runs == turn {
                left = left.map(|steps| steps - 1);
            }
            self.players[runs].go();
        }
    }
}

/// What a thread does in its turns.
type Body<T> = Box<dyn FnOnce(&Arc<Turns>, usize) -> T + Send>;

/// Runs both on threads of their own, by `schedule`. Each gets the turns and its number, and calls [`Turns::step`] with it
/// wherever it may be interrupted. Returns what they return and how many steps each made. After a deadlock the two threads
/// are left behind, for ever asleep.
pub fn run_two<T: Send + 'static>(
    schedule: &Schedule,
    first: impl FnOnce(&Arc<Turns>, usize) -> T + Send + 'static,
    second: impl FnOnce(&Arc<Turns>, usize) -> T + Send + 'static,
) -> Result<([T; 2], [u32; 2]), Deadlock> {
    let turns = Arc::new(Turns { players: [Player::new(), Player::new()], controller: thread::current() });
    let spawn = |player: usize, body: Body<T>| {
        let turns = turns.clone();
        thread::spawn(move || {
            let me = &turns.players[player];
            // A panic finishes, too: whoever joins gets to know.
            let finish = Finish { turns: &turns, player };
            let _ = me.thread.set(thread::current());
            me.be_told_of();
            turns.step(player);
            let result = body(&turns, player);
            drop(finish);
            result
        })
    };
    let threads = [spawn(0, Box::new(first)), spawn(1, Box::new(second))];
    let join = |thread: thread::JoinHandle<T>| match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    if let Err(deadlock) = turns.conduct(schedule) {
        // One that panicked may have left the other one waiting: it is to blame then.
        let finished = threads.into_iter().zip(&turns.players).filter(|(_, player)| player.is(FINISHED));
        finished.for_each(|(thread, _)| drop(join(thread)));
        return Err(deadlock);
    }
    let results = threads.map(join);
    // The first step of each is its start.
    let steps = [0, 1].map(|player| turns.players[player].steps.load(Ordering::Relaxed) - 1);
    Ok((results, steps))
}

struct Finish<'a> {
    turns: &'a Turns,
    player: usize,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.turns.arrive(&self.turns.players[self.player], FINISHED);
    }
}

thread_local! {
    /// Whose turns this thread takes part in, and as which player.
    static HERE: RefCell<Option<(Arc<Turns>, usize)>> = const { RefCell::new(None) };
    /// Whether it steps at reads, too.
    static AT_READS: Cell<bool> = const { Cell::new(false) };
}

/// Lets [`step_here`], and [`step_at_read`] if it is to be `at_reads`, called by this thread, step in `turns` as `player`,
/// until the guard is dropped.
pub(crate) fn steps_here(turns: &Arc<Turns>, player: usize, at_reads: bool) -> impl Drop + use<> {
    struct Here;
    impl Drop for Here {
        fn drop(&mut self) {
            HERE.set(None);
            AT_READS.set(false);
        }
    }
    HERE.set(Some((turns.clone(), player)));
    AT_READS.set(at_reads);
    Here
}

/// [`Turns::step`] of a thread that [`steps_here`] was called in; nothing in others. For those who know no players: the
/// medium.
pub(crate) fn step_here() {
    let here = HERE.with_borrow(|here| here.clone());
    if let Some((turns, player)) = here {
        turns.step(player);
    }
}

/// The same before a read, in a thread that steps there.
pub(crate) fn step_at_read() {
    if AT_READS.get() {
        step_here();
    }
}

/// All schedules with up to two preemptions for threads that make `first` and `second` steps when they run alone. The
/// numbers count the start of a thread as a step.
pub fn schedules(first: u32, second: u32) -> impl Iterator<Item = Schedule> {
    let none = [vec![], vec![0]];
    let one = (1..=first).map(|n| vec![n]).chain((1..=second).map(|n| vec![0, n]));
    let two = (1..=first).flat_map(move |n| (1..=second).map(move |m| vec![n, m]));
    let two_from_second = (1..=second).flat_map(move |n| (1..=first).map(move |m| vec![0, n, m]));
    none.into_iter().chain(one).chain(two).chain(two_from_second).map(Schedule)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What two threads of three steps each say, by a schedule.
    fn order(schedule: &[u32]) -> String {
        let said = Arc::new(Mutex::new(String::new()));
        let speak = |letter: char, said: Arc<Mutex<String>>| {
            move |turns: &Arc<Turns>, player| {
                for _ in 0..3 {
                    turns.step(player);
                    said.lock().unwrap().push(letter);
                }
            }
        };
        let schedule = Schedule(schedule.to_vec());
        let (_, steps) = run_two(&schedule, speak('a', said.clone()), speak('b', said.clone())).unwrap();
        assert_eq!(steps, [3, 3]);
        said.lock().unwrap().clone()
    }

    #[test]
    fn turns_follow_the_schedule() {
        assert_eq!(order(&[]), "aaabbb");
        assert_eq!(order(&[0]), "bbbaaa");
        assert_eq!(order(&[2]), "abbbaa");
        assert_eq!(order(&[2, 3]), "abbaab");
        assert_eq!(order(&[3, 2]), "aababb");
    }

    #[test]
    fn who_waits_for_a_lock_hands_over() {
        let (lock, said) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(String::new())));
        let speak = |letter: char| {
            let (lock, said) = (lock.clone(), said.clone());
            move |turns: &Arc<Turns>, player| {
                let _held = lock.lock().unwrap();
                for _ in 0..2 {
                    turns.step(player);
                    said.lock().unwrap().push(letter);
                }
            }
        };
        // The second one's turn comes while the first one holds the lock.
        run_two(&Schedule(vec![2]), speak('a'), speak('b')).unwrap();
        assert_eq!(*said.lock().unwrap(), "aabb");
    }

    /// A thread that waits for one lock and then for another is told to sleep twice, each time on the lock's own word.
    #[test]
    fn sleeps_are_told_by_the_lock() {
        let (player, locks) = (Arc::new(Player::new()), Arc::new([Mutex::new(()), Mutex::new(())]));
        let mut held: Vec<_> = locks.iter().map(|lock| lock.lock().unwrap()).collect();
        let waiter = thread::spawn({
            let (player, locks) = (player.clone(), locks.clone());
            move || {
                player.be_told_of();
                locks.iter().for_each(|lock| drop(lock.lock().unwrap()));
            }
        });
        for lock in locks.iter() {
            let first = std::ptr::from_ref(lock).addr() as u64;
            let word = first..first + size_of_val(lock) as u64;
            // Until it has come to wait for this one.
            let sleep = loop {
                match player.sleeps() {
                    Some(sleep) if word.contains(&sleep.address) => break sleep,
                    _ => thread::yield_now(),
                }
            };
            assert_eq!(player.sleeps(), Some(sleep));
            drop(held.remove(0));
        }
        waiter.join().unwrap();
        assert_eq!(player.sleeps(), None);
    }

    #[test]
    fn a_deadlock_is_told() {
        type Locks = Arc<(Mutex<()>, Mutex<()>)>;
        let take = |locks: &Locks, swap: bool| {
            let locks = locks.clone();
            move |turns: &Arc<Turns>, player| {
                let (one, other) = if swap { (&locks.1, &locks.0) } else { (&locks.0, &locks.1) };
                let _one = one.lock().unwrap();
                turns.step(player);
                let _other = other.lock().unwrap();
            }
        };
        let locks = Locks::default();
        let run = run_two(&Schedule(vec![1]), take(&locks, false), take(&locks, true));
        assert_eq!(run.map(|_| ()), Err(Deadlock));
        let locks = Locks::default();
        let run = run_two(&Schedule(vec![1]), take(&locks, false), take(&locks, false));
        assert_eq!(run.map(|(_, steps)| steps), Ok([1, 1]));
    }

    /// What a thread waits for may be held by one that takes no turns.
    #[test]
    fn who_waits_for_an_outsider_is_in_no_deadlock() {
        let lock = Arc::new(Mutex::new(()));
        let held = lock.lock().unwrap();
        let waits = {
            let lock = lock.clone();
            move |_: &Arc<Turns>, _| drop(lock.lock().unwrap())
        };
        let ran = thread::spawn(move || run_two(&Schedule(vec![]), |_, _| (), waits).map(drop));
        thread::sleep(Duration::from_secs(1));
        drop(held);
        assert_eq!(ran.join().unwrap(), Ok(()));
    }

    /// One that panics and keeps a lock is to blame for the other's waiting.
    #[test]
    fn a_panic_is_told_and_no_deadlock() {
        let lock = Arc::new(Mutex::new(()));
        let (kept, wanted) = (lock.clone(), lock);
        let panics = move |turns: &Arc<Turns>, player| {
            std::mem::forget(kept.lock().unwrap());
            turns.step(player);
            std::panic::resume_unwind(Box::new("it is broken"));
        };
        let waits = move |_: &Arc<Turns>, _| drop(wanted.lock());
        let ran = std::panic::catch_unwind(|| run_two(&Schedule(vec![1]), panics, waits).map(drop));
        assert_eq!(ran.unwrap_err().downcast_ref::<&str>(), Some(&"it is broken"));
    }

    #[test]
    fn all_schedules_with_two_preemptions() {
        let all: Vec<_> = schedules(2, 3).collect();
        assert_eq!(all.len(), 2 + 5 + 2 * 6);
        let mut distinct = all.clone();
        distinct.sort_by(|one, other| one.0.cmp(&other.0));
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
    }
}
