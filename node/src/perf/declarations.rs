//! `warren perf declarations`: how fast a broker declares, binds and deletes, one request after the other on each
//! connection, as programs do that make their topology when they start.

use std::io;
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::clock::Clock;
use super::connection::Connection;
use super::measure::Latencies;
use super::options::QueueKind;
use super::report::grouped;
use super::uri::Uri;
use crate::exit::Exit;

/// More than this is a typing error, not a load.
const MOST: usize = 1_000_000;
/// The exchange that queues are bound to.
const EXCHANGE: &str = "amq.topic";

/// Declares, binds and deletes queues and reports rates and latencies.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Broker nodes; connections are spread over them. Repeatable, or separated by commas
    #[arg(long, short = 'H', value_delimiter = ',', default_value = "amqp://guest:guest@127.0.0.1:5672/%2f")]
    pub uri: Vec<String>,
    /// Connections; each sends a request when the one before is answered
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Queues in all
    #[arg(long, default_value_t = 1000)]
    pub queues: usize,
    /// Name of the queues; the queue's number is appended
    #[arg(long, short = 'u', default_value = "warren-perf-declared-")]
    pub queue: String,
    /// Type of the queues
    #[arg(long, value_enum, default_value_t = QueueKind::Classic)]
    pub queue_type: QueueKind,
    /// Bindings of each queue to amq.topic
    #[arg(long, default_value_t = 1)]
    pub bindings: usize,
    /// Does not delete the queues
    #[arg(long)]
    pub keep: bool,
    /// One line of JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// What is measured, one after the other.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Declare,
    Bind,
    Delete,
}

impl Phase {
    const fn done(self) -> &'static str {
        match self {
            Phase::Declare => "declared",
            Phase::Bind => "bound",
            Phase::Delete => "deleted",
        }
    }
}

/// One phase's result.
struct Measured {
    phase: Phase,
    requests: u64,
    seconds: f64,
    latencies: Latencies,
}

impl Measured {
    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.requests as f64 / self.seconds } else { 0.0 }
    }
}

/// Runs the phases and prints the result.
pub fn run(options: Options) -> Exit {
    let uris = match checked(&options) {
        Ok(uris) => uris,
        Err(why) => {
            complain!("Error: {why}");
            return Exit::Usage;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.and_then(|runtime| {
        runtime.block_on(async {
            tokio::select! {
                result = measure(&options, &uris) => result,
                _ = tokio::signal::ctrl_c() => Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted")),
            }
        })
    });
    match result {
        Ok(measured) if options.json => {
            let phases: serde_json::Map<String, Value> =
                measured.iter().map(|m| (m.phase.done().to_owned(), as_json(m))).collect();
            say!("{}", Value::Object(phases));
            Exit::Ok
        }
        Ok(measured) => {
            for m in &measured {
                let [p50, p99, max] = milliseconds(&m.latencies);
                say!(
                    "{:<9} {:>9}/s  p50 {p50:.3}  p99 {p99:.3}  max {max:.3} ms",
                    m.phase.done(),
                    grouped(m.rate() as u64)
                );
            }
            Exit::Ok
        }
        Err(error) => {
            complain!("Error: {error}");
            Exit::Unavailable
        }
    }
}

fn checked(options: &Options) -> Result<Vec<Uri>, String> {
    for (name, value) in
        [("connections", options.connections), ("queues", options.queues), ("bindings", options.bindings.max(1))]
    {
        if value == 0 || value > MOST {
            return Err(format!("--{name} is from 1 to {MOST}"));
        }
    }
    options.uri.iter().map(|uri| Uri::parse(uri)).collect()
}

fn milliseconds(latencies: &Latencies) -> [f64; 3] {
    [latencies.micros(0.5), latencies.micros(0.99), latencies.max_micros()].map(|micros| micros as f64 / 1000.0)
}

fn as_json(m: &Measured) -> Value {
    let [p50, p99, max] = milliseconds(&m.latencies);
    json!({ "requests": m.requests, "per_second": m.rate().round(), "p50_ms": p50, "p99_ms": p99, "max_ms": max })
}

async fn measure(options: &Options, uris: &[Uri]) -> io::Result<Vec<Measured>> {
    let mut connections = Vec::new();
    for number in 0..options.connections {
        connections.push(Connection::open(&uris[number % uris.len()]).await?);
    }
    let mut phases = vec![Phase::Declare];
    phases.extend((options.bindings > 0).then_some(Phase::Bind));
    phases.extend((!options.keep).then_some(Phase::Delete));
    let mut measured = Vec::new();
    for phase in phases {
        let began = Instant::now();
        let mut working = JoinSet::new();
        for (number, connection) in connections.drain(..).enumerate() {
            working.spawn(work(phase, number, options.clone(), connection));
        }
        let mut latencies = Latencies::new();
        while let Some(done) = working.join_next().await {
            let (connection, own) = done.map_err(io::Error::other)??;
            latencies.merge(&own);
            connections.push(connection);
        }
        measured.push(Measured {
            phase,
            requests: latencies.count(),
            seconds: began.elapsed().as_secs_f64(),
            latencies,
        });
    }
    for connection in connections {
        connection.close().await;
    }
    Ok(measured)
}

/// One connection's share of a phase.
async fn work(
    phase: Phase,
    number: usize,
    options: Options,
    mut connection: Connection,
) -> io::Result<(Connection, Latencies)> {
    let clock = Clock::start();
    let mut latencies = Latencies::new();
    for queue in (number..options.queues).step_by(options.connections) {
        let name = format!("{}{queue}", options.queue);
        let repeats = if matches!(phase, Phase::Bind) { options.bindings } else { 1 };
        for repeat in 0..repeats {
            let began = clock.now();
            match phase {
                Phase::Declare => connection.declare(&name, options.queue_type.argument()).await.map(|_| ())?,
                Phase::Bind => connection.bind(&name, EXCHANGE, &format!("{repeat}.of.{name}")).await?,
                Phase::Delete => connection.delete(&name).await?,
            }
            latencies.record(began, clock.now(), 1);
        }
    }
    Ok((connection, latencies))
}
