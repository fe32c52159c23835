//! The flags of this version, by the names that RabbitMQ's operators and tools know (spec: feature-flags.md, sections 6
//! and 7).

use super::registry::{Entry, Phase, Properties, RequireLevel, Stability};

/// Flags whose behaviour Warren has always had.
const REQUIRED_HARD: &[(&str, &str)] = &[
    ("classic_mirrored_queue_version", "Support setting version for classic mirrored queues"),
    ("classic_queue_type_delivery_support", "Delivery of messages by the classic queue type"),
    ("delete_ra_cluster_mqtt_node", "MQTT client ids are not tracked by a Raft cluster of their own"),
    ("detailed_queues_endpoint", "Detailed and concise listings of queues"),
    ("direct_exchange_routing_v2", "Index for the routes of direct exchanges"),
    ("drop_unroutable_metric", "Count unroutable publishes that are dropped"),
    ("empty_basic_get_metric", "Count AMQP basic.get on empty queues"),
    ("feature_flags_v2", "Feature flags subsystem V2"),
    ("implicit_default_bindings", "Default bindings are implicit instead of being stored"),
    ("listener_records_in_ets", "Listeners are known by the node that has them"),
    ("maintenance_mode_status", "Maintenance mode status"),
    ("message_containers", "Message containers"),
    ("mqtt_v5", "Support MQTT 5.0"),
    ("quorum_queue", "Support queues of type quorum"),
    ("rabbit_mqtt_qos0_queue", "Queue type for MQTT QoS 0 subscribers that avoids queue processes"),
    ("restart_streams", "Streams can be restarted with a preferred next leader"),
    ("stream_filtering", "Filtering of streams"),
    ("stream_queue", "Support queues of type stream"),
    ("stream_sac_coordinator_unblock_group", "A group of a stream's single active consumers cannot block"),
    ("stream_single_active_consumer", "Single active consumer for streams"),
    ("stream_update_config_command", "The configuration of streams can be updated"),
    ("tracking_records_in_ets", "Connections and channels are tracked by the node that has them"),
    ("user_limits", "Limits of connections and channels for users"),
    ("virtual_host_metadata", "Virtual host metadata (description, tags, etc.)"),
];

const REQUIRED_SOFT: &[(&str, &str)] = &[
    ("message_containers_deaths_v2", "Deaths of messages are kept in the order in which they happened"),
    ("quorum_queue_non_voters", "Members of quorum queues that catch up do not vote yet"),
    ("rabbit_exchange_type_local_random", "Exchange type local random"),
    ("rabbitmq_4.0.0", "Feature flags of RabbitMQ 4.0.0"),
    ("rabbitmq_4.1.0", "Feature flags of RabbitMQ 4.1.0"),
    ("rabbitmq_4.2.0", "Feature flags of RabbitMQ 4.2.0"),
];

/// Flags that bring the behaviour of RabbitMQ 4.3.
const OF_4_3: &[(&str, &str)] = &[
    ("tie_binding_to_dest_with_keep_while_cond", "Bindings go with their destinations in one step"),
    ("topic_binding_projection_v4", "Routes of topic exchanges, fourth form"),
    ("topic_binding_projection_v5", "Routes of topic exchanges, fifth form"),
    ("track_qq_members_uids", "Members of quorum queues are known by ids of their own"),
];

/// What `khepri_db` needs.
const KHEPRI_NEEDS: &[&str] = &[
    "classic_queue_mirroring",
    "direct_exchange_routing_v2",
    "feature_flags_v2",
    "listener_records_in_ets",
    "maintenance_mode_status",
    "ram_node_type",
    "tracking_records_in_ets",
    "user_limits",
    "virtual_host_metadata",
];

/// The machine version of quorum queues with the behaviour of RabbitMQ 4.3.
const QUEUES_OF_4_3: u16 = 2;

/// Names of deprecated features whose denial changes what this node does.
pub mod features {
    /// Queues that are neither durable nor exclusive.
    pub const TRANSIENT_NONEXCL_QUEUES: &str = "transient_nonexcl_queues";
    /// A prefetch window for a whole channel.
    pub const GLOBAL_QOS: &str = "global_qos";
    /// The old name of a new queue's place.
    pub const QUEUE_MASTER_LOCATOR: &str = "queue_master_locator";
}

const DEPRECATED: &[(&str, Phase, &str)] = &[
    ("amqp_address_v1", Phase::PermittedByDefault, "AMQP 1.0 addresses of version 1"),
    ("amqp_filter_set_bug", Phase::PermittedByDefault, "AMQP 1.0 filter sets of streams without descriptors"),
    ("classic_queue_mirroring", Phase::Removed, "Mirrors of classic queues"),
    (
        features::GLOBAL_QOS,
        Phase::PermittedByDefault,
        "A prefetch limit for a whole channel: basic.qos with global=true",
    ),
    ("management_metrics_collection", Phase::PermittedByDefault, "Rates and message statistics of the management API"),
    (features::QUEUE_MASTER_LOCATOR, Phase::PermittedByDefault, "The old name of queue-leader-locator"),
    ("ram_node_type", Phase::Removed, "Nodes that keep metadata in memory only"),
    (features::TRANSIENT_NONEXCL_QUEUES, Phase::PermittedByDefault, "Queues that are transient and not exclusive"),
];

/// The metadata store as a replicated tree.
pub const KHEPRI_DB: &str = "khepri_db";

/// All flags and deprecated features of the core.
pub fn core() -> Vec<Entry> {
    let required = |level: RequireLevel| {
        move |(name, desc): &(&str, &str)| Properties {
            require_level: level,
            doc_url: DOCS.to_owned(),
            ..Properties::flag(name, Stability::Required, desc)
        }
    };
    let needs = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut all: Vec<Properties> = REQUIRED_HARD.iter().map(required(RequireLevel::Hard)).collect();
    all.extend(REQUIRED_SOFT.iter().map(required(RequireLevel::Soft)));
    all.push(Properties {
        depends_on: needs(KHEPRI_NEEDS),
        doc_url: DOCS.to_owned(),
        ..Properties::flag(KHEPRI_DB, Stability::Stable, "The metadata store is a tree that Raft replicates")
    });
    all.push(Properties {
        machine_version: Some(QUEUES_OF_4_3),
        doc_url: DOCS.to_owned(),
        ..Properties::flag("rabbitmq_4.3.0", Stability::Stable, "Feature flags of RabbitMQ 4.3.0")
    });
    all.extend(OF_4_3.iter().map(|(name, desc)| Properties {
        depends_on: needs(&["rabbitmq_4.3.0"]),
        doc_url: DOCS.to_owned(),
        ..Properties::flag(name, Stability::Stable, desc)
    }));
    all.push(Properties {
        doc_url: DOCS.to_owned(),
        ..Properties::flag("warren_0.1.0", Stability::Stable, "Formats and messages of Warren 0.1")
    });
    all.extend(DEPRECATED.iter().map(|(name, phase, desc)| Properties {
        doc_url: DEPRECATED_DOCS.to_owned(),
        ..Properties::deprecated(name, *phase, desc)
    }));
    all.into_iter().map(|properties| Entry { properties, callback: None }).collect()
}

const DOCS: &str = "https://www.rabbitmq.com/docs/feature-flags";
const DEPRECATED_DOCS: &str = "https://www.rabbitmq.com/release-information/deprecated-features-list";

#[cfg(test)]
mod tests {
    use super::super::registry::Registry;
    use super::*;

    #[test]
    fn the_table_fits_together_and_holds_the_names_that_operators_know() {
        let registry = Registry::new(core(), []).unwrap();
        let word = |name: &str| registry.get(name).map(|e| (e.properties.stability, e.properties.require_word()));
        assert_eq!(word("quorum_queue"), Some((Stability::Required, "hard")));
        assert_eq!(word("rabbitmq_4.2.0"), Some((Stability::Required, "soft")));
        assert_eq!(word("khepri_db"), Some((Stability::Stable, "none")));
        assert_eq!(word("rabbitmq_4.3.0"), Some((Stability::Stable, "none")));
        assert_eq!(word("transient_nonexcl_queues"), Some((Stability::Experimental, "none")));
        assert_eq!(word("ram_node_type"), Some((Stability::Required, "hard")));
    }
}
