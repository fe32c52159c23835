//! Log lines: for people in RabbitMQ's shape (`time [level] text key=value`), or as one JSON object a line.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, fmt as layer, reload};

use crate::config::settings::{Log, LogFormat, LogLevel, LogOutput};

/// What each category of RabbitMQ's is called here: the crates' module paths.
const CATEGORIES: &[(&str, &[&str])] = &[
    ("connection", &["warren_amqp091::connection", "warren_amqp091::listener"]),
    ("channel", &["warren_amqp091::channel"]),
    ("queue", &["warren_broker::queue", "warren_queues"]),
    ("ra", &["warren_raft"]),
    ("user", &["warren_broker::access"]),
    ("default", &["warren"]),
];

/// The log file, which can be opened again after it was moved away.
#[derive(Clone, Debug)]
pub struct LogFile {
    path: PathBuf,
    file: Arc<Mutex<File>>,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = append(&path)?;
        Ok(LogFile { path, file: Arc::new(Mutex::new(file)) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file again by its name.
    pub fn reopen(&self) -> io::Result<()> {
        *self.file.lock() = append(&self.path)?;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl Write for &LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.lock().flush()
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = &'a LogFile;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// Starts logging. Returns the log file, if there is one. `default_dir` is used where no folder is configured.
pub fn start(log: &Log, default_dir: &Path, node: &str) -> io::Result<Option<LogFile>> {
    let file = if log.file.enabled {
        let name = log.file_name.clone().unwrap_or_else(|| format!("{node}.log"));
        Some(LogFile::open(log.dir.as_deref().unwrap_or(default_dir).join(name))?)
    } else {
        None
    };
    let colours = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (console_filter, console_level) = reload::Layer::new(filter(log, &log.console));
    let (file_filter, file_level) = reload::Layer::new(filter(log, &log.file));
    let console = log.console.enabled.then(|| {
        layer::layer()
            .with_writer(io::stdout)
            .with_ansi(colours)
            .event_format(Lines { format: log.console.format, node: node.to_owned() })
            .with_filter(console_filter)
    });
    let to_file = file.clone().map(|file| {
        layer::layer()
            .with_writer(file)
            .with_ansi(false)
            .event_format(Lines { format: log.file.format, node: node.to_owned() })
            .with_filter(file_filter)
    });
    let subscriber = tracing_subscriber::registry().with(console).with(to_file);
    // Only tests start it twice in a process.
    let _ = tracing::subscriber::set_global_default(subscriber);
    let settings = log.clone();
    let set = move |level: LogLevel| {
        let all = |output: &LogOutput| filter(&settings, &LogOutput { level, ..output.clone() });
        // An output that is not used has no layer whose level could be set.
        if settings.console.enabled {
            console_level.reload(all(&settings.console)).map_err(|error| error.to_string())?;
        }
        if settings.file.enabled {
            file_level.reload(all(&settings.file)).map_err(|error| error.to_string())?;
        }
        Ok(())
    };
    let _ = SET_LEVEL.set(Box::new(set));
    Ok(file)
}

type SetLevel = Box<dyn Fn(LogLevel) -> Result<(), String> + Send + Sync>;

/// Changes the level of all outputs, once logging was started.
static SET_LEVEL: OnceLock<SetLevel> = OnceLock::new();

/// From now on, all outputs have this level; those of single categories stay as they are configured.
pub fn set_level(level: LogLevel) -> Result<(), String> {
    SET_LEVEL.get().ok_or_else(|| "logging was not started".to_owned())?(level)
}

/// Warren's own lines at the configured level; those of libraries only from warning on, unless debugging.
fn filter(log: &Log, output: &LogOutput) -> Targets {
    let libraries = match output.level {
        LogLevel::Debug => LevelFilter::INFO,
        LogLevel::Info | LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::None => LevelFilter::OFF,
    };
    let mut targets = Targets::new().with_default(libraries).with_target("warren", level(output.level));
    for (category, chosen) in &log.categories {
        let modules = CATEGORIES.iter().find(|(name, _)| name == category).map_or(&[][..], |(_, modules)| modules);
        for module in modules {
            targets = targets.with_target(*module, level(*chosen));
        }
    }
    targets
}

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::None => LevelFilter::OFF,
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG | Level::TRACE => "debug",
    }
}

struct Lines {
    format: LogFormat,
    node: String,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let time = Timestamp::now();
        let level = *event.metadata().level();
        match self.format {
            LogFormat::Plain => {
                write!(out, "{time} ")?;
                if out.has_ansi_escapes() && level <= Level::WARN {
                    let colour = if level == Level::ERROR { 31 } else { 33 };
                    write!(out, "\x1b[{colour}m[{}]\x1b[0m {}", word(level), fields.message)?;
                } else {
                    write!(out, "[{}] {}", word(level), fields.message)?;
                }
                for (name, value) in &fields.others {
                    match value {
                        Value::String(text) if !text.contains([' ', '"', '=']) && !text.contains(char::is_control) => {
                            write!(out, " {name}={text}")?;
                        }
                        value => write!(out, " {name}={value}")?,
                    }
                }
                writeln!(out)
            }
            LogFormat::Json => {
                let mut object = Map::new();
                object.insert("time".to_owned(), Value::from(time.to_string()));
                object.insert("level".to_owned(), Value::from(word(level)));
                object.insert("msg".to_owned(), Value::from(fields.message));
                object.insert("node".to_owned(), Value::from(self.node.as_str()));
                for (name, value) in fields.others {
                    object.entry(name).or_insert(value);
                }
                writeln!(out, "{}", Value::Object(object))
            }
        }
    }
}

/// The fields of one event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(String, Value)>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        self.others.push((field.name().to_owned(), value));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.put(field, Value::from(format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.put(field, Value::from(value));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::from(value));
    }
}

/// `2026-01-31 10:44:33.654123+00:00`.
#[derive(Clone, Copy, Debug)]
struct Timestamp {
    seconds: u64,
    micros: u32,
}

impl Timestamp {
    fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp { seconds: since.as_secs(), micros: since.subsec_micros() }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.seconds / 86_400, self.seconds % 86_400);
        // Days to a date, in eras of 400 years that start in March.
        let shifted = days + 719_468;
        let era = shifted / 146_097;
        let day_of_era = shifted % 146_097;
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + u64::from(month <= 2);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:06}+00:00", self.micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_in_utc() {
        let text = |seconds| Timestamp { seconds, micros: 654_123 }.to_string();
        assert_eq!(text(0), "1970-01-01 00:00:00.654123+00:00");
        assert_eq!(text(951_782_400), "2000-02-29 00:00:00.654123+00:00");
        assert_eq!(text(1_769_856_273), "2026-01-31 10:44:33.654123+00:00");
        assert_eq!(text(4_107_542_399), "2100-02-28 23:59:59.654123+00:00");
    }

    #[test]
    fn a_moved_file_can_be_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let log = LogFile::open(folder.path().join("logs/w.log")).unwrap();
        writeln!(&log, "one").unwrap();
        std::fs::rename(log.path(), folder.path().join("old")).unwrap();
        log.reopen().unwrap();
        writeln!(&log, "two").unwrap();
        assert_eq!(std::fs::read_to_string(log.path()).unwrap(), "two\n");
    }
}
