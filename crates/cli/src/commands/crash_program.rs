//! `amberfs crash --program COMMAND`: a program works on a mount whose zone is recorded; then the power is cut anywhere in
//! its life, and the program judges what is left.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crash::{Life, Program, ProgramOptions, ProgramReport, Promise, done_mark};
use native::{Durability, FormatOptions, Volume};
use nvm::{OpenOptions, RecordingOptions, VolumeKind, Zone};

use crate::failure::{Explain, Failure};
use crate::report::{self, Fields, Value};

/// The volume that programs work on: large enough for a small database, small enough to recover in no time.
const ZONE_BYTES: u64 = 66 << 20;
const VOLUME: &str = "program";

/// What to run and how far.
pub(crate) struct Arguments<'a> {
    pub(crate) command: &'a str,
    pub(crate) promise: Promise,
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
    let recorded = record(&program, arguments, &scratch).inspect_err(|_| {
        // Nothing was laid out yet. Not with all that is in it: that could be a mount that was not undone.
        let _ = std::fs::remove_dir(scratch.join("mount"));
        let _ = std::fs::remove_dir(&scratch);
    });
    let explored = recorded.and_then(|life| {
        let events = life.recording.events.len();
        report::progress(&format!("{}: {events} events recorded", arguments.command));
        let options =
            ProgramOptions { states: arguments.states, seed: arguments.seed, scratch: scratch.clone() };
        let mut shown = Instant::now();
        let mut progress = |so_far: ProgramReport| {
            if shown.elapsed().as_secs() >= 5 {
                shown = Instant::now();
                report::progress(&format!("{} states, {} judged", so_far.states, so_far.judged));
            }
        };
        let subject = crash::Native::ADAPTIVE;
        let explored =
            crash::explore_program(&subject, arguments.promise, &program, &life, &options, &mut progress)
                .doing("cutting the power")
                .map_err(|failure| {
                    failure.remedy("another life differs in its threads' order: keep the tree")
                })?;
        Ok((events, explored))
    });
    // What a broken promise left is kept, as its message says.
    if explored.is_ok() {
        let _ = std::fs::remove_dir_all(&scratch);
    }
    let (events, explored) = explored?;
    let fields = Fields::new()
        .with("program", arguments.command)
        .with("durability", arguments.promise.to_string())
        .with("steps", Value::Count(arguments.steps))
        .with("events", Value::Count(events as u64))
        .with("points", Value::Count(explored.points))
        .with("states", Value::Count(explored.states))
        .with("judged", Value::Count(explored.judged))
        .with("violations", Value::Count(0))
        .with("seconds", Value::Seconds(began.elapsed().as_secs_f64()));
    if arguments.json {
        return report::print_json(&fields.json());
    }
    report::print_text(&format!(
        "{}, durability={}: {} steps, {events} events; {} states at {} points, {} different trees judged: no promise broken\n",
        arguments.command,
        arguments.promise,
        arguments.steps,
        explored.states,
        explored.points,
        explored.judged
    ))
}

/// Lets the program work on a mount of a new zone in memory, and records all of it.
fn record(program: &Program, arguments: &Arguments<'_>, scratch: &Path) -> Result<Life, Failure> {
    let zone = Zone::anonymous(ZONE_BYTES, &OpenOptions::default())?;
    let region = zone.create_volume(VOLUME, VolumeKind::Native, None)?;
    native::format(&region, &FormatOptions::default())?;
    let image = zone.snapshot_image();
    zone.start_recording(RecordingOptions::default());
    let durability = match arguments.promise {
        Promise::Operation => Durability::Operation,
        Promise::Fsync => Durability::Fsync,
        Promise::Snapshot => Durability::Snapshot,
    };
    let durable = durability == Durability::Operation;
    let volume = Arc::new(Volume::open(
        region,
        &native::MountOptions { durability, ..native::MountOptions::default() },
    )?);
    let dir = scratch.join("mount");
    std::fs::create_dir_all(&dir)?;
    let options = fuse::MountOptions {
        fs_name: "amberfs-crash".to_owned(),
        writeback_cache: !durable,
        durable_operations: durable,
        ..fuse::MountOptions::default()
    };
    let mount = fuse::mount(volume.clone(), &dir, &options).doing("mounting the recorded volume")?;
    let unmounter = mount.unmounter();
    let worked = program.run(&dir, arguments.steps, |n| zone.mark(&done_mark(n)));
    // Whatever the program did, no mount is left behind.
    unmounter.unmount(worked.is_err())?;
    mount.wait()?;
    std::fs::remove_dir(&dir)?;
    worked.doing("running the program")?;
    volume.close()?;
    let recording =
        zone.stop_recording().ok_or_else(|| Failure::new("the recording was stopped by somebody else"))?;
    Ok(Life { image, recording, volume: VOLUME.to_owned() })
}
