//! The runbook in docs/operating.md does what it says.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use warren_cluster_tests::{Claim, wait_for, warren_binary};

/// The blocks of commands of a document's section, in order.
fn blocks(document: &str, section: &str) -> Vec<String> {
    let heading = format!("## {section}");
    let lines =
        document.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with("## "));
    let mut blocks = vec![String::new()];
    for line in lines {
        match (line.strip_prefix("    "), blocks.last_mut()) {
            (Some(command), Some(block)) => {
                block.push_str(command);
                block.push('\n');
            }
            _ => blocks.push(String::new()),
        }
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

/// Ends what the commands have started: the processes that their pid files name.
struct Started<'a>(&'a Path);

impl Started<'_> {
    fn pids(&self) -> Vec<Pid> {
        let files = fs::read_dir(self.0.join("run/data")).into_iter().flatten().flatten();
        let files = files.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "pid"));
        files.filter_map(|file| Pid::from_raw(fs::read_to_string(file).ok()?.trim().parse().ok()?)).collect()
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        for pid in self.pids() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[test]
fn the_runbook_is_followed_command_by_command() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating.md");
    let document = fs::read_to_string(document).expect("the document can be read");
    let blocks = blocks(&document, "Runbook");
    assert!(blocks.len() >= 8, "{blocks:?}");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    symlink(warren_binary(), folder.path().join("warren")).expect("a link can be made");
    let claim = Claim::new();
    // The document's ports, and those that are free here, by way of words that are no port.
    let mut ports: Vec<(String, String)> = Vec::new();
    for (node, (amqp, peer)) in [(5672, 25672), (5673, 25682), (5674, 25692), (5675, 25702)].into_iter().enumerate() {
        ports.insert(0, (peer.to_string(), format!("PEER_{node}_")));
        ports.insert(0, (format!(":{amqp}"), format!(":AMQP_{node}_")));
        ports.push((format!("PEER_{node}_"), claim.peer(node).to_string()));
        ports.push((format!("AMQP_{node}_"), claim.amqp(node).to_string()));
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let _started = Started(folder.path());
    for block in &blocks {
        let script = ports.iter().fold(block.clone(), |text, (from, to)| text.replace(from, to));
        // What is started outlives its shell, and must not hold its output.
        let (out, log) = (folder.path().join("out"), fs::File::create(folder.path().join("out")).unwrap());
        let status = Command::new("sh")
            .args(["-e", "-x", "-c", &script])
            .current_dir(folder.path())
            .env("PATH", format!("{}:{path}", folder.path().display()))
            .env("HOME", folder.path())
            .env("WARREN_DATA_DIR", folder.path().join("run/data"))
            .env_remove("WARREN_NODENAME")
            .env_remove("RABBITMQ_NODENAME")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .status()
            .expect("a shell can be run");
        let said = fs::read_to_string(&out).unwrap_or_default();
        let logs = || -> String {
            let log = |n| fs::read_to_string(folder.path().join(format!("run/w{n}.log"))).unwrap_or_default();
            (1..=4).map(|n| log(n).lines().rev().take(15).collect::<Vec<_>>().join("\n") + "\n--\n").collect()
        };
        assert!(status.success(), "{status}:\n{script}\n{said}\n{}", logs());
    }
    let ctl = |arguments: &[&str]| {
        let output = Command::new(warren_binary())
            .arg("ctl")
            .args(["-n", "w1@localhost"])
            .args(arguments)
            .env("WARREN_DATA_DIR", folder.path().join("run/data"))
            .output()
            .expect("the command can be run");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    wait_for("four nodes to run at the end", Duration::from_secs(60), || {
        let status: serde_json::Value = serde_json::from_str(&ctl(&["cluster_status", "--formatter", "json"])).ok()?;
        (status["running_nodes"].as_array()?.len() == 4).then_some(())
    });
}
