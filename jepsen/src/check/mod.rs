//! The checkers. Each is a pure function of a history, and also a struct that is fed one operation after another, so that
//! a long history need not be kept.
//!
//! | checker | what must hold |
//! |---|---|
//! | [`total_queue`] | what was confirmed is delivered, nothing is that was not published or was refused, and nothing again after a settle that was proven |
//! | [`redelivery`] | a message comes for the first time once; every later delivery says that it is one |
//! | [`order`] | first deliveries to one consumer keep each publisher's order within a priority |
//! | [`single_active`] | one consumer at a time is served |
//! | [`linearizable`] | every call takes effect at one moment between its beginning and its end; [`registers`] is what calls may change |

pub mod history;
pub mod linearizable;
pub mod order;
pub mod redelivery;
pub mod registers;
mod runs;
pub mod single_active;
pub mod total_queue;
mod verdict;

pub use history::{Consumer, Event, Operation, Process, Queue, Reason, Value};
pub use verdict::Verdict;

#[cfg(test)]
mod tests;
