//! Which nodes there are, and how this one became one of them.

pub mod dns;
pub mod formation;
pub mod identity_file;
pub mod join;
pub mod next_life;
pub mod removal;
pub mod standalone;
pub mod voters;
