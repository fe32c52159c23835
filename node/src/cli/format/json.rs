//! Lists as JSON, with keys in the order of the columns.

use serde_json::Value;

use crate::admin::protocol::Row;

/// One array: an object a line.
pub fn list(columns: &[String], rows: &[Row]) -> String {
    let mut out = String::from("[\n");
    for (index, row) in rows.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        object(&mut out, columns, row);
        out.push('\n');
    }
    out.push_str("]\n");
    out
}

/// An object a line, nothing else.
pub fn stream(columns: &[String], rows: &[Row]) -> String {
    let mut out = String::new();
    for row in rows {
        object(&mut out, columns, row);
        out.push('\n');
    }
    out
}

fn object(out: &mut String, columns: &[String], row: &Row) {
    out.push('{');
    for (index, column) in columns.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&Value::from(column.as_str()).to_string());
        out.push(':');
        out.push_str(&row.get(column).unwrap_or(&Value::Null).to_string());
    }
    out.push('}');
}
