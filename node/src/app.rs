//! The app of a node, in RabbitMQ's words: what serves clients and takes part in the cluster. `stop_app` ends it and leaves
//! the process there, which still answers operators on its peer port and admin socket.
//!
//! To stop or start the app, the process ends it in order and then runs its own program again (`exec`), with the same process
//! id, arguments and environment. So nothing of an app outlives it: no thread, open file or half of a state. The two sockets
//! are away for as long as that takes; the lock of the data directory is held meanwhile. What is to happen to the data, as
//! for `reset`, is written down before and done by the process that starts, which alone has no database open
//! (`warren_broker::cluster::next_life`).

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Set in the environment of a process whose app is stopped.
const STOPPED: &str = "WARREN_APP_STOPPED";

/// Whether a process has its app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// The node starts as usual.
    Started,
    /// Only operators are answered.
    Stopped,
}

/// What somebody wants of a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// That it ends.
    End,
    /// That it goes on with its app in that state, from the beginning.
    Again(App),
}

impl App {
    /// What this process was started with.
    pub fn of_process() -> App {
        if std::env::var_os(STOPPED).is_some() { App::Stopped } else { App::Started }
    }
}

/// Runs this program again in place of this process; answers why that did not work.
pub fn start_again(app: App) -> io::Error {
    let mut arguments = std::env::args_os();
    // The file that runs, whatever has become of its name since.
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments);
    match app {
        App::Started => command.env_remove(STOPPED),
        App::Stopped => command.env(STOPPED, "1"),
    };
    command.exec()
}
