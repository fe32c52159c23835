//! `warren perf`: a load generator for any AMQP 0-9-1 broker. It shares the machine with what it measures, so it does as
//! little as it can per message: frames are laid out once, writes and acknowledgements are batched, and all
//! connections share one thread unless told otherwise.
//!
//! In the open loop (`--rate`) a latency counts from the time at which a message was due, not from when it could be
//! sent, so that a stalled broker does not hide its own stalls.

mod clock;
mod connection;
mod consumer;
pub mod declarations;
mod inbox;
mod measure;
mod options;
mod process;
mod producer;
mod progress;
mod publication;
mod report;
mod uri;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::exit::Exit;
use connection::Connection;
use measure::{Run, Snapshot};
pub use options::Options;
use options::Plan;
use publication::Bodies;

/// How often the end of the run is looked for.
const POLL: Duration = Duration::from_millis(20);
/// How long consumers may lag behind the producers' end.
const DRAIN: Duration = Duration::from_secs(20);
/// Consumers that get nothing for this long after the producers' end are done.
const QUIET: Duration = Duration::from_secs(2);

/// Runs the load and prints the result.
pub fn run(options: Options) -> Exit {
    let plan = match options.plan() {
        Ok(plan) => plan,
        Err(why) => {
            complain!("Error: {why}");
            return Exit::Usage;
        }
    };
    let runtime = match plan.threads {
        1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        threads => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    };
    let result = runtime.and_then(|runtime| {
        runtime.block_on(async {
            tokio::select! {
                result = load(&plan) => result,
                _ = tokio::signal::ctrl_c() => Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted")),
            }
        })
    });
    match result {
        Ok(outcome) => {
            if plan.json {
                say!("{}", report::json(&plan, &outcome));
            } else {
                crate::output::print(&report::text(&plan, &outcome));
            }
            if outcome.end.errors > 0 && !plan.reconnect { Exit::Unavailable } else { Exit::Ok }
        }
        Err(error) => {
            complain!("Error: {error}");
            Exit::Unavailable
        }
    }
}

/// What a run gave.
pub struct Outcome {
    run: Arc<Run>,
    /// At the end of the warm-up.
    start: Snapshot,
    /// When the measured time was over.
    end: Snapshot,
    /// When everything was settled.
    last: Snapshot,
    /// Processor time of this process, in seconds.
    own_cpu: f64,
    /// The watched processes: id, processor time in the measured time, resident bytes at its end.
    watched: Vec<process::Usage>,
}

async fn load(plan: &Plan) -> io::Result<Outcome> {
    prepare(plan).await?;
    let run = Arc::new(Run::new());
    let bodies = Arc::new(Bodies::new(plan.size));
    let mut consumers = JoinSet::new();
    for consumer in &plan.consumers {
        consumers.spawn(consumer::consume(consumer.clone(), Arc::clone(&run)));
    }
    let mut producers = JoinSet::new();
    for producer in &plan.producers {
        producers.spawn(producer::produce(producer.clone(), Arc::clone(&bodies), Arc::clone(&run)));
    }
    let display = (io::stderr().is_terminal() && !plan.quiet).then(|| {
        let length = plan.duration.map(|duration| plan.warmup + duration);
        tokio::spawn(progress::show(Arc::clone(&run), length, plan.messages))
    });
    sleep(plan.warmup).await;
    run.measure_from.store(run.clock.now(), Relaxed);
    let start = run.totals.snapshot(&run.clock);
    let before: Vec<process::Usage> = plan.pids.iter().map(|pid| process::usage(*pid)).collect();
    let own_before = process::usage(std::process::id());

    measured(plan, &run, &mut producers, &consumers).await;
    let end = run.totals.snapshot(&run.clock);
    let watched = plan.pids.iter().zip(&before).map(|(pid, before)| process::usage(*pid).since(before)).collect();
    let own_cpu = process::usage(std::process::id()).since(&own_before).cpu_seconds;
    // Latencies of the drain are not part of the measured load.
    run.measure_from.store(u64::MAX, Relaxed);

    run.stop_publishing.store(true, Relaxed);
    while producers.join_next().await.is_some() {}
    drain(plan, &run, &consumers).await;
    run.stop_consuming.store(true, Relaxed);
    let _ = timeout(DRAIN, async { while consumers.join_next().await.is_some() {} }).await;
    if let Some(display) = display {
        display.abort();
        progress::clear();
    }
    let last = run.totals.snapshot(&run.clock);
    if plan.delete_after {
        clean_up(plan).await;
    }
    Ok(Outcome { run, start, end, last, own_cpu, watched })
}

/// Waits until the measured time is over: the duration, all messages, or the end of all workers.
async fn measured(plan: &Plan, run: &Run, producers: &mut JoinSet<()>, consumers: &JoinSet<()>) {
    let end = plan.duration.map(|duration| Instant::now() + duration);
    let publishing = !plan.producers.is_empty();
    loop {
        while producers.try_join_next().is_some() {}
        if end.is_some_and(|end| Instant::now() >= end) {
            return;
        }
        let consumed = run.totals.consumed.load(Relaxed);
        let produced = !publishing || producers.is_empty();
        match plan.messages {
            Some(messages) if produced => {
                // What was never confirmed need not arrive.
                let expected =
                    if publishing { messages - run.totals.unknown.load(Relaxed).min(messages) } else { messages };
                if plan.consumers.is_empty() || consumed >= expected {
                    return;
                }
            }
            _ => {}
        }
        let dead = (publishing && producers.is_empty() && plan.messages.is_none())
            || (!plan.consumers.is_empty() && consumers.is_empty() && produced);
        if dead {
            return;
        }
        sleep(POLL).await;
    }
}

/// Lets consumers take what was published.
async fn drain(plan: &Plan, run: &Run, consumers: &JoinSet<()>) {
    if plan.consumers.is_empty() || plan.producers.is_empty() {
        return;
    }
    let deadline = Instant::now() + DRAIN;
    let mut last = (run.totals.consumed.load(Relaxed), Instant::now());
    while Instant::now() < deadline && !consumers.is_empty() {
        let totals = &run.totals;
        let consumed = totals.consumed.load(Relaxed);
        if consumed != last.0 {
            last = (consumed, Instant::now());
        }
        let caught_up = consumed >= totals.published.load(Relaxed);
        if caught_up || last.1.elapsed() > QUIET {
            return;
        }
        sleep(POLL).await;
    }
}

/// Makes the queues, empty unless they are to be kept.
async fn prepare(plan: &Plan) -> io::Result<()> {
    let mut connection = Connection::open(&plan.uris[0]).await?;
    for queue in &plan.queues {
        if plan.delete_before {
            connection.delete(queue).await?;
        }
        connection.declare(queue, plan.queue_type.argument()).await?;
    }
    connection.close().await;
    Ok(())
}

async fn clean_up(plan: &Plan) {
    for uri in &plan.uris {
        let Ok(mut connection) = Connection::open(uri).await else {
            continue;
        };
        for queue in &plan.queues {
            if connection.delete(queue).await.is_err() {
                return;
            }
        }
        connection.close().await;
        return;
    }
}
