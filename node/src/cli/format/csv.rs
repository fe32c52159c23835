//! RFC 4180, with line feeds as line ends and every field quoted.

use serde_json::Value;

use crate::admin::protocol::Row;

/// All rows.
pub fn rows(columns: &[String], rows: &[Row], headers: bool) -> String {
    let mut out = String::new();
    if headers {
        let names: Vec<String> = columns.iter().map(|column| field(column)).collect();
        out.push_str(&names.join(","));
        out.push('\n');
    }
    for row in rows {
        let fields: Vec<String> = columns
            .iter()
            .map(|column| match row.get(column).unwrap_or(&Value::Null) {
                Value::String(text) => field(text),
                value => field(&super::cell(column, value)),
            })
            .collect();
        out.push_str(&fields.join(","));
        out.push('\n');
    }
    out
}

/// One field.
pub fn field(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
