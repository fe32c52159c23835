//! Box-drawn grids.

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use serde_json::Value;

use crate::admin::protocol::Row;

/// A grid with a header row.
pub fn rows(columns: &[String], rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let cells = rows.iter().map(|row| {
        columns.iter().map(|column| super::cell(column, row.get(column).unwrap_or(&Value::Null))).collect::<Vec<_>>()
    });
    draw(columns.to_vec(), cells)
}

/// A grid of one cell.
pub fn output(text: &str) -> String {
    draw(vec!["Output".to_owned()], std::iter::once(vec![text.to_owned()]))
}

fn draw(header: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    format!("{table}\n")
}
