//! Rows joined by tabs.

use serde_json::Value;

use crate::admin::protocol::Row;

/// All rows; an empty list prints nothing, not even a header.
pub fn rows(columns: &[String], rows: &[Row], headers: bool) -> String {
    let mut out = String::new();
    if rows.is_empty() {
        return out;
    }
    if headers {
        out.push_str(&columns.join("\t"));
        out.push('\n');
    }
    for row in rows {
        for (index, column) in columns.iter().enumerate() {
            if index > 0 {
                out.push('\t');
            }
            out.push_str(&cell(column, row.get(column).unwrap_or(&Value::Null)));
        }
        out.push('\n');
    }
    out
}

/// A value in a column, as rabbitmqctl prints it.
pub fn cell(column: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if column == "protocol" => protocol(text),
        Value::String(text) => escaped(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| cell("", item)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(_) => term(value),
        other => other.to_string(),
    }
}

fn protocol(text: &str) -> String {
    match text {
        "AMQP 0-9-1" => "{0,9,1}".to_owned(),
        "AMQP 1.0" => "{1,0}".to_owned(),
        other => escaped(other),
    }
}

/// A field table: a list of pairs.
fn term(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{{{:?},{}}}", key, term(value))).collect();
            format!("[{}]", pairs.join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(term).collect();
            format!("[{}]", items.join(","))
        }
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

/// Control characters would break lines and columns.
fn escaped(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}
