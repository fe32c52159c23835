//! What nodes tell each other of their flags, and whether they can be one cluster (spec: feature-flags.md, section 4).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use warren_raft::transport::{CallError, CallTarget, Transport};

use super::registry::{Properties, RequireLevel, Stability};

/// Method by which a node is asked for the inventories of everything that is clustered with it.
pub const INVENTORIES: &str = "feature_flags.inventories";

/// The word for nodes that cannot be one cluster because of their flags.
pub const INCOMPATIBLE_FLAGS: &str = "incompatible_feature_flags";
/// The word for nodes that cannot be one cluster because of their versions.
pub const INCOMPATIBLE_VERSION: &str = "incompatible_version";

/// What one node says of its flags.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Inventory {
    /// The node.
    pub node: String,
    /// Its product version.
    pub version: String,
    /// It has never belonged to a cluster.
    #[serde(default)]
    pub virgin: bool,
    /// The providers that it has: `rabbit`, and plugins.
    pub providers: BTreeSet<String>,
    /// All flags that it knows.
    pub flags: BTreeMap<String, Properties>,
    /// Those that are enabled.
    pub enabled: BTreeSet<String>,
    /// Those that are on their way.
    #[serde(default)]
    pub changing: BTreeSet<String>,
    /// Known flags that this node cannot have: they promise a machine version that its binary does not support.
    #[serde(default)]
    pub unsupported: BTreeSet<String>,
    /// Deprecated features that its configuration and their phases deny.
    #[serde(default)]
    pub denied: BTreeSet<String>,
}

impl Inventory {
    /// Without what only people read.
    pub fn brief(mut self) -> Self {
        for flag in self.flags.values_mut() {
            flag.desc.clear();
            flag.doc_url.clear();
        }
        self
    }

    /// As if the node had been reset: only required flags are on, and deprecated features as its configuration says.
    pub fn as_reset(mut self) -> Self {
        let required = |name: &String| self.flags.get(name).is_some_and(|f| f.stability == Stability::Required);
        self.enabled = self.flags.keys().filter(|name| required(name)).cloned().collect();
        self.enabled.extend(self.denied.iter().cloned());
        self.virgin = true;
        self
    }

    /// Whether the node could have the flag enabled.
    pub fn supports(&self, name: &str, provided_by: &str) -> bool {
        match self.flags.contains_key(name) {
            true => !self.unsupported.contains(name) || self.enabled.contains(name),
            false => !self.providers.contains(provided_by),
        }
    }

    /// Whether the node knows the flag and has it off.
    pub fn has_off(&self, name: &str) -> bool {
        self.flags.contains_key(name) && !self.enabled.contains(name)
    }
}

/// Why nodes cannot be one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incompatible {
    /// Flags that are enabled on one side, and the nodes of the other that do not know them.
    Flags(Vec<(String, Vec<String>)>),
    /// Two product versions that do not go together.
    Version {
        /// A node and its version.
        one: (String, String),
        /// The other.
        other: (String, String),
    },
}

impl Incompatible {
    /// The machine-readable word.
    pub fn word(&self) -> &'static str {
        match self {
            Incompatible::Flags(_) => INCOMPATIBLE_FLAGS,
            Incompatible::Version { .. } => INCOMPATIBLE_VERSION,
        }
    }
}

impl fmt::Display for Incompatible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Incompatible::Flags(flags) => {
                write!(f, "{INCOMPATIBLE_FLAGS}: ")?;
                for (at, (flag, nodes)) in flags.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "; " };
                    write!(f, "{comma}feature flag '{flag}' is enabled and not supported by {}", nodes.join(", "))?;
                }
                Ok(())
            }
            Incompatible::Version { one: (a, va), other: (b, vb) } => write!(
                f,
                "{INCOMPATIBLE_VERSION}: {a} runs version {va} and {b} version {vb}; only neighbouring minor versions go together"
            ),
        }
    }
}

impl std::error::Error for Incompatible {}

/// Whether this node and others can be one cluster: each flag that is enabled on one side is known on all of the other, or
/// its provider is absent there.
pub fn check_compatible(own: &Inventory, theirs: &[Inventory]) -> Result<(), Incompatible> {
    for other in theirs {
        check_versions((&own.node, &own.version), (&other.node, &other.version))?;
    }
    let mut missing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut one_way = |from: &Inventory, to: &Inventory| {
        for name in &from.enabled {
            let provider = from.flags.get(name).map_or("", |flag| flag.provided_by.as_str());
            if !to.supports(name, provider) {
                missing.entry(name.clone()).or_default().insert(to.node.clone());
            }
        }
    };
    for other in theirs {
        one_way(own, other);
        one_way(other, own);
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Incompatible::Flags(missing.into_iter().map(|(flag, nodes)| (flag, nodes.into_iter().collect())).collect()))
}

/// Whether two product versions go together: the same minor version, or neighbouring ones of the same major version.
fn check_versions(one: (&str, &str), other: (&str, &str)) -> Result<(), Incompatible> {
    let numbers = |version: &str| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
        Some((parts.next()??, parts.next()??))
    };
    let fit = match (numbers(one.1), numbers(other.1)) {
        (Some((major, minor)), Some((their_major, their_minor))) => {
            major == their_major && minor.abs_diff(their_minor) <= 1
        }
        _ => false,
    };
    if fit {
        return Ok(());
    }
    let pair = |(node, version): (&str, &str)| (node.to_owned(), version.to_owned());
    Err(Incompatible::Version { one: pair(one), other: pair(other) })
}

/// Properties as all the given nodes together have them; nothing where none knows the flag.
pub fn merged(name: &str, inventories: &[Inventory]) -> Option<Properties> {
    let mut all: Option<Properties> = None;
    for flag in inventories.iter().filter_map(|inventory| inventory.flags.get(name)) {
        match &mut all {
            Some(properties) => properties.merge(flag),
            None => all = Some(flag.clone()),
        }
    }
    all
}

/// Whether a flag is hard-required somewhere and provided by a plugin.
pub(super) fn is_hard_of_plugin(flag: &Properties) -> bool {
    flag.stability == Stability::Required && flag.require_level == RequireLevel::Hard && !flag.is_core()
}

/// The inventories of a node and of everything that is clustered with it and runs.
pub async fn fetch_inventories(
    transport: &Transport,
    target: CallTarget,
    timeout: Duration,
) -> Result<Vec<Inventory>, CallError> {
    let replies = transport.call(target, INVENTORIES, Bytes::new(), timeout).await?;
    let bytes = replies.one().await?;
    serde_json::from_slice(&bytes).map_err(|error| CallError::failed("unreadable", error.to_string()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A node of version 1.0.0 with flags of the core.
    pub(crate) fn node(name: &str, known: &[&str], enabled: &[&str]) -> Inventory {
        let flag = |name: &&str| ((*name).to_owned(), Properties::flag(name, Stability::Stable, ""));
        Inventory {
            node: name.to_owned(),
            version: "1.0.0".to_owned(),
            providers: ["rabbit".to_owned()].into(),
            flags: known.iter().map(flag).collect(),
            enabled: enabled.iter().map(|name| (*name).to_owned()).collect(),
            ..Inventory::default()
        }
    }

    #[test]
    fn flags_that_are_enabled_on_every_node_of_a_side_count_as_well() {
        let cluster = [node("a", &["x", "y"], &["x"]), node("b", &["x", "y"], &["x"])];
        assert_eq!(check_compatible(&node("c", &["x"], &[]), &cluster), Ok(()));
        let refused = check_compatible(&node("c", &["y"], &[]), &cluster);
        assert_eq!(refused, Err(Incompatible::Flags(vec![("x".into(), vec!["c".into()])])));
        let more = node("c", &["x", "z"], &["z"]);
        let refused = check_compatible(&more, &cluster);
        assert_eq!(refused, Err(Incompatible::Flags(vec![("z".into(), vec!["a".into(), "b".into()])])));
        assert_eq!(check_compatible(&more.as_reset(), &cluster), Ok(()));
    }

    #[test]
    fn a_flag_of_a_plugin_that_a_node_does_not_have_is_no_reason() {
        let mut with = node("a", &["x"], &["x"]);
        with.providers.insert("plugin".into());
        with.flags.get_mut("x").unwrap().provided_by = "plugin".into();
        let mut without = node("b", &[], &[]);
        assert_eq!(check_compatible(&without, std::slice::from_ref(&with)), Ok(()));
        without.providers.insert("plugin".into());
        assert!(check_compatible(&without, &[with]).is_err(), "an older plugin");
    }

    #[test]
    fn a_flag_whose_machine_version_a_node_lacks_is_not_supported_unless_it_is_on_there() {
        let on = node("a", &["x"], &["x"]);
        let mut old = node("b", &["x"], &[]);
        old.unsupported.insert("x".into());
        assert!(check_compatible(&old, std::slice::from_ref(&on)).is_err());
        old.enabled.insert("x".into());
        assert_eq!(check_compatible(&old, &[on]), Ok(()), "a node that was downgraded");
    }

    #[test]
    fn only_neighbouring_minor_versions_go_together() {
        let fit = |a: &str, b: &str| check_versions(("a", a), ("b", b)).is_ok();
        assert!(fit("0.1.0", "0.1.7") && fit("0.1.0", "0.2.0") && fit("0.2.3", "0.1.0"));
        assert!(!fit("0.1.0", "0.3.0") && !fit("0.1.0", "1.1.0") && !fit("", "0.1.0") && !fit("0.1.0", "zero"));
    }
}
