//! The two processes of a program under test: one that works on the mounted volume, one that judges what is left.
//!
//! Both are the same command, which the user gives. `COMMAND run DIR STEPS` works in `DIR`; whenever something that it
//! was promised is durable it writes `done N` and waits for a line, N counting from 0. `COMMAND judge` answers each
//! line `DIR<TAB>LOW<TAB>HIGH` with one of its own: `ok N` if `DIR` holds what N steps leave and LOW ≤ N ≤ HIGH (LOW is
//! −1 while not even step 0 was acknowledged), or `bad WHY`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A program that takes part: a command of the shell.
#[derive(Clone, Debug)]
pub struct Program {
    command: String,
}

/// What went wrong with the program itself, not with the volume.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It could not be started.
    #[error("cannot run '{command}': {source}")]
    Start {
        /// The command.
        command: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It does not speak as it should.
    #[error(
        "'{command}' said '{said}' where '{expected}' was expected: it failed, or does not know the protocol"
    )]
    Protocol {
        /// The command.
        command: String,
        /// What it said; empty if it ended.
        said: String,
        /// What it should have said.
        expected: &'static str,
    },
    /// It ended with a failure although it had said all it should.
    #[error("'{command}' failed: {status}")]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
}

/// What a program says of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds what so many steps leave.
    Sound(i64),
    /// It does not, and why.
    Broken(String),
}

impl Program {
    /// The program that `command`, a line for `sh -c`, runs.
    pub fn new(command: impl Into<String>) -> Program {
        Program { command: command.into() }
    }

    fn start(&self, arguments: &str) -> Result<Conversation, ProgramError> {
        let failed = |source| ProgramError::Start { command: self.command.clone(), source };
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {} {arguments}", self.command)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Conversation { command: self.command.clone(), child, to: Some(to), from: BufReader::new(from) })
    }

    /// Lets it work in `dir`, calling `done` with each number that it acknowledges, while it waits.
    pub fn run(&self, dir: &Path, steps: u64, mut done: impl FnMut(u64)) -> Result<(), ProgramError> {
        let mut conversation = self.start(&format!("run '{}' {steps}", dir.display()))?;
        for expected in 0..=steps {
            let said = conversation.hear();
            if said.strip_prefix("done ").and_then(|n| n.parse().ok()) != Some(expected) {
                return Err(conversation.misspoke(said, "done N"));
            }
            done(expected);
            conversation.say("go on");
        }
        conversation.end()
    }

    /// Starts the process that judges.
    pub fn judge(&self) -> Result<Judge, ProgramError> {
        self.start("judge").map(|conversation| Judge { conversation })
    }
}

/// A process that judges directories, one after the other.
pub struct Judge {
    conversation: Conversation,
}

impl Judge {
    /// What it says of `dir`, in which between `low` and `high` steps must have been made. It may change `dir`.
    pub fn ask(&mut self, dir: &Path, low: i64, high: i64) -> Result<Verdict, ProgramError> {
        self.conversation.say(&format!("{}\t{low}\t{high}", dir.display()));
        let said = self.conversation.hear();
        if let Some(found) = said.strip_prefix("ok ").and_then(|n| n.parse().ok()) {
            return Ok(match (low..=high).contains(&found) {
                true => Verdict::Sound(found),
                false => Verdict::Broken(format!("{found} steps are there, and {low} to {high} were made")),
            });
        }
        match said.strip_prefix("bad ") {
            Some(why) => Ok(Verdict::Broken(why.to_owned())),
            None => Err(self.conversation.misspoke(said, "ok N or bad WHY")),
        }
    }
}

struct Conversation {
    command: String,
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Conversation {
    /// A line from the process; empty if it ended.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        // What cannot be read was not said.
        let _ = self.from.read_line(&mut line);
        line.trim_end_matches('\n').to_owned()
    }

    /// A line to the process. If it ended, the next line that it should say is missing.
    fn say(&mut self, line: &str) {
        if let Some(to) = &mut self.to {
            let _ = writeln!(to, "{line}").and_then(|()| to.flush());
        }
    }

    fn misspoke(&self, said: String, expected: &'static str) -> ProgramError {
        ProgramError::Protocol { command: self.command.clone(), said, expected }
    }

    fn end(mut self) -> Result<(), ProgramError> {
        self.to = None;
        let failed = |source| ProgramError::Start { command: self.command.clone(), source };
        match self.child.wait().map_err(failed)? {
            status if status.success() => Ok(()),
            status => Err(ProgramError::Failed { command: self.command.clone(), status }),
        }
    }
}

impl Drop for Conversation {
    /// The process ends when it hears nothing more; its parent waits, so that nothing of it is left behind.
    fn drop(&mut self) {
        self.to = None;
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_acknowledges_and_judges() {
        let program = Program::new(
            "sh -c 'case $0 in run) for n in 0 1 2; do echo done $n; read line; done;; \
             judge) while read -r line; do echo \"bad $line\"; done;; esac'",
        );
        let mut done = Vec::new();
        program.run(Path::new("/"), 2, |n| done.push(n)).unwrap();
        assert_eq!(done, [0, 1, 2]);
        let mut judge = program.judge().unwrap();
        let verdict = judge.ask(Path::new("/nowhere"), -1, 4).unwrap();
        assert_eq!(verdict, Verdict::Broken("/nowhere\t-1\t4".to_owned()));
    }

    #[test]
    fn a_program_that_fails_is_not_taken_for_a_broken_volume() {
        let silent = Program::new("true");
        assert!(matches!(silent.run(Path::new("/"), 3, |_| ()), Err(ProgramError::Protocol { .. })));
        let failing = Program::new("sh -c 'echo done 0; read line; exit 3'");
        assert!(matches!(failing.run(Path::new("/"), 0, |_| ()), Err(ProgramError::Failed { .. })));
        let babbling = Program::new("sh -c 'echo hello; read line'");
        assert!(matches!(
            babbling.judge().unwrap().ask(Path::new("/"), 0, 0),
            Err(ProgramError::Protocol { .. })
        ));
    }
}
