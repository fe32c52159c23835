//! How results are printed: tables for people and scripts, and machine formats.

mod csv;
mod grid;
mod json;
mod table;

use serde_json::Value;

use crate::admin::protocol::Row;

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formatter {
    /// Columns separated by tabs.
    Table,
    /// A drawn grid.
    PrettyTable,
    /// One JSON document.
    Json,
    /// One JSON object a line.
    JsonStream,
    /// RFC 4180.
    Csv,
    /// Plain text.
    Text,
}

impl Formatter {
    /// The formatter of a name.
    pub fn parse(name: &str) -> Result<Self, String> {
        match name {
            "table" => Ok(Formatter::Table),
            "pretty_table" => Ok(Formatter::PrettyTable),
            "json" => Ok(Formatter::Json),
            "json_stream" => Ok(Formatter::JsonStream),
            "csv" => Ok(Formatter::Csv),
            "string" => Ok(Formatter::Text),
            _ => Err(format!(
                "formatter `{name}` is not supported (table, pretty_table, json, json_stream, csv, string)"
            )),
        }
    }

    /// Whether programs read it: no banners, no styling.
    pub fn is_for_programs(self) -> bool {
        matches!(self, Formatter::Json | Formatter::JsonStream | Formatter::Csv)
    }
}

/// A list as text, with a line end unless it is empty.
pub fn rows(formatter: Formatter, columns: &[String], rows: &[Row], headers: bool) -> String {
    match formatter {
        Formatter::Table | Formatter::Text => table::rows(columns, rows, headers),
        Formatter::PrettyTable => grid::rows(columns, rows),
        Formatter::Json => json::list(columns, rows),
        Formatter::JsonStream => json::stream(columns, rows),
        Formatter::Csv => csv::rows(columns, rows, headers),
    }
}

/// A single text.
pub fn text(formatter: Formatter, text: &str) -> String {
    match formatter {
        Formatter::Table | Formatter::Text => format!("{text}\n"),
        Formatter::PrettyTable => grid::output(text),
        Formatter::Json | Formatter::JsonStream => format!("{}\n", serde_json::json!({"message": text})),
        Formatter::Csv => format!("{}\n", csv::field(text)),
    }
}

/// A document, for programs.
pub fn document(formatter: Formatter, value: &Value) -> String {
    match (formatter, value) {
        (Formatter::Csv, Value::Object(map)) => {
            let columns: Vec<String> = map.keys().cloned().collect();
            csv::rows(&columns, std::slice::from_ref(map), true)
        }
        _ => format!("{value}\n"),
    }
}

/// A value as it stands in tables.
pub use table::cell;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn queues() -> (Vec<String>, Vec<Row>) {
        let columns = vec!["name".to_owned(), "messages".to_owned()];
        let row = |name: &str, messages: u64| {
            let Value::Object(row) = json!({"messages": messages, "name": name}) else { unreachable!() };
            row
        };
        (columns, vec![row("a", 3), row("b\t\"q\", ü", 0)])
    }

    #[test]
    fn tables_are_joined_by_tabs_and_escape_control_characters() {
        let (columns, list) = queues();
        assert_eq!(rows(Formatter::Table, &columns, &list, true), "name\tmessages\na\t3\nb\\t\"q\", ü\t0\n");
        assert_eq!(rows(Formatter::Table, &columns, &list[..1], false), "a\t3\n");
        assert_eq!(rows(Formatter::Table, &columns, &[], true), "");
    }

    #[test]
    fn json_keeps_the_order_of_columns_and_parses() {
        let (columns, list) = queues();
        let text = rows(Formatter::Json, &columns, &list, true);
        assert!(text.starts_with("[\n{\"name\":\"a\",\"messages\":3}\n,{"), "{text}");
        let parsed: Vec<Row> = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed, list);
        assert_eq!(rows(Formatter::Json, &columns, &[], true), "[\n]\n");
        let stream = rows(Formatter::JsonStream, &columns, &list, true);
        assert_eq!(stream.lines().count(), 2);
    }

    #[test]
    fn csv_quotes_every_field() {
        let (columns, list) = queues();
        assert_eq!(
            rows(Formatter::Csv, &columns, &list, true),
            "\"name\",\"messages\"\n\"a\",\"3\"\n\"b\t\"\"q\"\", ü\",\"0\"\n"
        );
    }

    #[test]
    fn grids_have_a_header_row() {
        let (columns, list) = queues();
        let grid = rows(Formatter::PrettyTable, &columns, &list, true);
        assert!(grid.contains('│') && grid.contains("messages"), "{grid}");
        assert!(text(Formatter::PrettyTable, "done").contains("Output"));
    }

    #[test]
    fn single_texts_are_messages_for_programs() {
        assert_eq!(text(Formatter::Json, "done"), "{\"message\":\"done\"}\n");
        assert_eq!(text(Formatter::Table, "done"), "done\n");
    }

    #[test]
    fn cells_look_as_rabbitmqctl_prints_them() {
        assert_eq!(cell("x", &json!(true)), "true");
        assert_eq!(cell("x", &Value::Null), "");
        assert_eq!(cell("x", &json!(["a", "b"])), "[a, b]");
        assert_eq!(cell("arguments", &json!({"k": "v", "n": 1})), "[{\"k\",\"v\"},{\"n\",1}]");
        assert_eq!(cell("arguments", &json!({})), "[]");
        assert_eq!(cell("protocol", &json!("AMQP 0-9-1")), "{0,9,1}");
        assert_eq!(cell("name", &json!("AMQP 0-9-1")), "AMQP 0-9-1");
    }
}
