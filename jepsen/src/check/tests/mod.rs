//! The judge judged: histories that are in order, and others that are not.

mod linearizable;
mod mutations;
mod order;
mod redelivery;
mod single_active;
mod total_queue;

use super::{Consumer, Event, Operation, Process, Queue, Reason, Value};

/// Publisher 1's message of this number.
fn v(counter: u64) -> Value {
    Value::new(1, counter)
}

fn c(consumer: u64) -> Consumer {
    Consumer(consumer)
}

fn publish(value: Value) -> Event {
    Event::Publish { value, priority: None, may_expire: false }
}

fn confirm(value: Value) -> Event {
    Event::Confirm { value }
}

/// The first delivery.
fn deliver(value: Value, consumer: u64) -> Event {
    Event::Deliver { value, consumer: c(consumer), redelivered: false, acquired: Some(0), got: false }
}

/// A later one.
fn redeliver(value: Value, consumer: u64, acquired: u32) -> Event {
    Event::Deliver { value, consumer: c(consumer), redelivered: true, acquired: Some(acquired), got: false }
}

fn settle(value: Value, consumer: u64) -> Event {
    Event::Settle { value, consumer: c(consumer), proven: false }
}

fn give_back(value: Value, consumer: u64) -> Event {
    Event::Return { value, consumer: c(consumer) }
}

fn gone(value: Value, reason: Reason) -> Event {
    Event::Gone { value, reason }
}

/// One event a ms, at one queue.
fn history(events: impl IntoIterator<Item = Event>) -> Vec<Operation> {
    let operation = |(n, event)| Operation { at_ns: n as u64 * 1_000_000, process: Process(1), queue: Queue(1), event };
    events.into_iter().enumerate().map(operation).collect()
}

/// Messages `1..=count`, published and confirmed.
fn published(count: u64) -> Vec<Event> {
    (1..=count).flat_map(|n| [publish(v(n)), confirm(v(n))]).collect()
}

/// Each message delivered to one consumer and settled.
fn consumed(numbers: impl IntoIterator<Item = u64>) -> Vec<Event> {
    numbers.into_iter().flat_map(|n| [deliver(v(n), 1), settle(v(n), 1)]).collect()
}
