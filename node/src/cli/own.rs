//! Verbs that are more than one question to a node.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use warren_broker::access::salt;
use warren_broker::cluster::standalone::{Standalone, StandaloneError, make_standalone};
use warren_broker::identity;
use warren_metastore::records::User;
use warren_raft::log_store::StoreError;

use super::target::Failure;
use super::verbs::Own;
use super::{Call, format};
use crate::config::environment::{self, Environment};
use crate::config::{self, Configuration, Overrides};
use crate::data_dir::{DataDir, DataDirError};
use crate::exit::Exit;

/// Pause between two questions.
const POLL: Duration = Duration::from_millis(200);
/// One question.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How long `stop` waits for the process whose pid file it was given.
const STOP: Duration = Duration::from_secs(120);

/// Runs the verb.
pub async fn run(call: &Call, own: Own) -> Exit {
    match own {
        Own::AwaitStartup => await_startup(call).await,
        Own::AwaitOnlineNodes => await_online_nodes(call).await,
        Own::Ping => ping(call).await,
        Own::Stop => stop(call).await,
        Own::Shutdown => shutdown(call).await,
        Own::CheckConfig => check_config(call),
        Own::Version => {
            super::print(&format::text(call.formatter(), identity::CLIENT_VERSION));
            Exit::Ok
        }
        Own::HashPassword => hash_password(call),
        Own::ForceStandalone => force_standalone(call),
        Own::CheckDeprecated => check_deprecated(call).await,
        // Answered before there is a target.
        Own::Help => Exit::Ok,
    }
}

/// Asks until `enough` or until time runs out.
async fn poll(call: &Call, verb: &str, enough: impl Fn(&Value) -> bool) -> Result<(), Option<Failure>> {
    let deadline = Instant::now() + call.timeout;
    let mut last = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(last);
        }
        match call.call(verb, left.min(ATTEMPT)).await {
            Ok(answer) if answer.refusal.is_none() && enough(&answer.value) => return Ok(()),
            Ok(_) => {}
            Err(failure) => last = Some(failure),
        }
        tokio::time::sleep(POLL.min(left)).await;
    }
}

/// Fails where a deprecated feature is in use, and names those.
async fn check_deprecated(call: &Call) -> Exit {
    let value = match call.call(call.verb.name, call.timeout).await {
        Ok(answer) => match &answer.refusal {
            Some(refusal) => return call.refused(refusal),
            None => answer.value,
        },
        Err(failure) => return call.failed(&failure),
    };
    let used: Vec<&str> =
        value["deprecated_features"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let for_programs = call.formatter().is_for_programs();
    if used.is_empty() {
        if for_programs {
            say!("{}", json!({"result": "ok"}));
        } else if !call.globals.quiet && !call.globals.silent {
            say!("Cluster reported no deprecated features in use");
        }
        return Exit::Ok;
    }
    let message = format!("deprecated features are in use on node {}", call.target.node);
    if for_programs {
        say!("{}", json!({"result": "error", "deprecated_features": used, "message": message}));
    } else {
        complain!("Error:\nCluster reported that these deprecated features are in use:\n{}", used.join("\n"));
    }
    Exit::Unavailable
}

async fn await_startup(call: &Call) -> Exit {
    match poll(call, "is_running", |value| value["running"] == true).await {
        Ok(()) => Exit::Ok,
        Err(Some(failure @ Failure::Authentication(_))) => call.failed(&failure),
        Err(_) => {
            let seconds = call.timeout.as_secs();
            complain!("Error:\nnode {} did not start within {seconds} seconds", call.target.node);
            Exit::Timeout
        }
    }
}

async fn await_online_nodes(call: &Call) -> Exit {
    let Ok(count) = call.text("count").parse::<usize>() else {
        complain!("Error:\n`{}` is not a number of nodes", call.text("count"));
        return Exit::Data;
    };
    let enough = |value: &Value| value["running_nodes"].as_array().is_some_and(|nodes| nodes.len() >= count);
    match poll(call, "cluster_status", enough).await {
        Ok(()) => Exit::Ok,
        Err(_) => {
            complain!("Error:\n{count} nodes were not online within {} seconds", call.timeout.as_secs());
            Exit::Software
        }
    }
}

async fn ping(call: &Call) -> Exit {
    match call.call("ping", call.timeout).await {
        Ok(_) => {
            if !call.globals.silent {
                super::print(&format::text(call.formatter(), "Ping succeeded"));
            }
            Exit::Ok
        }
        Err(failure) => call.failed(&failure),
    }
}

async fn stop(call: &Call) -> Exit {
    let pid_file = call.args.get("pidfile").and_then(Value::as_str).map(PathBuf::from);
    let pid = match &pid_file {
        Some(file) => match read_pid(file) {
            Ok(pid) => Some(pid),
            Err(_) if call.flag("idempotent") => return Exit::Ok,
            Err(why) => {
                complain!("Error:\n{why}");
                return Exit::Data;
            }
        },
        None => None,
    };
    match call.call("stop", call.timeout.min(ATTEMPT)).await {
        Ok(answer) => {
            if let Some(refusal) = &answer.refusal {
                return call.refused(refusal);
            }
        }
        Err(Failure::Unreachable(_)) if pid.is_some_and(signal) => {}
        Err(Failure::Unreachable(_)) if call.flag("idempotent") => {
            say!("Node {} is not running", call.target.node);
            return Exit::Ok;
        }
        Err(failure) => return call.failed(&failure),
    }
    match pid {
        Some(pid) => wait_for_end(pid, STOP).await,
        None => Exit::Ok,
    }
}

async fn shutdown(call: &Call) -> Exit {
    let wait = !call.flag("no-wait");
    let local = call.target.is_local();
    if wait && !local {
        complain!("Error:\nnode {} is not on this machine: use --no-wait", call.target.node);
        return Exit::Usage;
    }
    match call.call("stop", call.timeout.min(ATTEMPT)).await {
        Ok(answer) => match (answer.refusal, answer.value["pid"].as_i64()) {
            (Some(refusal), _) => call.refused(&refusal),
            (None, Some(pid)) if wait => match i32::try_from(pid).ok().and_then(Pid::from_raw) {
                Some(pid) => wait_for_end(pid, call.timeout).await,
                None => Exit::Ok,
            },
            (None, _) => Exit::Ok,
        },
        Err(failure) => call.failed(&failure),
    }
}

fn read_pid(file: &Path) -> Result<Pid, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read `{}`: {error}", file.display()))?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| format!("`{}` does not hold a process id", file.display()))
}

/// Asks the process itself to stop, where it does not answer calls.
fn signal(pid: Pid) -> bool {
    kill_process(pid, Signal::TERM).is_ok()
}

async fn wait_for_end(pid: Pid, timeout: Duration) -> Exit {
    let deadline = Instant::now() + timeout;
    while test_kill_process(pid).is_ok() {
        if Instant::now() >= deadline {
            complain!("Error:\nprocess {} did not stop in time", pid.as_raw_nonzero());
            return Exit::Timeout;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Exit::Ok
}

/// Prints what `add_user` would store, for definition files.
fn hash_password(call: &Call) -> Exit {
    match call.text("hashing-algorithm") {
        "" | "sha256" | "rabbit_password_hashing_sha256" => {}
        other => {
            complain!("Error:\nthe hashing algorithm `{other}` is not available: use sha256");
            return Exit::Data;
        }
    }
    let password = call.text("password");
    if password.is_empty() {
        complain!("Error:\npassword cannot be an empty string");
        return Exit::Data;
    }
    let user = User::with_password("", password.as_bytes(), salt(), Vec::new());
    super::print(&format::text(call.formatter(), &STANDARD.encode(&user.password_hash)));
    Exit::Ok
}

fn force_standalone(call: &Call) -> Exit {
    if !call.flag("i-accept-data-loss") {
        complain!(
            "Error:\nWhat only the other nodes have is lost, and they must never be started with their old data again. Say \
             --i-accept-data-loss if the majority is gone for good."
        );
        return Exit::Usage;
    }
    let configuration = match configuration(call, None) {
        Ok(configuration) => configuration,
        Err(exit) => return exit,
    };
    let node = &configuration.node;
    let opened = DataDir::open(&configuration.data_dir, node, configuration.pid_file.as_deref());
    let data = match opened {
        Ok(data) => data,
        Err(error @ DataDirError::InUse { .. }) => {
            complain!("Error:\nnode {node} must be stopped first: {error}");
            return Exit::Unavailable;
        }
        Err(error) => {
            complain!("Error:\n{error}");
            return Exit::Config;
        }
    };
    let queues = configuration.settings.queues_dir(node, &data.node);
    let done = make_standalone(node.as_str(), &data.node, &queues);
    data.close();
    match done {
        Ok(Standalone { queues, reduced }) => {
            let text = format!(
                "Node {node} is the only member of its cluster's metadata and of {reduced} of its {queues} quorum queues that had \
                 others. Start it, wipe the data of the lost nodes before they join again, and grow the queues."
            );
            super::print(&format::text(call.formatter(), &text));
            Exit::Ok
        }
        Err(error) => {
            complain!("Error:\n{error}");
            match error {
                StandaloneError::Store(StoreError::Write(_)) => Exit::Io,
                _ => Exit::Config,
            }
        }
    }
}

/// The configuration, without a node; its problems are printed.
fn configuration(call: &Call, file: Option<PathBuf>) -> Result<Configuration, Exit> {
    let overrides = Overrides {
        config: file,
        data_dir: call.globals.data_dir.clone(),
        node: call.globals.node.clone(),
        long_names: call.globals.long_names,
        recreate_flags: None,
    };
    config::load(&overrides, &Environment::new(&environment::process)).map_err(|problems| {
        for problem in &problems {
            complain!("Error: {problem}");
        }
        if call.formatter().is_for_programs() {
            let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
            say!("{}", json!({"result": "error", "problems": texts}));
        }
        Exit::Config
    })
}

fn check_config(call: &Call) -> Exit {
    let file = call.args.get("file").and_then(Value::as_str).map(PathBuf::from);
    let configuration = match configuration(call, file) {
        Ok(configuration) => configuration,
        Err(exit) => return exit,
    };
    for warning in &configuration.warnings {
        complain!("Warning: {warning}");
    }
    let files: Vec<String> = configuration.files.iter().map(|file| file.display().to_string()).collect();
    let text = match files.is_empty() {
        true => "There is no configuration file: the defaults are valid.".to_owned(),
        false => format!("The configuration is valid: {}", files.join(", ")),
    };
    super::print(&format::text(call.formatter(), &text));
    Exit::Ok
}
