//! What a newcomer does first: the script behind `make run`, and the example that it prints.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use warren_cluster_tests::{Claim, Program, wait_for, warren_binary};

struct Script {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Script {
    fn start(folder: &Path, ports: &[u16]) -> Script {
        let list = |ports: &[u16]| {
            let texts: Vec<String> = ports.iter().map(u16::to_string).collect();
            texts.join(" ")
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("local-cluster.sh");
        let mut child = Command::new(script)
            .arg(warren_binary())
            .env("WARREN_RUN_DIR", folder)
            .env("WARREN_RUN_AMQP_PORTS", list(&ports[..3]))
            .env("WARREN_RUN_PEER_PORTS", list(&ports[3..]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script can be run");
        let out = BufReader::new(child.stdout.take().expect("its output is piped"));
        Script { child, out }
    }

    /// Everything up to the line that says how to stop.
    fn greeting(&mut self) -> String {
        let mut text = String::new();
        while !text.contains("Ctrl-C") {
            let read = self.out.read_line(&mut text).expect("it prints text");
            assert!(read > 0, "the script ended early: {text}");
        }
        text
    }

    /// Ends it as Ctrl-C does, with the signal that no ancestor can have told it to ignore.
    fn end(&mut self) -> String {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child has a pid");
        kill_process(pid, Signal::TERM).expect("a child can be signalled");
        wait_for("the script to end", Duration::from_secs(80), || {
            self.child.try_wait().expect("a child can be waited for")
        });
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("it prints text");
        rest
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// The four lines that the greeting shows for Python.
fn example(greeting: &str) -> String {
    let lines: Vec<&str> = greeting
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "import pika")
        .take_while(|line| !line.is_empty())
        .collect();
    assert_eq!(lines.len(), 4, "{greeting}");
    lines.join("\n")
}

#[test]
fn the_printed_example_works_as_pasted_and_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let claim = Claim::new();
    let amqp = (0..3).map(|node| claim.amqp(node));
    let ports: Vec<u16> = amqp.chain((0..3).map(|node| claim.peer(node))).collect();
    for _ in 0..2 {
        let mut script = Script::start(folder.path(), &ports);
        let greeting = script.greeting();
        for port in &ports[..3] {
            assert!(greeting.contains(&format!("127.0.0.1:{port}")), "{greeting}");
        }
        let printed = Program::paste(&example(&greeting));
        assert_eq!(printed.trim(), "b'Hello, Warren!'");

        let mut second = Script::start(folder.path(), &ports);
        let status = wait_for("the second start to fail", Duration::from_secs(10), || second.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(1), "a second cluster on the same ports");

        let goodbye = script.end();
        assert!(goodbye.contains("Stopped"), "{goodbye}");
    }
}
