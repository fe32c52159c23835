//! What policies may say, and what they, operator policies and a queue's own arguments make together (spec:
//! broker-model.md, section 5; quorum-queues.md, section 9).
//!
//! Which policy applies to what is the metadata's business ([`Policies`](warren_metastore::projections::Policies)).

mod effective;
mod keys;
mod merge;

pub(crate) use effective::{leader_locator, locator, quorum_config, target_group_size, warn_of_fallback};
pub(crate) use keys::term;
pub use keys::{Kind, problems};
pub use merge::merged;
