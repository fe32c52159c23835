//! Usage texts and what is said about wrong command lines.

use super::Tool;
use super::verbs::{self, Kind, VERBS, Verb};
use crate::exit::Exit;

/// The usage of a verb, in one line.
pub fn verb(verb: &Verb) -> String {
    let mut line =
        format!("Usage: warren ctl [--node <node>] [--timeout <seconds>] [--quiet] [--silent] {}", verb.name);
    for parameter in verb.parameters {
        let name = parameter.trim_end_matches(['?', '*', '<']);
        line.push_str(&match parameter.chars().last() {
            Some('?' | '<') => format!(" [<{name}>]"),
            Some('*') => format!(" [<{name}> ...]"),
            _ => format!(" <{name}>"),
        });
    }
    for option in verb.options {
        line.push_str(&format!(" [--{option}]"));
    }
    if let Kind::Listing { columns, .. } = verb.kind {
        line.push_str(" [--no-table-headers] [<column> ...]\n\nColumns: ");
        line.push_str(&columns.join(", "));
    }
    line
}

/// The verbs of a tool.
fn overview(tool: Tool) -> String {
    let mut text = String::from(
        "Usage: warren ctl|diagnostics|queues|upgrade [--node <node>] [options] <verb> [<arguments>]\n\nVerbs:\n",
    );
    for verb in VERBS.iter().filter(|verb| verb.belongs_to(tool)) {
        if !matches!(verb.kind, Kind::NotOffered | Kind::Deprecated(_)) {
            text.push_str(&format!("  {}\n", verb.name));
        }
    }
    text.push_str("\n`help <verb>` shows a verb's arguments.");
    text
}

/// The verbs of a tool that begin so, a line each; the options of all verbs where it begins with a dash.
pub fn beginning(tool: Tool, prefix: &str) -> String {
    const OPTIONS: &[&str] = &[
        "--dry-run",
        "--formatter",
        "--help",
        "--longnames",
        "--no-table-headers",
        "--node",
        "--quiet",
        "--silent",
        "--timeout",
        "--vhost",
    ];
    let offered = |verb: &&Verb| verb.belongs_to(tool) && !matches!(verb.kind, Kind::NotOffered | Kind::Deprecated(_));
    let mut names: Vec<&str> = match prefix.starts_with('-') {
        true => OPTIONS.to_vec(),
        false => VERBS.iter().filter(offered).map(|verb| verb.name).collect(),
    };
    names.retain(|name| name.starts_with(prefix));
    names.sort_unstable();
    names.iter().map(|name| format!("{name}\n")).collect()
}

/// A tool without a verb.
pub fn tool(tool: Tool, asked: bool) -> Exit {
    if asked {
        say!("{}", overview(tool));
        return Exit::Ok;
    }
    complain!("{}", overview(tool));
    Exit::Usage
}

/// `help [verb]`.
pub fn help(tool: Tool, name: &str) -> Exit {
    if name.is_empty() {
        say!("{}", overview(tool));
        return Exit::Ok;
    }
    match verbs::find(tool, name) {
        Some(found) => {
            say!("{}", verb(found));
            Exit::Ok
        }
        None => unknown(tool, name),
    }
}

/// A verb that does not exist.
pub fn unknown(tool: Tool, name: &str) -> Exit {
    match verbs::similar(tool, name) {
        Some(similar) => complain!("Command '{name}' not found. Did you mean '{similar}'?"),
        None => complain!("Command '{name}' not found."),
    }
    Exit::Usage
}

/// Wrong arguments.
pub fn wrong(of: Option<&Verb>, why: &str) -> Exit {
    complain!("Error (argument validation): {why}");
    if let Some(of) = of {
        complain!("{}", verb(of));
    }
    Exit::Usage
}
