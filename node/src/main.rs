//! The `warren` binary: one program with many names.
//!
//! | invocation | module |
//! |---|---|
//! | `warren server`, `rabbitmq-server` | [`server`] |
//! | `warren ctl`, `diagnostics`, `queues`, `upgrade`, `rabbitmqctl` and its family | [`cli`]; answered by [`admin`] |
//! | `warren perf` | [`perf`] |

#[macro_use]
mod output;

mod admin;
mod allocator;
mod app;
mod boot_definitions;
mod cli;
mod config;
mod data_dir;
mod exit;
mod listeners;
mod logging;
mod notify;
mod perf;
mod processor;
mod secrets;
mod server;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use cli::Tool;
use exit::Exit;

/// A message broker for RabbitMQ's clients.
#[derive(Parser)]
#[command(name = "warren", version, arg_required_else_help = true)]
struct Warren {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a node in the foreground
    Server(server::Options),
    /// Generates load on any broker
    #[command(subcommand)]
    Perf(Perf),
    /// Operates a running node
    #[command(disable_help_flag = true)]
    Ctl(Words),
    /// Inspects and checks a running node
    #[command(disable_help_flag = true)]
    Diagnostics(Words),
    /// Operates quorum queues
    #[command(disable_help_flag = true)]
    Queues(Words),
    /// Takes a node out of service for an upgrade
    #[command(disable_help_flag = true)]
    Upgrade(Words),
}

#[derive(Subcommand)]
enum Perf {
    /// Drives a broker over AMQP 0-9-1
    Amqp091(perf::Options),
    /// Declares, binds and deletes queues over AMQP 0-9-1
    Declarations(perf::declarations::Options),
}

/// Everything that follows, whatever it looks like: these tools have rules of their own.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

fn main() -> ExitCode {
    if let Some(feature) = processor::missing() {
        complain!(
            "Error: this binary needs a processor with {feature}; build it on this machine without .cargo/config.toml"
        );
        return Exit::Software.into();
    }
    run().into()
}

fn run() -> Exit {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let program = arguments.first().map(|program| Path::new(program).file_name().unwrap_or_default().to_owned());
    let program = program.unwrap_or_default().to_string_lossy().into_owned();
    if let Some(tool) = Tool::from_program(&program) {
        return tool_with(tool, arguments.drain(1..));
    }
    if program == "rabbitmq-server" {
        arguments.insert(1, "server".into());
    }
    // These tools read their own arguments, which saves them the setting up of a parser for everything.
    let tool = arguments.get(1).and_then(|word| word.to_str()).and_then(Tool::from_subcommand);
    if let Some(tool) = tool {
        return tool_with(tool, arguments.drain(2..));
    }
    match Warren::try_parse_from(arguments) {
        Ok(warren) => match warren.command {
            Command::Server(options) => server::run(options),
            Command::Perf(Perf::Amqp091(options)) => perf::run(options),
            Command::Perf(Perf::Declarations(options)) => perf::declarations::run(options),
            Command::Ctl(Words { words }) => cli::run(Tool::Ctl, words),
            Command::Diagnostics(Words { words }) => cli::run(Tool::Diagnostics, words),
            Command::Queues(Words { words }) => cli::run(Tool::Queues, words),
            Command::Upgrade(Words { words }) => cli::run(Tool::Upgrade, words),
        },
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { Exit::Usage } else { Exit::Ok }
        }
    }
}

fn tool_with(tool: Tool, words: impl Iterator<Item = OsString>) -> Exit {
    let mut read = Vec::new();
    for word in words {
        match word.into_string() {
            Ok(word) => read.push(word),
            Err(word) => {
                complain!("Error (argument validation): `{}` is not UTF-8", word.to_string_lossy());
                return Exit::Usage;
            }
        }
    }
    cli::run(tool, read)
}
