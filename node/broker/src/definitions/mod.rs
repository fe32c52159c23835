//! Definitions: everything that was declared and set, as one JSON document (spec: http-api.md, section 5). Messages are no part
//! of it.
//!
//! [`Document`] is such a document, read; [`export`] writes one from the tree; [`Broker::import_definitions`] carries one out.
//! What Warren does not have yet is left out of an import, and named.
//!
//! [`Broker::import_definitions`]: crate::Broker::import_definitions

mod batch;
mod document;
pub mod export;
mod import;
mod unsupported;

pub use document::{Document, Fault};
pub use import::{Count, ImportError, Imported};
