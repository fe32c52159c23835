//! One `warren server` process: started, watched and ended by its process id.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::disk::{DiskFault, FaultyDisk};

/// How to end a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stop {
    /// `SIGKILL`: what a power cut does to a process.
    Kill,
    /// `SIGTERM`: the orderly stop, which may take up to a minute.
    Terminate,
}

/// Longest time that an orderly stop may take: the node's own limit is 60 s.
const STOP_LIMIT: Duration = Duration::from_secs(70);

/// A node of a test cluster, running or not.
pub struct Node {
    name: String,
    amqp_port: u16,
    folder: PathBuf,
    secret: String,
    binary: PathBuf,
    process: Option<Child>,
    disk: Option<FaultyDisk>,
    variables: Vec<(String, String)>,
}

impl Node {
    /// Lays out a node's folder and configuration; starts nothing.
    pub(crate) fn lay_out(
        name: String,
        amqp_port: u16,
        folder: PathBuf,
        configuration: &str,
        secret: &str,
        binary: &Path,
    ) -> io::Result<Node> {
        fs::create_dir_all(folder.join("home"))?;
        fs::write(folder.join("warren.conf"), configuration)?;
        Ok(Node {
            name,
            amqp_port,
            folder,
            secret: secret.to_owned(),
            binary: binary.to_owned(),
            process: None,
            disk: None,
            variables: Vec::new(),
        })
    }

    /// The node's name, `wN@localhost`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where AMQP clients connect.
    pub fn amqp_port(&self) -> u16 {
        self.amqp_port
    }

    /// Puts the data folder on a disk that the test can break.
    pub(crate) fn put_on_faulty_disk(&mut self, library: &Path) {
        self.disk = Some(FaultyDisk::new(library, self.data_dir(), self.folder.join("disk-fault")));
    }

    /// Sets a variable of the server's environment: it counts from the next start on.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// What stands in a file of the node's own directory; nothing where there is none.
    pub fn own_file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.database(name)).ok()
    }

    fn disk(&self) -> &FaultyDisk {
        self.disk.as_ref().expect("the cluster was set up with faulty disks")
    }

    /// From now on the node's disk has that fault.
    pub fn break_disk(&self, fault: DiskFault) {
        self.disk().break_with(fault);
    }

    /// From now on the node's disk works.
    pub fn mend_disk(&self) {
        self.disk().mend();
    }

    /// Whether the node's disk has a fault, or is to have one with the next sync.
    pub fn disk_is_broken(&self) -> bool {
        self.disk().is_broken()
    }

    /// The process id while the node runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// The folder that `--data-dir` names.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The folder of one of the node's databases: `queues` or `metadata`.
    pub fn database(&self, name: &str) -> PathBuf {
        self.data_dir().join(&self.name).join(name)
    }

    /// The files of queue data that the node has set aside.
    pub fn quarantine(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.database("quarantine")).into_iter().flatten().flatten();
        // What is still being written has another name.
        files.map(|entry| entry.path()).filter(|path| path.extension().is_none_or(|end| end != "part")).collect()
    }

    /// The file that takes what the process prints.
    pub fn log_path(&self) -> PathBuf {
        self.folder.join("warren.log")
    }

    /// What the node has printed so far, in all its lives.
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// A command with the node's environment and nothing inherited that would change its meaning.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("WARREN_") || text.starts_with("RABBITMQ_") {
                command.env_remove(&name);
            }
        }
        command
            .env("HOME", self.folder.join("home"))
            .env("WARREN_ERLANG_COOKIE", &self.secret)
            .env("WARREN_DATA_DIR", self.data_dir())
            .env("NO_COLOR", "1")
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    /// The arguments and environment of `warren server` for this node.
    pub fn server_command(&self) -> Command {
        let mut command = self.command();
        command
            .arg("server")
            .arg("--config")
            .arg(self.folder.join("warren.conf"))
            .arg("--data-dir")
            .arg(self.data_dir())
            .arg("--node")
            .arg(&self.name);
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        if let Some(disk) = &self.disk {
            disk.use_for(&mut command);
        }
        command
    }

    /// Starts the process; does not wait until it is ready.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        let log = self.open_log().expect("the node's log file can be opened");
        let errors = log.try_clone().expect("a file handle can be cloned");
        let child = self
            .server_command()
            .stdout(log)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("{} cannot be run: {error}", self.binary.display()));
        self.process = Some(child);
    }

    fn open_log(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).open(self.log_path())
    }

    /// Waits until the node takes AMQP connections, which it does last when it boots.
    pub fn wait_ready(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let address = SocketAddr::from(([127, 0, 0, 1], self.amqp_port));
        loop {
            if let Some(status) = self.exited() {
                panic!("{} ended with {status} instead of becoming ready", self.name);
            }
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return;
            }
            assert!(Instant::now() < deadline, "{} is not ready after {limit:?}", self.name);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a node that was started ends by itself, and gives back its exit code and what it has printed in this life.
    pub fn refused_start(&mut self, limit: Duration) -> (Option<i32>, String) {
        let before = self.log().len();
        self.start();
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.exited() {
                break status;
            }
            assert!(Instant::now() < deadline, "{} still runs after {limit:?}", self.name);
            std::thread::sleep(Duration::from_millis(20));
        };
        (status.code(), self.log()[before..].to_owned())
    }

    /// The exit status, if the process has ended by itself; the node then counts as stopped.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        let status = self.process.as_mut()?.try_wait().ok().flatten()?;
        self.process = None;
        Some(status)
    }

    /// Sends the signal and waits until the process has ended.
    pub fn stop(&mut self, how: Stop) -> ExitStatus {
        let mut child = self.process.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        match how {
            Stop::Kill => child.kill().expect("a child can be killed"),
            Stop::Terminate => signal(&child, Signal::TERM),
        }
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                return status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{} did not stop within {STOP_LIMIT:?}", self.name);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Makes the process stand still, as one that is cut off seems to others.
    pub fn suspend(&self) {
        signal(self.process.as_ref().expect("the node runs"), Signal::STOP);
    }

    /// Lets the process go on.
    pub fn resume(&self) {
        signal(self.process.as_ref().expect("the node runs"), Signal::CONT);
    }

    /// Deletes everything that the stopped node stored, as a replaced disk would.
    pub fn wipe(&self) {
        assert!(self.process.is_none(), "{} must not run while it is wiped", self.name);
        if let Err(error) = fs::remove_dir_all(self.data_dir()) {
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "wiping: {error}");
        }
    }

    /// Changes the stopped node's configuration file: it counts from the next start on.
    pub fn configure(&self, change: impl FnOnce(String) -> String) {
        let path = self.folder.join("warren.conf");
        let text = fs::read_to_string(&path).expect("the configuration can be read");
        fs::write(&path, change(text)).expect("the configuration can be written");
    }

    /// Runs `warren ctl` against this node.
    pub fn ctl(&self, arguments: &[&str]) -> Output {
        self.command()
            .arg("ctl")
            .arg("-n")
            .arg(&self.name)
            .args(arguments)
            .output()
            .unwrap_or_else(|error| panic!("{} cannot be run: {error}", self.binary.display()))
    }

    /// Starts `warren ctl` against this node and does not wait for its end.
    pub fn start_ctl(&self, arguments: &[&str]) -> Child {
        self.command()
            .arg("ctl")
            .arg("-n")
            .arg(&self.name)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{} cannot be run: {error}", self.binary.display()))
    }

    /// Runs `warren ctl`, which must succeed, and gives back what it printed.
    pub fn ctl_ok(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "ctl {arguments:?} on {}: {}\n{text}{}",
            self.name,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// Runs a listing verb with the JSON formatter and gives back its rows; none where the node does not answer.
    pub fn ctl_rows(&self, arguments: &[&str]) -> Option<Vec<serde_json::Value>> {
        let output = self.ctl(&[arguments, &["--formatter", "json"]].concat());
        if !output.status.success() {
            return None;
        }
        match serde_json::from_slice(&output.stdout).ok()? {
            serde_json::Value::Array(rows) => Some(rows),
            row => Some(vec![row]),
        }
    }

    /// The last lines of the log, for the report of a failed test.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        kill_process(pid, signal).expect("a child can be signalled");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
