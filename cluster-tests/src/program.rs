//! The client programs in `clients/`: run with the ports of a cluster, judged by the one JSON line that they print.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// The folder with the client programs.
pub fn clients_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// The folder that `make setup` filled with the clients' libraries.
fn environment_folder() -> PathBuf {
    match std::env::var_os("WARREN_TEST_ENV") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let home = std::env::var_os("HOME").unwrap_or_default();
            Path::new(&home).join(".cache/warren-test-env")
        }
    }
}

/// The Python that `make setup` laid out.
fn python() -> Command {
    let mut command = Command::new(environment_folder().join("python/bin/python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A client program and its arguments, not yet running.
pub struct Program {
    name: String,
    command: Command,
}

impl Program {
    /// A program of `clients/python`, with the libraries that `make setup` installed.
    pub fn python(file: &str) -> Program {
        let python = environment_folder().join("python/bin/python");
        let folder = clients_folder().join("python");
        Program::new(file, &python, &folder).env("PYTHONDONTWRITEBYTECODE", "1")
    }

    /// A program of `clients/node`, with the libraries that `make setup` installed.
    pub fn node(file: &str) -> Program {
        let modules = environment_folder().join("node/node_modules");
        let folder = clients_folder().join("node");
        let program = Program::new(file, Path::new("node"), &folder);
        program.env("NODE_PATH", &modules.to_string_lossy())
    }

    /// Runs a module of Python unit tests of `clients/python`, which must all pass.
    pub fn unittest(module: &str) {
        let status = python()
            .args(["-m", "unittest", "-q", module])
            .current_dir(clients_folder().join("python"))
            .status()
            .expect("python can be run; `make setup` installs it");
        assert!(status.success(), "{module}: {status}");
    }

    /// Runs Python text as if it were pasted at a prompt; gives back what it printed.
    pub fn paste(text: &str) -> String {
        let output = python().args(["-c", text]).output().expect("python can be run; `make setup` installs it");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{printed}{errors}");
        printed
    }

    fn new(file: &str, interpreter: &Path, folder: &Path) -> Program {
        let mut command = Command::new(interpreter);
        command.current_dir(folder).arg(folder.join(file));
        Program { name: file.to_owned(), command }
    }

    fn env(mut self, name: &str, value: &str) -> Program {
        self.command.env(name, value);
        self
    }

    /// Adds an option and its value.
    pub fn arg(mut self, option: &str, value: impl ToString) -> Program {
        self.command.arg(option).arg(value.to_string());
        self
    }

    /// Starts the program beside the test.
    pub fn start(mut self) -> Running {
        let child = self.command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap_or_else(|error| {
            panic!("{} cannot be run: {error}; `make setup` installs what it needs", self.name)
        });
        Running { name: self.name, child }
    }

    /// Runs the program to its end; its verdict must be a pass.
    pub fn pass(self) -> Verdict {
        self.start().pass()
    }
}

/// A client program that runs beside the test; killed when dropped.
pub struct Running {
    name: String,
    child: Child,
}

impl Running {
    /// Whether the program still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the program's end; its verdict must be a pass.
    pub fn pass(mut self) -> Verdict {
        let mut text = String::new();
        if let Some(mut out) = self.child.stdout.take() {
            out.read_to_string(&mut text).expect("a program prints text");
        }
        let status = self.child.wait().expect("a child can be waited for");
        let line = text.lines().last().unwrap_or_default();
        let verdict: Value = serde_json::from_str(line)
            .unwrap_or_else(|_| panic!("{} ended with {status} and no verdict: {text}", self.name));
        println!("{line}");
        assert!(
            status.success() && verdict["verdict"] == "pass",
            "{}: {}",
            self.name,
            verdict["failure"].as_str().unwrap_or("no reason given")
        );
        Verdict { facts: verdict }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program said when it passed.
pub struct Verdict {
    facts: Value,
}

impl Verdict {
    /// Anything of the verdict line; null where it is absent.
    pub fn fact(&self, name: &str) -> &Value {
        &self.facts[name]
    }

    /// A number of the verdict line; 0 where it is absent.
    pub fn number(&self, name: &str) -> f64 {
        self.facts[name].as_f64().unwrap_or_default()
    }
}
