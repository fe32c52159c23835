//! The classic queue.
