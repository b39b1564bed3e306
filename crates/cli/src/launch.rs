//! Serving in the background: the server is this program run again as a child in a session of its own. It reports
//! on a pipe, and the caller waits for the report, so that a mount that returns is one that answers.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Explain, Failure, tell};
use crate::mount_request::MountRequest;
use crate::options::Options;
use crate::{exit, log, mount_table, server};

/// A child's report, one line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Report {
    Mounted(Json),
    Failed(Failure),
}

/// A server that was started and has not reported yet.
pub(crate) struct Launch {
    child: Child,
    report: BufReader<ChildStdout>,
    /// Set when the waiting for that is over.
    is_over: Arc<AtomicBool>,
    /// What it is to mount, and where.
    source: String,
    dir: PathBuf,
}

impl Launch {
    pub(crate) fn of(request: &MountRequest) -> Result<Launch, Failure> {
        let fail = |error| Failure::new(format!("cannot start the server: {error}")).exit(exit::MOUNT_SYSTEM);
        let mut command = Command::new(this_program());
        command.args(["mount", "--report"]);
        if request.sloppy {
            command.arg("--sloppy");
        }
        for list in &request.option_lists {
            command.arg("-o").arg(list);
        }
        command.arg("--").arg(request.source.to_string()).arg(&request.dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // A server that was just started is not left to itself.
        let signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| {
            Failure::new(format!("cannot watch signals: {error}")).exit(exit::MOUNT_SYSTEM)
        })?;
        fuse::keep_files_from_children();
        let mut child = command.spawn().map_err(fail)?;
        let out = child.stdout.take().ok_or_else(|| fail(std::io::Error::other("no pipe")))?;
        let is_over = stop_if_interrupted(&child, signals);
        let (source, dir) = (request.source.to_string(), request.dir.clone());
        Ok(Launch { child, report: BufReader::new(out), is_over, source, dir })
    }

    /// Waits for the report: what recovery did, or why there is no mount.
    pub(crate) fn wait(mut self) -> Result<Json, Failure> {
        let mut line = String::new();
        let read = self.report.read_line(&mut line);
        if self.is_over.swap(true, Relaxed) {
            // Interrupted before that: it ends, and so does this process, by the thread that has seen it.
            loop {
                std::thread::park();
            }
        }
        match serde_json::from_str(&line) {
            Ok(Report::Mounted(answer)) => Ok(answer),
            Ok(Report::Failed(failure)) => {
                let _ = self.child.wait();
                Err(failure)
            }
            Err(_) => {
                let ended = self.child.wait().map(|status| status.to_string()).unwrap_or_default();
                let why = read.err().map(|error| format!(" ({error})")).unwrap_or_default();
                let failure = Failure::new(format!("the server ended without a report{why}: {ended}"))
                    .doing("waiting for it to mount")
                    .exit(exit::MOUNT_SYSTEM);
                Err(match self.take_dead_mount_away() {
                    Ok(()) => failure.remedy("run it with --foreground to see what it says"),
                    Err(error) => {
                        let dir = self.dir.display();
                        failure
                            .leaving(format!(
                                "{dir} is a mount without a server, which could not be unmounted: {error}"
                            ))
                            .remedy(format!("amberfs umount --lazy {dir}"))
                    }
                })
            }
        }
    }

    /// A server that ended when it had mounted, and not told of it yet, left a mount that nobody serves, and on which nothing could be mounted.
    fn take_dead_mount_away(&self) -> Result<(), fuse::Error> {
        let entry = mount_table::at(&self.dir).ok().flatten();
        let is_its = entry.is_some_and(|entry| entry.is_amberfs() && entry.source == self.source);
        let is_dead = || std::fs::metadata(&self.dir).is_err_and(|error| mount_table::is_dead(&error));
        if is_its && is_dead() { fuse::unmount(&self.dir, true) } else { Ok(()) }
    }
}

/// A caller that is interrupted takes the server with it, until the waiting is over: that is told to each other by what this gives.
fn stop_if_interrupted(child: &Child, mut signals: Signals) -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let was_over = is_over.clone();
    let child = rustix::process::Pid::from_child(child);
    let interrupted = move || {
        if signals.forever().next().is_some() && !was_over.swap(true, Relaxed) {
            let _ = rustix::process::kill_process(child, rustix::process::Signal::TERM);
            tell(format_args!("amberfs: interrupted: the server was told to end"));
            std::process::exit(exit::MOUNT_INTERRUPTED.into());
        }
    };
    // Without it an interruption is not heard: the server mounts, or says why not.
    let _ = std::thread::Builder::new().spawn(interrupted);
    is_over
}

/// The path of this program, by which `ps` names the server; if another program has replaced it meanwhile, the
/// kernel's own link to it.
fn this_program() -> PathBuf {
    let link = Path::new("/proc/self/exe");
    let same = |path: &PathBuf| {
        let (ours, theirs) = (std::fs::metadata(link).ok(), std::fs::metadata(path).ok());
        ours.zip(theirs)
            .is_some_and(|(ours, theirs)| (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()))
    };
    std::fs::read_link(link).ok().filter(same).unwrap_or_else(|| link.to_path_buf())
}

/// The child's side: leaves the caller's session, serves, reports once, and then leaves the caller's terminal.
/// Gives the exit code, which only shows where nobody waits any more.
pub(crate) fn serve_in_background(request: MountRequest, options: &Options) -> u8 {
    // Fails only for the leader of a process group, which a child is not.
    let _ = rustix::process::setsid();
    // A zone in memory counts as the server's, so the kernel would take it for the largest process when memory runs
    // out, and killing it frees nothing. Only root may ask for that.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    let mounted = Cell::new(false);
    let result = log_file(options).and_then(|log| {
        // Before much else is open.
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|error| Failure::new(format!("/dev/null: {error}")))?;
        log::start(log.try_clone().ok());
        server::run(&request, options, |answer| {
            mounted.set(true);
            send(&Report::Mounted(answer.clone()));
            if let Err(failure) = leave_terminal(&null, &log) {
                tell(format_args!("amberfs: {failure}"));
            }
        })
    });
    match result {
        Ok(()) => 0,
        Err(failure) => {
            // To the log: whoever waited for the mount has been told all, or is told by the report.
            if mounted.get() {
                tell(format_args!("amberfs: {failure}"));
            } else {
                log::note(format_args!("amberfs: {failure}"));
            }
            report_failure(failure)
        }
    }
}

/// Tells whoever waits for a mount why there is none, and nobody else; gives the exit code.
pub(crate) fn report_failure(failure: Failure) -> u8 {
    let code = failure.exit;
    send(&Report::Failed(failure));
    code
}

fn send(report: &Report) {
    if let Ok(mut text) = serde_json::to_string(report) {
        text.push('\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

/// Where the server writes what it has to say: the log, or nowhere. Nobody is waited for: not for a reader of a FIFO, or one that reads on. A terminal
/// does not become the server's.
fn log_file(options: &Options) -> Result<File, Failure> {
    let path = options.log.as_deref().unwrap_or(Path::new("/dev/null"));
    let fail = |what: String| {
        Failure::new(format!("{}: {what}", path.display())).doing("opening the log").exit(exit::MOUNT_FAILED)
    };
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().append(true).create(true).custom_flags(flags.bits() as i32).open(path);
    let kind = || std::fs::metadata(path).map(|file| file.file_type());
    let file = file.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NXIO) if kind().is_ok_and(|kind| kind.is_fifo()) => {
            fail("nobody reads this FIFO".to_string()).remedy("start its reader first")
        }
        _ => fail(error.to_string()),
    })?;
    let kind = file.metadata().map_err(|error| fail(error.to_string()))?.file_type();
    match kind.is_file() || kind.is_char_device() || kind.is_fifo() {
        true => Ok(file),
        false => Err(fail("it is no file, character device or FIFO".to_string())),
    }
}

/// Standard output closes the caller's pipe; standard error goes to the log.
fn leave_terminal(null: &File, log: &File) -> Result<(), Failure> {
    let _ = std::env::set_current_dir("/");
    let out = rustix::stdio::dup2_stdout(null);
    rustix::stdio::dup2_stderr(log).and(out).map_err(std::io::Error::from).doing("leaving the terminal")?;
    log::is_standard_error();
    Ok(())
}
