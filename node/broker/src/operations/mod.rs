//! What clients declare, bind and delete. Every operation checks names and permissions itself; a frontend only
//! translates.

pub(crate) mod arguments;
pub(crate) mod binding;
pub(crate) mod exchange;
pub mod forget;
pub mod maintenance;
pub mod members;
pub(crate) mod orphans;
pub mod policy;
pub(crate) mod queue;
pub mod reconcile;

use std::sync::Arc;

use warren_metastore::records::{Stored, User};
use warren_metastore::tree::MetaError;

use crate::error::BrokerError;
use crate::metadata::WriteError;

pub use binding::BindingSpec;
pub use exchange::ExchangeSpec;
pub use queue::{QueueDeclared, QueueSpec};

/// On whose behalf an operation runs.
#[derive(Debug, Clone)]
pub struct Context {
    /// The user.
    pub user: Arc<Stored<User>>,
    /// The virtual host.
    pub vhost: Arc<str>,
    /// The connection, owner of the exclusive queues that it declares.
    pub connection: u64,
}

/// A metadata write that failed, as the client of an operation on `object` sees it.
fn write_failed(error: WriteError, what: &str, object: &str) -> BrokerError {
    match error {
        WriteError::Timeout => BrokerError::Timeout(format!(
            "{what} '{object}' timed out: the metadata store may have lost its majority, and it is not known whether it \
             was done"
        )),
        WriteError::Refused(error) => refused(&error, what, object),
    }
}

fn refused(error: &MetaError, what: &str, object: &str) -> BrokerError {
    BrokerError::Internal(format!("{what} '{object}' was refused: {error}"))
}

/// Names lose their carriage returns and line feeds in declare, delete, bind and unbind.
fn clean_name(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '\r' | '\n')).collect()
}
