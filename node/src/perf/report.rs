//! The result of a run, for people and for programs.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::Outcome;
use super::measure::Latencies;
use super::options::Plan;

/// The rates of the measured time, in messages per second.
struct Rates {
    seconds: f64,
    published: f64,
    confirmed: f64,
    consumed: f64,
    megabytes: f64,
}

fn rates(outcome: &Outcome) -> Rates {
    let (start, end) = (&outcome.start, &outcome.end);
    let seconds = (end.at - start.at).max(1) as f64 / 1e9;
    let per_second = |end: u64, start: u64| (end - start) as f64 / seconds;
    Rates {
        seconds,
        published: per_second(end.published, start.published),
        confirmed: per_second(end.confirmed, start.confirmed),
        consumed: per_second(end.consumed, start.consumed),
        megabytes: per_second(end.consumed_bytes, start.consumed_bytes) / 1e6,
    }
}

/// One line of JSON. Rates are per second of the measured time, latencies in microseconds, counts of the whole run.
pub fn json(plan: &Plan, outcome: &Outcome) -> Value {
    let rates = rates(outcome);
    let last = &outcome.last;
    let watched: Vec<Value> = outcome
        .watched
        .iter()
        .map(|usage| {
            json!({
                "pid": usage.pid,
                "cpu_seconds": usage.cpu_seconds,
                "resident_bytes": usage.resident,
                "written_bytes": usage.written,
            })
        })
        .collect();
    json!({
        "producers": plan.producers.len(),
        "consumers": plan.consumers.len(),
        "queues": plan.queues.len(),
        "queue_type": plan.queue_type.argument().unwrap_or("default"),
        "size": plan.size,
        "window": plan.producers.first().map_or(0, |producer| producer.window),
        "rate": plan.rate,
        "seconds": round(rates.seconds),
        "published_per_second": rates.published.round(),
        "confirmed_per_second": rates.confirmed.round(),
        "consumed_per_second": rates.consumed.round(),
        "consumed_megabytes_per_second": round(rates.megabytes),
        "confirm_us": latencies(&outcome.run.confirms.lock()),
        "end_to_end_us": latencies(&outcome.run.end_to_end.lock()),
        "published": last.published,
        "confirmed": last.confirmed,
        "nacked": last.nacked,
        "unknown": last.unknown,
        "consumed": last.consumed,
        "redelivered": last.redelivered,
        "consumed_bytes": last.consumed_bytes,
        "errors": *outcome.run.errors.lock(),
        "broken_connections": last.errors,
        "client_cpu_seconds": round(outcome.own_cpu),
        "watched": watched,
    })
}

const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("p9999", 0.9999)];

fn latencies(latencies: &Latencies) -> Value {
    if latencies.count() == 0 {
        return Value::Null;
    }
    let mut values = Map::new();
    for (name, quantile) in QUANTILES {
        values.insert(name.to_owned(), latencies.micros(quantile).into());
    }
    values.insert("max".to_owned(), latencies.max_micros().into());
    values.insert("mean".to_owned(), latencies.mean_micros().into());
    values.insert("count".to_owned(), latencies.count().into());
    Value::Object(values)
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// A few lines for people.
pub fn text(plan: &Plan, outcome: &Outcome) -> String {
    let rates = rates(outcome);
    let last = &outcome.last;
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line(format!(
        "{} producers, {} consumers, {} {} queues, {} B, {:.1} s",
        plan.producers.len(),
        plan.consumers.len(),
        plan.queues.len(),
        plan.queue_type.argument().unwrap_or("default"),
        plan.size,
        rates.seconds
    ));
    for (name, rate) in [("published", rates.published), ("confirmed", rates.confirmed), ("consumed", rates.consumed)] {
        if rate > 0.0 {
            line(format!("{name:<10} {:>12} msg/s", grouped(rate as u64)));
        }
    }
    for (name, histogram) in [("confirm", &outcome.run.confirms), ("end to end", &outcome.run.end_to_end)] {
        let histogram = histogram.lock();
        if histogram.count() > 0 {
            let parts: Vec<String> = QUANTILES
                .iter()
                .map(|(label, quantile)| format!("{label} {}", milliseconds(histogram.micros(*quantile))))
                .collect();
            line(format!("{name:<10} {}  max {} ms", parts.join("  "), milliseconds(histogram.max_micros())));
        }
    }
    for (name, count) in [("refused", last.nacked), ("unknown", last.unknown), ("redelivered", last.redelivered)] {
        if count > 0 {
            line(format!("{name:<10} {:>12}", grouped(count)));
        }
    }
    line(format!("processor  {:.2} s here", outcome.own_cpu));
    for usage in &outcome.watched {
        line(format!(
            "           {:.2} s in process {}, {} MB resident, {} MB written",
            usage.cpu_seconds,
            usage.pid,
            usage.resident / 1_000_000,
            usage.written / 1_000_000
        ));
    }
    for error in outcome.run.errors.lock().iter() {
        line(format!("error      {error}"));
    }
    out
}

fn milliseconds(micros: u64) -> String {
    format!("{:.3}", micros as f64 / 1000.0)
}

/// A number with a comma before each group of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }
}
