//! NBD servers that end with the test that needs them.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

pub(crate) mod own;

/// An NBD server.
pub(crate) struct NbdServer {
    pub(crate) uri: String,
    command: Command,
    child: Child,
    pid: PathBuf,
    _dir: tempfile::TempDir,
}

impl NbdServer {
    /// nbdkit, over TCP on a free port; on another one if somebody takes it meanwhile.
    pub(crate) fn nbdkit(arguments: &[&str]) -> NbdServer {
        let mut begun = (0..5).map(|_| NbdServer::nbdkit_on_a_port(arguments));
        begun.find_map(Result::ok).expect("nbdkit ends each time: what it said stands above")
    }

    fn nbdkit_on_a_port(arguments: &[&str]) -> Result<NbdServer, ExitStatus> {
        let dir = tempfile::tempdir().unwrap();
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = free.local_addr().unwrap().port().to_string();
        drop(free);
        let pid = dir.path().join("pid");
        let mut command = Command::new("nbdkit");
        command
            .args(["--foreground", "--ipaddr=127.0.0.1", "--port", &port, "--pidfile"])
            .arg(&pid)
            .args(arguments);
        NbdServer::begin(format!("nbd://127.0.0.1:{port}/"), command, pid, dir)
    }

    /// qemu-nbd, over a socket, with the export name `work`.
    pub(crate) fn qemu(image: &Path, arguments: &[&str]) -> NbdServer {
        let dir = tempfile::tempdir().unwrap();
        let (socket, pid) = (dir.path().join("socket"), dir.path().join("pid"));
        let mut command = Command::new("qemu-nbd");
        command.args(["--format=raw", "--persistent", "--export-name=work", "--shared=8", "--socket"]);
        command.arg(&socket).arg("--pid-file").arg(&pid).args(arguments).arg(image);
        let uri = format!("nbd+unix:///work?socket={}", socket.display());
        NbdServer::begin(uri, command, pid, dir).expect("qemu-nbd serves")
    }

    fn begin(
        uri: String,
        mut command: Command,
        pid: PathBuf,
        dir: tempfile::TempDir,
    ) -> Result<NbdServer, ExitStatus> {
        let child = spawn(&mut command);
        let mut server = NbdServer { uri, command, child, pid, _dir: dir };
        server.wait()?;
        Ok(server)
    }

    /// The same server, at the same address, after it was killed.
    pub(crate) fn again(&mut self) {
        let _ = std::fs::remove_file(&self.pid);
        self.child = spawn(&mut self.command);
        self.wait().expect("it serves again");
    }

    /// Until it serves, or has ended.
    fn wait(&mut self) -> Result<(), ExitStatus> {
        for _ in 0..1000 {
            if self.pid.exists() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                return Err(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not begin");
    }

    /// Sends its process a signal, `STOP` for instance: then it has stopped when this returns.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id();
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status();
        assert!(sent.unwrap().success());
        // A thread on another processor may go on for a moment.
        let is_stopped = |thread: std::fs::DirEntry| {
            let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:\tT"))
        };
        let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        while signal == "STOP" && !threads().all(is_stopped) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Whether its process has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().expect("nbdkit and qemu-nbd are installed (scripts/install-deps.sh test)")
}

impl Drop for NbdServer {
    /// Asks it to end, so that it takes its files with it; nobody may wait for it as long as it waits for its clients.
    fn drop(&mut self) {
        for n in 0..100 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            if n == 0 {
                let _ = Command::new("kill").arg(self.child.id().to_string()).status();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
