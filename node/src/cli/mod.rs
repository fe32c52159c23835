//! The command line for operators: `warren ctl`, `diagnostics`, `queues`, and the same under rabbitmqctl's names.
//!
//! A command line becomes a [`Call`]: a verb with its arguments checked. Most verbs are then one question to a node whose
//! answer is printed; the others are in [`own`].

mod arguments;
mod document;
mod format;
mod own;
mod target;
mod tool;
mod usage;
mod verbs;

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::admin::protocol::{Code, PROGRESS, Refusal, Request};
use crate::config::environment::{self, Environment};
use crate::exit::Exit;
use crate::output::print;
use arguments::{Arguments, Globals, Wrong};
use format::Formatter;
use target::{Answer, Failure, Target};
pub use tool::Tool;
use verbs::{Kind, Verb};

/// Time for verbs without a limit of their own.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// A verb that may take so long tells how far it is.
const LONG: Duration = Duration::from_secs(600);
/// Longest password read from standard input.
const MAX_PASSWORD: u64 = 64 * 1024;

/// A verb with its arguments.
struct Call {
    verb: &'static Verb,
    globals: Globals,
    /// Arguments and options by name.
    args: Map<String, Value>,
    columns: Vec<String>,
    timeout: Duration,
    target: Target,
}

/// Runs a tool with the words after its name.
pub fn run(tool: Tool, words: impl IntoIterator<Item = String>) -> Exit {
    let arguments = match arguments::parse(words) {
        Ok(arguments) => arguments,
        Err(Wrong(why)) => return usage::wrong(None, &why),
    };
    let Some(name) = arguments.verb.clone() else {
        return usage::tool(tool, arguments.globals.help);
    };
    let Some(verb) = verbs::find(tool, &name) else {
        return usage::unknown(tool, &name);
    };
    if arguments.globals.help {
        say!("{}", usage::verb(verb));
        return Exit::Ok;
    }
    match Call::new(verb, arguments) {
        Ok(call) if call.globals.dry_run => Exit::Ok,
        Ok(call) => call.run(tool),
        Err(Refused::Usage(why)) => usage::wrong(Some(verb), &why),
        Err(Refused::Data(why)) => {
            complain!("Error:\n{why}");
            Exit::Data
        }
    }
}

/// Arguments that were not accepted.
enum Refused {
    Usage(String),
    Data(String),
}

impl From<Wrong> for Refused {
    fn from(Wrong(why): Wrong) -> Self {
        Refused::Usage(why)
    }
}

impl Call {
    fn new(verb: &'static Verb, arguments: Arguments) -> Result<Self, Refused> {
        let Arguments { globals, words, options, .. } = arguments;
        let mut args = Map::new();
        for (name, value) in options {
            if !verb.options.contains(&name) {
                return Err(Refused::Usage(format!("Invalid options for this command: --{name}")));
            }
            let value = if value == "true" { Value::Bool(true) } else { Value::String(value) };
            args.insert(name.to_owned(), value);
        }
        if verb.name == "forget_cluster_node" && args.remove("offline").is_some_and(|offline| offline != "false") {
            let why = "--offline is not supported: the metadata's majority has to know that the node leaves";
            return Err(Refused::Usage(why.to_owned()));
        }
        let rest = bind(verb, &words, &mut args)?;
        let columns = match verb.kind {
            Kind::Listing { columns, default } => {
                arguments::columns(rest, columns, if default.is_empty() { columns } else { default })?
            }
            _ if !rest.is_empty() => return Err(Refused::Usage("too many arguments".to_owned())),
            _ => Vec::new(),
        };
        for (name, value) in verb.defaults {
            args.entry(*name).or_insert_with(|| Value::from(*value));
        }
        if let Some(Value::String(priority)) = args.get("priority")
            && priority.parse::<i64>().is_err()
        {
            return Err(Refused::Usage(format!("Invalid options for this command: --priority : {priority}")));
        }
        if let Some(Value::String(unit)) = args.get("unit")
            && document::unit(unit).is_none()
        {
            return Err(Refused::Usage(format!("unit `{unit}` is not supported")));
        }
        let target = Target::new(&globals, &Environment::new(&environment::process)).map_err(Refused::Data)?;
        let timeout = globals.timeout.or(verb.timeout.map(Duration::from_secs)).unwrap_or(FOREVER);
        Ok(Call { verb, globals, args, columns, timeout, target })
    }

    fn run(mut self, tool: Tool) -> Exit {
        match self.verb.kind {
            Kind::Deprecated(notice) => {
                say!("{notice}");
                return Exit::Ok;
            }
            Kind::NotOffered => {
                complain!("Error:\nthis command is not available in Warren");
                return Exit::Usage;
            }
            Kind::Own(verbs::Own::Help) => return usage::help(tool, self.text("verb")),
            _ => {}
        }
        if let Err(exit) = self.read_password() {
            return exit;
        }
        self.banner();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(async {
                match self.verb.kind {
                    Kind::Own(own) => own::run(&self, own).await,
                    _ => self.ask().await,
                }
            }),
            Err(error) => {
                complain!("Error:\n{error}");
                Exit::Software
            }
        }
    }

    async fn ask(&self) -> Exit {
        match self.call(self.verb.name, self.timeout).await {
            Ok(answer) => self.show(answer),
            Err(failure) => self.failed(&failure),
        }
    }

    async fn call(&self, verb: &str, timeout: Duration) -> Result<Answer, Failure> {
        let mut args = self.args.clone();
        let shows_progress = self.timeout >= LONG && !self.globals.quiet && !self.globals.silent;
        if shows_progress {
            args.insert(PROGRESS.to_owned(), Value::Bool(true));
        }
        let request = Request {
            node: self.target.node.to_string(),
            args,
            vhost: self.globals.vhost.clone(),
            columns: self.columns.clone(),
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        };
        self.target.call(verb, &request, timeout).await
    }

    /// Prints an answer.
    fn show(&self, answer: Answer) -> Exit {
        if let Some(refusal) = &answer.refusal
            && answer.rows.is_empty()
        {
            return self.refused(refusal);
        }
        let formatter = self.formatter();
        let text = match self.verb.kind {
            Kind::Listing { .. } => format::rows(formatter, &self.columns, &answer.rows, self.headers()),
            Kind::Grid(columns) => {
                let mut columns: Vec<String> = columns.iter().map(|column| (*column).to_owned()).collect();
                if formatter.is_for_programs() {
                    // Programs get what has no room in the grid, too.
                    let more = answer.rows.iter().flat_map(|row| row.keys()).filter(|key| !key.contains(' '));
                    let more: BTreeSet<&String> = more.filter(|key| !columns.contains(key)).collect();
                    columns.extend(more.into_iter().cloned().collect::<Vec<_>>());
                }
                format::rows(formatter, &columns, &answer.rows, self.headers())
            }
            Kind::Document if formatter.is_for_programs() => format::document(formatter, &answer.value),
            Kind::Document => {
                let unit = document::unit(self.text("unit")).unwrap_or(("bytes", 1.0));
                document::sections(self.verb.name, &answer.value, &unit)
            }
            Kind::Result(text) => format::text(formatter, &self.fill(text, &answer.value)),
            Kind::Done(_) if matches!(formatter, Formatter::Json | Formatter::JsonStream) => {
                format!("{}\n", json!({"result": "ok", "node": self.target.node.as_str()}))
            }
            Kind::Done(text) if !text.is_empty() && !self.globals.quiet && !self.globals.silent => {
                format::text(formatter, &self.fill(text, &answer.value))
            }
            _ => String::new(),
        };
        print(&text);
        match &answer.refusal {
            Some(refusal) => self.refused(refusal),
            None => Exit::Ok,
        }
    }

    fn refused(&self, refusal: &Refusal) -> Exit {
        let exit = self.exit_of(refusal);
        if self.formatter() == Formatter::Json {
            say!("{}", json!({"result": "error", "message": refusal.message}));
        }
        complain!("Error:\n{}", refusal.message);
        exit
    }

    /// The same refusal means different things to different verbs.
    fn exit_of(&self, refusal: &Refusal) -> Exit {
        match (refusal.code, self.verb.name) {
            (Code::NoSuchVhost, "set_permissions" | "clear_permissions" | "list_permissions") => Exit::Unavailable,
            (
                Code::Invalid,
                "set_permissions"
                | "quorum_status"
                | "delete_queue"
                | "set_policy"
                | "set_operator_policy"
                | "set_parameter"
                | "clear_parameter"
                | "set_global_parameter",
            ) => Exit::Unavailable,
            (Code::Invalid, "add_vhost" | "enable_feature_flag") => Exit::Usage,
            (Code::NotFound, "enable_feature_flag") => Exit::Usage,
            (code, _) => code.exit(),
        }
    }

    fn failed(&self, failure: &Failure) -> Exit {
        let node = &self.target.node;
        let (text, exit) = match failure {
            Failure::Unreachable(why) => {
                (format!("unable to perform an operation on node '{node}': {why}"), Exit::Unavailable)
            }
            Failure::Authentication(why) => (
                format!("authentication failed for node '{node}': the cluster's secret does not match ({why})"),
                Exit::Unavailable,
            ),
            Failure::Timeout => (
                format!(
                    "operation {} on node {node} timed out. Timeout value used: {}",
                    self.verb.name,
                    self.timeout.as_millis()
                ),
                Exit::Timeout,
            ),
        };
        if self.formatter() == Formatter::Json {
            say!("{}", json!({"result": "error", "message": text}));
        }
        complain!("Error:\n{text}");
        exit
    }

    fn formatter(&self) -> Formatter {
        self.globals.formatter.unwrap_or(match self.verb.kind {
            Kind::Grid(_) => Formatter::PrettyTable,
            Kind::Listing { .. } => Formatter::Table,
            _ => Formatter::Text,
        })
    }

    fn headers(&self) -> bool {
        self.globals.headers && !self.globals.silent
    }

    /// The lines before the result.
    fn banner(&self) {
        let hidden = self.globals.quiet || self.globals.silent || self.formatter().is_for_programs();
        if !hidden && !self.verb.banner.is_empty() {
            say!("{}", self.fill(self.verb.banner, &Value::Null));
        }
    }

    /// Fills in `{name}` from the arguments, the answer, and what all verbs have.
    fn fill(&self, template: &str, answer: &Value) -> String {
        let mut out = String::with_capacity(template.len() + 32);
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            out.push_str(before);
            let Some((name, after)) = after.split_once('}') else { break };
            rest = after;
            match name {
                "node" => out.push_str(self.target.node.as_str()),
                "vhost" => out.push_str(&self.globals.vhost),
                "timeout" => out.push_str(&self.timeout.as_secs().to_string()),
                "timeout_ms" => out.push_str(&self.timeout.as_millis().to_string()),
                _ => match (self.args.get(name), answer.get(name)) {
                    (Some(argument), _) => out.push_str(&format::cell("", argument)),
                    (None, Some(Value::String(text))) => out.push_str(text),
                    (None, Some(value)) => out.push_str(&format::cell("", value)),
                    (None, None) => {}
                },
            }
        }
        out.push_str(rest);
        out
    }

    fn text(&self, name: &str) -> &str {
        self.args.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn flag(&self, name: &str) -> bool {
        self.args.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    /// A password that was not given is a line of standard input.
    fn read_password(&mut self) -> Result<(), Exit> {
        let missing = self.verb.parameters.iter().filter_map(|name| name.strip_suffix('<'));
        let missing: Vec<&str> = missing.filter(|name| !self.args.contains_key(*name)).collect();
        for name in missing {
            let stdin = std::io::stdin();
            if stdin.is_terminal() {
                let mut prompt = std::io::stderr();
                let _ = prompt.write_all(b"Password: ").and_then(|()| prompt.flush());
            }
            let mut line = String::new();
            let read = std::io::Read::take(stdin.lock(), MAX_PASSWORD).read_line(&mut line);
            let password = line.trim_end_matches(['\r', '\n']);
            if !matches!(read, Ok(1..)) || password.is_empty() {
                complain!("Error:\nPassword is not provided via argument or stdin");
                return Err(Exit::Data);
            }
            self.args.insert(name.to_owned(), Value::from(password));
        }
        Ok(())
    }
}

/// Names the words by the verb's parameters; returns what is left, which may be columns.
fn bind<'w>(verb: &Verb, words: &'w [String], args: &mut Map<String, Value>) -> Result<&'w [String], Refused> {
    let mut rest = words;
    for parameter in verb.parameters {
        let name = parameter.trim_end_matches(['?', '*', '<']);
        if parameter.ends_with('*') {
            args.insert(name.to_owned(), rest.iter().map(String::as_str).collect());
            rest = &[];
            continue;
        }
        match rest.split_first() {
            Some((word, after)) => {
                args.insert(name.to_owned(), Value::from(word.as_str()));
                rest = after;
            }
            None if parameter.ends_with(['?', '<']) => {}
            None => return Err(Refused::Usage("not enough arguments".to_owned())),
        }
    }
    for name in ["user", "name", "queue"] {
        if args.get(name).is_some_and(|value| value.as_str() == Some("")) {
            return Err(Refused::Data(format!("{name} cannot be an empty string")));
        }
    }
    Ok(rest)
}
