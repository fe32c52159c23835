//! Declaring, deleting and purging queues, and finding them for consumers (spec: amqp091.md, section 6).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use warren_metastore::projections::QueueTarget;
use warren_metastore::records::{CreateOrGet, Member, Queue, QueueKind, Record, SessionOwner};
use warren_metastore::tree::{AbortCode, MetaError};
use warren_proto::amqp091::{FieldTable, FieldValue};
use warren_proto::ids::{GroupId, Incarnation, MemberUid, NodeId, SessionRef};
use warren_queues::quorum::SUPPORTED;

use super::arguments::{self, Named};
use super::exchange::bare;
use super::{Context, clean_name, write_failed};
use crate::access::{Permission, Resource};
use crate::cluster::identity_file::random_u64;
use crate::error::{BrokerError, no_queue};
use crate::feature_flags::Feature;
use crate::metadata::{WriteError, now_ms};
use crate::node::{Broker, LeaderLocator, QUEUE_TIMEOUT};
use crate::policy;
use crate::queue::protocol::{QueueReply, QueueRequest, QueueStats};

/// What names of the direct reply-to pseudo-queue begin with.
pub const REPLY_TO: &str = "amq.rabbitmq.reply-to";
/// From so many queues on, new ones are placed at random rather than by counts.
const MANY_QUEUES: usize = 1000;
/// How long a declare of a known queue waits for its figures before it answers with zeros.
const STATS_TIMEOUT: Duration = Duration::from_secs(15);

/// A queue to be.
#[derive(Debug, Clone)]
pub struct QueueSpec {
    /// Its name; empty = the broker makes one.
    pub name: String,
    /// Only check that it exists.
    pub passive: bool,
    /// Survives a restart.
    pub durable: bool,
    /// Belongs to this connection and goes with it.
    pub exclusive: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// No answer is wanted, so no figures are gathered.
    pub nowait: bool,
    /// Its arguments.
    pub arguments: FieldTable,
}

/// A queue that was declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDeclared {
    /// Its name.
    pub name: String,
    /// Messages ready.
    pub messages: u64,
    /// Consumers.
    pub consumers: u64,
}

impl Broker {
    /// Declares a queue, or checks that it exists.
    pub async fn queue_declare(&self, cx: &Context, mut spec: QueueSpec) -> Result<QueueDeclared, BrokerError> {
        spec.name = clean_name(&spec.name);
        let prefix = name_prefix(&mut spec)?;
        if spec.passive {
            return self.declare_passive(cx, &spec).await;
        }
        let asked = arguments::queue_kind(&spec.arguments, Named { vhost: &cx.vhost, name: &spec.name })?;
        let kind = asked.unwrap_or_else(|| self.default_kind(&cx.vhost, &spec));
        if asked.is_none() && kind != QueueKind::Classic {
            spec.arguments.set("x-queue-type", FieldValue::text(kind.name()));
        }
        // Exclusive queues are transient whatever the client says.
        spec.durable &= !spec.exclusive;
        if spec.name.is_empty() {
            if kind != QueueKind::Classic {
                return Err(BrokerError::PreconditionFailed(format!(
                    "cannot declare a server-named queue of type rabbit_{}_queue",
                    kind.name()
                )));
            }
            spec.name = generated_name(&prefix);
        } else if spec.name.starts_with("amq.") {
            return Err(BrokerError::AccessRefused(format!(
                "queue name '{}' contains reserved prefix 'amq.*'",
                spec.name
            )));
        }
        self.check(&cx.user.name, &cx.vhost, Permission::Configure, Resource::Queue(&spec.name))?;
        if let Some(existing) = self.metadata.queue(&cx.vhost, &spec.name) {
            return self.redeclare(cx, &existing, kind, &spec).await;
        }
        let named = Named { vhost: &cx.vhost, name: &spec.name };
        arguments::check(kind, &spec.arguments, named)?;
        if kind == QueueKind::Quorum {
            check_quorum_flags(&spec, named)?;
        }
        self.check_deprecated(&spec)?;
        self.check_queue_limit(&cx.vhost, &spec.name)?;
        self.check_dead_letter(cx, &spec)?;
        arguments::warn(kind, &spec.arguments, named);
        if kind == QueueKind::Quorum {
            let policies = policy::merged(&self.metadata.queue_policies(&cx.vhost, &spec.name, kind));
            policy::warn_of_fallback(&policy::quorum_config(&spec.arguments, &policies), &cx.vhost, &spec.name);
        }
        let owner = spec.exclusive.then(|| SessionOwner {
            node: self.me,
            incarnation: self.sessions.incarnation(),
            connection: cx.connection,
        });
        let queue = self.new_queue(&cx.vhost, &cx.user.name, kind, &spec, owner);
        let reply = match self.metadata.write(queue.create_or_get()).await {
            Ok(reply) => Ok(reply),
            Err(WriteError::Refused(error)) => Err(error),
            Err(error) => return Err(write_failed(error, "declaring queue", &spec.name)),
        };
        match Queue::created(reply) {
            Ok(CreateOrGet::Created) => {}
            Ok(CreateOrGet::Exists(existing)) => return self.redeclare(cx, &existing, kind, &spec).await,
            Err(MetaError::Aborted { code: AbortCode::NoSuchVhost }) => {
                return Err(BrokerError::NotFound(format!("no vhost '{}'", cx.vhost)));
            }
            Err(error) => return Err(super::refused(&error, "declaring queue", &spec.name)),
        }
        self.start_here(&queue).await;
        let target = self.target(cx, &spec.name)?;
        if spec.exclusive {
            self.exclusive.lock().entry(cx.connection).or_default().push(Arc::clone(&target));
        }
        // Answered once the queue can be used: its group has a leader.
        self.queue_stats(&target, QUEUE_TIMEOUT).await?;
        Ok(QueueDeclared { name: spec.name, messages: 0, consumers: 0 })
    }

    /// Refuses what uses a deprecated feature that is denied.
    fn check_deprecated(&self, spec: &QueueSpec) -> Result<(), BrokerError> {
        if !spec.durable && !spec.exclusive {
            self.flags.permits(Feature::TransientNonexclQueues).map_err(BrokerError::Deprecated)?;
        }
        if spec.arguments.get("x-queue-master-locator").is_some() {
            self.flags.permits(Feature::QueueMasterLocator).map_err(BrokerError::Deprecated)?;
        }
        Ok(())
    }

    /// The type of a queue that is declared without one.
    pub(crate) fn default_kind(&self, vhost: &str, spec: &QueueSpec) -> QueueKind {
        let of_vhost = self.metadata.vhost(vhost).and_then(|v| {
            v.default_queue_type.as_deref().and_then(|name| match name {
                "classic" => Some(QueueKind::Classic),
                "quorum" => Some(QueueKind::Quorum),
                _ => None,
            })
        });
        let kind = of_vhost.unwrap_or(self.config.default_queue_type);
        let fits = spec.durable && !spec.exclusive && !spec.auto_delete && !spec.name.is_empty();
        if fits { kind } else { QueueKind::Classic }
    }

    async fn declare_passive(&self, cx: &Context, spec: &QueueSpec) -> Result<QueueDeclared, BrokerError> {
        self.check_any(&cx.user.name, &cx.vhost, Resource::Queue(&spec.name))?;
        let queue = self.metadata.queue(&cx.vhost, &spec.name).ok_or_else(|| no_queue(&cx.vhost, &spec.name))?;
        self.check_exclusive(cx, &queue)?;
        self.declared(cx, spec).await
    }

    async fn redeclare(
        &self,
        cx: &Context,
        existing: &Queue,
        kind: QueueKind,
        spec: &QueueSpec,
    ) -> Result<QueueDeclared, BrokerError> {
        let named = Named { vhost: &cx.vhost, name: &spec.name };
        self.check_exclusive(cx, existing)?;
        if existing.exclusive_owner.is_some() != spec.exclusive {
            return Err(locked(existing));
        }
        let flags =
            [("durable", spec.durable, existing.durable), ("auto_delete", spec.auto_delete, existing.auto_delete)];
        for (field, received, current) in flags {
            if received != current {
                return Err(BrokerError::PreconditionFailed(format!(
                    "inequivalent arg '{field}' for queue '{}' in vhost '{}': received '{received}' but current is \
                     '{current}'",
                    existing.name, existing.vhost
                )));
            }
        }
        if kind != existing.kind {
            return Err(BrokerError::PreconditionFailed(format!(
                "inequivalent arg 'x-queue-type' for queue '{}' in vhost '{}': received '{}' but current is '{}'",
                existing.name,
                existing.vhost,
                kind.name(),
                existing.kind.name()
            )));
        }
        let current = FieldTable::decode_bare(&existing.arguments).unwrap_or_default();
        arguments::equivalent(existing.kind, &current, &spec.arguments, named)?;
        self.declared(cx, spec).await
    }

    async fn declared(&self, cx: &Context, spec: &QueueSpec) -> Result<QueueDeclared, BrokerError> {
        let name = spec.name.clone();
        if spec.nowait {
            return Ok(QueueDeclared { name, messages: 0, consumers: 0 });
        }
        let target = self.target(cx, &name)?;
        let stats = self.queue_stats(&target, STATS_TIMEOUT).await?;
        Ok(QueueDeclared { name, messages: stats.ready, consumers: stats.consumers.len() as u64 })
    }

    fn check_queue_limit(&self, vhost: &str, name: &str) -> Result<(), BrokerError> {
        let view = self.metadata.projections().load();
        if let Some(vhost) = view.vhost(vhost)
            && let Some(record) = vhost.record()
            && let Some(limit) = record.max_queues.and_then(|limit| usize::try_from(limit).ok())
            && vhost.queue_count() >= limit
        {
            return Err(BrokerError::PreconditionFailed(format!(
                "cannot declare queue '{name}': queue limit in vhost '{}' ({limit}) is reached",
                record.name
            )));
        }
        match self.config.limits.queues {
            Some(limit) if view.queue_count() >= limit => Err(BrokerError::PreconditionFailed(format!(
                "cannot declare queue '{name}': queue limit in cluster ({limit}) is reached"
            ))),
            _ => Ok(()),
        }
    }

    /// Who lets a queue's messages go to an exchange must be allowed to move them there.
    fn check_dead_letter(&self, cx: &Context, spec: &QueueSpec) -> Result<(), BrokerError> {
        let Some(exchange) = spec.arguments.get("x-dead-letter-exchange").and_then(FieldValue::as_str) else {
            return Ok(());
        };
        self.check(&cx.user.name, &cx.vhost, Permission::Read, Resource::Queue(&spec.name))?;
        self.check(&cx.user.name, &cx.vhost, Permission::Write, Resource::Exchange(exchange))
    }

    /// The record of a new queue, with the nodes that it is to live on.
    pub(crate) fn new_queue(
        &self,
        vhost: &Arc<str>,
        user: &Arc<str>,
        kind: QueueKind,
        spec: &QueueSpec,
        owner: Option<SessionOwner>,
    ) -> Queue {
        let policies = policy::merged(&self.metadata.queue_policies(vhost, &spec.name, kind));
        let locator = policy::leader_locator(&spec.arguments, &policies).unwrap_or(self.config.leader_locator);
        let home = match locator {
            LeaderLocator::Balanced if !spec.exclusive => self.node_to_lead(),
            LeaderLocator::ClientLocal if kind == QueueKind::Quorum && self.is_in_maintenance() => self.node_to_lead(),
            LeaderLocator::Balanced | LeaderLocator::ClientLocal => self.me,
        };
        let members = match kind {
            QueueKind::Classic => Vec::new(),
            QueueKind::Quorum => self.place(home, arguments::initial_group_size(&spec.arguments)),
        };
        Queue {
            vhost: Arc::clone(vhost),
            name: spec.name.as_str().into(),
            kind,
            durable: spec.durable,
            auto_delete: spec.auto_delete,
            exclusive_owner: owner,
            arguments: bare(&spec.arguments),
            group: new_group(),
            home,
            leader: (kind == QueueKind::Quorum).then_some(home),
            machine_version: if kind == QueueKind::Quorum { self.version_for(&members) } else { 0 },
            members,
            user: Arc::clone(user),
            created_ms: now_ms(),
            ..Queue::default()
        }
    }

    /// Whether there are so many queues that chance spreads them as well as counting does.
    fn has_many_queues(&self) -> bool {
        self.metadata.projections().peek().queue_count() >= MANY_QUEUES
    }

    /// The running node in service that leads the fewest queues, this one where it is no worse than the others; any of them
    /// where there are many queues.
    fn node_to_lead(&self) -> NodeId {
        let (nodes, away) = (self.metadata.nodes(), self.nodes_in_maintenance());
        let serves = |id: &NodeId| self.links.is_up(*id) && !away.contains(id);
        let running: Vec<NodeId> = nodes.iter().map(|n| n.id).filter(serves).collect();
        if self.has_many_queues() {
            return running.get((random_u64() % running.len().max(1) as u64) as usize).copied().unwrap_or(self.me);
        }
        let mut leaders: HashMap<NodeId, usize> = HashMap::new();
        for target in self.metadata.projections().load().queues() {
            if let Some(leader) = self.leader_of(target).or_else(|| target.record().leader) {
                *leaders.entry(leader).or_default() += 1;
            }
        }
        let load = |id: &NodeId| (leaders.get(id).copied().unwrap_or_default(), *id != self.me);
        running.into_iter().min_by_key(load).unwrap_or(self.me)
    }

    /// Chooses the nodes of a new quorum queue: this one and its first leader's, then running ones, then others, and those
    /// in maintenance last; among those the ones with the fewest members, or any where there are many queues.
    fn place(&self, home: NodeId, size: Option<usize>) -> Vec<Member> {
        let size = size.unwrap_or(self.config.quorum_size as usize).max(1);
        let mut nodes = self.metadata.nodes();
        let turn = (random_u64() % nodes.len().max(1) as u64) as usize;
        nodes.rotate_left(turn);
        let loads = if self.has_many_queues() { HashMap::new() } else { self.members_by_node() };
        let away = self.nodes_in_maintenance();
        nodes.sort_by_key(|n| {
            let load = loads.get(&n.id).copied().unwrap_or_default();
            (n.id != home, away.contains(&n.id), n.id != self.me, !self.links.is_up(n.id), load)
        });
        nodes
            .iter()
            .take(size)
            .map(|n| Member {
                uid: MemberUid(random_u64()),
                node: n.id,
                node_incarnation: Incarnation(n.incarnation.0),
                joined: false,
            })
            .collect()
    }

    /// The machine version that a new group begins with: the newest one that all of its members' nodes support.
    fn version_for(&self, members: &[Member]) -> u16 {
        let nodes = self.metadata.nodes();
        let supported = |node| nodes.iter().find(|n| n.id == node).map_or(0, |n| n.machine_version);
        let newest = members.iter().map(|m| supported(m.node)).min().unwrap_or_default();
        newest.clamp(SUPPORTED.start().0, self.config.machine_version.0)
    }

    /// What publishing and consuming need to know of a queue.
    fn target(&self, cx: &Context, name: &str) -> Result<Arc<QueueTarget>, BrokerError> {
        self.metadata.queue_target(&cx.vhost, name).ok_or_else(|| no_queue(&cx.vhost, name))
    }

    /// Finds a queue for `basic.consume`, `basic.get` and the like; checks existence, permission and exclusivity.
    pub fn queue_to_read(&self, cx: &Context, name: &str) -> Result<Arc<QueueTarget>, BrokerError> {
        self.check(&cx.user.name, &cx.vhost, Permission::Read, Resource::Queue(name))?;
        let queue = self.metadata.queue(&cx.vhost, name).ok_or_else(|| no_queue(&cx.vhost, name))?;
        self.check_exclusive(cx, &queue)?;
        self.target(cx, name)
    }

    /// Drops the ready messages of a queue. Answers how many there were.
    pub async fn queue_purge(&self, cx: &Context, name: &str) -> Result<u64, BrokerError> {
        let target = self.queue_to_read(cx, name)?;
        self.purge(&target).await
    }

    /// [`queue_purge`](Self::queue_purge) for operators.
    pub async fn purge(&self, target: &QueueTarget) -> Result<u64, BrokerError> {
        match self.call_queue(self.nobody(), target, QueueRequest::Purge).await? {
            QueueReply::Purged { count } => Ok(count),
            other => Err(BrokerError::Internal(format!("the queue answered {other:?}"))),
        }
    }

    /// Deletes a queue with its bindings. Answers how many messages were ready. Deleting one that is not there is fine.
    pub async fn queue_delete(
        &self,
        cx: &Context,
        name: &str,
        if_unused: bool,
        if_empty: bool,
    ) -> Result<u64, BrokerError> {
        let name = clean_name(name);
        self.check(&cx.user.name, &cx.vhost, Permission::Configure, Resource::Queue(&name))?;
        let Some(queue) = self.metadata.queue(&cx.vhost, &name) else { return Ok(0) };
        self.check_exclusive(cx, &queue)?;
        if queue.kind == QueueKind::Quorum && (if_unused || if_empty) {
            return Err(BrokerError::NotImplemented(format!(
                "cannot delete queue '{name}' in vhost '{}': queue type quorum does not support if-unused and if-empty",
                cx.vhost
            )));
        }
        let target = self.target(cx, &name)?;
        let conditional = if_unused || if_empty;
        let stats =
            match self.queue_stats(&target, if conditional { STATS_TIMEOUT } else { Duration::from_secs(1) }).await {
                Ok(stats) => stats,
                // A queue without a leader can be deleted all the same.
                Err(_) if !conditional => QueueStats::default(),
                Err(error) => return Err(error),
            };
        if if_unused && !stats.consumers.is_empty() {
            return Err(BrokerError::PreconditionFailed(format!("queue '{name}' in vhost '{}' in use", cx.vhost)));
        }
        if if_empty && stats.ready > 0 {
            return Err(BrokerError::PreconditionFailed(format!("queue '{name}' in vhost '{}' not empty", cx.vhost)));
        }
        self.delete_queue(&queue).await?;
        Ok(stats.ready)
    }

    /// Deletes this incarnation of a queue, whoever asks.
    pub async fn delete_queue(&self, queue: &Queue) -> Result<(), BrokerError> {
        let tree = self.metadata.tree();
        let stored = Queue::get(&tree, &queue.vhost, &queue.name).map_err(|e| BrokerError::Internal(e.to_string()))?;
        let Some(stored) = stored.filter(|s| s.group == queue.group) else { return Ok(()) };
        match self.metadata.write(Queue::delete(&queue.vhost, &queue.name, stored.create_revision)).await {
            Ok(_) => Ok(()),
            Err(error) => Err(write_failed(error, "deleting queue", &queue.name)),
        }
    }

    /// Deletes the exclusive queues of a connection that ended. Those that cannot be deleted now are looked for later.
    pub async fn delete_exclusive_queues(&self, connection: u64) {
        let owned = self.exclusive.lock().remove(&connection).unwrap_or_default();
        for target in owned {
            if let Err(error) = self.delete_queue(&target.record()).await {
                tracing::warn!(queue = %target.name, vhost = %target.vhost, %error, "exclusive queue was not deleted yet");
            }
        }
    }

    pub(super) fn check_exclusive(&self, cx: &Context, queue: &Queue) -> Result<(), BrokerError> {
        let mine = SessionOwner { node: self.me, incarnation: self.sessions.incarnation(), connection: cx.connection };
        match queue.exclusive_owner {
            Some(owner) if owner != mine => Err(locked(queue)),
            _ => Ok(()),
        }
    }

    /// The session of requests that no client session makes.
    pub fn nobody(&self) -> SessionRef {
        SessionRef { node: self.me, incarnation: self.sessions.incarnation(), id: 0 }
    }
}

fn locked(queue: &Queue) -> BrokerError {
    BrokerError::ResourceLocked(format!(
        "cannot obtain exclusive access to locked queue '{}' in vhost '{}'. It could be originally declared on another \
         connection or the exclusive property value does not match that of the original declaration.",
        queue.name, queue.vhost
    ))
}

pub(crate) fn check_quorum_flags(spec: &QueueSpec, queue: Named<'_>) -> Result<(), BrokerError> {
    let invalid = |property: &str| {
        Err(BrokerError::PreconditionFailed(format!(
            "invalid property '{property}' for queue '{}' in vhost '{}'",
            queue.name, queue.vhost
        )))
    };
    if spec.exclusive {
        return invalid("exclusive-owner");
    }
    if !spec.durable {
        return invalid("non-durable");
    }
    if spec.auto_delete {
        return invalid("auto-delete");
    }
    Ok(())
}

fn name_prefix(spec: &mut QueueSpec) -> Result<String, BrokerError> {
    let prefix = spec.arguments.remove("x-name-prefix");
    let prefix = prefix.as_ref().and_then(FieldValue::as_str).unwrap_or_default();
    if prefix.len() > 64 && spec.name.is_empty() {
        return Err(BrokerError::PreconditionFailed("x-name-prefix is longer than 64 bytes".into()));
    }
    Ok(if prefix.is_empty() { "amq.gen".to_owned() } else { prefix.to_owned() })
}

fn generated_name(prefix: &str) -> String {
    use base64::Engine as _;
    let bytes = [random_u64().to_le_bytes(), random_u64().to_le_bytes()].concat();
    format!("{prefix}-{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes))
}

fn new_group() -> GroupId {
    loop {
        let group = GroupId(random_u64());
        if group != GroupId::METADATA {
            return group;
        }
    }
}
