//! The `warren` binary.

mod config;
mod exit;
mod perf;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "warren perf", about = "Load generators for any broker")]
struct Perf {
    #[command(subcommand)]
    protocol: Protocol,
}

#[derive(Subcommand)]
enum Protocol {
    /// Drives a broker over AMQP 0-9-1
    Amqp091(perf::Options),
}

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Perf {
        protocol: Protocol::Amqp091(options),
    } = Perf::parse_from(arguments);
    perf::run(options).into()
}
