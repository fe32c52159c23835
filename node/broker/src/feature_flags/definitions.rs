//! Flags from a file (`feature_flags.test_definitions`): for rehearsals of upgrades and for tests, in which nodes have to
//! know different flags, with callbacks that take long or fail. They go the way of all flags.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::registry::{Callback, Entry, Phase, Properties, Run, Running};

/// Largest file that is read.
const MAX_FILE: u64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Definitions {
    /// Plugins that the node counts as its own.
    #[serde(default)]
    providers: Vec<String>,
    #[serde(default)]
    flags: Vec<Flag>,
    /// Deprecated features, or other phases for those that there are.
    #[serde(default)]
    phases: std::collections::BTreeMap<String, Phase>,
    /// Flags of the core that this node is not to know.
    #[serde(default)]
    unknown: Vec<String>,
}

#[derive(Deserialize)]
struct Flag {
    #[serde(flatten)]
    properties: Properties,
    #[serde(default)]
    enable: Option<Script>,
    #[serde(default)]
    post_enable: Option<Script>,
}

/// What a callback does.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    /// It takes so long.
    #[serde(default)]
    sleep_ms: u64,
    /// It lasts for as long as this file is there.
    #[serde(default)]
    while_exists: Option<PathBuf>,
    /// It fails on these nodes.
    #[serde(default)]
    fails_on: Vec<String>,
    /// It panics on these nodes.
    #[serde(default)]
    panics_on: Vec<String>,
}

/// How often a callback looks for its file.
const LOOK: Duration = Duration::from_millis(20);

impl Script {
    async fn play(&self, run: &Run) -> Result<(), String> {
        tokio::time::sleep(Duration::from_millis(self.sleep_ms)).await;
        while self.while_exists.as_ref().is_some_and(|path| path.exists()) {
            tokio::time::sleep(LOOK).await;
        }
        assert!(!self.panics_on.contains(&run.node), "the definition of {} says so", run.flag.name);
        match self.fails_on.contains(&run.node) {
            true => Err(format!("the callback of {} fails on {}", run.flag.name, run.node)),
            false => Ok(()),
        }
    }
}

#[derive(Debug)]
struct Scripts {
    enable: Script,
    post_enable: Script,
}

impl Callback for Scripts {
    fn enable<'a>(&'a self, run: &'a Run) -> Running<'a> {
        Box::pin(self.enable.play(run))
    }

    fn post_enable<'a>(&'a self, run: &'a Run, _: bool) -> Running<'a> {
        Box::pin(self.post_enable.play(run))
    }
}

/// Adds what a file defines; gives back the providers that it names.
pub fn read(path: &Path, entries: &mut Vec<Entry>) -> Result<Vec<String>, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > MAX_FILE {
        return Err(format!("larger than {MAX_FILE} bytes"));
    }
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    add(&text, entries)
}

fn add(text: &[u8], entries: &mut Vec<Entry>) -> Result<Vec<String>, String> {
    let definitions: Definitions = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    entries.retain(|entry| !definitions.unknown.contains(&entry.properties.name));
    for entry in entries.iter_mut() {
        if let Some(phase) = definitions.phases.get(&entry.properties.name) {
            entry.properties.set_phase(*phase);
        }
    }
    for flag in definitions.flags {
        let mut properties = flag.properties;
        if let Some(phase) = properties.phase {
            properties.set_phase(phase);
        }
        properties.callbacks.clear();
        for (step, script) in [("enable", &flag.enable), ("post_enable", &flag.post_enable)] {
            if script.is_some() {
                properties.callbacks.push(step.to_owned());
            }
        }
        let callback = (flag.enable.is_some() || flag.post_enable.is_some()).then(|| {
            let (enable, post_enable) = (flag.enable.unwrap_or_default(), flag.post_enable.unwrap_or_default());
            Arc::new(Scripts { enable, post_enable }) as Arc<dyn Callback>
        });
        entries.push(Entry { properties, callback });
    }
    Ok(definitions.providers)
}

#[cfg(test)]
mod tests {
    use super::super::registry::Stability;
    use super::super::{catalogue, registry::Registry};
    use super::*;

    #[test]
    fn a_file_adds_flags_takes_some_away_and_sets_phases() {
        let mut entries = catalogue::core();
        let text =
            br#"{"providers":["rabbitmq_test"],"unknown":["khepri_db"],"phases":{"global_qos":"denied_by_default"},
            "flags":[{"name":"t","depends_on":["quorum_queue"],"enable":{"sleep_ms":5}},
                     {"name":"u","stability":"experimental","provided_by":"rabbitmq_test"}]}"#;
        let providers = add(text, &mut entries).unwrap();
        let registry = Registry::new(entries, providers).unwrap();
        assert!(registry.get("khepri_db").is_none());
        assert_eq!(registry.get("global_qos").unwrap().properties.phase, Some(Phase::DeniedByDefault));
        let flag = registry.get("t").unwrap();
        assert_eq!((flag.properties.provided_by.as_str(), flag.properties.callbacks.len()), ("rabbit", 1));
        assert_eq!(registry.get("u").unwrap().properties.stability, Stability::Experimental);
        assert!(registry.providers().contains("rabbitmq_test"));
        for wrong in ["", "1", r#"{"flag":[]}"#, r#"{"flags":[{"name":"t","enable":{"sleep":1}}]}"#] {
            assert!(add(wrong.as_bytes(), &mut Vec::new()).is_err(), "{wrong}");
        }
    }
}
