//! What a node says of its flags at the handshake with another one: names only, by provider.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::inventory::Inventory;
use super::registry::{Properties, Stability};

/// Names of flags by provider, each with a sign: `+` enabled, `-` known, `!` known and not supported here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Card {
    flags: BTreeMap<String, Vec<String>>,
}

impl Card {
    /// The card of an inventory.
    pub fn of(inventory: &Inventory) -> Self {
        let mut flags: BTreeMap<String, Vec<String>> =
            inventory.providers.iter().map(|provider| (provider.clone(), Vec::new())).collect();
        for (name, flag) in &inventory.flags {
            let sign = match (inventory.enabled.contains(name), inventory.unsupported.contains(name)) {
                (true, _) => '+',
                (false, true) => '!',
                (false, false) => '-',
            };
            flags.entry(flag.provided_by.clone()).or_default().push(format!("{sign}{name}"));
        }
        Card { flags }
    }

    /// As much of the inventory as can be told from it.
    pub fn inventory(self, node: &str, version: &str) -> Inventory {
        let mut inventory = Inventory { node: node.to_owned(), version: version.to_owned(), ..Inventory::default() };
        inventory.providers = self.flags.keys().cloned().collect::<BTreeSet<String>>();
        for (provider, names) in self.flags {
            for signed in names {
                let Some((sign, name)) = signed.split_at_checked(1) else { continue };
                match sign {
                    "+" => drop(inventory.enabled.insert(name.to_owned())),
                    "!" => drop(inventory.unsupported.insert(name.to_owned())),
                    _ => {}
                }
                let mut flag = Properties::flag(name, Stability::Experimental, "");
                flag.provided_by = provider.clone();
                inventory.flags.insert(name.to_owned(), flag);
            }
        }
        inventory
    }
}

#[cfg(test)]
mod tests {
    use super::super::inventory::tests::node;
    use super::super::registry::Registry;
    use super::super::{catalogue, check_compatible};
    use super::*;

    #[test]
    fn a_card_tells_what_compatibility_depends_on_and_fits_the_handshake() {
        let mut own = node("a", &["x", "y", "z"], &["x"]);
        own.unsupported.insert("y".into());
        own.providers.insert("plugin".into());
        let text = serde_json::to_vec(&Card::of(&own)).unwrap();
        let read = serde_json::from_slice::<Card>(&text).unwrap().inventory("a", "1.0.0");
        assert_eq!(
            (&read.enabled, &read.unsupported, &read.providers),
            (&own.enabled, &own.unsupported, &own.providers)
        );
        for other in [node("b", &["x", "y"], &["y"]), node("b", &["z"], &["z"]), node("b", &["x"], &[])] {
            let theirs = std::slice::from_ref(&other);
            assert_eq!(check_compatible(&read, theirs), check_compatible(&own, theirs));
        }
        let all = Registry::new(catalogue::core(), []).unwrap();
        let names: Vec<&str> = all.entries().map(|(_, entry)| entry.properties.name.as_str()).collect();
        assert!(serde_json::to_vec(&Card::of(&node("a", &names, &names))).unwrap().len() < 4096);
    }
}
