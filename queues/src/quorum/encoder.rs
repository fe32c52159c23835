//! The leader's encoder.

use warren_proto::batch::{BatchBuilder, MAX_COMMANDS, UnsupportedVersion};
use warren_proto::ids::MachineVersion;

use super::codec::{MAX_ANNOTATIONS, Source, put_enqueue, put_publish};
use super::command::{Command, Request, Traits};
use super::version::{MV1, MV2};
use crate::enqueuer::Origin;
use crate::msg_ids::MsgIds;

/// Writes requests as commands of the version that a group has at the end of its log. What the version cannot say is
/// refused here, and never reaches the log.
#[derive(Debug, Clone, Copy)]
pub struct Encoder {
    version: MachineVersion,
}

/// A request that was not added to the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The group is too old for it. Tell the caller.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedVersion),
    /// The batch holds as many commands as it can. Propose it, and encode again.
    #[error("the batch is full")]
    BatchFull,
    /// A list in the request is longer than one command may carry. Split it.
    #[error("the request's list is too long")]
    TooLong,
}

impl Encoder {
    /// An encoder for a group whose version at the end of its log is `version`.
    pub fn for_group(version: MachineVersion) -> Self {
        Encoder { version }
    }

    /// The version written.
    pub fn version(&self) -> MachineVersion {
        self.version
    }

    /// Appends a request to a batch. Answers its position there.
    pub fn encode(&self, request: &Request, out: &mut BatchBuilder) -> Result<u16, EncodeError> {
        debug_assert_eq!(self.version, out.effective());
        if out.len() >= MAX_COMMANDS {
            return Err(EncodeError::BatchFull);
        }
        let too_long = match request {
            Command::Settle { ids, .. }
            | Command::Return { ids, .. }
            | Command::Discard { ids, .. }
            | Command::DlxSettle { ids, .. } => ids.runs().len() > MsgIds::MAX_RUNS,
            Command::Modify(modify) => {
                modify.ids.runs().len() > MsgIds::MAX_RUNS || modify.annotations.len() > MAX_ANNOTATIONS
            }
            _ => false,
        };
        if too_long {
            return Err(EncodeError::TooLong);
        }
        let needed = request.min_version();
        if needed > self.version {
            return Err(UnsupportedVersion { effective: self.version, needed }.into());
        }
        if let Command::Enqueue(enqueue) = request {
            let source = enqueue.origin.map_or(Source::Nowhere, |origin| self.source(origin, out));
            return Ok(out.push(needed, |bytes| put_enqueue(bytes, source, enqueue))?);
        }
        Ok(out.push(needed, |bytes| request.encode(self.version, bytes))?)
    }

    /// How to write where the next publish in the batch comes from.
    fn source(&self, origin: Origin, out: &mut BatchBuilder) -> Source {
        let follows = out.follows(origin.session, origin.seq);
        if follows && self.version >= MV2 { Source::Next } else { Source::Origin(origin) }
    }

    /// Appends a publish whose container is `meta` followed by `body`, copying both once, into the batch.
    pub fn encode_publish(
        &self,
        origin: Origin,
        traits: &Traits,
        meta: &[u8],
        body: &[u8],
        out: &mut BatchBuilder,
    ) -> Result<u16, EncodeError> {
        if out.len() >= MAX_COMMANDS {
            return Err(EncodeError::BatchFull);
        }
        let source = self.source(origin, out);
        Ok(out.push(MV1, |bytes| put_publish(bytes, source, traits, meta, body))?)
    }
}
