//! Which nodes there are, and how this one became one of them.

pub mod formation;
pub mod identity_file;
pub mod removal;
pub mod standalone;
