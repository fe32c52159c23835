//! What a process costs, from `/proc`.

use std::fs;

/// Clock ticks of a second in `/proc`, the same on every Linux that Warren runs on.
const TICKS: f64 = 100.0;

/// Processor seconds that the process has used.
pub fn processor_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let after_name = stat.rsplit_once(')').expect("a name in brackets").1;
    let fields: Vec<f64> =
        after_name.split_whitespace().skip(11).take(2).map(|field| field.parse().expect("a number")).collect();
    fields.iter().sum::<f64>() / TICKS
}

/// Resident megabytes of the process.
pub fn resident_megabytes(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes.and_then(|number| number.parse::<f64>().ok()).expect("a number") / 1000.0
}
