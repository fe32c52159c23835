//! The verbs: what each takes, says and shows. Text in braces is filled in from the arguments and the answer.

use super::tool::Tool;

/// What a verb does with the node's answer, or instead of asking.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Rows with columns that may be chosen.
    Listing {
        /// All columns.
        columns: &'static [&'static str],
        /// Those shown unless others are asked for; empty: all.
        default: &'static [&'static str],
    },
    /// Rows in a grid with fixed columns; none: those of the answer.
    Grid(&'static [&'static str]),
    /// Something is done; the text says that it was. Informational text is left out when quiet.
    Done(&'static str),
    /// A text that is the result.
    Result(&'static str),
    /// A document: JSON for programs, sections for people.
    Document,
    /// The command line does it alone or in its own way.
    Own(Own),
    /// Kept for scripts that call it; does nothing.
    Deprecated(&'static str),
    /// Part of Erlang that does not exist here.
    NotOffered,
}

/// Verbs with code of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// Asks until the node is up.
    AwaitStartup,
    /// Asks until enough nodes are up.
    AwaitOnlineNodes,
    /// Whether the process answers.
    Ping,
    /// Stops the node and may wait for its end.
    Stop,
    /// Stops the node and waits for its end.
    Shutdown,
    /// Reads the configuration without a node.
    CheckConfig,
    /// The version that clients see.
    Version,
    /// What is stored of a password.
    HashPassword,
    /// Whether a deprecated feature is in use.
    CheckDeprecated,
    /// Makes a stopped node the only one of its cluster.
    ForceStandalone,
    /// Usage.
    Help,
}

/// A verb.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// Tools that have it, beside `ctl`, which has all.
    pub tools: &'static [Tool],
    /// Its arguments, by name: `x` must be there, `x?` may be, `x*` is all that remain, `x<` may be read from standard
    /// input instead.
    pub parameters: &'static [&'static str],
    /// Its options.
    pub options: &'static [&'static str],
    /// Values of options that were not given.
    pub defaults: &'static [(&'static str, &'static str)],
    /// Seconds that it may take unless `--timeout` says otherwise.
    pub timeout: Option<u64>,
    /// Printed before the answer.
    pub banner: &'static str,
    /// What it gives.
    pub kind: Kind,
}

const fn verb(name: &'static str, parameters: &'static [&'static str], banner: &'static str, kind: Kind) -> Verb {
    Verb { name, tools: &[], parameters, options: &[], defaults: &[], timeout: None, banner, kind }
}

impl Verb {
    const fn within(self, seconds: u64) -> Verb {
        Verb { timeout: Some(seconds), ..self }
    }

    const fn of(self, tools: &'static [Tool]) -> Verb {
        Verb { tools, ..self }
    }

    const fn options(self, options: &'static [&'static str]) -> Verb {
        Verb { options, ..self }
    }

    const fn defaults(self, defaults: &'static [(&'static str, &'static str)]) -> Verb {
        Verb { defaults, ..self }
    }

    /// Whether a tool has it.
    pub fn belongs_to(&self, tool: Tool) -> bool {
        tool == Tool::Ctl || self.tools.contains(&tool) || matches!(self.kind, Kind::Own(Own::Help))
    }
}

const DIAGNOSTICS: &[Tool] = &[Tool::Diagnostics];
const QUEUES: &[Tool] = &[Tool::Queues];

/// All verbs.
pub const VERBS: &[Verb] = &[
    // The node and its cluster.
    verb("status", &[], "Status of node {node} ...", Kind::Document).within(60).of(DIAGNOSTICS).options(&["unit"]),
    verb("cluster_status", &[], "Cluster status of node {node} ...", Kind::Document).within(60).of(DIAGNOSTICS),
    verb("environment", &[], "Configuration of node {node} ...", Kind::Document).within(60).of(DIAGNOSTICS),
    verb(
        "ping",
        &[],
        "Will ping {node}. This only checks that its process answers. Timeout: {timeout_ms} ms.",
        Kind::Own(Own::Ping),
    )
    .within(60)
    .of(DIAGNOSTICS),
    verb(
        "check_running",
        &[],
        "Checking if Warren is running on node {node} ...",
        Kind::Result("Warren on node {node} is fully booted and running"),
    )
    .within(60)
    .of(DIAGNOSTICS),
    verb("is_running", &[], "Asking node {node} for its status ...", Kind::Result("{text}")).within(60).of(DIAGNOSTICS),
    verb("is_booting", &[], "Asking node {node} for its boot status ...", Kind::Result("{text}"))
        .within(60)
        .of(DIAGNOSTICS),
    verb(
        "check_port_listener",
        &["port"],
        "Asking node {node} if there's an active listener on port {port} ...",
        Kind::Result("A listener for port {port} is running on node {node}."),
    )
    .within(60)
    .of(DIAGNOSTICS),
    verb("listeners", &[], "Asking node {node} to report its protocol listeners ...", Kind::Result("{text}"))
        .within(60)
        .of(DIAGNOSTICS),
    verb("await_startup", &[], "Awaiting startup of node {node} ...", Kind::Own(Own::AwaitStartup)).within(300),
    verb(
        "await_online_nodes",
        &["count"],
        "Will wait for at least {count} nodes to join the cluster of {node}. Timeout: {timeout} seconds.",
        Kind::Own(Own::AwaitOnlineNodes),
    )
    .within(300),
    verb("stop", &["pidfile?"], "Stopping and halting node {node} ...", Kind::Own(Own::Stop)).options(&["idempotent"]),
    verb("shutdown", &[], "Shutting down node {node} ...", Kind::Own(Own::Shutdown)).options(&["no-wait"]).within(120),
    verb(
        "has_reached_target_cluster_size",
        &[],
        "Asking node {node} if its cluster has reached its target size ...",
        Kind::Result("{text}"),
    )
    .within(60)
    .of(DIAGNOSTICS),
    verb("forget_cluster_node", &["member"], "Removing node {member} from the cluster", Kind::Done(""))
        .options(&["offline"])
        .within(3600),
    verb(
        "list_feature_flags",
        &[],
        "Listing feature flags ...",
        Kind::Listing {
            columns: &["name", "state", "stability", "provided_by", "desc", "doc_url"],
            default: &["name", "state"],
        },
    )
    .of(DIAGNOSTICS)
    .within(60),
    verb("enable_feature_flag", &["name"], "Enabling feature flag \"{name}\" ...", Kind::Done(""))
        .options(&["opt-in", "experimental"]),
    verb(
        "feature_flag_status",
        &["name"],
        "Asking node {node} how far feature flag \"{name}\" is ...",
        Kind::Listing { columns: &["node", "step"], default: &[] },
    )
    .within(60),
    verb(
        "list_deprecated_features",
        &[],
        "Listing deprecated features ...",
        Kind::Listing {
            columns: &["name", "deprecation_phase", "state", "provided_by", "desc", "doc_url"],
            default: &["name", "deprecation_phase", "state"],
        },
    )
    .of(DIAGNOSTICS)
    .options(&["used"])
    .within(60),
    verb(
        "check_if_any_deprecated_features_are_used",
        &[],
        "Checking if any deprecated features are used on node {node} ...",
        Kind::Own(Own::CheckDeprecated),
    )
    .of(DIAGNOSTICS)
    .within(60),
    verb("set_cluster_name", &["name"], "Setting cluster name to {name} ...", Kind::Done("")),
    verb("check_config", &["file?"], "", Kind::Own(Own::CheckConfig)),
    verb("version", &[], "", Kind::Own(Own::Version)).of(DIAGNOSTICS),
    verb("server_version", &[], "Asking node {node} for its version ...", Kind::Result("{text}"))
        .within(60)
        .of(DIAGNOSTICS),
    verb("help", &["verb?"], "", Kind::Own(Own::Help)),
    // Users.
    verb("list_users", &[], "Listing users ...", Kind::Listing { columns: &["user", "tags"], default: &[] }),
    verb(
        "add_user",
        &["user", "password<"],
        "Adding user \"{user}\" ...",
        Kind::Done(
            "Done. Don't forget to grant the user permissions to some virtual hosts! See 'rabbitmqctl help set_permissions' to learn more.",
        ),
    ),
    verb("change_password", &["user", "password<"], "Changing password for user \"{user}\" ...", Kind::Done("")),
    verb("clear_password", &["user"], "Clearing password for user \"{user}\" ...", Kind::Done("")),
    verb("delete_user", &["user"], "Deleting user \"{user}\" ...", Kind::Done("")),
    verb("authenticate_user", &["user", "password<"], "Authenticating user \"{user}\" ...", Kind::Result("Success")),
    verb("hash_password", &["password<"], "Will hash password ****", Kind::Own(Own::HashPassword))
        .options(&["hashing-algorithm"]),
    verb("set_user_tags", &["user", "tags*"], "Setting tags for user \"{user}\" to {tags} ...", Kind::Done("")),
    // Permissions.
    verb(
        "set_permissions",
        &["user", "configure", "write", "read"],
        "Setting permissions for user \"{user}\" in vhost \"{vhost}\" ...",
        Kind::Done(""),
    ),
    verb(
        "clear_permissions",
        &["user"],
        "Clearing permissions for user \"{user}\" in vhost \"{vhost}\" ...",
        Kind::Done(""),
    ),
    verb(
        "list_permissions",
        &[],
        "Listing permissions for vhost \"{vhost}\" ...",
        Kind::Listing { columns: &["user", "configure", "write", "read"], default: &[] },
    ),
    verb(
        "list_user_permissions",
        &["user"],
        "Listing permissions for user \"{user}\" ...",
        Kind::Listing { columns: &["vhost", "configure", "write", "read"], default: &[] },
    ),
    // Virtual hosts.
    verb("add_vhost", &["name"], "Adding vhost \"{name}\" ...", Kind::Done("")).options(&[
        "description",
        "tags",
        "default-queue-type",
    ]),
    verb("delete_vhost", &["name"], "Deleting vhost \"{name}\" ...", Kind::Done("")),
    verb(
        "list_vhosts",
        &[],
        "Listing vhosts ...",
        Kind::Listing {
            columns: &[
                "name",
                "description",
                "tags",
                "default_queue_type",
                "protected_from_deletion",
                "tracing",
                "cluster_state",
                "metadata",
            ],
            default: &["name"],
        },
    ),
    // Policies and parameters.
    verb(
        "set_policy",
        &["name", "pattern", "definition"],
        "Setting policy \"{name}\" for pattern \"{pattern}\" to \"{definition}\" with priority \"{priority}\" for vhost \"{vhost}\" ...",
        Kind::Done(""),
    )
    .options(&["priority", "apply-to"])
    .defaults(POLICY_DEFAULTS),
    verb("clear_policy", &["name"], "Clearing policy \"{name}\" on vhost \"{vhost}\" ...", Kind::Done("")),
    verb(
        "list_policies",
        &[],
        "Listing policies for vhost \"{vhost}\" ...",
        Kind::Listing { columns: POLICIES, default: &[] },
    )
    .of(DIAGNOSTICS),
    verb(
        "set_operator_policy",
        &["name", "pattern", "definition"],
        "Setting operator policy override \"{name}\" for pattern \"{pattern}\" to \"{definition}\" with priority \"{priority}\" for vhost \"{vhost}\" ...",
        Kind::Done(""),
    )
    .options(&["priority", "apply-to"])
    .defaults(POLICY_DEFAULTS),
    verb(
        "clear_operator_policy",
        &["name"],
        "Clearing operator policy \"{name}\" on vhost \"{vhost}\" ...",
        Kind::Done(""),
    ),
    verb(
        "list_operator_policies",
        &[],
        "Listing operator policy overrides for vhost \"{vhost}\" ...",
        Kind::Listing { columns: POLICIES, default: &[] },
    )
    .of(DIAGNOSTICS),
    verb(
        "set_parameter",
        &["component", "name", "value"],
        "Setting runtime parameter \"{name}\" for component \"{component}\" to \"{value}\" in vhost \"{vhost}\" ...",
        Kind::Done(""),
    ),
    verb(
        "clear_parameter",
        &["component", "name"],
        "Clearing runtime parameter \"{name}\" for component \"{component}\" on vhost \"{vhost}\" ...",
        Kind::Done(""),
    ),
    verb(
        "list_parameters",
        &[],
        "Listing runtime parameters for vhost \"{vhost}\" ...",
        Kind::Listing { columns: &["component", "name", "value"], default: &[] },
    )
    .of(DIAGNOSTICS),
    verb(
        "set_global_parameter",
        &["name", "value"],
        "Setting global runtime parameter \"{name}\" to \"{value}\" ...",
        Kind::Done(""),
    ),
    verb("clear_global_parameter", &["name"], "Clearing global runtime parameter \"{name}\" ...", Kind::Done("")),
    verb(
        "list_global_parameters",
        &[],
        "Listing global runtime parameters ...",
        Kind::Listing { columns: &["name", "value"], default: &[] },
    )
    .of(DIAGNOSTICS),
    // What clients declare.
    verb(
        "list_queues",
        &[],
        "Timeout: {timeout}.0 seconds ...\nListing queues for vhost {vhost} ...",
        Kind::Listing {
            columns: &[
                "name",
                "durable",
                "auto_delete",
                "arguments",
                "policy",
                "operator_policy",
                "effective_policy_definition",
                "pid",
                "owner_pid",
                "exclusive",
                "exclusive_consumer_pid",
                "exclusive_consumer_tag",
                "messages_ready",
                "messages_unacknowledged",
                "messages",
                "messages_ready_ram",
                "messages_unacknowledged_ram",
                "messages_ram",
                "messages_persistent",
                "message_bytes",
                "message_bytes_ready",
                "message_bytes_unacknowledged",
                "message_bytes_ram",
                "message_bytes_persistent",
                "messages_ready_high",
                "messages_ready_normal",
                "messages_ready_returned",
                "messages_by_priority",
                "messages_active_priorities",
                "messages_delayed",
                "next_delayed_at",
                "last_delayed_at",
                "messages_dlx",
                "message_bytes_dlx",
                "publishers",
                "delivery_limit",
                "single_active_consumer_tag",
                "single_active_consumer_pid",
                "head_message_timestamp",
                "disk_reads",
                "disk_writes",
                "consumers",
                "consumer_utilisation",
                "consumer_capacity",
                "memory",
                "state",
                "type",
                "leader",
                "members",
                "online",
            ],
            default: &["name", "messages"],
        },
    )
    .within(60)
    .options(&["online", "offline", "local"]),
    verb(
        "list_exchanges",
        &[],
        "Listing exchanges for vhost {vhost} ...",
        Kind::Listing {
            columns: &["name", "type", "durable", "auto_delete", "internal", "arguments", "policy"],
            default: &["name", "type"],
        },
    ),
    verb(
        "list_bindings",
        &[],
        "Listing bindings for vhost {vhost}...",
        Kind::Listing {
            columns: &[
                "source_name",
                "source_kind",
                "destination_name",
                "destination_kind",
                "routing_key",
                "arguments",
            ],
            default: &[],
        },
    ),
    verb(
        "list_consumers",
        &[],
        "Listing consumers in vhost {vhost} ...",
        Kind::Listing {
            columns: &[
                "queue_name",
                "channel_pid",
                "consumer_tag",
                "ack_required",
                "prefetch_count",
                "active",
                "activity_status",
                "arguments",
            ],
            default: &[
                "queue_name",
                "channel_pid",
                "consumer_tag",
                "ack_required",
                "prefetch_count",
                "active",
                "arguments",
            ],
        },
    )
    .within(60),
    verb(
        "list_connections",
        &[],
        "Listing connections ...",
        Kind::Listing {
            columns: &[
                "pid",
                "name",
                "port",
                "host",
                "peer_port",
                "peer_host",
                "ssl",
                "ssl_protocol",
                "ssl_key_exchange",
                "ssl_cipher",
                "ssl_hash",
                "peer_cert_subject",
                "peer_cert_issuer",
                "peer_cert_serial_number",
                "peer_cert_validity",
                "state",
                "channels",
                "protocol",
                "auth_mechanism",
                "user",
                "vhost",
                "container_id",
                "timeout",
                "frame_max",
                "channel_max",
                "client_properties",
                "recv_oct",
                "recv_cnt",
                "send_oct",
                "send_cnt",
                "send_pend",
                "connected_at",
            ],
            default: &["user", "peer_host", "peer_port", "state"],
        },
    )
    .within(60),
    verb(
        "list_channels",
        &[],
        "Listing channels ...",
        Kind::Listing {
            columns: &[
                "pid",
                "connection",
                "name",
                "number",
                "user",
                "vhost",
                "transactional",
                "confirm",
                "consumer_count",
                "messages_unacknowledged",
                "messages_uncommitted",
                "acks_uncommitted",
                "messages_unconfirmed",
                "prefetch_count",
            ],
            default: &["pid", "user", "consumer_count", "messages_unacknowledged"],
        },
    )
    .within(60),
    verb("close_connection", &["pid", "reason"], "Closing connection {pid}, reason: {reason}...", Kind::Done("")),
    verb(
        "close_all_connections",
        &["reason"],
        "Closing all connections in vhost {vhost} (limit 0), reason: {reason} ...",
        Kind::Result("Closed {closed} connections"),
    )
    .options(&["global"]),
    verb(
        "purge_queue",
        &["queue"],
        "Purging queue '{queue}' in vhost '{vhost}' ...",
        Kind::Result("Purged {messages} messages"),
    )
    .of(QUEUES),
    verb(
        "delete_queue",
        &["queue"],
        "Deleting queue '{queue}' on vhost '{vhost}' ...",
        Kind::Result("Queue was successfully deleted with {messages} ready messages"),
    )
    .options(&["if-empty", "if-unused", "force"])
    .of(QUEUES),
    verb("quorum_status", &["queue"], "Status of quorum queue {queue} on node {node} ...", Kind::Grid(MEMBERS))
        .of(QUEUES)
        .within(60),
    verb("add_member", &["queue", "member"], "Adding a replica for queue {queue} on node {member}...", Kind::Done(""))
        .of(QUEUES)
        .options(&["membership"])
        .within(60),
    verb(
        "delete_member",
        &["queue", "member"],
        "Removing a replica of queue {queue} on node {member}...",
        Kind::Done(""),
    )
    .of(QUEUES)
    .within(60),
    verb(
        "grow",
        &["member", "strategy"],
        "Growing {strategy} quorum queues on {member}...",
        Kind::Listing { columns: CHANGED, default: &[] },
    )
    .of(QUEUES)
    .options(&["vhost-pattern", "queue-pattern", "membership", "errors-only"])
    .within(3600),
    verb(
        "grow_to_count",
        &["count", "strategy"],
        "Growing {strategy} quorum queues to {count} members...",
        Kind::Listing { columns: CHANGED, default: &[] },
    )
    .of(QUEUES)
    .options(&["vhost-pattern", "queue-pattern", "membership", "errors-only"])
    .within(3600),
    verb(
        "shrink",
        &["member"],
        "Shrinking quorum queues on {member}...",
        Kind::Listing { columns: CHANGED, default: &[] },
    )
    .of(QUEUES)
    .options(&["vhost-pattern", "queue-pattern", "errors-only"])
    .within(3600),
    verb(
        "rebalance",
        &["type"],
        "Rebalancing {type} queues...",
        Kind::Grid(&["Node name", "Number of quorum queue leaders"]),
    )
    .of(QUEUES)
    .options(&["vhost-pattern", "queue-pattern"])
    .within(3600),
    verb(
        "transfer_leadership",
        &["queue", "member"],
        "Transferring leadership of queue {queue} to node {member}...",
        Kind::Done(""),
    )
    .of(QUEUES)
    .within(60),
    verb(
        "force_checkpoint",
        &[],
        "Forcing checkpoint for all matching quorum queues...",
        Kind::Listing { columns: &["vhost", "name", "result"], default: &[] },
    )
    .of(QUEUES)
    .options(&["vhost-pattern", "queue-pattern"])
    .within(600),
    verb(
        "force_shrink",
        &[],
        "Reducing quorum queues without a majority to their members on node {node}...",
        Kind::Listing { columns: CHANGED, default: &[] },
    )
    .of(QUEUES)
    .options(&["vhost-pattern", "queue-pattern", "errors-only", "i-accept-data-loss"])
    .within(600),
    verb(
        "force_standalone_boot",
        &[],
        "Making node {node} the only one of its cluster...",
        Kind::Own(Own::ForceStandalone),
    )
    .options(&["i-accept-data-loss"]),
    verb(
        "force_standalone_khepri_boot",
        &[],
        "Making node {node} the only one of its cluster...",
        Kind::Own(Own::ForceStandalone),
    )
    .options(&["i-accept-data-loss"]),
    verb(
        "list_quarantined",
        &[],
        "Queue data of node {node} that is not used ...",
        Kind::Listing { columns: &["file", "bytes"], default: &[] },
    )
    .of(&[Tool::Queues, Tool::Diagnostics])
    .within(60),
    verb("metrics", &[], "", Kind::Result("{text}")).of(DIAGNOSTICS).within(60),
    verb(
        "versions",
        &[],
        "Machine versions of quorum queues...",
        Kind::Listing { columns: &["vhost", "name", "node", "state", "effective", "supported"], default: &[] },
    )
    .of(QUEUES)
    .options(&["vhost-pattern", "queue-pattern"])
    .within(60),
    verb(
        "check_for_quorum_queues_without_an_elected_leader",
        &["pattern?"],
        "Checking leader health of quorum queues matching '{pattern}' in vhost {vhost} ...",
        Kind::Result("{text}"),
    )
    .of(DIAGNOSTICS)
    .options(&["across-all-vhosts"])
    .within(60),
    verb(
        "check_if_new_quorum_queue_replicas_have_finished_initial_sync",
        &[],
        "Checking if all quorum queue members on node {node} have caught up ...",
        Kind::Result("{text}"),
    )
    .of(&[Tool::Queues, Tool::Diagnostics])
    .within(60),
    verb(
        "check_if_node_is_quorum_critical",
        &[],
        "Checking if node {node} is critical for quorum of any quorum queues or streams ...",
        Kind::Result("{text}"),
    )
    .of(&[Tool::Queues, Tool::Diagnostics])
    .within(60),
    verb("metadata_store_status", &[], "Status of the metadata store on node {node} ...", Kind::Grid(MEMBERS))
        .within(60)
        .of(DIAGNOSTICS),
    // Kept for scripts.
    verb(
        "rename_cluster_node",
        &["old", "new", "more*"],
        "",
        Kind::Deprecated(
            "DEPRECATED: renaming nodes cannot work with metadata, queues and streams that are replicated by Raft. This command does nothing.",
        ),
    ),
    verb("update_cluster_nodes", &["words*"], "", Kind::Deprecated("DEPRECATED: this command does nothing.")),
    verb(
        "force_gc",
        &["words*"],
        "",
        Kind::Deprecated("DEPRECATED: there is nothing to collect. This command does nothing."),
    ),
    verb(
        "rotate_logs",
        &["words*"],
        "",
        Kind::Deprecated("DEPRECATED: log files are reopened on SIGHUP. This command does nothing."),
    ),
    verb(
        "node_health_check",
        &["words*"],
        "",
        Kind::Deprecated("DEPRECATED: use check_running. This command does nothing."),
    ),
    verb("force_reset", &["words*"], "", Kind::NotOffered),
    verb("eval", &["words*"], "", Kind::NotOffered),
    verb("eval_file", &["words*"], "", Kind::NotOffered),
    verb("exec", &["words*"], "", Kind::NotOffered),
    verb("remote_shell", &["words*"], "", Kind::NotOffered),
    verb("erlang_version", &["words*"], "", Kind::NotOffered),
    verb("erlang_cookie_hash", &["words*"], "", Kind::NotOffered),
];

/// What a policy is where its command does not say.
const POLICY_DEFAULTS: &[(&str, &str)] = &[("priority", "0"), ("apply-to", "all")];

/// The columns of policies.
const POLICIES: &[&str] = &["vhost", "name", "pattern", "apply-to", "definition", "priority"];

/// The columns of what changes the members of many queues.
const CHANGED: &[&str] = &["vhost", "name", "size", "result"];

/// The columns of a Raft group's members.
pub const MEMBERS: &[&str] = &[
    "Node Name",
    "Raft State",
    "Membership",
    "Last Log Index",
    "Last Written",
    "Last Applied",
    "Commit Index",
    "Snapshot Index",
    "Term",
    "Machine Version",
];

/// The verb of a name.
pub fn find(tool: Tool, name: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.name == name && verb.belongs_to(tool))
}

/// The verb whose name is nearest to a mistyped one.
pub fn similar(tool: Tool, name: &str) -> Option<&'static str> {
    let verbs = VERBS.iter().filter(|verb| verb.belongs_to(tool) && !matches!(verb.kind, Kind::NotOffered));
    verbs
        .map(|verb| (strsim::damerau_levenshtein(verb.name, name), verb.name))
        .filter(|(distance, found)| *distance <= found.len().min(name.len()) / 3)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_verbs_get_a_suggestion() {
        assert_eq!(similar(Tool::Ctl, "list_queuess"), Some("list_queues"));
        assert_eq!(similar(Tool::Ctl, "statsu"), Some("status"));
        assert_eq!(similar(Tool::Ctl, "xyz"), None);
    }

    #[test]
    fn names_are_unique_and_tools_have_their_verbs() {
        for (index, verb) in VERBS.iter().enumerate() {
            assert!(VERBS[index + 1..].iter().all(|other| other.name != verb.name), "{}", verb.name);
        }
        assert!(find(Tool::Queues, "quorum_status").is_some());
        assert!(find(Tool::Queues, "list_users").is_none());
        assert!(find(Tool::Diagnostics, "ping").is_some());
    }

    #[test]
    fn default_columns_exist() {
        for verb in VERBS {
            if let Kind::Listing { columns, default } = verb.kind {
                assert!(default.iter().all(|name| columns.contains(name)), "{}", verb.name);
            }
        }
    }
}
