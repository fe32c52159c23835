//! A steady load beside faults.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Cluster, Program, Running, Verdict, wait_for};

/// Publishers and consumers that go on until [`Load::finish`], and keep a history that is checked then.
pub struct Load {
    program: Running,
    stop_file: PathBuf,
}

impl Load {
    /// Starts publishers and consumers on a queue of that name and waits until messages flow.
    pub fn start(cluster: &Cluster, queue: &str) -> Load {
        Load::start_on(cluster, queue, &cluster.ports())
    }

    /// The same, with clients on the nodes of these AMQP ports only, separated by commas.
    pub fn start_on(cluster: &Cluster, queue: &str, ports: &str) -> Load {
        let history = cluster.folder().join(format!("{queue}.jsonl"));
        let stop_file = cluster.folder().join(format!("{queue}.stop"));
        let program = Program::python("load.py")
            .arg("--ports", ports)
            .arg("--history", history.display())
            .arg("--stop-file", stop_file.display())
            .arg("--queue", queue)
            .arg("--seconds", 600)
            .arg("--limit", 900)
            .arg("--rate", 300)
            .arg("--drain", 90)
            .start();
        wait_for("the first confirms", Duration::from_secs(30), || {
            let size = fs::metadata(&history).map(|file| file.len());
            size.is_ok_and(|bytes| bytes > 50_000).then_some(())
        });
        Load { program, stop_file }
    }

    /// Stops publishing, lets the queue drain, and checks the history.
    pub fn finish(self) -> Verdict {
        fs::write(&self.stop_file, b"").expect("a file can be written");
        self.program.pass()
    }
}
