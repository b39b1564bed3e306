//! One thread of a workload: interprets a flow, and times each operation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::io::Errno;

use crate::error::Fault;
use crate::files::Files;
use crate::flow::{At, Op, Pick};
use crate::ground::{Ground, Open, Result};
use crate::random::{Random, Size};
use crate::statistics::{Kind, Tally};

/// What a thread carries from step to step.
pub(crate) struct Worker<'a, G: Ground> {
    ground: &'a G,
    files: &'a Files<G>,
    number: usize,
    random: Random,
    /// The open file, and its number.
    current: Option<(usize, G::File)>,
    /// The file whose turn it is.
    turn: usize,
    /// Operations that were timed.
    done: u64,
    /// Where in the open file the last access was.
    position: u64,
    buffer: Vec<u8>,
    /// Set when all threads are to end: the benchmark was interrupted, or one of them failed.
    stop: [&'a AtomicBool; 2],
    /// When the last operation ended.
    pub(crate) now: Instant,
    pub(crate) tally: Tally,
}

impl<'a, G: Ground> Worker<'a, G> {
    pub(crate) fn new(
        ground: &'a G,
        files: &'a Files<G>,
        number: usize,
        seed: u64,
        stop: [&'a AtomicBool; 2],
    ) -> Self {
        Worker {
            ground,
            files,
            number,
            random: Random::new(seed ^ (number as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93)),
            current: None,
            turn: 0,
            done: 0,
            position: 0,
            buffer: Vec::new(),
            stop,
            now: Instant::now(),
            tally: Tally::default(),
        }
    }

    /// Does the steps of a flow with the turn of this file. A turn in which nothing could be done is none, which it
    /// tells.
    pub(crate) fn turn(&mut self, number: usize, flow: &[Op]) -> std::result::Result<bool, Fault> {
        self.turn = number;
        let before = self.done;
        self.perform(flow)?;
        let did_something = self.done > before;
        self.tally.turns += u64::from(did_something);
        Ok(did_something)
    }

    /// Does the steps of a flow. `Errno::INTR` if it was told to stop.
    pub(crate) fn perform(&mut self, flow: &[Op]) -> std::result::Result<(), Fault> {
        for op in flow {
            go_on(&self.stop).map_err(|errno| Fault::new("stop", errno))?;
            self.step(op)?;
        }
        Ok(())
    }

    /// Closes what a flow left open.
    pub(crate) fn finish(&mut self) -> std::result::Result<(), Fault> {
        let Some((number, file)) = self.current.take() else { return Ok(()) };
        self.files.unshare(number);
        self.ground.close(file).map_err(|errno| Fault::new(Kind::Close.name(), errno))
    }

    fn timed<T>(&mut self, kind: Kind, work: impl FnOnce(&G) -> Result<T>) -> std::result::Result<T, Fault> {
        let began = Instant::now();
        let result = work(self.ground);
        self.now = Instant::now();
        let value = result.map_err(|errno| Fault::new(kind.name(), errno))?;
        self.done += 1;
        self.tally.kinds.entry(kind).or_default().note((self.now - began).as_nanos() as u64);
        Ok(value)
    }

    /// The file that a step is about, if `claim` gets it. Who gets none notes it, and the time.
    fn pick(&mut self, pick: Pick, claim: impl Fn(&Files<G>, usize) -> bool) -> Option<usize> {
        let files = self.files;
        let number = match pick {
            Pick::Turn => Some(self.turn),
            Pick::Own => Some(self.number % files.set.files),
            Pick::First => Some(0),
            Pick::Any => None,
        };
        let found = match number {
            Some(number) => claim(files, number).then_some(number),
            None => files.any(&mut self.random, |number| claim(files, number)),
        };
        if found.is_none() {
            self.skip();
        }
        found
    }

    fn skip(&mut self) {
        self.tally.skipped += 1;
        self.now = Instant::now();
    }

    fn step(&mut self, op: &Op) -> std::result::Result<(), Fault> {
        match op {
            Op::Repeat(times, flow) => (0..*times).try_for_each(|_| self.perform(flow)),
            Op::OneOf(choices) => {
                let all: u64 = choices.iter().map(|(weight, _)| u64::from(*weight)).sum();
                let mut at = self.random.below(all.max(1));
                let chosen = choices.iter().find(|(weight, _)| match at.checked_sub(u64::from(*weight)) {
                    Some(rest) => {
                        at = rest;
                        false
                    }
                    None => true,
                });
                chosen.map_or(Ok(()), |(_, flow)| self.perform(flow))
            }
            Op::SyncAll => self.timed(Kind::SyncAll, |ground| ground.sync_all()),
            Op::AppendLog(size) => {
                let bytes = self.fill(size);
                let buffer = std::mem::take(&mut self.buffer);
                let files = self.files;
                let result = self.timed(Kind::Append, |ground| ground.write(&files.log, 0, &buffer[..bytes]));
                self.buffer = buffer;
                self.tally.bytes += bytes as u64;
                result?;
                match files.extend_log(bytes as u64) {
                    true => self.timed(Kind::Truncate, |ground| ground.truncate(&files.log, 0)),
                    false => Ok(()),
                }
            }
            Op::List(pick) => {
                let number = match pick {
                    Pick::Any => self.random.below(self.files.set.files as u64) as usize,
                    Pick::Turn | Pick::Own | Pick::First => self.turn,
                };
                let dir = self.files.dir(number);
                self.timed(Kind::List, |ground| ground.list(dir, &mut |_, _| {}))
            }
            Op::MakeDir | Op::RemoveDir => {
                let (files, number) = (self.files, self.turn);
                let makes = matches!(op, Op::MakeDir);
                if files.has_inner_dir(number) == makes {
                    self.skip();
                    return Ok(());
                }
                let (dir, name) = (files.dir(number), files.inner_dir(number));
                match makes {
                    true => self.timed(Kind::MakeDir, |ground| ground.make_dir(dir, name))?,
                    false => self.timed(Kind::RemoveDir, |ground| ground.remove_dir(dir, name))?,
                }
                files.note_inner_dir(number, makes);
                Ok(())
            }
            Op::Create(pick) | Op::Open(pick) | Op::Stat(pick) | Op::Rename(pick) | Op::Unlink(pick) => {
                self.on_name(op, *pick)
            }
            _ => self.on_open_file(op),
        }
    }

    /// Steps about a file by its name.
    fn on_name(&mut self, op: &Op, pick: Pick) -> std::result::Result<(), Fault> {
        let files = self.files;
        let shares = matches!(op, Op::Open(_) | Op::Stat(_));
        let creates = matches!(op, Op::Create(_));
        let claimed = self.pick(pick, |files, number| match shares {
            true => files.share(number),
            false => files.take(number, !creates),
        });
        let Some(number) = claimed else { return Ok(()) };
        let (dir, name) = (files.dir(number), files.name(number));
        match op {
            Op::Create(_) => {
                self.finish()?;
                let file = self.timed(Kind::Create, |ground| ground.create(dir, name, Open::AsIs));
                let file = file.inspect_err(|_| files.settle(number, false))?;
                files.set_length(number, 0);
                files.settle_shared(number);
                (self.current, self.position) = (Some((number, file)), 0);
            }
            Op::Open(_) => {
                self.finish()?;
                let file = self.timed(Kind::Open, |ground| ground.open(dir, name, Open::AsIs));
                let file = file.inspect_err(|_| files.unshare(number))?;
                (self.current, self.position) = (Some((number, file)), 0);
            }
            Op::Stat(_) => {
                let result = self.timed(Kind::Stat, |ground| ground.stat(dir, name));
                files.unshare(number);
                result?;
            }
            Op::Rename(_) => {
                let other = files.other_name(number);
                let result = self.timed(Kind::Rename, |ground| ground.rename(dir, name, other));
                if result.is_ok() {
                    files.note_renamed(number);
                }
                files.settle(number, true);
                result?;
            }
            _ => {
                let result = self.timed(Kind::Unlink, |ground| ground.unlink(dir, name));
                files.settle(number, result.is_err());
                result?;
            }
        }
        Ok(())
    }

    /// Steps about the open file.
    fn on_open_file(&mut self, op: &Op) -> std::result::Result<(), Fault> {
        let Some((number, file)) = self.current.take() else {
            self.skip();
            return Ok(());
        };
        if matches!(op, Op::Close) {
            self.files.unshare(number);
            return self.timed(Kind::Close, |ground| ground.close(file));
        }
        // The buffer and the file are the worker's, and so is the time: they are put back afterwards.
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.access(op, number, &file, &mut buffer);
        self.buffer = buffer;
        self.current = Some((number, file));
        result
    }

    fn access(
        &mut self,
        op: &Op,
        number: usize,
        file: &G::File,
        buffer: &mut Vec<u8>,
    ) -> std::result::Result<(), Fault> {
        let files = self.files;
        let length = files.length(number);
        match op {
            Op::WriteWhole(piece) => {
                let length = files.set.size.draw(&mut self.random);
                prepare(buffer, *piece);
                files.set_length(number, length);
                self.tally.bytes += length;
                let stop = self.stop;
                self.timed(Kind::Write, |ground| {
                    (0..length).step_by((*piece).max(1) as usize).try_for_each(|at| {
                        go_on(&stop)?;
                        ground.write(file, at, &buffer[..(length - at).min(*piece) as usize])
                    })
                })
            }
            Op::ReadWhole(piece) => {
                prepare(buffer, *piece);
                let stop = self.stop;
                let read = self.timed(Kind::Read, |ground| {
                    let mut at = 0;
                    loop {
                        go_on(&stop)?;
                        let got = ground.read(file, at, &mut buffer[..*piece as usize])?;
                        at += got as u64;
                        if (got as u64) < *piece {
                            return Ok(at);
                        }
                    }
                })?;
                self.tally.bytes += read;
                Ok(())
            }
            Op::Read(bytes, at) => {
                prepare(buffer, *bytes);
                let offset = self.place(*at, *bytes, length);
                let buffer = &mut buffer[..*bytes as usize];
                let got = self.timed(Kind::Read, |ground| ground.read(file, offset, buffer))?;
                self.tally.bytes += got as u64;
                Ok(())
            }
            Op::Write(bytes, at) => {
                prepare(buffer, *bytes);
                let offset = self.place(*at, *bytes, length);
                if length < offset + bytes {
                    files.set_length(number, offset + bytes);
                }
                self.tally.bytes += bytes;
                self.timed(Kind::Write, |ground| ground.write(file, offset, &buffer[..*bytes as usize]))
            }
            Op::Append(size) => {
                let bytes = size.draw(&mut self.random);
                prepare(buffer, bytes);
                let offset = files.extend(number, bytes);
                self.tally.bytes += bytes;
                self.timed(Kind::Append, |ground| ground.write(file, offset, &buffer[..bytes as usize]))
            }
            Op::Trim(limit) if length >= *limit => {
                files.set_length(number, 0);
                self.timed(Kind::Truncate, |ground| ground.truncate(file, 0))
            }
            Op::Sync { data_only } => self.timed(Kind::Sync, |ground| ground.sync(file, *data_only)),
            _ => Ok(()),
        }
    }

    /// Where the next access of `bytes` in a file of `length` begins.
    fn place(&mut self, at: At, bytes: u64, length: u64) -> u64 {
        let records = (length / bytes.max(1)).max(1);
        let last = (records - 1) * bytes;
        let offset = match at {
            At::Start => 0,
            At::Random => self.random.below(records) * bytes,
            At::Next if self.position > last => 0,
            At::Next => self.position,
            At::Previous => self.position.checked_sub(bytes).unwrap_or(last),
            At::Stride(stride) => {
                let next = self.position + stride;
                if next > last { next % stride.max(1) } else { next }
            }
        };
        self.position = if at == At::Next { offset + bytes } else { offset };
        offset
    }

    fn fill(&mut self, size: &Size) -> usize {
        let bytes = size.draw(&mut self.random);
        prepare(&mut self.buffer, bytes);
        bytes as usize
    }
}

/// `INTR` if it was told to stop.
fn go_on(stop: &[&AtomicBool; 2]) -> Result<()> {
    if stop.iter().any(|flag| flag.load(Ordering::Relaxed)) { Err(Errno::INTR) } else { Ok(()) }
}

/// Makes the buffer large enough. What it holds is written as it is.
fn prepare(buffer: &mut Vec<u8>, bytes: u64) {
    if (buffer.len() as u64) < bytes {
        buffer.resize(bytes as usize, 0xA5);
    }
}
