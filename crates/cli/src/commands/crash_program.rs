//! `amberfs crash --program COMMAND`: a program works on a mount whose zone is recorded; then the power is cut anywhere in
//! its life, and the program judges what is left.

use std::fs::File;
use std::io::{BufWriter, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crash::{Life, Program, ProgramFailure, ProgramOptions, ProgramReport, Promise, done_mark};
use native::{Durability, FormatOptions, Volume};
use nvm::{OpenOptions, Recording, RecordingOptions, VolumeKind, Zone};

use crate::failure::{Explain, Failure};
use crate::report::{self, Fields, Value};

/// The volume that programs work on: large enough for a small database, small enough to recover in no time.
const ZONE_BYTES: u64 = 66 << 20;
const VOLUME: &str = "program";

/// Where a program's life comes from.
#[derive(Clone, Copy)]
pub(crate) enum From<'a> {
    /// It is run on a mount that promises this.
    Run(Promise),
    /// It was recorded.
    File(&'a Path),
}

/// What to run and how far.
pub(crate) struct Arguments<'a> {
    pub(crate) command: &'a str,
    pub(crate) from: From<'a>,
    /// Where its recording is to be kept.
    pub(crate) record: Option<&'a Path>,
    pub(crate) steps: u64,
    pub(crate) states: u64,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

/// A directory in memory: trees are laid out there by the thousand. It goes when this does, unless it is kept.
struct Scratch {
    path: PathBuf,
    kept: bool,
}

impl Scratch {
    fn place() -> PathBuf {
        let memory = Path::new("/dev/shm");
        let other = std::env::temp_dir();
        let dir = if memory.is_dir() { memory } else { &other };
        dir.join(format!("amberfs-crash-{}", std::process::id()))
    }

    fn new() -> Result<Scratch, Failure> {
        let path = Scratch::place();
        std::fs::create_dir_all(&path).doing(format_args!("making {}", path.display()))?;
        Ok(Scratch { path, kept: false })
    }

    fn mount_point(&self) -> PathBuf {
        self.path.join("mount")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mount_point = self.mount_point();
        let _ = std::fs::remove_dir(&mount_point);
        // Not with all that is in a mount that was not undone, even if nobody serves it any more.
        if !self.kept
            && mount_point.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            let _ = std::fs::remove_dir_all(&self.path);
        }
        // Nothing may have been left to be kept.
        let _ = std::fs::remove_dir(&self.path);
    }
}

pub(crate) fn run(arguments: &Arguments<'_>) -> Result<(), Failure> {
    let program = Program::new(arguments.command);
    let mut scratch = Scratch::new()?;
    let began = Instant::now();
    let life = match arguments.from {
        From::Run(promise) => record(&program, promise, arguments.steps, &scratch)?,
        From::File(file) => read(file)?,
    };
    let (promise, events) = (life.promise, life.recording.events.len());
    let explored = explore(&program, &life, arguments, &mut scratch)?;
    let fields = Fields::new()
        .with("program", arguments.command)
        .with("durability", promise.to_string())
        .with("events", Value::Count(events as u64))
        .with("points", Value::Count(explored.points))
        .with("states", Value::Count(explored.states))
        .with("judged", Value::Count(explored.judged))
        .with("violations", Value::Count(0))
        .with("seconds", Value::Seconds(began.elapsed().as_secs_f64()));
    if arguments.json {
        return report::print(&fields, true);
    }
    report::print_text(&format!(
        "{}, durability={}: {events} events; {} states at {} points, {} different trees judged: no promise broken\n",
        arguments.command, promise, explored.states, explored.points, explored.judged
    ))
}

/// Cuts the power in `life`, after it was written where it is to be kept.
fn explore(
    program: &Program,
    life: &Life,
    arguments: &Arguments<'_>,
    scratch: &mut Scratch,
) -> Result<ProgramReport, Failure> {
    if let Some(file) = arguments.record {
        write(life, file)?;
    }
    let events = life.recording.events.len();
    report::progress(&format!("{}: {events} events recorded", arguments.command));
    let options =
        ProgramOptions { states: arguments.states, seed: arguments.seed, scratch: scratch.path.clone() };
    let mut shown = Instant::now();
    let mut progress = |so_far: ProgramReport| {
        if shown.elapsed().as_secs() >= 5 {
            shown = Instant::now();
            report::progress(&format!("{} states, {} judged", so_far.states, so_far.judged));
        }
    };
    let hook = std::panic::take_hook();
    // A volume that panics in a crash state is a finding, told as such.
    std::panic::set_hook(Box::new(|_| {}));
    let explored = crash::explore_program(&crash::Native::ADAPTIVE, program, life, &options, &mut progress);
    std::panic::set_hook(hook);
    let broken = matches!(explored, Err(ProgramFailure::Broken { .. }));
    // What a broken promise left is kept, as its message says.
    scratch.kept = broken;
    explored.doing("cutting the power").map_err(|failure| {
        // Another life would differ in its threads' order.
        let kept = match (broken, arguments.from, arguments.record) {
            (false, ..) => return failure,
            (true, From::File(file), _) | (true, _, Some(file)) => file.to_path_buf(),
            (true, From::Run(_), None) => scratch.path.join("life"),
        };
        if kept.exists() || write(life, &kept).is_ok() {
            let (seed, states) = (arguments.seed, arguments.states);
            // As a shell wants it.
            let [command, kept] = [arguments.command, &kept.display().to_string()]
                .map(|word| format!("'{}'", word.replace('\'', r"'\''")));
            let again = format!(
                "amberfs crash --program {command} --seed {seed} --states {states} --recording {kept}"
            );
            return failure.remedy(format!("to see it again: {again}"));
        }
        failure
    })
}

fn write(life: &Life, to: &Path) -> Result<(), Failure> {
    let written = File::create(to).and_then(|file| life.to_recording().write_to(BufWriter::new(file)));
    written.doing(format_args!("writing {}", to.display()))
}

fn read(from: &Path) -> Result<Life, Failure> {
    let refused = |why: String| Failure::new(format!("{}: {why}", from.display()));
    let file = File::open(from).map_err(|error| refused(error.to_string()))?;
    let recording = Recording::read_from(file).map_err(|error| refused(error.to_string()))?;
    Life::from_recording(recording).map_err(|error| refused(error.to_string()))
}

/// Lets the program work on a mount of a new zone in memory, and records all of it.
fn record(program: &Program, promise: Promise, steps: u64, scratch: &Scratch) -> Result<Life, Failure> {
    let zone = Zone::anonymous(ZONE_BYTES, &OpenOptions::default())?;
    let region = zone.create_volume(VOLUME, VolumeKind::Native, None)?;
    native::format(&region, &FormatOptions::default())?;
    let image = zone.snapshot_image();
    zone.start_recording(RecordingOptions::default());
    // As a mount on this medium has it (`Options::mounted`): what the volume has is durable, and what it does not have, the kernel does.
    let durability = match promise {
        Promise::Operation | Promise::Fsync => Durability::Operation,
        Promise::Snapshot => Durability::Snapshot,
    };
    let volume = Arc::new(Volume::open(
        region,
        &native::MountOptions { durability, ..native::MountOptions::default() },
    )?);
    let dir = scratch.mount_point();
    std::fs::create_dir_all(&dir)?;
    let options = fuse::MountOptions {
        fs_name: "amberfs-crash".to_owned(),
        writeback_cache: promise != Promise::Operation,
        durable_operations: durability == Durability::Operation,
        ..fuse::MountOptions::default()
    };
    let mount = fuse::mount(volume.clone(), &dir, &options).doing("mounting the recorded volume")?;
    let unmounter = mount.unmounter();
    let worked = program.run(&dir, steps, |n| zone.mark(&done_mark(n)));
    // Whatever the program did, no mount is left behind.
    unmounter.unmount(worked.is_err())?;
    mount.wait()?;
    worked.doing("running the program")?;
    volume.close()?;
    let recording =
        zone.stop_recording().ok_or_else(|| Failure::new("the recording was stopped by somebody else"))?;
    Ok(Life { promise, image, recording, volume: VOLUME.to_owned() })
}

#[cfg(test)]
mod tests {
    use crash::{Native, Subject};

    use super::*;

    /// A program that fails says nothing about the volume: nothing is there to be looked at.
    #[test]
    fn nothing_is_left_of_a_program_that_fails() {
        let native = &Native::ADAPTIVE;
        let zone = Zone::anonymous(nvm::SEGMENT + native.volume_bytes(), &OpenOptions::default()).unwrap();
        let region = native.format(&zone, VOLUME).unwrap();
        let image = zone.snapshot_image();
        zone.start_recording(RecordingOptions::default());
        native.open(&region, Promise::Operation).unwrap().close().unwrap();
        let recording = zone.stop_recording().unwrap();
        let life = Life { promise: Promise::Operation, image, recording, volume: VOLUME.to_owned() };
        let file = tempfile::NamedTempFile::new().unwrap();
        write(&life, file.path()).unwrap();
        let arguments = Arguments {
            command: "true",
            from: From::File(file.path()),
            record: None,
            steps: 1,
            states: 10,
            seed: 1,
            json: true,
        };
        let failure = run(&arguments).unwrap_err();
        assert!(failure.to_string().contains("ok N or bad WHY"), "{failure}");
        let scratch = Scratch::place();
        assert!(!scratch.exists(), "{} is left", scratch.display());
    }

    #[test]
    fn what_a_broken_promise_left_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scratch");
        let left = |kept: bool| {
            std::fs::create_dir_all(path.join("tree")).unwrap();
            drop(Scratch { path: path.clone(), kept });
            path.exists()
        };
        assert_eq!((left(true), left(false)), (true, false));
    }
}
