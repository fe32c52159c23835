//! The node's configuration: rabbitmq.conf files and environment variables, read once into typed [`Settings`].
//!
//! [`load`] reports every problem at once, with its file and line. A key that exists in RabbitMQ and has no effect here is
//! accepted with one warning; an unknown key is an error.

pub mod environment;
mod identity;
mod inert;
mod keys;
mod node_name;
mod pattern;
pub mod problem;
pub mod settings;
mod syntax;
pub mod value;

use std::path::{Path, PathBuf};

use environment::Environment;
use keys::Draft;
pub use problem::{Origin, Problem};
use settings::{NodeName, Settings};

/// Largest configuration file that is read.
const MAX_FILE: u64 = 8 << 20;

/// What the command line says, before files and environment.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--node`.
    pub node: Option<String>,
    /// `--longnames`.
    pub long_names: bool,
    /// `--recreate-feature-flags`.
    pub recreate_flags: Option<Vec<String>>,
}

/// A complete, valid configuration.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// This node's name.
    pub node: NodeName,
    /// The folder that holds the folders of nodes.
    pub data_dir: PathBuf,
    /// Where the pid is written, if not beside the data.
    pub pid_file: Option<PathBuf>,
    /// The cluster's secret, if the environment gives it.
    pub secret: Option<String>,
    /// Feature flags that were enabled before their file was lost.
    pub recreate_flags: Option<Vec<String>>,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    /// The settings.
    pub settings: Settings,
    /// What has no effect; to be logged once.
    pub warnings: Vec<Problem>,
}

/// Reads files and environment. On failure, every problem that was found.
pub fn load(overrides: &Overrides, environment: &Environment<'_>) -> Result<Configuration, Vec<Problem>> {
    let mut problems = Vec::new();
    let files = files(overrides, environment, &mut problems);
    let mut assignments = Vec::new();
    for file in &files {
        match read(file) {
            Ok(text) => {
                let variable = |name: &str| environment.raw(name);
                assignments.extend(syntax::parse(&text, file, &variable, &mut problems));
            }
            Err(reason) => problems.push(Problem::new(Origin::File(file.clone()), reason)),
        }
    }
    let long = overrides.long_names || environment.flag("USE_LONGNAME");
    let host = environment::host_name(long);
    let node = identity::node_name(overrides, environment, &host, long, &mut problems);
    let mut draft = Draft { host, ..Draft::default() };
    let mut warnings = Vec::new();
    let mut peer_port_given = false;
    for assignment in &assignments {
        apply(&mut draft, assignment, &mut problems, &mut warnings);
        let name = assignment.name();
        peer_port_given |= name == "peer.port" || name == "distribution.listener.port_range.min";
    }
    let ports_in_files = !draft.listeners.is_empty() || draft.no_listeners;
    let mut settings = finish(draft, &mut problems);
    let from_environment = identity::apply_environment(&mut settings, ports_in_files, environment, &mut problems);
    peer_port_given |= from_environment;
    if let Some(node) = &node {
        own_seed(&mut settings, node, peer_port_given, &files, &mut warnings);
    }
    let data_dir = data_dir(overrides, environment);
    match node {
        Some(node) if problems.is_empty() => Ok(Configuration {
            node,
            data_dir,
            pid_file: environment.value("PID_FILE").map(PathBuf::from),
            secret: environment.value("ERLANG_COOKIE"),
            recreate_flags: overrides.recreate_flags.clone(),
            files,
            settings,
            warnings,
        }),
        _ => Err(problems),
    }
}

/// The folder that holds the folders of nodes.
pub fn data_dir(overrides: &Overrides, environment: &Environment<'_>) -> PathBuf {
    overrides
        .data_dir
        .clone()
        .or_else(|| environment.value("DATA_DIR").map(PathBuf::from))
        .or_else(|| environment.value("MNESIA_BASE").map(PathBuf::from))
        .unwrap_or_else(|| "/var/lib/warren".into())
}

/// The files to read, in order: the main one, then those of the conf.d folder by name.
fn files(overrides: &Overrides, environment: &Environment<'_>, problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let given = overrides
        .config
        .clone()
        .map(|path| (path.clone(), Origin::File(path)))
        .or_else(|| environment.get("CONFIG_FILE").map(|(path, origin)| (path.into(), origin)));
    match given {
        Some((path, origin)) => match existing(&path) {
            Some(path) => files.push(path),
            None => problems.push(Problem::new(origin, format!("there is no file `{}`", path.display()))),
        },
        None => {
            let defaults = ["/etc/warren/warren.conf", "/etc/rabbitmq/rabbitmq.conf"];
            files.extend(defaults.iter().map(PathBuf::from).find(|path| path.is_file()));
        }
    }
    // A file named on the command line is the whole configuration unless a folder is named too: the system's conf.d
    // must not leak into a node that was started with its own file.
    let folder = match environment.get("CONFIG_FILES") {
        Some((path, _)) => Some(PathBuf::from(path.trim_end_matches("/*.conf"))),
        None if overrides.config.is_none() => Some(PathBuf::from("/etc/warren/conf.d")),
        None => None,
    };
    if let Some(folder) = folder {
        match folder_files(&folder) {
            Ok(more) => files.extend(more),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => problems.push(Problem::new(Origin::File(folder), error.to_string())),
        }
    }
    files
}

/// RabbitMQ lets the extension be left out.
fn existing(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.to_owned());
    }
    let mut with = path.as_os_str().to_owned();
    with.push(".conf");
    Some(PathBuf::from(with)).filter(|path| path.is_file())
}

fn folder_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "conf") && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(file: &Path) -> Result<String, String> {
    let size = std::fs::metadata(file).map_err(|error| error.to_string())?.len();
    if size > MAX_FILE {
        return Err(format!("larger than {MAX_FILE} bytes"));
    }
    if file.extension().is_some_and(|extension| extension == "config") {
        return Err("Erlang terms are not read: write the same settings as `key = value` in a .conf file".to_owned());
    }
    let text = std::fs::read(file).map_err(|error| error.to_string())?;
    String::from_utf8(text).map_err(|_| "is not UTF-8 text".to_owned())
}

fn apply(draft: &mut Draft, assignment: &syntax::Assignment, problems: &mut Vec<Problem>, warnings: &mut Vec<Problem>) {
    let name = assignment.name();
    let wrong = |why: String| Problem::new(assignment.origin.clone(), format!("{name}: {why}"));
    for (key, apply) in keys::KEYS {
        if let Some(parts) = pattern::matches(key, &assignment.key) {
            if let Err(why) = apply(draft, &parts, &assignment.value) {
                problems.push(wrong(why));
            } else if keys::WITHOUT_EFFECT.contains(key) {
                warn_once(warnings, assignment, "is read but has no effect in this version");
            }
            return;
        }
    }
    for (key, check, why) in inert::INERT {
        if pattern::matches(key, &assignment.key).is_none() {
            continue;
        }
        if let Err(why) = check(&assignment.value) {
            problems.push(wrong(why));
        }
        let text = match why {
            inert::Why::NotYet => "is not supported by this version and has no effect",
            inert::Why::NoMeaning => "tunes something that Warren does not have and has no effect",
        };
        warn_once(warnings, assignment, text);
        return;
    }
    problems.push(Problem::new(assignment.origin.clone(), unknown(&name)));
}

fn warn_once(warnings: &mut Vec<Problem>, assignment: &syntax::Assignment, text: &str) {
    let text = format!("{} {text}", assignment.name());
    if !warnings.iter().any(|warning| warning.text == text) {
        warnings.push(Problem::new(assignment.origin.clone(), text));
    }
}

fn unknown(name: &str) -> String {
    let plain = |key: &&str| !key.contains(['*', '|']);
    let known = keys::KEYS.iter().map(|(key, _)| *key).chain(inert::INERT.iter().map(|(key, ..)| *key));
    let near = known
        .filter(plain)
        .map(|key| (strsim::normalized_damerau_levenshtein(key, name), key))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match near {
        Some((_, key)) => format!("unknown key `{name}`; did you mean `{key}`?"),
        None => format!("unknown key `{name}`"),
    }
}

/// Numbered entries sort by number, named ones by name after them.
fn ordered<T>(mut entries: Vec<(String, T)>) -> Vec<T> {
    entries.sort_by_key(|(key, _)| (key.parse::<u64>().unwrap_or(u64::MAX), key.clone()));
    entries.into_iter().map(|(_, value)| value).collect()
}

/// Turns what the lines said into settings.
fn finish(draft: Draft, problems: &mut Vec<Problem>) -> Settings {
    let mut settings = draft.settings;
    if draft.no_listeners {
        settings.listeners.tcp = Some(Vec::new());
    } else if !draft.listeners.is_empty() {
        settings.listeners.tcp = Some(ordered(draft.listeners));
    }
    settings.cluster.seeds = ordered(draft.seeds);
    if !draft.mechanisms.is_empty() {
        let mut mechanisms = Vec::new();
        for mechanism in ordered(draft.mechanisms) {
            if !mechanisms.contains(&mechanism) {
                mechanisms.push(mechanism);
            }
        }
        settings.auth.mechanisms = mechanisms;
    }
    if draft.master_locator.is_some() && settings.flags.permits.get("queue_master_locator") == Some(&false) {
        let text = "queue_master_locator: deprecated_features.permit.queue_master_locator denies this key; use queue_leader_locator";
        problems.push(Problem::new(Origin::File("configuration".into()), text));
    }
    if let Some(locator) = draft.leader_locator.or(draft.master_locator) {
        settings.queues.leader_locator = locator;
    }
    if let Some(users) = draft.loopback {
        settings.auth.loopback_users = users;
    }
    if let Some(tags) = draft.tags {
        settings.defaults.tags = tags;
    }
    settings.auth.anonymous = match (draft.anonymous_user.as_deref(), draft.anonymous_pass) {
        (Some("none"), _) => None,
        (user, pass) => Some((user.unwrap_or("guest").to_owned(), pass.unwrap_or_else(|| "guest".to_owned()))),
    };
    let mut seen = Vec::new();
    for seed in &settings.cluster.seeds {
        if seen.contains(&&seed.node) {
            let text = format!("cluster_formation.classic_config.nodes names `{}` twice", seed.node);
            problems.push(Problem::new(Origin::File("configuration".into()), text));
        }
        seen.push(&seed.node);
    }
    settings
}

/// The list of seeds holds this node too, else it is ignored; and its port there is the one to listen on.
fn own_seed(
    settings: &mut Settings,
    node: &NodeName,
    peer_port_given: bool,
    files: &[PathBuf],
    warnings: &mut Vec<Problem>,
) {
    if settings.cluster.seeds.is_empty() {
        return;
    }
    match settings.cluster.seeds.iter_mut().find(|seed| seed.node == *node) {
        Some(own) if peer_port_given => own.port = settings.peer.port,
        Some(own) => settings.peer.port = own.port,
        None => {
            settings.cluster.seeds.clear();
            let origin = Origin::File(files.last().cloned().unwrap_or_default());
            let text = format!("cluster_formation.classic_config.nodes does not name `{node}` itself and is ignored");
            warnings.push(Problem::new(origin, text));
        }
    }
}

#[cfg(test)]
mod tests;
