//! `metrics`: what this node holds and has under way, in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::json;
use warren_broker::Broker;
use warren_broker::dead_letter::{REASONS, Treatment};
use warren_raft::log_store::StoreFigures;
use warren_raft::runtime::HostFigures;
use warren_raft::transport::Lane;

use super::{Answer, Outcome, peers};
use crate::allocator;

/// A family of metrics: its lines, and the two before them.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (String, u64)>) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

fn one(value: u64) -> [(String, u64); 1] {
    [(String::new(), value)]
}

/// A label's value with what would end it escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// One of a database's two sets of groups.
struct Database {
    name: &'static str,
    host: HostFigures,
    store: StoreFigures,
}

type Family = (&'static str, &'static str, fn(&Database) -> u64);

/// Families with a sample for each database.
const FAMILIES: &[Family] = &[
    ("warren_raft_groups", "Raft groups with a member here.", |d| d.host.groups.groups),
    ("warren_raft_groups_awake", "Groups that do not sleep.", |d| d.host.groups.awake),
    ("warren_raft_groups_led", "Groups that are led here.", |d| d.host.groups.leading),
    ("warren_raft_groups_standing", "Groups whose member here stands for election.", |d| d.host.groups.candidates),
    ("warren_raft_groups_stopped", "Groups whose member here stopped; its log is kept.", |d| d.host.groups.stopped),
    ("warren_raft_groups_amnesia", "Groups whose log here lost what it had acknowledged.", |d| d.host.groups.amnesia),
    ("warren_raft_uncommitted_entries", "Entries appended here and not committed.", |d| {
        d.host.groups.uncommitted_entries
    }),
    ("warren_raft_uncommitted_bytes", "Bytes appended here and not committed.", |d| d.host.groups.uncommitted_bytes),
    ("warren_raft_waiting_requests", "Requests that wait to be appended.", |d| d.host.groups.waiting_requests),
    ("warren_raft_waiting_mail", "Messages that wait for the groups' threads.", |d| d.host.waiting_mail),
    ("warren_raft_tail_bytes", "Applied entries kept for followers a little behind.", |d| d.host.groups.tail_bytes),
    ("warren_raft_cache_bytes", "Recent entries in memory.", |d| d.host.cache_bytes),
    ("warren_raft_cache_limit_bytes", "What recent entries may take.", |d| d.host.cache_limit),
    ("warren_raft_snapshots_sending", "Snapshots on their way to followers.", |d| d.host.groups.sending),
    ("warren_raft_snapshots_sending_bytes", "Their states, in memory.", |d| d.host.groups.sending_bytes),
    ("warren_raft_snapshots_receiving", "Snapshots on their way to here.", |d| d.host.groups.receiving),
    ("warren_raft_snapshots_receiving_bytes", "Bytes of their states so far.", |d| d.host.groups.receiving_bytes),
    ("warren_log_writes_in_flight", "Batches handed to the disk and not synced.", |d| d.host.groups.writes_in_flight),
    ("warren_log_waiting_batches", "Batches that waited when the last write began.", |d| d.host.waiting_writes),
    ("warren_log_syncs_total", "Synced writes of the log.", |d| d.host.written.syncs),
    ("warren_log_batches_total", "Batches of the groups' threads in them.", |d| d.host.written.batches),
    ("warren_log_written_bytes_total", "Bytes in them, before the database's framing.", |d| d.host.written.bytes),
    ("warren_store_disk_bytes", "The database's files.", |d| d.store.disk_bytes),
    ("warren_store_memory_bytes", "The database's tables, indexes and cache in memory.", |d| d.store.memory_bytes),
    ("warren_store_segments", "Segments of the log that hold something.", |d| d.store.segments),
];

/// `metrics`.
pub async fn metrics(broker: &Arc<Broker>) -> Outcome {
    let [metadata_store, queues_store] = broker.store_figures().await;
    let metadata = match broker.metadata().host() {
        Some(host) => host.figures().await,
        None => HostFigures::default(),
    };
    let databases = [
        Database { name: "metadata", host: metadata, store: metadata_store },
        Database { name: "queues", host: broker.queues().figures().await, store: queues_store },
    ];
    let mut page = Page(String::new());
    for (name, help, value) in FAMILIES {
        page.family(name, help, databases.iter().map(|d| (format!("{{database=\"{}\"}}", d.name), value(d))));
    }
    of_peers(&mut page, broker);
    page.family("rabbitmq_connections", "Client connections.", one(broker.connections().len() as u64));
    let queues = broker.metadata().projections().load().queues().count();
    page.family("rabbitmq_queues", "Queues of the cluster.", one(queues as u64));
    dead_letters(&mut page, broker);
    let resident = super::node::resident_memory().as_u64().unwrap_or_default();
    page.family("rabbitmq_process_resident_memory_bytes", "Memory of the process.", one(resident));
    let memory = allocator::figures();
    page.family(
        "warren_memory_bytes",
        "The allocator's view: what is in use, what its pages take, what it keeps mapped, and its own records.",
        memory.into_iter().map(|(kind, bytes)| (format!("{{kind=\"{kind}\"}}"), bytes)),
    );
    Ok(Answer::Value(json!({"text": page.0.trim_end()})))
}

/// Messages that left quorum queues unconsumed, under RabbitMQ's names.
fn dead_letters(page: &mut Page, broker: &Broker) {
    let dead = broker.dead_letters();
    let labels = |strategy: &str| format!("{{queue_type=\"rabbit_quorum_queue\",dead_letter_strategy=\"{strategy}\"}}");
    for reason in REASONS {
        let name = format!("rabbitmq_global_messages_dead_lettered_{}_total", reason.name());
        let of_reason = dead.counts().filter(|(other, ..)| *other == reason);
        let samples: Vec<_> = of_reason.map(|(_, treatment, count)| (labels(treatment.name()), count)).collect();
        page.family(&name, "Messages that left queues led by this node unconsumed, for this reason.", samples);
    }
    page.family(
        "rabbitmq_global_messages_dead_lettered_confirmed_total",
        "Dead messages that all of their targets have confirmed.",
        [(labels(Treatment::AtLeastOnce.name()), dead.confirmed())],
    );
}

fn of_peers(page: &mut Page, broker: &Broker) {
    let transport = broker.transport();
    let label = |node| escaped(&peers::name(broker, node));
    let lane = |lane: Lane| match lane {
        Lane::Control => "control",
        Lane::Append => "append",
        Lane::Queue => "queue",
        Lane::Bulk => "bulk",
    };
    let up = transport
        .peers()
        .into_iter()
        .map(|(node, name, _)| (format!("{{peer=\"{}\"}}", escaped(&name)), u64::from(transport.is_up(node))));
    page.family("warren_peer_up", "Whether the peer answers.", up);
    let waiting = transport.waiting().into_iter().flat_map(|(node, lanes)| {
        let peer = label(node);
        Lane::ALL
            .into_iter()
            .zip(lanes)
            .map(move |(of, bytes)| (format!("{{peer=\"{peer}\",lane=\"{}\"}}", lane(of)), bytes as u64))
    });
    page.family("warren_peer_waiting_bytes", "What waits to be sent to the peer.", waiting.collect::<Vec<_>>());
    let deliveries = broker.links().waiting().into_iter();
    let deliveries = deliveries.map(|(node, bytes)| (format!("{{peer=\"{}\"}}", label(node)), bytes as u64));
    page.family("warren_peer_waiting_deliveries_bytes", "Bodies of deliveries that wait for the peer.", deliveries);
}
