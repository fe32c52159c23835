//! The keys that mean something in this version, and what each does to the settings.

use super::settings::{LeaderLocator, LogFormat, LogLevel, LogOutput, Mechanism, NodeName, QueueType, Seed, Settings};
use super::value;
use warren_broker::MACHINE_VERSIONS;
use warren_broker::feature_flags::first_start::Forced;

/// What the keys need beside the settings: things that only make sense once all lines were read.
#[derive(Debug, Default)]
pub struct Draft {
    /// The settings so far.
    pub settings: Settings,
    /// Numbered lists, by the number or name that orders them.
    pub listeners: Vec<(String, value::Listen)>,
    /// Whether `listeners.tcp = none` was said.
    pub no_listeners: bool,
    /// Seeds by their key.
    pub seeds: Vec<(String, Seed)>,
    /// Mechanisms by their key.
    pub mechanisms: Vec<(String, Mechanism)>,
    /// Users limited to loopback; `None`: the default list.
    pub loopback: Option<Vec<String>>,
    /// Tags of the default user; `None`: the default list.
    pub tags: Option<Vec<String>>,
    /// `anonymous_login_user`, which may be `none`.
    pub anonymous_user: Option<String>,
    /// `anonymous_login_pass`.
    pub anonymous_pass: Option<String>,
    /// `queue_leader_locator`.
    pub leader_locator: Option<LeaderLocator>,
    /// Its older name, which counts where the newer one is not set.
    pub master_locator: Option<LeaderLocator>,
    /// Host for bare node names.
    pub host: String,
}

/// Applies one value; `parts` are those that the pattern's `*` or `a|b` matched.
pub type Apply = fn(&mut Draft, parts: &[&str], text: &str) -> Result<(), String>;

/// The keys and what they do. `*` matches one part, `a|b` one of several.
pub const KEYS: &[(&str, Apply)] = &[
    ("listeners.tcp", |d, _, v| {
        d.no_listeners = value::word(v, &[("none", true)])?;
        d.listeners.clear();
        Ok(())
    }),
    ("listeners.tcp.*", |d, key, v| {
        d.no_listeners = false;
        put(&mut d.listeners, key, value::listener(v)?);
        Ok(())
    }),
    ("tcp_listen_options.backlog", |d, _, v| {
        d.settings.listeners.backlog = value::integer(v, 1..=65_535)? as u32;
        Ok(())
    }),
    ("tcp_listen_options.nodelay", |d, _, v| set(&mut d.settings.listeners.nodelay, value::boolean(v))),
    ("tcp_listen_options.keepalive", |d, _, v| set(&mut d.settings.listeners.keepalive, value::boolean(v))),
    ("tcp_listen_options.sndbuf", |d, _, v| set(&mut d.settings.listeners.sndbuf, value::bytes(v).map(Some))),
    ("tcp_listen_options.recbuf", |d, _, v| set(&mut d.settings.listeners.recbuf, value::bytes(v).map(Some))),
    ("server_properties.*", |d, key, v| {
        put(&mut d.settings.amqp091.server_properties, key, v.to_owned());
        Ok(())
    }),
    ("handshake_timeout", |d, _, v| set(&mut d.settings.amqp091.handshake_timeout, value::milliseconds(v))),
    ("auth_failure_delay", |d, _, v| set(&mut d.settings.amqp091.auth_failure_delay, value::milliseconds(v))),
    ("heartbeat", |d, _, v| {
        let heartbeat = value::duration(v, std::time::Duration::from_secs(1))?;
        if heartbeat.as_secs() > u64::from(u16::MAX) {
            return Err(format!("`{v}` is more than 65535 seconds"));
        }
        d.settings.amqp091.heartbeat = heartbeat;
        Ok(())
    }),
    ("frame_max", |d, _, v| match value::bytes(v)? {
        size @ (0 | 4096..=2_147_483_647) => {
            d.settings.amqp091.frame_max = size as u32;
            Ok(())
        }
        _ => Err(format!("`{v}` is neither 0 nor in 4096..2147483647")),
    }),
    ("initial_frame_max", |d, _, v| match value::bytes(v)? {
        size @ 4096..=2_147_483_647 => {
            d.settings.amqp091.initial_frame_max = size as u32;
            Ok(())
        }
        _ => Err(format!("`{v}` is not in 4096..2147483647")),
    }),
    ("channel_max", channel_max),
    ("max_channels_per_connection", channel_max),
    ("max_message_size", |d, _, v| match value::bytes(v)? {
        size @ 1..=536_870_912 => {
            d.settings.limits.max_message_size = size;
            Ok(())
        }
        _ => Err(format!("`{v}` is not in 1..512MiB")),
    }),
    ("max_connections", max_connections),
    ("connection_max", max_connections),
    ("channel_max_per_node", |d, _, v| set(&mut d.settings.limits.channels_of_node, value::limit(v))),
    ("consumer_max_per_channel", |d, _, v| set(&mut d.settings.limits.consumers_of_channel, value::limit(v))),
    ("vhost_max", |d, _, v| set(&mut d.settings.limits.vhosts, value::limit(v))),
    ("cluster_queue_limit", |d, _, v| set(&mut d.settings.limits.queues, value::limit(v))),
    ("cluster_exchange_limit", |d, _, v| set(&mut d.settings.limits.exchanges, value::limit(v))),
    ("default_user", |d, _, v| name(&mut d.settings.defaults.user, v)),
    ("default_pass", |d, _, v| {
        if v.starts_with("encrypted:") {
            return Err("encrypted values are not supported yet".to_owned());
        }
        set(&mut d.settings.defaults.pass, Ok(v.to_owned()))
    }),
    ("default_vhost", |d, _, v| name(&mut d.settings.defaults.vhost, v)),
    ("default_permissions.configure", |d, _, v| set(&mut d.settings.defaults.permissions[0], Ok(v.to_owned()))),
    ("default_permissions.write", |d, _, v| set(&mut d.settings.defaults.permissions[1], Ok(v.to_owned()))),
    ("default_permissions.read", |d, _, v| set(&mut d.settings.defaults.permissions[2], Ok(v.to_owned()))),
    ("default_user_tags.*", |d, key, v| {
        let on = value::boolean(v)?;
        toggle(d.tags.get_or_insert_default(), key, on);
        Ok(())
    }),
    ("loopback_users", |d, _, v| {
        value::word(v, &[("none", ())])?;
        d.loopback = Some(Vec::new());
        Ok(())
    }),
    ("loopback_users.*", |d, key, v| {
        let on = value::boolean(v)?;
        toggle(d.loopback.get_or_insert_default(), key, on);
        Ok(())
    }),
    ("anonymous_login_user", |d, _, v| {
        d.anonymous_user = Some(v.to_owned());
        Ok(())
    }),
    ("anonymous_login_pass", |d, _, v| {
        d.anonymous_pass = Some(v.to_owned());
        Ok(())
    }),
    ("auth_mechanisms.*", |d, key, v| {
        let mechanism = value::word(
            v,
            &[("PLAIN", Mechanism::Plain), ("AMQPLAIN", Mechanism::AmqPlain), ("ANONYMOUS", Mechanism::Anonymous)],
        )?;
        put(&mut d.mechanisms, key, mechanism);
        Ok(())
    }),
    ("auth_backends.*", |_, _, v| internal_only(v)),
    ("auth_backends.*.authn", |_, _, v| internal_only(v)),
    ("auth_backends.*.authz", |_, _, v| internal_only(v)),
    ("cluster_name", |d, _, v| {
        d.settings.cluster.name = Some(v.to_owned());
        Ok(())
    }),
    ("cluster_formation.peer_discovery_backend", |_, _, v| {
        value::word(v, &[("classic_config", ()), ("rabbit_peer_discovery_classic_config", ())])
    }),
    ("cluster_formation.classic_config.nodes.*", |d, key, v| {
        let seed = seed(v, &d.host)?;
        put(&mut d.seeds, key, seed);
        Ok(())
    }),
    ("cluster_formation.discovery_retry_limit", |d, _, v| set(&mut d.settings.cluster.retry_limit, value::limit(v))),
    ("cluster_formation.discovery_retry_interval", |d, _, v| {
        set(&mut d.settings.cluster.retry_interval, value::milliseconds(v))
    }),
    ("cluster_formation.target_cluster_size_hint", |d, _, v| {
        set(&mut d.settings.cluster.target_size_hint, value::integer(v, 1..=1000))
    }),
    ("metadata_store.khepri.default_timeout", metadata_timeout),
    ("metadata_store.default_timeout", metadata_timeout),
    ("metadata_store.khepri.snapshot_interval", |d, _, v| {
        set(&mut d.settings.metadata.snapshot_interval, value::integer(v, 1..=u64::MAX))
    }),
    ("metadata_store.leader_wait_timeout", |d, _, v| {
        set(&mut d.settings.metadata.leader_wait_timeout, value::milliseconds(v))
    }),
    ("default_queue_type", |d, _, v| {
        let choices = [("classic", QueueType::Classic), ("quorum", QueueType::Quorum)];
        set(&mut d.settings.queues.default_type, value::word(v, &choices))
    }),
    ("quorum_queue.initial_cluster_size", |d, _, v| {
        set(&mut d.settings.queues.initial_cluster_size, value::integer(v, 1..=99))
    }),
    ("quorum_queue.commands_soft_limit", |d, _, v| {
        set(&mut d.settings.queues.commands_soft_limit, value::integer(v, 1..=1_000_000))
    }),
    ("consumer_timeout", |d, _, v| set(&mut d.settings.queues.consumer_timeout, more_than_zero(v))),
    ("quorum_queue.dead_letter_worker_consumer_prefetch", |d, _, v| {
        set(&mut d.settings.queues.dead_letter_prefetch, value::integer(v, 1..=65_535))
    }),
    ("quorum_queue.dead_letter_worker_publisher_confirm_timeout", |d, _, v| {
        set(&mut d.settings.queues.dead_letter_retry, more_than_zero(v))
    }),
    ("quorum_queue.machine_version_limit", |d, _, v| {
        let (oldest, newest) = (MACHINE_VERSIONS.start().0, MACHINE_VERSIONS.end().0);
        let limit = value::integer(v, oldest.into()..=newest.into())?;
        set(&mut d.settings.queues.machine_version, u16::try_from(limit).map_err(|e| e.to_string()))
    }),
    ("quorum_queue.continuous_membership_reconciliation.enabled", |d, _, v| {
        set(&mut d.settings.queues.reconciliation.enabled, value::boolean(v))
    }),
    ("quorum_queue.continuous_membership_reconciliation.auto_remove", |d, _, v| {
        set(&mut d.settings.queues.reconciliation.auto_remove, value::boolean(v))
    }),
    ("quorum_queue.continuous_membership_reconciliation.target_group_size", |d, _, v| {
        let size = value::integer(v, 1..=99)?;
        set(
            &mut d.settings.queues.reconciliation.target_size,
            usize::try_from(size).map(Some).map_err(|e| e.to_string()),
        )
    }),
    ("quorum_queue.continuous_membership_reconciliation.interval", |d, _, v| {
        set(&mut d.settings.queues.reconciliation.interval, more_than_zero(v))
    }),
    ("quorum_queue.continuous_membership_reconciliation.trigger_interval", |d, _, v| {
        set(&mut d.settings.queues.reconciliation.trigger_interval, more_than_zero(v))
    }),
    ("queue_leader_locator", |d, _, v| set(&mut d.leader_locator, leader_locator(v).map(Some))),
    ("queue_master_locator", |d, _, v| set(&mut d.master_locator, leader_locator(v).map(Some))),
    ("peer.ip", |d, _, v| set(&mut d.settings.peer.ip, value::ip(v).map(Some))),
    ("peer.port", |d, _, v| set(&mut d.settings.peer.port, value::port(v))),
    ("distribution.listener.port_range.min", |d, _, v| set(&mut d.settings.peer.port, value::port(v))),
    ("distribution.listener.port_range.max", |_, _, v| value::port(v).map(drop)),
    ("feature_flags.forced_on_init", |d, _, v| {
        Forced::parse(v)?;
        d.settings.flags.forced = Some(v.to_owned());
        Ok(())
    }),
    ("feature_flags.test_definitions", |d, _, v| {
        set(&mut d.settings.flags.test_definitions, value::readable_file(v).map(Some))
    }),
    ("feature_flags.test_product_version", |d, _, v| {
        let parts: Vec<&str> = v.split('.').collect();
        match parts.len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok()) {
            true => set(&mut d.settings.flags.test_product_version, Ok(Some(v.to_owned()))),
            false => Err(format!("`{v}` is not a version such as 1.2.3")),
        }
    }),
    ("deprecated_features.permit.*", |d, key, v| {
        let permitted = value::boolean(v)?;
        d.settings.flags.permits.insert(key.first().copied().unwrap_or_default().to_owned(), permitted);
        Ok(())
    }),
    ("raft.data_dir", |d, _, v| {
        d.settings.raft_data_dir = Some(v.into());
        Ok(())
    }),
    ("raft.disk_stall_timeout", |d, _, v| set(&mut d.settings.disk_stall, more_than_zero(v))),
    ("shutdown.timeout", |d, _, v| {
        set(&mut d.settings.shutdown_timeout, value::duration(v, std::time::Duration::from_secs(1)))
    }),
    ("log.console", |d, _, v| set(&mut d.settings.log.console.enabled, value::boolean(v))),
    ("log.console.level", |d, _, v| level(&mut d.settings.log.console, v)),
    ("log.console.formatter", |d, _, v| formatter(&mut d.settings.log.console, v)),
    ("log.file", |d, _, v| match v {
        "false" | "off" => set(&mut d.settings.log.file.enabled, Ok(false)),
        name if name.contains('/') => Err(format!("`{name}` is not a file name: the folder is set by log.dir")),
        name => {
            d.settings.log.file.enabled = true;
            d.settings.log.file_name = (!matches!(name, "true" | "on")).then(|| name.to_owned());
            Ok(())
        }
    }),
    ("log.file.level", |d, _, v| level(&mut d.settings.log.file, v)),
    ("log.file.formatter", |d, _, v| formatter(&mut d.settings.log.file, v)),
    ("log.dir", |d, _, v| {
        d.settings.log.dir = Some(v.into());
        d.settings.log.file.enabled = true;
        Ok(())
    }),
    ("log.connection|channel|queue|federation|upgrade|ra|mirroring|user|default.level", |d, key, v| {
        let category = key.first().copied().unwrap_or_default();
        let level = log_level(v)?;
        let categories = &mut d.settings.log.categories;
        categories.retain(|(name, _)| name != category);
        categories.push((category.to_owned(), level));
        Ok(())
    }),
];

/// Keys that are read and that nothing in this version acts on yet.
pub const WITHOUT_EFFECT: &[&str] = &["quorum_queue.commands_soft_limit"];

fn more_than_zero(text: &str) -> Result<std::time::Duration, String> {
    match value::milliseconds(text)? {
        std::time::Duration::ZERO => Err("must be more than 0".to_owned()),
        time => Ok(time),
    }
}

fn set<T>(field: &mut T, value: Result<T, String>) -> Result<(), String> {
    *field = value?;
    Ok(())
}

fn put<T>(list: &mut Vec<(String, T)>, key: &[&str], value: T) {
    let key = key.first().copied().unwrap_or_default();
    list.retain(|(have, _)| have != key);
    list.push((key.to_owned(), value));
}

fn toggle(list: &mut Vec<String>, key: &[&str], on: bool) {
    let name = key.first().copied().unwrap_or_default();
    list.retain(|have| have != name);
    if on {
        list.push(name.to_owned());
    }
}

fn name(field: &mut String, text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > 255 {
        return Err("must have 1 to 255 bytes".to_owned());
    }
    set(field, Ok(text.to_owned()))
}

fn channel_max(draft: &mut Draft, _: &[&str], text: &str) -> Result<(), String> {
    draft.settings.amqp091.channel_max = value::integer(text, 0..=65_535)? as u16;
    Ok(())
}

fn max_connections(draft: &mut Draft, _: &[&str], text: &str) -> Result<(), String> {
    set(&mut draft.settings.limits.max_connections, value::limit(text))
}

fn metadata_timeout(draft: &mut Draft, _: &[&str], text: &str) -> Result<(), String> {
    set(&mut draft.settings.metadata.timeout, value::milliseconds(text))
}

fn internal_only(text: &str) -> Result<(), String> {
    value::word(text, &[("internal", ()), ("rabbit_auth_backend_internal", ())])
}

/// The names of older RabbitMQ versions spread leaders, so they mean `balanced` here.
fn leader_locator(text: &str) -> Result<LeaderLocator, String> {
    value::word(
        text,
        &[
            ("client-local", LeaderLocator::ClientLocal),
            ("balanced", LeaderLocator::Balanced),
            ("min-masters", LeaderLocator::Balanced),
            ("random", LeaderLocator::Balanced),
            ("least-leaders", LeaderLocator::Balanced),
        ],
    )
}

/// `name@host` or `name@host:port`.
fn seed(text: &str, host: &str) -> Result<Seed, String> {
    let (node, port) = match text.rsplit_once(':') {
        Some((node, port)) => (node, value::port(port)?),
        None => (text, super::settings::PEER_PORT),
    };
    Ok(Seed { node: NodeName::parse(node, host)?, port })
}

/// The level words of RabbitMQ, mapped to those that Warren's lines have.
pub fn log_level(text: &str) -> Result<LogLevel, String> {
    value::word(
        text,
        &[
            ("debug", LogLevel::Debug),
            ("info", LogLevel::Info),
            ("notice", LogLevel::Info),
            ("warning", LogLevel::Warning),
            ("error", LogLevel::Error),
            ("critical", LogLevel::Error),
            ("alert", LogLevel::Error),
            ("emergency", LogLevel::Error),
            ("none", LogLevel::None),
        ],
    )
}

fn level(output: &mut LogOutput, text: &str) -> Result<(), String> {
    set(&mut output.level, log_level(text))
}

fn formatter(output: &mut LogOutput, text: &str) -> Result<(), String> {
    let choices = [("plaintext", LogFormat::Plain), ("json", LogFormat::Json)];
    set(&mut output.format, value::word(text, &choices))
}
