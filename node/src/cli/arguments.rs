//! Arguments by rabbitmqctl's rules: options before or after the verb, `--flag value` or `--flag=value`, `--no-flag`,
//! columns separated by words or commas.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::format::Formatter;

/// Options of all verbs.
#[derive(Clone, Debug)]
pub struct Globals {
    /// `--node`.
    pub node: Option<String>,
    /// `--vhost`.
    pub vhost: String,
    /// `--timeout`; `None`: the verb's own.
    pub timeout: Option<Duration>,
    /// `--quiet`: no banner.
    pub quiet: bool,
    /// `--silent`: no banner, no header, no informational text.
    pub silent: bool,
    /// Whether tables have a header.
    pub headers: bool,
    /// `--formatter`.
    pub formatter: Option<Formatter>,
    /// `--dry-run`.
    pub dry_run: bool,
    /// `--longnames`.
    pub long_names: bool,
    /// `--erlang-cookie`.
    pub secret: Option<String>,
    /// `--cookie-file`.
    pub secret_file: Option<PathBuf>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--address`: the node's peer address, instead of what its name leads to.
    pub address: Option<String>,
    /// `--help`.
    pub help: bool,
}

impl Default for Globals {
    fn default() -> Self {
        Globals {
            node: None,
            vhost: "/".to_owned(),
            timeout: None,
            quiet: false,
            silent: false,
            headers: true,
            formatter: None,
            dry_run: false,
            long_names: false,
            secret: None,
            secret_file: None,
            data_dir: None,
            address: None,
            help: false,
        }
    }
}

/// A command line, read.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// Options of all verbs.
    pub globals: Globals,
    /// The verb.
    pub verb: Option<String>,
    /// What follows it.
    pub words: Vec<String>,
    /// Options of single verbs, by their long name.
    pub options: BTreeMap<&'static str, String>,
}

/// Options of single verbs: long name, short name, whether a value follows.
const OPTIONS: &[(&str, Option<char>, bool)] = &[
    ("online", None, false),
    ("offline", None, false),
    ("local", None, false),
    ("if-empty", Some('e'), false),
    ("if-unused", Some('u'), false),
    ("force", None, false),
    ("description", None, true),
    ("tags", None, true),
    ("default-queue-type", None, true),
    ("idempotent", None, false),
    ("no-wait", None, false),
    ("unit", None, true),
    ("global", None, false),
    ("hashing-algorithm", None, true),
    ("priority", None, true),
    ("apply-to", None, true),
    ("membership", None, true),
    ("vhost-pattern", None, true),
    ("queue-pattern", None, true),
    ("errors-only", None, false),
    ("across-all-vhosts", None, false),
    ("i-accept-data-loss", None, false),
    ("opt-in", None, false),
    ("experimental", None, false),
    ("used", None, false),
];

/// What is wrong with the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong(pub String);

/// Reads the words after the tool's name.
pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Arguments, Wrong> {
    let mut arguments = Arguments::default();
    let mut bad = Vec::new();
    let mut rest = words.into_iter();
    let mut only_words = false;
    while let Some(word) = rest.next() {
        if only_words || word == "-" || !word.starts_with('-') {
            match arguments.verb {
                None => arguments.verb = Some(word),
                Some(_) => arguments.words.push(word),
            }
            continue;
        }
        if word == "--" {
            only_words = true;
            continue;
        }
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word.clone(), None),
        };
        let mut value =
            || attached.clone().or_else(|| rest.next()).ok_or_else(|| Wrong(format!("{name} needs a value")));
        if !global(&mut arguments.globals, &name, attached.as_deref(), &mut value)? {
            match OPTIONS.iter().find(|(long, short, _)| is_option(&name, long, *short)) {
                Some((long, _, true)) => {
                    let value = value()?;
                    arguments.options.insert(long, value);
                }
                Some((long, _, false)) => {
                    let on = attached.as_deref() != Some("false");
                    if on {
                        arguments.options.insert(long, "true".to_owned());
                    }
                }
                None => bad.push(name),
            }
        }
    }
    if bad.is_empty() {
        Ok(arguments)
    } else {
        Err(Wrong(format!("Invalid options for this command: {}", bad.join(", "))))
    }
}

fn is_option(word: &str, long: &str, short: Option<char>) -> bool {
    let stripped = word.strip_prefix("--").is_some_and(|name| name.replace('_', "-") == long);
    stripped || short.is_some_and(|short| word.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4])))
}

/// Whether `name` is an option of all verbs, which is then applied.
fn global(
    globals: &mut Globals,
    name: &str,
    attached: Option<&str>,
    value: &mut dyn FnMut() -> Result<String, Wrong>,
) -> Result<bool, Wrong> {
    let on = attached != Some("false");
    match name.replace('_', "-").as_str() {
        "-n" | "--node" => globals.node = Some(value()?),
        "-p" | "--vhost" => globals.vhost = value()?,
        "-t" | "--timeout" => globals.timeout = timeout(&value()?)?,
        "-q" | "--quiet" => globals.quiet = on,
        "--no-quiet" => globals.quiet = false,
        "-s" | "--silent" => globals.silent = on,
        "--no-silent" => globals.silent = false,
        "--no-table-headers" => globals.headers = !on,
        "--table-headers" => {
            // The value may be left out, so only a boolean that is attached or follows counts.
            globals.headers = match attached {
                Some(text) => text != "false",
                None => value()? != "false",
            };
        }
        "--formatter" => globals.formatter = Some(Formatter::parse(&value()?).map_err(Wrong)?),
        "--dry-run" => globals.dry_run = on,
        "-l" | "--longnames" => globals.long_names = on,
        "--erlang-cookie" => globals.secret = Some(value()?),
        "--cookie-file" => globals.secret_file = Some(value()?.into()),
        "--data-dir" => globals.data_dir = Some(value()?.into()),
        "--address" => globals.address = Some(value()?),
        "--help" | "-?" | "-h" => globals.help = true,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Whole seconds, or `infinity`.
fn timeout(text: &str) -> Result<Option<Duration>, Wrong> {
    // A century is as good as infinity, and can be added to a clock.
    const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
    match text {
        "infinity" => Ok(Some(FOREVER)),
        _ => match text.parse::<u64>() {
            Ok(seconds) => Ok(Some(Duration::from_secs(seconds).min(FOREVER))),
            Err(_) => Err(Wrong(format!("--timeout: `{text}` is not a number of seconds"))),
        },
    }
}

/// Columns, as separate words or joined by commas; those that do not exist are an error that names them.
pub fn columns(words: &[String], known: &[&str], default: &[&str]) -> Result<Vec<String>, Wrong> {
    let asked: Vec<String> = words
        .iter()
        .flat_map(|word| word.split([',', ' ']))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    let unknown: Vec<&str> = asked.iter().map(String::as_str).filter(|name| !known.contains(name)).collect();
    if !unknown.is_empty() {
        return Err(Wrong(format!("Info key(s) {} are not supported", unknown.join(", "))));
    }
    if asked.is_empty() {
        return Ok(default.iter().map(|name| (*name).to_owned()).collect());
    }
    let mut columns = Vec::with_capacity(asked.len());
    for name in asked {
        if !columns.contains(&name) {
            columns.push(name);
        }
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Arguments, String> {
        parse(line.split_whitespace().map(str::to_owned)).map_err(|Wrong(why)| why)
    }

    #[test]
    fn options_stand_anywhere() {
        for line in ["-n a@b -q list_queues -p v name", "list_queues --vhost=v name --node a@b --quiet"] {
            let found = read(line).unwrap();
            assert_eq!(found.verb.as_deref(), Some("list_queues"));
            assert_eq!(found.words, ["name"]);
            assert_eq!(found.globals.node.as_deref(), Some("a@b"));
            assert_eq!(found.globals.vhost, "v");
            assert!(found.globals.quiet);
        }
    }

    #[test]
    fn unknown_options_are_all_named() {
        let why = read("list_queues --nope -z").unwrap_err();
        assert!(why.contains("--nope") && why.contains("-z"), "{why}");
        assert!(read("status -t soon").is_err());
        assert!(read("status --node").is_err());
        assert!(read("status --formatter erlang").is_err());
    }

    #[test]
    fn headers_can_be_dropped_in_each_spelling() {
        for line in
            ["x --no-table-headers", "x --table-headers false", "x --table-headers=false", "x --no_table_headers"]
        {
            assert!(!read(line).unwrap().globals.headers, "{line}");
        }
    }

    #[test]
    fn words_after_two_dashes_are_no_options() {
        assert_eq!(read("add_user -- -u -p").unwrap().words, ["-u", "-p"]);
        assert_eq!(read("delete_queue q -e --if-unused").unwrap().options.len(), 2);
    }

    #[test]
    fn columns_keep_their_order_and_must_exist() {
        let words = ["messages,name".to_owned(), "type".to_owned(), "name".to_owned()];
        assert_eq!(columns(&words, &["name", "messages", "type"], &["name"]).unwrap(), ["messages", "name", "type"]);
        assert_eq!(columns(&[], &["name"], &["name"]).unwrap(), ["name"]);
        let Wrong(why) = columns(&["bogus".to_owned()], &["name"], &["name"]).unwrap_err();
        assert!(why.contains("bogus"));
    }
}
