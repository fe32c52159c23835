//! Keys that RabbitMQ has and that do nothing here: accepted, checked where a type is known, and named in one warning.

use super::value;

/// Why a key has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The feature is not in this version.
    NotYet,
    /// It tunes something that Warren does not have.
    NoMeaning,
}

type Check = fn(&str) -> Result<(), String>;

fn any(_: &str) -> Result<(), String> {
    Ok(())
}
fn boolean(text: &str) -> Result<(), String> {
    value::boolean(text).map(drop)
}
fn integer(text: &str) -> Result<(), String> {
    value::integer(text, 0..=u64::MAX).map(drop)
}
fn limit(text: &str) -> Result<(), String> {
    value::limit(text).map(drop)
}
fn size(text: &str) -> Result<(), String> {
    value::bytes(text).map(drop)
}
fn time(text: &str) -> Result<(), String> {
    value::milliseconds(text).map(drop)
}
fn file(text: &str) -> Result<(), String> {
    value::readable_file(text).map(drop)
}
fn port(text: &str) -> Result<(), String> {
    value::port(text).map(drop)
}
fn fraction(text: &str) -> Result<(), String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 0.0 => Ok(()),
        _ => Err(format!("`{text}` is not a non-negative number")),
    }
}
fn listener(text: &str) -> Result<(), String> {
    match text {
        "none" => Ok(()),
        _ => value::listener(text).map(drop),
    }
}

/// The keys. `*` matches one part, a last `**` all that follow.
pub const INERT: &[(&str, Check, Why)] = &[
    ("listeners.ssl", listener, Why::NotYet),
    ("listeners.ssl.*", listener, Why::NotYet),
    ("ssl_options", any, Why::NotYet),
    ("ssl_options.cacertfile", file, Why::NotYet),
    ("ssl_options.certfile", file, Why::NotYet),
    ("ssl_options.keyfile", file, Why::NotYet),
    ("ssl_options.dhfile", file, Why::NotYet),
    ("ssl_options.fail_if_no_peer_cert", boolean, Why::NotYet),
    ("ssl_options.depth", integer, Why::NotYet),
    ("ssl_options.**", any, Why::NotYet),
    ("ssl_cert_login_from", any, Why::NotYet),
    ("ssl_cert_login_san_type", any, Why::NotYet),
    ("ssl_cert_login_san_index", integer, Why::NotYet),
    ("ssl_handshake_timeout", time, Why::NotYet),
    ("peer.tls.cacertfile", file, Why::NotYet),
    ("peer.tls.certfile", file, Why::NotYet),
    ("peer.tls.keyfile", file, Why::NotYet),
    ("tcp_listen_options", any, Why::NoMeaning),
    ("tcp_listen_options.**", any, Why::NotYet),
    ("proxy_protocol", boolean, Why::NotYet),
    ("reverse_dns_lookups", boolean, Why::NotYet),
    ("session_max_per_connection", integer, Why::NotYet),
    ("link_max_per_session", integer, Why::NotYet),
    ("amqp10.**", any, Why::NotYet),
    ("consumer_disconnected_timeout", time, Why::NotYet),
    ("default_users.**", any, Why::NotYet),
    ("auth_http.**", any, Why::NotYet),
    ("auth_oauth2.**", any, Why::NotYet),
    ("auth_ldap.**", any, Why::NotYet),
    ("auth_cache.**", any, Why::NotYet),
    ("password_hashing_module", any, Why::NotYet),
    ("credential_validator.**", any, Why::NotYet),
    ("default_policies.**", any, Why::NotYet),
    ("default_limits.**", any, Why::NotYet),
    ("vm_memory_high_watermark.relative", fraction, Why::NotYet),
    ("vm_memory_high_watermark.absolute", size, Why::NotYet),
    ("total_memory_available_override_value", size, Why::NotYet),
    ("vm_memory_calculation_strategy", any, Why::NotYet),
    ("memory_monitor_interval", time, Why::NotYet),
    ("disk_free_limit.absolute", size, Why::NotYet),
    ("disk_free_limit.relative", fraction, Why::NotYet),
    ("cluster_tags.*", any, Why::NotYet),
    ("node_tags.*", any, Why::NotYet),
    ("cluster_formation.lock_retry_limit", limit, Why::NotYet),
    ("cluster_formation.lock_retry_timeout", time, Why::NotYet),
    ("cluster_formation.registration.enabled", boolean, Why::NotYet),
    ("cluster_formation.node_cleanup.**", any, Why::NotYet),
    ("cluster_formation.randomized_startup_delay_range.**", any, Why::NoMeaning),
    ("cluster_formation.k8s.**", any, Why::NotYet),
    ("cluster_formation.etcd.**", any, Why::NotYet),
    ("cluster_formation.consul.**", any, Why::NotYet),
    ("cluster_formation.aws.**", any, Why::NotYet),
    ("metadata_store.fail_fast_after", any, Why::NotYet),
    ("queue_types.*.enabled", boolean, Why::NotYet),
    ("quorum_queue.member_placement_tag", any, Why::NotYet),
    ("quorum_queue.compress_mem_tables", boolean, Why::NoMeaning),
    ("quorum_queue.property_equivalence.relaxed_checks_on_redeclaration", boolean, Why::NotYet),
    ("raft.wal_max_size_bytes", size, Why::NotYet),
    ("raft.wal_max_entries", integer, Why::NotYet),
    ("raft.wal_max_batch_size", integer, Why::NotYet),
    ("raft.segment_max_entries", segment_entries, Why::NotYet),
    ("raft.snapshot_chunk_size", size, Why::NotYet),
    ("raft.adaptive_failure_detector.**", any, Why::NoMeaning),
    ("raft.**", any, Why::NoMeaning),
    ("classic_queue.fsync", boolean, Why::NotYet),
    ("classic_queue.**", any, Why::NoMeaning),
    ("collect_statistics", any, Why::NotYet),
    ("collect_statistics_interval", time, Why::NotYet),
    ("management.tcp.port", port, Why::NotYet),
    ("management.ssl.port", port, Why::NotYet),
    ("management.ssl.cacertfile", file, Why::NotYet),
    ("management.ssl.certfile", file, Why::NotYet),
    ("management.ssl.keyfile", file, Why::NotYet),
    ("management.**", any, Why::NotYet),
    ("management_agent.**", any, Why::NotYet),
    ("prometheus.tcp.port", port, Why::NotYet),
    ("prometheus.**", any, Why::NotYet),
    ("mqtt.**", any, Why::NotYet),
    ("web_mqtt.**", any, Why::NotYet),
    ("web_amqp.**", any, Why::NotYet),
    ("stream.**", any, Why::NotYet),
    ("definitions.https.**", any, Why::NotYet),
    ("definitions.tls.**", any, Why::NotYet),
    ("deprecated_features.permit.*", boolean, Why::NotYet),
    ("feature_flags.**", any, Why::NotYet),
    ("log.console.**", any, Why::NotYet),
    ("log.file.**", any, Why::NotYet),
    ("log.syslog", boolean, Why::NotYet),
    ("log.syslog.**", any, Why::NotYet),
    ("log.journald", boolean, Why::NotYet),
    ("log.journald.**", any, Why::NotYet),
    ("log.exchange", boolean, Why::NotYet),
    ("log.exchange.**", any, Why::NotYet),
    ("log.error_logger.**", any, Why::NoMeaning),
    ("log.prelaunch.**", any, Why::NoMeaning),
    ("message_interceptors.**", any, Why::NotYet),
    ("shovel.**", any, Why::NotYet),
    ("federation.**", any, Why::NotYet),
    ("prevent_startup_if_node_was_reset", boolean, Why::NotYet),
    ("motd_file", any, Why::NotYet),
    ("product.*", any, Why::NotYet),
    ("vhost_reconciliation.**", any, Why::NotYet),
    ("vhost_restart_strategy", any, Why::NoMeaning),
    ("strict_auth_mechanisms", any, Why::NoMeaning),
    ("cluster_partition_handling", any, Why::NoMeaning),
    ("cluster_partition_handling.**", any, Why::NoMeaning),
    ("cluster_keepalive_interval", time, Why::NoMeaning),
    ("mnesia_table_loading_retry_timeout", time, Why::NoMeaning),
    ("mnesia_table_loading_retry_limit", limit, Why::NoMeaning),
    ("hipe_compile", any, Why::NoMeaning),
    ("erlang.*", any, Why::NoMeaning),
    ("delegate_count", integer, Why::NoMeaning),
    ("sysmon_handler.**", any, Why::NoMeaning),
    ("vm_memory_high_watermark_paging_ratio", fraction, Why::NoMeaning),
    ("mirroring_sync_batch_size", size, Why::NoMeaning),
    ("mirroring_sync_max_throughput", any, Why::NoMeaning),
    ("mirroring_flow_control", boolean, Why::NoMeaning),
    ("queue_index_embed_msgs_below", size, Why::NoMeaning),
    ("queue_index_max_journal_entries", integer, Why::NoMeaning),
    ("msg_store_file_size_limit", size, Why::NoMeaning),
    ("lazy_queue_explicit_gc_run_operation_threshold", integer, Why::NoMeaning),
    ("queue_explicit_gc_run_operation_threshold", integer, Why::NoMeaning),
    ("socket_writer.gc_threshold", any, Why::NoMeaning),
    ("background_gc_enabled", boolean, Why::NoMeaning),
    ("background_gc_target_interval", integer, Why::NoMeaning),
    ("num_acceptors.*", integer, Why::NoMeaning),
    ("net_ticktime", integer, Why::NoMeaning),
    ("cluster_formation.node_type", any, Why::NoMeaning),
    ("cluster_formation.internal_lock_retries", integer, Why::NoMeaning),
    ("ranch_connection_max", any, Why::NoMeaning),
    ("trace_vhosts.**", any, Why::NoMeaning),
    ("permit_deprecated_features.**", any, Why::NoMeaning),
];

fn segment_entries(text: &str) -> Result<(), String> {
    value::integer(text, 1..=65_535).map(drop)
}
