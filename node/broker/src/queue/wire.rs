//! [`protocol`](super::protocol) as protobuf, for queues and sessions on different nodes.

use bytes::Bytes;
use warren_proto::ids::{GroupId, NodeId, Reference, SessionRef};
use warren_proto::peer;
use warren_queues::{MsgIds, Run};

use super::protocol::{
    Body, ConsumerStats, ConsumerStatus, Delivery, EnqueueOutcome, QueueEvent, QueueItem, QueueReply, QueueRequest,
    QueueStats, QueuedMessage, Settlement, ToQueue, ToSession, Traits,
};

/// A message of a peer that this binary does not understand. It is dropped and logged; the sender's resend rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a peer's message lacks or has an unknown {0}")]
pub struct WireError(&'static str);

fn session_id(s: SessionRef) -> peer::SessionId {
    peer::SessionId { node: s.node.0, incarnation: s.incarnation, id: s.id }
}

fn session_ref(s: Option<peer::SessionId>) -> Result<SessionRef, WireError> {
    let s = s.ok_or(WireError("session"))?;
    Ok(SessionRef { node: NodeId(s.node), incarnation: s.incarnation, id: s.id })
}

fn node(id: u64) -> Option<NodeId> {
    (id != 0).then_some(NodeId(id))
}

/// Encodes what a session asks.
pub fn encode_to_queue(to: ToQueue) -> peer::ToQueue {
    use peer::queue_item::Kind;
    let items = to
        .items
        .into_iter()
        .map(|item| {
            let kind = match item {
                QueueItem::Publishes { first_seq, messages } => Kind::Publishes(peer::Publishes {
                    first_seq,
                    messages: messages.into_iter().map(encode_publish).collect(),
                }),
                QueueItem::Command { correlation, request } => {
                    Kind::Command(peer::Command { correlation, request: Some(encode_request(request)) })
                }
                QueueItem::Stat { correlation } => Kind::Stat(peer::Stat { correlation }),
                QueueItem::Redeliver { tag, from_msg_id } => Kind::Redeliver(peer::Redeliver { tag, from_msg_id }),
                QueueItem::Ended => Kind::Ended(peer::Ended {}),
            };
            peer::QueueItem { kind: Some(kind) }
        })
        .collect();
    peer::ToQueue { group: to.group.0, from: Some(session_id(to.from)), items }
}

fn encode_publish(message: QueuedMessage) -> peer::Publish {
    let QueuedMessage { head, body, traits: Traits { delivery_count, priority, ttl_ms } } = message;
    peer::Publish { head, body, delivery_count, priority: priority.map(u32::from), ttl_ms }
}

fn decode_publish(p: peer::Publish) -> QueuedMessage {
    let priority = p.priority.map(|priority| u8::try_from(priority).unwrap_or(u8::MAX));
    let traits = Traits { delivery_count: p.delivery_count, priority, ttl_ms: p.ttl_ms };
    QueuedMessage { head: p.head, body: p.body, traits }
}

fn encode_runs(ids: &MsgIds) -> Vec<u64> {
    ids.runs().iter().flat_map(|run| [run.start, run.count]).collect()
}

fn decode_runs(runs: &[u64]) -> MsgIds {
    let mut ids = MsgIds::new();
    for run in runs.chunks_exact(2) {
        ids.push_run(Run { start: run[0], count: run[1] });
    }
    ids
}

/// Decodes what a session of another node asks.
pub fn decode_to_queue(to: peer::ToQueue) -> Result<ToQueue, WireError> {
    use peer::queue_item::Kind;
    let mut items = Vec::with_capacity(to.items.len());
    for item in to.items {
        items.push(match item.kind.ok_or(WireError("queue item"))? {
            Kind::Publishes(p) => QueueItem::Publishes {
                first_seq: p.first_seq,
                messages: p.messages.into_iter().map(decode_publish).collect(),
            },
            Kind::Command(c) => QueueItem::Command {
                correlation: c.correlation,
                request: decode_request(c.request.ok_or(WireError("request"))?)?,
            },
            Kind::Stat(s) => QueueItem::Stat { correlation: s.correlation },
            Kind::Redeliver(r) => QueueItem::Redeliver { tag: r.tag, from_msg_id: r.from_msg_id },
            Kind::Ended(_) => QueueItem::Ended,
        });
    }
    Ok(ToQueue { group: GroupId(to.group), from: session_ref(to.from)?, items })
}

/// Encodes what a queue says. Bodies must have been loaded; one that is gone travels as empty.
pub fn encode_to_session(to: ToSession) -> peer::ToSession {
    use peer::to_session::Kind;
    let kind = match to.event {
        QueueEvent::Enqueued { first_seq, last_seq, outcome } => {
            let outcome = match outcome {
                EnqueueOutcome::Enqueued => peer::EnqueueOutcome::Enqueued,
                EnqueueOutcome::OutOfSequence => peer::EnqueueOutcome::OutOfSequence,
                EnqueueOutcome::UnknownEnqueuer => peer::EnqueueOutcome::UnknownEnqueuer,
                EnqueueOutcome::Rejected => peer::EnqueueOutcome::Rejected,
                EnqueueOutcome::Unsupported => peer::EnqueueOutcome::Unsupported,
            };
            Kind::Enqueued(peer::Enqueued { first_seq, last_seq, outcome: outcome.into() })
        }
        QueueEvent::Replied { correlation, reply } => {
            Kind::Replied(peer::Replied { correlation, reply: Some(encode_reply(reply)) })
        }
        QueueEvent::Deliver { tag, key, messages, again } => Kind::Deliver(peer::Deliver {
            tag,
            key: key.0,
            again,
            messages: messages.into_iter().map(encode_delivery).collect(),
        }),
        QueueEvent::LeaderChanged => Kind::LeaderChanged(peer::LeaderChanged {}),
        QueueEvent::Status { reject } => Kind::Status(peer::Status { reject }),
        QueueEvent::Released { tag, key, ids, dequeue } => {
            Kind::Released(peer::Released { tag, key: key.0, runs: encode_runs(&ids), dequeue })
        }
        QueueEvent::NotLeader { leader, correlations, first_seq, busy } => Kind::NotLeader(peer::NotLeader {
            leader: leader.map_or(0, |n| n.0),
            correlations,
            first_seq: first_seq.unwrap_or(0),
            busy,
        }),
        QueueEvent::Ping => Kind::Ping(peer::Ping {}),
        QueueEvent::Eol => Kind::Eol(peer::Eol {}),
        QueueEvent::Stats { correlation, stats } => Kind::Stats(peer::Stats {
            correlation,
            ready: stats.ready,
            unacknowledged: stats.unacknowledged,
            ready_bytes: stats.ready_bytes,
            unacknowledged_bytes: stats.unacknowledged_bytes,
            consumers: stats.consumers.len() as u64,
            publishers: stats.publishers,
            dead: stats.dead,
            dead_bytes: stats.dead_bytes,
            delayed: stats.delayed,
            delayed_bytes: stats.delayed_bytes,
            returned: stats.returned,
            by_priority: stats.by_priority.iter().flat_map(|(priority, n)| [u64::from(*priority), *n]).collect(),
            next_delayed_at: stats.delayed_until.map(|(next, _)| next),
            last_delayed_at: stats.delayed_until.map(|(_, last)| last),
            delivery_limit: stats.delivery_limit,
            consumer_infos: stats
                .consumers
                .into_iter()
                .map(|c| peer::ConsumerInfo {
                    tag: c.tag,
                    session: Some(session_id(c.session)),
                    ack_required: c.ack_required,
                    prefetch: c.prefetch,
                    active: matches!(c.status, ConsumerStatus::Up | ConsumerStatus::SingleActive),
                    priority: c.priority,
                    user: c.user,
                    status: encode_status(c.status).into(),
                })
                .collect(),
        }),
    };
    peer::ToSession { session: Some(session_id(to.session)), group: to.group.0, leader: to.leader.0, kind: Some(kind) }
}

fn container(body: Body) -> Bytes {
    match body {
        Body::Here(bytes) => bytes,
        Body::InLog(_) | Body::Gone | Body::Unreadable => Bytes::new(),
    }
}

fn body(container: Bytes) -> Body {
    if container.is_empty() { Body::Gone } else { Body::Here(container) }
}

/// Decodes what a queue of another node says.
pub fn decode_to_session(to: peer::ToSession) -> Result<ToSession, WireError> {
    use peer::to_session::Kind;
    let event = match to.kind.ok_or(WireError("session event"))? {
        Kind::Enqueued(e) => QueueEvent::Enqueued {
            first_seq: e.first_seq,
            last_seq: e.last_seq,
            outcome: match e.outcome() {
                peer::EnqueueOutcome::Enqueued if e.outcome != 0 => return Err(WireError("enqueue outcome")),
                peer::EnqueueOutcome::Enqueued => EnqueueOutcome::Enqueued,
                peer::EnqueueOutcome::OutOfSequence => EnqueueOutcome::OutOfSequence,
                peer::EnqueueOutcome::UnknownEnqueuer => EnqueueOutcome::UnknownEnqueuer,
                peer::EnqueueOutcome::Rejected => EnqueueOutcome::Rejected,
                peer::EnqueueOutcome::Unsupported => EnqueueOutcome::Unsupported,
            },
        },
        Kind::Replied(r) => {
            QueueEvent::Replied { correlation: r.correlation, reply: decode_reply(r.reply.ok_or(WireError("reply"))?)? }
        }
        Kind::Deliver(d) => QueueEvent::Deliver {
            tag: d.tag,
            key: Reference(d.key),
            again: d.again,
            messages: d.messages.into_iter().map(decode_delivery).collect(),
        },
        Kind::LeaderChanged(_) => QueueEvent::LeaderChanged,
        Kind::Status(s) => QueueEvent::Status { reject: s.reject },
        Kind::Released(r) => {
            QueueEvent::Released { tag: r.tag, key: Reference(r.key), ids: decode_runs(&r.runs), dequeue: r.dequeue }
        }
        Kind::NotLeader(n) => QueueEvent::NotLeader {
            leader: node(n.leader),
            correlations: n.correlations,
            first_seq: (n.first_seq != 0).then_some(n.first_seq),
            busy: n.busy,
        },
        Kind::Ping(_) => QueueEvent::Ping,
        Kind::Eol(_) => QueueEvent::Eol,
        Kind::Stats(s) => QueueEvent::Stats {
            correlation: s.correlation,
            stats: QueueStats {
                ready: s.ready,
                unacknowledged: s.unacknowledged,
                ready_bytes: s.ready_bytes,
                unacknowledged_bytes: s.unacknowledged_bytes,
                publishers: s.publishers,
                dead: s.dead,
                dead_bytes: s.dead_bytes,
                delayed: s.delayed,
                delayed_bytes: s.delayed_bytes,
                returned: s.returned,
                by_priority: s
                    .by_priority
                    .chunks_exact(2)
                    .map(|pair| (u8::try_from(pair[0]).unwrap_or(u8::MAX), pair[1]))
                    .collect(),
                delayed_until: s.next_delayed_at.zip(s.last_delayed_at),
                delivery_limit: s.delivery_limit,
                consumers: s
                    .consumer_infos
                    .into_iter()
                    .map(|c| {
                        let status = decode_status(&c);
                        Ok(ConsumerStats {
                            tag: c.tag,
                            session: session_ref(c.session)?,
                            ack_required: c.ack_required,
                            prefetch: c.prefetch,
                            status,
                            priority: c.priority,
                            user: c.user,
                        })
                    })
                    .collect::<Result<_, WireError>>()?,
            },
        },
    };
    Ok(ToSession { session: session_ref(to.session)?, group: GroupId(to.group), leader: NodeId(to.leader), event })
}

fn encode_status(status: ConsumerStatus) -> peer::ConsumerStatus {
    match status {
        ConsumerStatus::Up => peer::ConsumerStatus::Up,
        ConsumerStatus::SingleActive => peer::ConsumerStatus::SingleActive,
        ConsumerStatus::Waiting => peer::ConsumerStatus::Waiting,
        ConsumerStatus::Suspected => peer::ConsumerStatus::Suspected,
        ConsumerStatus::TimedOut => peer::ConsumerStatus::TimedOut,
    }
}

fn decode_status(c: &peer::ConsumerInfo) -> ConsumerStatus {
    match c.status() {
        // A node that only knows whether it is active says so in the older field.
        peer::ConsumerStatus::Up if !c.active => ConsumerStatus::Waiting,
        peer::ConsumerStatus::Up => ConsumerStatus::Up,
        peer::ConsumerStatus::SingleActive => ConsumerStatus::SingleActive,
        peer::ConsumerStatus::Waiting => ConsumerStatus::Waiting,
        peer::ConsumerStatus::Suspected => ConsumerStatus::Suspected,
        peer::ConsumerStatus::TimedOut => ConsumerStatus::TimedOut,
    }
}

fn encode_delivery(m: Delivery) -> peer::Delivery {
    peer::Delivery {
        msg_id: m.msg_id,
        acquired_count: m.acquired_count,
        delivery_count: m.delivery_count,
        container: container(m.body),
    }
}

fn decode_delivery(m: peer::Delivery) -> Delivery {
    Delivery {
        msg_id: m.msg_id,
        acquired_count: m.acquired_count,
        delivery_count: m.delivery_count,
        body: body(m.container),
    }
}

fn encode_request(request: QueueRequest) -> peer::command::Request {
    use peer::command::Request as Wire;
    match request {
        QueueRequest::Attach {
            tag,
            no_ack,
            exclusive,
            prefetch,
            priority,
            arguments,
            user,
            timeout_ms,
            default_timeout_ms,
        } => Wire::Attach(peer::Attach {
            tag,
            no_ack,
            exclusive,
            prefetch,
            priority,
            arguments,
            user,
            timeout_ms,
            default_timeout_ms,
        }),
        QueueRequest::Dequeue { tag, default_timeout_ms } => Wire::Dequeue(peer::Dequeue { tag, default_timeout_ms }),
        QueueRequest::Register => Wire::Register(peer::Register {}),
        QueueRequest::DlxAttach { prefetch } => Wire::DlxAttach(peer::DlxAttach { prefetch }),
        QueueRequest::DlxSettle { ids } => Wire::DlxSettle(peer::DlxSettle { runs: encode_runs(&ids) }),
        QueueRequest::Settle { key, settlement, ids } => {
            let settlement = match settlement {
                Settlement::Ack => peer::Settlement::Ack,
                Settlement::Requeue { failed: false } => peer::Settlement::Requeue,
                Settlement::Requeue { failed: true } => peer::Settlement::RequeueFailed,
                Settlement::Discard { failed: false } => peer::Settlement::Discard,
                Settlement::Discard { failed: true } => peer::Settlement::DiscardFailed,
            };
            Wire::Settle(peer::Settle { key: key.0, settlement: settlement.into(), runs: encode_runs(&ids) })
        }
        QueueRequest::Sent { key, count } => Wire::Sent(peer::Sent { key: key.0, count }),
        QueueRequest::Cancel { tag } => Wire::Cancel(peer::Cancel { tag }),
        QueueRequest::Purge => Wire::Purge(peer::Purge {}),
        QueueRequest::SessionGone { session } => {
            Wire::SessionGone(peer::SessionGone { session: Some(session_id(session)) })
        }
    }
}

fn decode_request(request: peer::command::Request) -> Result<QueueRequest, WireError> {
    use peer::command::Request as Wire;
    Ok(match request {
        Wire::Attach(a) => QueueRequest::Attach {
            tag: a.tag,
            no_ack: a.no_ack,
            exclusive: a.exclusive,
            prefetch: a.prefetch,
            priority: a.priority,
            arguments: a.arguments,
            user: a.user,
            timeout_ms: a.timeout_ms,
            default_timeout_ms: a.default_timeout_ms,
        },
        Wire::Dequeue(d) => QueueRequest::Dequeue { tag: d.tag, default_timeout_ms: d.default_timeout_ms },
        Wire::Register(_) => QueueRequest::Register,
        Wire::DlxAttach(d) => QueueRequest::DlxAttach { prefetch: d.prefetch },
        Wire::DlxSettle(d) => QueueRequest::DlxSettle { ids: decode_runs(&d.runs) },
        Wire::Settle(s) => {
            let settlement = match peer::Settlement::try_from(s.settlement).map_err(|_| WireError("settlement"))? {
                peer::Settlement::Ack => Settlement::Ack,
                peer::Settlement::Requeue => Settlement::Requeue { failed: false },
                peer::Settlement::RequeueFailed => Settlement::Requeue { failed: true },
                peer::Settlement::Discard => Settlement::Discard { failed: false },
                peer::Settlement::DiscardFailed => Settlement::Discard { failed: true },
            };
            QueueRequest::Settle { key: Reference(s.key), settlement, ids: decode_runs(&s.runs) }
        }
        Wire::Sent(s) => QueueRequest::Sent { key: Reference(s.key), count: s.count },
        Wire::Cancel(c) => QueueRequest::Cancel { tag: c.tag },
        Wire::Purge(_) => QueueRequest::Purge,
        Wire::SessionGone(g) => QueueRequest::SessionGone { session: session_ref(g.session)? },
    })
}

fn encode_reply(reply: QueueReply) -> peer::replied::Reply {
    use peer::replied::Reply as Wire;
    match reply {
        QueueReply::Done => Wire::Done(peer::Done {}),
        QueueReply::Attached { key, next_msg_id } => Wire::Attached(peer::Attached { key: key.0, next_msg_id }),
        QueueReply::Got { key, message, ready } => {
            Wire::Got(peer::Got { key: key.0, message: Some(encode_delivery(message)), ready })
        }
        QueueReply::Empty => Wire::Empty(peer::Empty {}),
        QueueReply::Purged { count } => Wire::Purged(peer::Purged { count }),
        QueueReply::NotFound => Wire::NotFound(peer::NotFound {}),
        QueueReply::Unsupported => Wire::Unsupported(peer::Unsupported {}),
        QueueReply::ExclusiveUse => Wire::ExclusiveUse(peer::ExclusiveUse {}),
        QueueReply::SingleActive => Wire::SingleActive(peer::SingleActive {}),
        QueueReply::Registered { reject } => Wire::Registered(peer::Registered { reject }),
    }
}

fn decode_reply(reply: peer::replied::Reply) -> Result<QueueReply, WireError> {
    use peer::replied::Reply as Wire;
    Ok(match reply {
        Wire::Done(_) => QueueReply::Done,
        Wire::Attached(a) => QueueReply::Attached { key: Reference(a.key), next_msg_id: a.next_msg_id },
        Wire::Got(g) => QueueReply::Got {
            key: Reference(g.key),
            message: decode_delivery(g.message.ok_or(WireError("message"))?),
            ready: g.ready,
        },
        Wire::Empty(_) => QueueReply::Empty,
        Wire::Purged(p) => QueueReply::Purged { count: p.count },
        Wire::NotFound(_) => QueueReply::NotFound,
        Wire::Unsupported(_) => QueueReply::Unsupported,
        Wire::ExclusiveUse(_) => QueueReply::ExclusiveUse,
        Wire::SingleActive(_) => QueueReply::SingleActive,
        Wire::Registered(r) => QueueReply::Registered { reject: r.reject },
    })
}
