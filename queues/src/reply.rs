//! What a queue answers to a command.

use crate::consumer::ConsumerKey;

/// The answer to one command; `M` is a message as the queue hands it out. The answer to a publish is its confirm:
/// only [`Reply::Ok`] confirms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<M> {
    /// Done. To a publish: it is enqueued, or was before.
    Ok,
    /// The enqueuer is known.
    Registered {
        /// The sequence number expected next.
        next_seq: u64,
    },
    /// Not enqueued: an earlier publish of the session is missing. Keep it and resend from `expected` on, in order.
    OutOfSequence {
        /// The sequence number expected next.
        expected: u64,
    },
    /// Not enqueued: the queue does not know the session, so it cannot tell what it has seen. Register as another
    /// session and resend all that is pending.
    UnknownEnqueuer,
    /// The consumer is attached.
    Attached {
        /// Its name in later commands.
        key: ConsumerKey,
        /// The id of its next message.
        next_msg_id: u64,
        /// How many messages it may take now, before those this same command hands it. `u32::MAX` = no limit.
        credit: u32,
        /// Where its delivery count stands, if it grants its own credit.
        delivery_count: u32,
        /// How many it held already (attached again).
        num_checked_out: usize,
        /// Whether it is served; false while it waits behind a single active consumer.
        active: bool,
    },
    /// Not attached: the queue has an exclusive consumer, or the new one wants to be exclusive and is not alone.
    ExclusiveUse,
    /// One message, for a dequeue.
    Got {
        /// Names the temporary consumer that holds it, if unsettled.
        key: ConsumerKey,
        /// The message.
        message: M,
        /// Messages that are left, ready.
        ready: u64,
    },
    /// Nothing to dequeue.
    Empty,
    /// The dequeue's consumer id names an attached consumer.
    IdInUse,
    /// The consumer is cancelled or removed.
    Cancelled {
        /// Its key.
        key: ConsumerKey,
        /// What it still holds (cancel), or held (remove).
        num_checked_out: usize,
    },
    /// There is no such consumer.
    NotFound,
    /// Refused: the queue has a single active consumer, and none of its messages can be taken past that.
    SingleActive,
    /// Delayed messages are ready.
    Retried {
        /// How many.
        count: u64,
    },
    /// The queue was purged.
    Purged {
        /// Messages dropped.
        count: u64,
    },
    /// No binary can read the command at the group's version, or the version does not define it. Nothing changed; a
    /// publish is not enqueued.
    Unsupported,
    /// The command's reference is not above the last one applied. Nothing changed. The host never lets this happen.
    AlreadyApplied,
}
