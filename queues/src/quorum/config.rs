//! What arguments and policies make of a queue.

/// A queue's effective configuration. Every member must start from the same one; later changes come through the log
/// ([`Command::UpdateConfig`](super::Command::UpdateConfig)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// A returned message is dropped when its count exceeds this; `None` = never.
    pub delivery_limit: Option<u32>,
    /// How long a consumer that is cut off keeps its messages, in ms.
    pub consumer_disconnected_timeout_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { delivery_limit: Some(20), consumer_disconnected_timeout_ms: 60_000 }
    }
}
