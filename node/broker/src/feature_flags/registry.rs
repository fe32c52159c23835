//! What flags there are: their properties, and how those of several nodes are merged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Provider of the flags that every node has.
pub const CORE: &str = "rabbit";

/// How far a flag has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stability {
    /// Off until an operator asks for it by name.
    Experimental,
    /// On in new clusters; elsewhere when an operator says so.
    #[default]
    Stable,
    /// On everywhere.
    Required,
}

impl Stability {
    /// The word that operators see.
    pub fn word(self) -> &'static str {
        match self {
            Stability::Experimental => "experimental",
            Stability::Stable => "stable",
            Stability::Required => "required",
        }
    }
}

/// What happens where a required flag is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequireLevel {
    /// It is enabled when the node starts.
    #[default]
    Soft,
    /// The code without it is gone: the node does not start.
    Hard,
}

/// What an experimental flag promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExperimentLevel {
    /// Upgrades may not work with it.
    #[default]
    Unsupported,
    /// Upgrades work with it.
    Supported,
}

/// How far the end of a deprecated feature is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Works, with a warning, unless the configuration denies it.
    PermittedByDefault,
    /// Does not work unless the configuration permits it.
    DeniedByDefault,
    /// Only another build has it.
    Disconnected,
    /// The code is gone.
    Removed,
}

impl Phase {
    /// The word that operators see.
    pub fn word(self) -> &'static str {
        match self {
            Phase::PermittedByDefault => "permitted_by_default",
            Phase::DeniedByDefault => "denied_by_default",
            Phase::Disconnected => "disconnected",
            Phase::Removed => "removed",
        }
    }

    /// Whether the configuration can say otherwise.
    pub fn is_configurable(self) -> bool {
        matches!(self, Phase::PermittedByDefault | Phase::DeniedByDefault)
    }
}

/// One flag as a node knows it. A deprecated feature is a flag, too: enabled, it is denied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Properties {
    /// `[a-z0-9_.]+`.
    pub name: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub desc: String,
    /// Where there is more to read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doc_url: String,
    /// How far it has come. Of a deprecated feature: what its phase comes to.
    #[serde(default)]
    pub stability: Stability,
    /// Counts with [`Stability::Required`].
    #[serde(default)]
    pub require_level: RequireLevel,
    /// Counts with [`Stability::Experimental`].
    #[serde(default)]
    pub experiment_level: ExperimentLevel,
    /// Set for deprecated features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Flags that are enabled, and deprecated features that are denied, before this one is enabled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// [`CORE`], or the name of a plugin.
    #[serde(default = "core")]
    pub provided_by: String,
    /// The machine version of quorum queues that the flag promises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_version: Option<u16>,
    /// The steps that have code of their own: `enable`, `post_enable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callbacks: Vec<String>,
}

fn core() -> String {
    CORE.to_owned()
}

impl Properties {
    /// A flag of the core.
    pub fn flag(name: &str, stability: Stability, desc: &str) -> Self {
        Properties { name: name.into(), desc: desc.into(), stability, provided_by: core(), ..Properties::default() }
    }

    /// A deprecated feature of the core.
    pub fn deprecated(name: &str, phase: Phase, desc: &str) -> Self {
        let mut feature = Properties::flag(name, Stability::Experimental, desc);
        feature.set_phase(phase);
        feature
    }

    /// Sets the phase and what it comes to.
    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = Some(phase);
        self.experiment_level = ExperimentLevel::Supported;
        (self.stability, self.require_level) = match phase {
            Phase::PermittedByDefault => (Stability::Experimental, RequireLevel::Soft),
            Phase::DeniedByDefault => (Stability::Stable, RequireLevel::Soft),
            Phase::Disconnected | Phase::Removed => (Stability::Required, RequireLevel::Hard),
        };
    }

    /// Required, and the code without it is gone.
    pub fn is_hard(&self) -> bool {
        self.stability == Stability::Required && self.require_level == RequireLevel::Hard
    }

    /// Whether it is a deprecated feature.
    pub fn is_deprecated(&self) -> bool {
        self.phase.is_some()
    }

    /// Whether the core has it.
    pub fn is_core(&self) -> bool {
        self.provided_by == CORE
    }

    /// `none`, `soft` or `hard`, as operators see it.
    pub fn require_word(&self) -> &'static str {
        match (self.stability, self.require_level) {
            (Stability::Required, RequireLevel::Soft) => "soft",
            (Stability::Required, RequireLevel::Hard) => "hard",
            (Stability::Experimental | Stability::Stable, _) => "none",
        }
    }

    /// `unsupported` or `supported`, as operators see it.
    pub fn experiment_word(&self) -> &'static str {
        match (self.stability, self.experiment_level) {
            (Stability::Experimental, ExperimentLevel::Unsupported) => "unsupported",
            _ => "supported",
        }
    }

    /// Takes in what another node says of the same flag: what goes furthest counts.
    pub fn merge(&mut self, other: &Properties) {
        if let Some(phase) = self.phase.max(other.phase) {
            self.set_phase(phase);
            return;
        }
        if other.stability > self.stability {
            self.stability = other.stability;
            self.require_level = other.require_level;
            self.experiment_level = other.experiment_level;
        } else if other.stability == self.stability && other.require_level == RequireLevel::Hard {
            self.require_level = RequireLevel::Hard;
        }
        self.machine_version = self.machine_version.max(other.machine_version);
    }
}

/// One run of a callback.
#[derive(Debug, Clone)]
pub struct Run {
    /// This node.
    pub node: String,
    /// The flag.
    pub flag: Properties,
    /// The nodes that run it, all at once.
    pub nodes: Vec<String>,
}

/// What a callback comes to.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// Code of a flag. It can be run again, on some of the nodes only, and on all of them at once; it takes what locks it needs.
pub trait Callback: Send + Sync + fmt::Debug {
    /// Brings what this node has into the new form. The flag stays off where it fails.
    fn enable<'a>(&'a self, run: &'a Run) -> Running<'a>;

    /// After the flag was enabled everywhere, or was not after all.
    fn post_enable<'a>(&'a self, run: &'a Run, enabled: bool) -> Running<'a>;
}

/// A flag's place in this node's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlagId(pub(super) u16);

/// A flag and its code.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What is told of it.
    pub properties: Properties,
    /// Its code.
    pub callback: Option<Arc<dyn Callback>>,
}

/// All flags of this binary with its plugins.
#[derive(Debug)]
pub struct Registry {
    entries: Vec<Entry>,
    ids: BTreeMap<String, FlagId>,
    providers: BTreeSet<String>,
}

/// Most flags and deprecated features of one node.
const MOST: usize = 300;

/// The table of flags contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Not of the form that names have.
    #[error("`{0}` is not a name for a feature flag: lower-case letters, digits, `_` and `.` are allowed")]
    Name(String),
    /// Two flags of one name.
    #[error("feature flag `{0}` is defined twice")]
    Twice(String),
    /// A dependency that is not there.
    #[error("feature flag `{0}` depends on `{1}`, which does not exist")]
    UnknownDependency(String, String),
    /// A flag depends on itself.
    #[error("feature flag `{0}` depends on itself")]
    Cycle(String),
    /// More than a node keeps.
    #[error("there are more than {MOST} feature flags")]
    TooMany,
}

impl Registry {
    /// Puts the flags of the given providers together and checks that they fit.
    pub fn new(
        entries: impl IntoIterator<Item = Entry>,
        providers: impl IntoIterator<Item = String>,
    ) -> Result<Self, RegistryError> {
        let mut entries: Vec<Entry> = entries.into_iter().collect();
        entries.sort_by(|a, b| a.properties.name.cmp(&b.properties.name));
        if entries.len() > MOST {
            return Err(RegistryError::TooMany);
        }
        let mut ids = BTreeMap::new();
        for (at, entry) in entries.iter().enumerate() {
            let name = &entry.properties.name;
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.');
            if name.is_empty() || name.len() > 255 || !name.chars().all(fits) {
                return Err(RegistryError::Name(name.clone()));
            }
            if ids.insert(name.clone(), FlagId(at as u16)).is_some() {
                return Err(RegistryError::Twice(name.clone()));
            }
        }
        let mut providers: BTreeSet<String> = providers.into_iter().collect();
        providers.insert(core());
        let registry = Registry { entries, ids, providers };
        registry.check_dependencies()?;
        Ok(registry)
    }

    fn check_dependencies(&self) -> Result<(), RegistryError> {
        for entry in &self.entries {
            let name = &entry.properties.name;
            let mut seen = BTreeSet::new();
            let mut next: Vec<(&str, &str)> =
                entry.properties.depends_on.iter().map(|d| (name.as_str(), d.as_str())).collect();
            while let Some((of, dependency)) = next.pop() {
                let Some(found) = self.get(dependency) else {
                    return Err(RegistryError::UnknownDependency(of.to_owned(), dependency.to_owned()));
                };
                if dependency == name {
                    return Err(RegistryError::Cycle(name.clone()));
                }
                if seen.insert(dependency) {
                    next.extend(found.properties.depends_on.iter().map(|d| (dependency, d.as_str())));
                }
            }
        }
        Ok(())
    }

    /// The flag of a name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.id(name).and_then(|id| self.entries.get(usize::from(id.0)))
    }

    /// Where a flag is.
    pub fn id(&self, name: &str) -> Option<FlagId> {
        self.ids.get(name).copied()
    }

    /// All flags by name.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (FlagId, &Entry)> {
        self.entries.iter().enumerate().map(|(at, entry)| (FlagId(at as u16), entry))
    }

    /// The core, and the plugins that this node runs.
    pub fn providers(&self) -> &BTreeSet<String> {
        &self.providers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(name: &str, depends_on: &[&str]) -> Entry {
        let depends_on = depends_on.iter().map(|d| (*d).to_owned()).collect();
        let properties = Properties { depends_on, ..Properties::flag(name, Stability::Stable, "") };
        Entry { properties, callback: None }
    }

    #[test]
    fn a_table_with_unknown_names_cycles_or_doubles_is_refused() {
        let registry = |entries: Vec<Entry>| Registry::new(entries, []).err();
        assert_eq!(registry(vec![flag("b", &["a"]), flag("a", &[])]), None);
        assert_eq!(registry(vec![flag("b", &["a"])]), Some(RegistryError::UnknownDependency("b".into(), "a".into())));
        let around = vec![flag("a", &["b"]), flag("b", &["c"]), flag("c", &["a"])];
        assert_eq!(registry(around), Some(RegistryError::Cycle("a".into())));
        assert_eq!(registry(vec![flag("a", &[]), flag("a", &[])]), Some(RegistryError::Twice("a".into())));
        assert_eq!(registry(vec![flag("A", &[])]), Some(RegistryError::Name("A".into())));
        assert_eq!(registry(vec![flag("", &[])]), Some(RegistryError::Name(String::new())));
    }

    #[test]
    fn what_goes_furthest_counts_when_nodes_differ() {
        let mut flag = Properties::flag("f", Stability::Experimental, "");
        flag.merge(&Properties::flag("f", Stability::Stable, ""));
        assert_eq!((flag.stability, flag.require_word()), (Stability::Stable, "none"));
        let required =
            Properties { require_level: RequireLevel::Hard, ..Properties::flag("f", Stability::Required, "") };
        flag.merge(&required);
        flag.merge(&Properties::flag("f", Stability::Stable, ""));
        assert!(flag.is_hard());
        let mut feature = Properties::deprecated("d", Phase::PermittedByDefault, "");
        assert_eq!(feature.stability, Stability::Experimental);
        feature.merge(&Properties::deprecated("d", Phase::Removed, ""));
        feature.merge(&Properties::deprecated("d", Phase::DeniedByDefault, ""));
        assert_eq!((feature.phase, feature.is_hard()), (Some(Phase::Removed), true));
    }
}
