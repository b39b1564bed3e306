//! `amberfs crash --program COMMAND`: a program works on a mount whose zone is recorded; then the power is cut anywhere in
//! its life, and the program judges what is left.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
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

pub(crate) fn run(arguments: &Arguments<'_>) -> Result<(), Failure> {
    let program = Program::new(arguments.command);
    // A directory in memory: trees are laid out there by the thousand.
    let memory = Path::new("/dev/shm");
    let scratch = std::env::temp_dir();
    let scratch = if memory.is_dir() { memory } else { &scratch };
    let scratch = scratch.join(format!("amberfs-crash-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).doing(format_args!("making {}", scratch.display()))?;
    let began = Instant::now();
    let life = match arguments.from {
        From::Run(promise) => record(&program, promise, arguments.steps, &scratch).inspect_err(|_| {
            // Nothing was laid out yet. Not with all that is in it: that could be a mount that was not undone.
            let _ = std::fs::remove_dir(scratch.join("mount"));
            let _ = std::fs::remove_dir(&scratch);
        }),
        From::File(file) => read(file).inspect_err(|_| {
            let _ = std::fs::remove_dir(&scratch);
        }),
    }?;
    let (promise, events) = (life.promise, life.recording.events.len());
    let explored = explore(&program, &life, arguments, &scratch);
    // What a broken promise left is kept, as its message says.
    if explored.is_ok() {
        let _ = std::fs::remove_dir_all(&scratch);
    }
    let explored = explored?;
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
    scratch: &Path,
) -> Result<ProgramReport, Failure> {
    if let Some(file) = arguments.record {
        write(life, file)?;
    }
    let events = life.recording.events.len();
    report::progress(&format!("{}: {events} events recorded", arguments.command));
    let options =
        ProgramOptions { states: arguments.states, seed: arguments.seed, scratch: scratch.to_path_buf() };
    let mut shown = Instant::now();
    let mut progress = |so_far: ProgramReport| {
        if shown.elapsed().as_secs() >= 5 {
            shown = Instant::now();
            report::progress(&format!("{} states, {} judged", so_far.states, so_far.judged));
        }
    };
    let explored = crash::explore_program(&crash::Native::ADAPTIVE, program, life, &options, &mut progress);
    let broken = matches!(explored, Err(ProgramFailure::Broken { .. }));
    explored.doing("cutting the power").map_err(|failure| {
        // Another life would differ in its threads' order.
        let kept = match (broken, arguments.from, arguments.record) {
            (false, ..) => return failure,
            (true, From::File(file), _) | (true, _, Some(file)) => file.to_path_buf(),
            (true, From::Run(_), None) => scratch.join("life"),
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
fn record(program: &Program, promise: Promise, steps: u64, scratch: &Path) -> Result<Life, Failure> {
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
    let dir = scratch.join("mount");
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
    std::fs::remove_dir(&dir)?;
    worked.doing("running the program")?;
    volume.close()?;
    let recording =
        zone.stop_recording().ok_or_else(|| Failure::new("the recording was stopped by somebody else"))?;
    Ok(Life { promise, image, recording, volume: VOLUME.to_owned() })
}
