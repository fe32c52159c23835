//! Topic permissions with their expressions compiled.

use std::sync::Arc;

use super::permission::{Access, ResourcePattern};
use crate::records::{Stored, TopicPermission};

/// What RabbitMQ takes an empty expression for: the empty topic alone.
const EMPTY: &str = "^$";

/// Which topics of an exchange a user may publish to and bind from.
#[derive(Clone, Debug)]
pub struct TopicPermissionView {
    record: Arc<Stored<TopicPermission>>,
    write: ResourcePattern,
    read: ResourcePattern,
}

impl TopicPermissionView {
    pub(super) fn new(record: Stored<TopicPermission>) -> Self {
        TopicPermissionView {
            write: pattern(&record.write, &record),
            read: pattern(&record.read, &record),
            record: Arc::new(record),
        }
    }

    /// The expressions as they were set.
    pub fn record(&self) -> &Arc<Stored<TopicPermission>> {
        &self.record
    }

    /// Whether the user may do this with a topic: write with a routing key, read with a binding key. One that is no UTF-8
    /// matches nothing; there is nothing to configure.
    pub fn allows(&self, access: Access, topic: &[u8]) -> bool {
        let Ok(topic) = std::str::from_utf8(topic) else { return false };
        match access {
            Access::Write => self.write.matches(topic),
            Access::Read => self.read.matches(topic),
            Access::Configure => false,
        }
    }
}

fn pattern(expression: &str, of: &TopicPermission) -> ResourcePattern {
    match expression {
        "" => ResourcePattern::new(EMPTY),
        _ => ResourcePattern::new(&expanded(expression, of)),
    }
}

/// The expression with its variables replaced. What they stand for is taken literally.
fn expanded(expression: &str, of: &TopicPermission) -> String {
    let mut out = expression.to_owned();
    for (name, value) in [("{username}", &*of.user), ("{vhost}", &*of.vhost)] {
        if out.contains(name) {
            out = out.replace(name, &regex::escape(value));
        }
    }
    // Only MQTT clients have one; for others it stays what it says.
    out.replace("{client_id}", "\\{client_id\\}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(expression: &str, user: &str, topic: &str) -> bool {
        let record = TopicPermission {
            user: user.into(),
            vhost: "v".into(),
            write: expression.into(),
            ..TopicPermission::default()
        };
        pattern(&record.write, &record).matches(topic)
    }

    #[test]
    fn variables_stand_for_the_user_and_the_vhost_literally() {
        assert!(may(r"^{username}\.", "a.b", "a.b.x"));
        assert!(!may(r"^{username}\.", "a.b", "aXb.x"));
        assert!(may("^{vhost}-{username}$", "u-1", "v-u-1"));
        assert!(!may("^{client_id}$", "u", "u"));
        assert!(may("^{client_id}$", "u", "{client_id}"));
    }

    #[test]
    fn the_empty_expression_is_for_the_empty_topic() {
        assert!(may("", "u", ""));
        assert!(!may("", "u", "a"));
        assert!(!may("(", "u", "("));
    }
}
