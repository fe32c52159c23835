//! The metadata group's state machine: the tree, and the replies to recent requests.
//!
//! | machine version | what it added |
//! |---|---|
//! | 1 | the tree, transactions, keep-while, dedup of requests |
//! | 2 | writes of many nodes, changes of fields, operations for each node, early returns; conditions on names by regular expression, on names at any depth, and on fields of payloads; answers about the nodes touched |
//!
//! `apply` is a function of the state, the command and what the entry says about it; it reads no clock, draws no
//! random number, iterates in path order, and answers bytes that it cannot decode with an error on every member alike.

mod command;
mod decode;
mod decode_each;
mod dedup;
mod encode;
mod encode_each;
mod snapshot;
#[cfg(test)]
mod tests;
mod wire;

use std::ops::RangeInclusive;

use prost::Message;
use warren_proto::ids::{MachineVersion, Reference};

pub use command::{Request, RequestId, Write, encode_dedup_ack, encode_drop_dedups, encode_noop};
pub use dedup::MAX_DEDUPS;
use dedup::{Dedups, Remembered};
pub use snapshot::RestoreError;

use crate::tree::{Changes, Edit, KeepWhile, MAX_OPS, MetaError, Op, OpResult, Report, Touched, Tree, regexes, run};

/// Conditions of a node in their stored form.
pub(crate) fn stored_keep_while(keep: &KeepWhile) -> impl Message {
    encode::keep_while(keep)
}

/// Conditions of a node from their stored form.
pub(crate) fn restored_keep_while(bytes: &[u8]) -> Option<KeepWhile> {
    decode::keep_while(wire::KeepWhile::decode(bytes).ok()?)
}

/// Octets of one command, at most.
pub const MAX_COMMAND: usize = 4 << 20;

/// Regular expressions in one command, at most: each takes memory of its own.
pub const MAX_REGEXES: usize = 256;

/// How long a reply is remembered after its caller's deadline. Clocks of nodes may differ by as much: a command that
/// comes later than this is refused, for its dedup may be gone.
pub const DEDUP_GRACE_MS: u64 = 15 * 60 * 1000;

/// What the log says about a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Its place in the log; becomes the revision of what it changes.
    pub reference: Reference,
    /// The leader's clock when it was appended, in ms; never goes backwards.
    pub ts_ms: u64,
    /// The group's effective machine version.
    pub version: MachineVersion,
}

/// What a command answers: one result for each operation done, in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reply {
    /// The results.
    pub results: Vec<OpResult>,
}

impl Reply {
    /// The first result that says whether something was created or changed: a put that created its node, a set
    /// operation that changed its set, a delete that found something.
    pub fn changed(&self) -> bool {
        self.results.iter().any(|result| match result {
            OpResult::Put { created } => *created,
            OpResult::Set { changed } => *changed,
            OpResult::Count(n) => *n > 0,
            OpResult::Nodes(_) | OpResult::Counter { .. } | OpResult::Touched(_) => false,
        })
    }

    /// What the command did to the nodes that it touched, where it asked for that ([`Write::reporting`]).
    pub fn touched(&self) -> &[Touched] {
        match self.results.last() {
            Some(OpResult::Touched(nodes)) => nodes,
            _ => &[],
        }
    }
}

/// The effect of one command.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Who asked, if the command says so.
    pub request: Option<RequestId>,
    /// The answer.
    pub reply: Result<Reply, MetaError>,
    /// Every node touched. Empty for an error and for a repeat, which was done before.
    pub changes: Changes,
}

/// The state machine. Cloning is cheap and gives an independent copy, so that a snapshot can be written on another
/// thread.
#[derive(Clone, Debug)]
pub struct Machine {
    tree: Tree,
    dedups: Dedups,
    applied: Reference,
    /// The newest version that a command was applied in.
    version: MachineVersion,
}

impl Default for Machine {
    fn default() -> Self {
        let version = *Self::VERSIONS.start();
        Machine { tree: Tree::default(), dedups: Dedups::default(), applied: Reference::default(), version }
    }
}

impl Machine {
    /// The versions that this binary can apply.
    pub const VERSIONS: RangeInclusive<MachineVersion> = MachineVersion(1)..=MachineVersion(2);

    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// A handle to the tree as it is now.
    pub fn tree(&self) -> Tree {
        self.tree.clone()
    }

    /// The last command applied.
    pub fn applied(&self) -> Reference {
        self.applied
    }

    /// Carries out one command. Total: whatever the bytes, it answers and does not panic.
    pub fn apply(&mut self, meta: Meta, command: &[u8]) -> Outcome {
        self.applied = meta.reference;
        let unknown = |request| Outcome { request, reply: Err(MetaError::UnknownCommand), changes: Changes::default() };
        let too_large = command.len() > MAX_COMMAND;
        if too_large && meta.version < MachineVersion(2) || !Self::VERSIONS.contains(&meta.version) {
            return unknown(None);
        }
        self.version = self.version.max(meta.version);
        let Ok(command) = wire::Command::decode(command) else {
            return unknown(None);
        };
        if too_large {
            let request = command.request.map(|id| RequestId { origin: id.origin, seq: id.seq });
            return Outcome { request, reply: Err(MetaError::TxnTooLarge), changes: Changes::default() };
        }
        let request = command.request.map(|id| RequestId { origin: id.origin, seq: id.seq });
        if let Some(id) = request {
            self.dedups.remove_below(id.origin, command.acked_below.min(id.seq));
            if let Some(remembered) = self.dedups.get(&id) {
                return Outcome { request, reply: remembered.reply.clone(), changes: Changes::default() };
            }
            // Its dedup may have been dropped: doing it now could be doing it twice.
            if command.deadline_ms.saturating_add(DEDUP_GRACE_MS) < meta.ts_ms && command.deadline_ms != 0 {
                return Outcome { request, reply: Err(MetaError::Expired), changes: Changes::default() };
            }
        }
        let (reply, changes) = match command.body {
            Some(wire::Body::Write(write)) => self.write(meta, write),
            Some(wire::Body::DedupAck(acked)) => {
                acked.ids.iter().for_each(|id| self.dedups.remove(&RequestId { origin: id.origin, seq: id.seq }));
                (Ok(Reply::default()), Changes::default())
            }
            Some(wire::Body::DropDedups(dropped)) => {
                self.drop_expired(&dropped.ids, meta.ts_ms);
                (Ok(Reply::default()), Changes::default())
            }
            Some(wire::Body::Noop(_)) => (Ok(Reply::default()), Changes::default()),
            None => return unknown(request),
        };
        if let Some(id) = request {
            let deadline_ms = if command.deadline_ms == 0 { u64::MAX } else { command.deadline_ms };
            let remembered = Remembered { deadline_ms, reply: reply.clone() };
            self.dedups.insert(id, remembered);
        }
        Outcome { request, reply, changes }
    }

    fn write(&mut self, meta: Meta, write: wire::Ops) -> (Result<Reply, MetaError>, Changes) {
        let report = write.report.map(decode::report);
        if meta.version >= MachineVersion(2) && decode::count(&write.ops) > MAX_OPS {
            return (Err(MetaError::TxnTooLarge), Changes::default());
        }
        let Some(ops) = decode::ops(write.ops) else {
            return (Err(MetaError::UnknownCommand), Changes::default());
        };
        // Members whose binaries are older know nothing of this.
        if meta.version < command::min_version(&ops, report.as_ref()) {
            return (Err(MetaError::UnknownCommand), Changes::default());
        }
        let mut expressions = 0;
        regexes(&ops, &mut |_| expressions += 1);
        if expressions > MAX_REGEXES {
            return (Err(MetaError::TxnTooLarge), Changes::default());
        }
        match self.transact(meta.reference, &ops, report) {
            Ok((reply, tree, changes)) => {
                self.tree = tree;
                (Ok(reply), changes)
            }
            Err(why) => (Err(why), Changes::default()),
        }
    }

    fn transact(
        &self,
        reference: Reference,
        ops: &[Op],
        report: Option<Report>,
    ) -> Result<(Reply, Tree, Changes), MetaError> {
        let mut edit = Edit::new(&self.tree, reference);
        let mut results = run(&mut edit, ops)?;
        let (tree, changes) = edit.finish();
        if let Some(report) = report {
            results.push(OpResult::Touched(report.of(&changes)?));
        }
        Ok((Reply { results }, tree, changes))
    }

    fn drop_expired(&mut self, ids: &[wire::RequestId], ts_ms: u64) {
        for id in ids {
            let id = RequestId { origin: id.origin, seq: id.seq };
            if self.dedups.get(&id).is_some_and(|r| r.deadline_ms.saturating_add(DEDUP_GRACE_MS) < ts_ms) {
                self.dedups.remove(&id);
            }
        }
    }

    /// Requests whose callers have given up by `now_ms`, at most `limit`: for the leader's tick to propose with
    /// [`encode_drop_dedups`].
    pub fn expired_dedups(&self, now_ms: u64, limit: usize) -> Vec<RequestId> {
        self.dedups.expired(now_ms.saturating_sub(DEDUP_GRACE_MS)).take(limit).collect()
    }

    /// Replies remembered.
    pub fn dedup_count(&self) -> usize {
        self.dedups.len()
    }

    /// What must hold in every state; the reason where it does not.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.tree.check_invariants(self.applied)?;
        self.dedups.check_invariants()
    }
}
