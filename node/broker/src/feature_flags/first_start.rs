//! What a node has enabled when it starts: from its file, or, in a new cluster, what there is to begin with.

use std::collections::BTreeSet;

use super::catalogue::KHEPRI_DB;
use super::file::Enabled;
use super::registry::{CORE, Registry, Stability};

/// A list of flags for a new cluster: `RABBITMQ_FEATURE_FLAGS`, or `feature_flags.forced_on_init`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Forced {
    /// Nothing was said: all stable flags.
    #[default]
    No,
    /// Exactly these.
    Only(BTreeSet<String>),
    /// All stable flags with these changes.
    Changes {
        /// On in addition.
        with: BTreeSet<String>,
        /// Off after all.
        without: BTreeSet<String>,
    },
}

impl Forced {
    /// Reads `a,b`, which may be empty, or `+a,-b`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut plain, mut with, mut without) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let (set, name) = match name.split_at_checked(1) {
                Some(("+", name)) => (&mut with, name),
                Some(("-", name)) => (&mut without, name),
                _ => (&mut plain, name),
            };
            if name.is_empty() {
                return Err("syntax_error: a sign without the name of a feature flag".to_owned());
            }
            set.insert(name.to_owned());
        }
        if let Some(both) = with.intersection(&without).next() {
            return Err(format!("syntax_error: `{both}` has both signs"));
        }
        match (plain.is_empty(), with.is_empty() && without.is_empty()) {
            (false, false) => Err("syntax_error: plain names and names with + or - cannot be mixed".to_owned()),
            (true, false) => Ok(Forced::Changes { with, without }),
            (_, true) => Ok(Forced::Only(plain)),
        }
    }
}

/// Why a node does not start with the flags that it has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartRefused {
    /// The forced list names something that is not there.
    #[error("the list of feature flags for the first start is wrong: {0}")]
    Forced(String),
    /// The code without the flag is gone.
    #[error(
        "disabled_required_feature_flag: these feature flags are required and were not enabled before the upgrade: {}; \
         start the previous version, enable them, and upgrade again",
        .0.join(", ")
    )]
    Required(Vec<String>),
    /// A newer version enabled them.
    #[error(
        "unknown_enabled_feature_flags: these feature flags are enabled and this version does not know them: {}; a downgrade \
         is not possible",
        .0.join(", ")
    )]
    Unknown(Vec<String>),
    /// The file is gone, and there is nobody to ask.
    #[error(
        "feature_flags.json is missing although this node has data; restore it, or start the node once with \
         --recreate-feature-flags and the names of those that were enabled"
    )]
    Lost,
}

/// What a new cluster begins with.
pub fn initial(
    registry: &Registry,
    forced: &Forced,
    supported: impl Fn(&str) -> bool,
) -> Result<BTreeSet<String>, StartRefused> {
    let flags = || registry.entries().map(|(_, entry)| &entry.properties).filter(|flag| !flag.is_deprecated());
    let of = |least: Stability| flags().filter(move |f| f.stability >= least).map(|f| f.name.clone());
    let known = |names: &BTreeSet<String>| match names.iter().find(|name| !flags().any(|f| f.name == **name)) {
        Some(unknown) => Err(StartRefused::Forced(format!("`{unknown}` is not a feature flag of this version"))),
        None => Ok(()),
    };
    let mut names: BTreeSet<String> = match forced {
        Forced::No => of(Stability::Stable).collect(),
        Forced::Only(only) => {
            known(only)?;
            only.clone()
        }
        Forced::Changes { with, without } => {
            known(with)?;
            known(without)?;
            of(Stability::Stable).filter(|name| !without.contains(name)).chain(with.iter().cloned()).collect()
        }
    };
    if matches!(forced, Forced::Changes { without, .. } if without.contains(KHEPRI_DB)) {
        return Err(StartRefused::Forced(format!(
            "without `{KHEPRI_DB}` the metadata would be in the store of older versions, which this version does not have"
        )));
    }
    // There is no other store: what is in force is not shown as off.
    names.extend(registry.get(KHEPRI_DB).map(|entry| entry.properties.name.clone()));
    names.extend(of(Stability::Required));
    // What was asked for brings along what it needs.
    let mut next: Vec<String> = match forced {
        Forced::Only(asked) | Forced::Changes { with: asked, .. } => asked.iter().cloned().collect(),
        Forced::No => Vec::new(),
    };
    while let Some(name) = next.pop() {
        let needs = registry.get(&name).map(|entry| entry.properties.depends_on.as_slice()).unwrap_or_default();
        let without = |d: &String| matches!(forced, Forced::Changes { without, .. } if without.contains(d));
        let added = needs.iter().filter(|d| flags().any(|f| f.name == **d) && !without(d) && !names.contains(*d));
        next.extend(added.cloned());
        names.insert(name);
    }
    // A flag is of no use without what it depends on: what was to be off stays off, and so does what needs it.
    loop {
        let lacks = |name: &&String| {
            let Some(flag) = flags().find(|f| f.name == **name) else { return true };
            let needs =
                |d: &String| registry.get(d).is_some_and(|e| !e.properties.is_deprecated()) && !names.contains(d);
            flag.stability != Stability::Required && (!supported(name) || flag.depends_on.iter().any(needs))
        };
        let Some(out) = names.iter().find(lacks).cloned() else { return Ok(names) };
        names.remove(&out);
    }
}

/// Whether a node may start with what its file says.
pub fn check(registry: &Registry, enabled: &[Enabled]) -> Result<(), StartRefused> {
    let unknown = |flag: &&Enabled| registry.get(&flag.name).is_none();
    let (core, plugins): (Vec<&Enabled>, Vec<&Enabled>) = enabled
        .iter()
        .filter(unknown)
        .partition(|flag| flag.provided_by == CORE || registry.providers().contains(&flag.provided_by));
    if !core.is_empty() {
        return Err(StartRefused::Unknown(core.iter().map(|flag| flag.name.clone()).collect()));
    }
    for flag in plugins {
        tracing::warn!(
            feature_flag = flag.name,
            plugin = flag.provided_by,
            "an enabled feature flag belongs to a plugin that this node does not have"
        );
    }
    let required = registry.entries().map(|(_, entry)| &entry.properties).filter(|flag| {
        flag.is_hard() && flag.is_core() && !flag.is_deprecated() && !enabled.iter().any(|e| e.name == flag.name)
    });
    let missing: Vec<String> = required.map(|flag| flag.name.clone()).collect();
    if missing.is_empty() { Ok(()) } else { Err(StartRefused::Required(missing)) }
}

#[cfg(test)]
mod tests {
    use super::super::registry::{Entry, Properties, RequireLevel};
    use super::*;

    fn registry() -> Registry {
        let flag = |name: &str, stability, needs: &[&str]| Properties {
            depends_on: needs.iter().map(|n| (*n).to_owned()).collect(),
            ..Properties::flag(name, stability, "")
        };
        let mut hard = flag("hard", Stability::Required, &[]);
        hard.require_level = RequireLevel::Hard;
        let flags = [
            hard,
            flag("soft", Stability::Required, &[]),
            flag("a", Stability::Stable, &[]),
            flag("b", Stability::Stable, &["a"]),
            flag("x", Stability::Experimental, &[]),
        ];
        Registry::new(flags.map(|properties| Entry { properties, callback: None }), ["plugin".to_owned()]).unwrap()
    }

    fn start(list: Option<&str>) -> Result<Vec<String>, StartRefused> {
        let forced = list.map_or(Ok(Forced::No), Forced::parse).map_err(StartRefused::Forced)?;
        initial(&registry(), &forced, |_| true).map(|names| names.into_iter().collect())
    }

    #[test]
    fn a_new_cluster_begins_with_what_is_stable_or_what_the_list_says() {
        assert_eq!(start(None).unwrap(), ["a", "b", "hard", "soft"]);
        assert_eq!(start(Some("")).unwrap(), ["hard", "soft"]);
        assert_eq!(start(Some("x, a")).unwrap(), ["a", "hard", "soft", "x"]);
        assert_eq!(start(Some("+x,-b")).unwrap(), ["a", "hard", "soft", "x"]);
        assert_eq!(start(Some("-a")).unwrap(), ["hard", "soft"], "b needs a");
        assert_eq!(start(Some("b")).unwrap(), ["a", "b", "hard", "soft"]);
        assert_eq!(start(Some("+b,-a")).unwrap(), ["hard", "soft"]);
        assert_eq!(start(Some("-hard")).unwrap(), ["a", "b", "hard", "soft"], "required flags are on regardless");
        for wrong in ["+x,a", "-z", "z", "+", "+a,-a"] {
            assert!(matches!(start(Some(wrong)), Err(StartRefused::Forced(_))), "{wrong}");
        }
        assert!(start(Some("+a,b")).unwrap_err().to_string().contains("cannot be mixed"));
    }

    #[test]
    fn flags_that_a_node_cannot_have_stay_off_at_first() {
        let names = initial(&registry(), &Forced::No, |name| name != "a").unwrap();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["hard", "soft"]);
    }

    #[test]
    fn a_node_does_not_start_without_what_is_required_or_with_what_it_does_not_know() {
        let on = |name: &str, provided_by: &str| Enabled { name: name.into(), provided_by: provided_by.into() };
        assert_eq!(check(&registry(), &[on("hard", "rabbit")]), Ok(()));
        assert_eq!(check(&registry(), &[on("a", "rabbit")]), Err(StartRefused::Required(vec!["hard".into()])));
        let newer = [on("hard", "rabbit"), on("new", "rabbit")];
        assert_eq!(check(&registry(), &newer), Err(StartRefused::Unknown(vec!["new".into()])));
        assert_eq!(check(&registry(), &[on("hard", "rabbit"), on("new", "absent")]), Ok(()));
        assert!(check(&registry(), &[on("hard", "rabbit"), on("new", "plugin")]).is_err(), "an older plugin");
    }
}
