//! Deprecated features: which of them are denied, and what a person is told when one is used.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::catalogue::features;
use super::registry::{Phase, Registry};

/// A warning is repeated after this time.
const AGAIN: Duration = Duration::from_secs(24 * 3600);

/// What the configuration says: `deprecated_features.permit.NAME`.
pub type Permits = BTreeMap<String, bool>;

/// The features that phases and configuration deny. What the configuration says in vain is logged.
pub fn denied(registry: &Registry, permits: &Permits) -> BTreeSet<String> {
    for name in permits.keys() {
        match registry.get(name).and_then(|entry| entry.properties.phase) {
            None => tracing::warn!(
                "deprecated_features.permit.{name}: there is no deprecated feature of that name; ignored"
            ),
            Some(phase) if !phase.is_configurable() => tracing::warn!(
                "deprecated_features.permit.{name}: the deprecated feature '{name}' cannot be permitted from configuration: it is {}; ignored",
                phase.word()
            ),
            Some(_) => {}
        }
    }
    let is_denied = |name: &str, phase: Phase| match (phase, permits.get(name)) {
        (Phase::PermittedByDefault, said) => said == Some(&false),
        (Phase::DeniedByDefault, said) => said != Some(&true),
        (Phase::Disconnected | Phase::Removed, _) => true,
    };
    registry
        .entries()
        .filter_map(|(_, entry)| entry.properties.phase.map(|phase| (&entry.properties.name, phase)))
        .filter(|(name, phase)| is_denied(name, *phase))
        .map(|(name, _)| name.clone())
        .collect()
}

/// Says what it means that a feature is used or denied, and what to do about it.
pub fn message(name: &str, phase: Phase, configured: Option<bool>, denied: bool) -> String {
    let how = match (phase, denied, configured) {
        (Phase::Disconnected | Phase::Removed, ..) => "has been removed from this version",
        (_, false, Some(true)) => "is permitted by configuration",
        (_, false, _) => "is permitted by default",
        (_, true, Some(false)) => "is denied by configuration",
        (Phase::DeniedByDefault, true, _) => "is denied by default",
        (Phase::PermittedByDefault, true, _) => "is denied in this cluster",
    };
    let mut text = format!("Deprecated features: `{name}` {how}. ");
    // First what changes it: a client gets 255 bytes of it.
    text += &match phase {
        Phase::Disconnected | Phase::Removed => format!(
            "A node that refuses to start because of `{name}` needs the previous version, with which its use is to be ended first. "
        ),
        Phase::PermittedByDefault | Phase::DeniedByDefault if denied => {
            format!("To permit it for now, set \"deprecated_features.permit.{name} = true\". ")
        }
        Phase::PermittedByDefault | Phase::DeniedByDefault => format!(
            "To go on using it when it is not permitted by default any more, set the following parameter in the configuration: \
             \"deprecated_features.permit.{name} = true\". To try life without it, set \"deprecated_features.permit.{name} = false\". "
        ),
    };
    text += match name {
        features::QUEUE_MASTER_LOCATOR => {
            "Use `queue-leader-locator` with `client-local` or `balanced` instead. It will be removed in a future version."
        }
        "amqp_address_v1" => "Use address format version 2. Version 1 will be removed in a future version.",
        "classic_queue_mirroring" => "Use quorum queues, which are replicated.",
        _ if phase.is_configurable() => "It will not work in a future version, whatever the configuration says.",
        _ => "Nothing brings it back.",
    };
    text
}

/// Tells of each feature once a day.
#[derive(Debug, Default)]
pub struct Told {
    at: Mutex<BTreeMap<String, Instant>>,
}

impl Told {
    /// Whether it is time to tell of the feature.
    pub fn is_due(&self, name: &str) -> bool {
        let mut told = self.at.lock();
        if told.get(name).is_some_and(|at| at.elapsed() < AGAIN) {
            return false;
        }
        told.insert(name.to_owned(), Instant::now());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use super::*;

    #[test]
    fn phases_and_configuration_decide_and_removed_features_stay_removed() {
        let registry = Registry::new(catalogue::core(), []).unwrap();
        let removed = ["classic_queue_mirroring", "ram_node_type"];
        assert_eq!(denied(&registry, &Permits::new()), removed.map(str::to_owned).into());
        let said = [("global_qos", false), ("ram_node_type", true), ("nothing", false), ("queue_master_locator", true)];
        let permits = said.into_iter().map(|(name, on)| (name.to_owned(), on)).collect();
        let expected = ["classic_queue_mirroring", "global_qos", "ram_node_type"];
        assert_eq!(denied(&registry, &permits), expected.map(str::to_owned).into());
    }

    #[test]
    fn messages_say_what_is_and_which_line_changes_it() {
        let permitted = message("global_qos", Phase::PermittedByDefault, None, false);
        for part in ["`global_qos` is permitted by default", "permit.global_qos = true", "permit.global_qos = false"] {
            assert!(permitted.contains(part), "{permitted}");
        }
        assert!(message("x", Phase::DeniedByDefault, Some(true), false).contains("permitted by configuration"));
        assert!(message("x", Phase::DeniedByDefault, None, true).contains("denied by default"));
        let denied = message("x", Phase::PermittedByDefault, Some(false), true);
        assert!(denied.contains("denied by configuration") && denied.contains("deprecated_features.permit.x = true"));
        assert!(message("x", Phase::Removed, None, true).contains("removed"));
        let locator = message("queue_master_locator", Phase::PermittedByDefault, None, false);
        assert!(["queue-leader-locator", "client-local", "balanced"].iter().all(|word| locator.contains(word)));
        assert!(message("amqp_address_v1", Phase::PermittedByDefault, None, false).contains("version 2"));
    }

    #[test]
    fn each_feature_is_told_of_once_a_day() {
        let told = Told::default();
        assert!(told.is_due("a") && told.is_due("b"));
        assert!(!told.is_due("a") && !told.is_due("b"));
    }
}
