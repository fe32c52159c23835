//! What can be put into the metadata group's log.

use bytes::BufMut;
use prost::Message;
use warren_proto::ids::MachineVersion;

use super::{encode, wire};
use crate::tree::{Op, Report, is_of_version_1, regexes};

/// A request, unique in the cluster: the asking process and its own count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RequestId {
    /// The start of the asking node's process (its random incarnation).
    pub origin: u64,
    /// Rises with each request of that process.
    pub seq: u64,
}

/// How a write is recognised when it arrives twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Who asks.
    pub id: RequestId,
    /// Wall clock in ms after which the caller has given up; its remembered reply may then be dropped.
    pub deadline_ms: u64,
    /// Every request of this origin with a lower sequence number has its answer: their replies are forgotten.
    pub acked_below: u64,
}

/// A change to the tree: operations that happen all or not at all. Records make these; the caller adds the
/// [`Request`] and proposes the bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Write {
    ops: Vec<Op>,
    report: Option<Report>,
}

impl Write {
    /// These operations as one command.
    pub fn new(ops: Vec<Op>) -> Self {
        Write { ops, report: None }
    }

    /// The same write, which also answers what became of each node that it touched ([`Reply::touched`](super::Reply::touched)).
    pub fn reporting(mut self, report: Report) -> Self {
        self.report = Some(report);
        self
    }

    /// Regular expressions in its conditions that match nothing, because they cannot be used, and why.
    pub fn unusable_regexes(&self) -> Vec<(&str, &str)> {
        let mut unusable = Vec::new();
        regexes(&self.ops, &mut |regex| unusable.extend(regex.problem().map(|why| (regex.source(), why))));
        unusable
    }

    /// The operations.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Both writes as one command; the first says what is reported, or the other where it does not.
    pub fn and(mut self, other: Write) -> Self {
        self.ops.extend(other.ops);
        self.report = self.report.or(other.report);
        self
    }

    /// The lowest machine version that defines every operation of it.
    pub fn min_version(&self) -> MachineVersion {
        min_version(&self.ops, self.report.as_ref())
    }

    /// The command's encoding. Without a request, a repeat of it is applied again.
    pub fn encode(&self, request: Option<&Request>, out: &mut impl BufMut) {
        let body = wire::Body::Write(wire::Ops {
            ops: encode::ops(&self.ops),
            report: self.report.as_ref().map(encode::report),
        });
        command(request, body, out);
    }

    /// [`encode`](Self::encode) into a vector.
    pub fn to_bytes(&self, request: Option<&Request>) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(request, &mut out);
        out
    }
}

impl From<Op> for Write {
    fn from(op: Op) -> Self {
        Write::new(vec![op])
    }
}

/// The lowest machine version that defines all of a command.
pub(super) fn min_version(ops: &[Op], report: Option<&Report>) -> MachineVersion {
    MachineVersion(if report.is_none() && is_of_version_1(ops) { 1 } else { 2 })
}

/// Encodes "these callers have their replies".
pub fn encode_dedup_ack(ids: &[RequestId], out: &mut impl BufMut) {
    command(None, wire::Body::DedupAck(request_ids(ids)), out);
}

/// Encodes "these callers have given up". The machine decides by the entry's time stamp whether that is so.
pub fn encode_drop_dedups(ids: &[RequestId], out: &mut impl BufMut) {
    command(None, wire::Body::DropDedups(request_ids(ids)), out);
}

/// Encodes a command that changes nothing.
pub fn encode_noop(request: Option<&Request>, out: &mut impl BufMut) {
    command(request, wire::Body::Noop(wire::Empty {}), out);
}

fn request_ids(ids: &[RequestId]) -> wire::RequestIds {
    wire::RequestIds { ids: ids.iter().map(|id| wire::RequestId { origin: id.origin, seq: id.seq }).collect() }
}

fn command(request: Option<&Request>, body: wire::Body, out: &mut impl BufMut) {
    let command = wire::Command {
        request: request.map(|r| wire::RequestId { origin: r.id.origin, seq: r.id.seq }),
        deadline_ms: request.map_or(0, |r| r.deadline_ms),
        acked_below: request.map_or(0, |r| r.acked_below),
        body: Some(body),
    };
    out.put_slice(&command.encode_to_vec());
}
