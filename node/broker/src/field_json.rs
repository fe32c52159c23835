//! AMQP field tables as JSON, as RabbitMQ's tools and definitions files have them. JSON has fewer types: what is read back is an
//! `l` for any integer, a `d` for any other number, an `S` for a text.

use serde_json::{Map, Value};
use warren_proto::amqp091::{FieldTable, FieldValue};

/// Tables and arrays in each other, at most.
const MAX_DEPTH: usize = 32;

/// A table without its length, as metadata holds it; what cannot be read is shown as null.
pub fn encoded(bytes: &[u8]) -> Value {
    FieldTable::decode_bare(bytes).map_or(Value::Null, |table| object(&table))
}

/// A table.
pub fn object(table: &FieldTable) -> Value {
    let fields: Map<String, Value> = table.iter().map(|(name, field)| (name.to_owned(), value(field))).collect();
    Value::Object(fields)
}

fn value(field: &FieldValue) -> Value {
    match field {
        FieldValue::Bool(flag) => Value::Bool(*flag),
        FieldValue::LongStr(_) => field.as_str().map_or(Value::Null, Value::from),
        FieldValue::ByteArray(bytes) => std::str::from_utf8(bytes).map_or(Value::Null, Value::from),
        FieldValue::Table(table) => object(table),
        FieldValue::Array(items) => items.iter().map(value).collect(),
        FieldValue::Timestamp(seconds) => Value::from(*seconds),
        FieldValue::Decimal { scale, value } => Value::from(f64::from(*value) / 10f64.powi(i32::from(*scale))),
        // By its shortest text: 0.1 stays 0.1.
        FieldValue::F32(number) => number.to_string().parse::<f64>().map_or(Value::Null, Value::from),
        FieldValue::F64(number) => Value::from(*number),
        FieldValue::Void => Value::Null,
        integer => integer.as_int().map_or(Value::Null, Value::from),
    }
}

/// The table of a JSON object. An empty array is one as well: some tools write it for "no arguments".
pub fn table(from: &Value) -> Result<FieldTable, String> {
    table_at(from, 0)
}

fn table_at(from: &Value, depth: usize) -> Result<FieldTable, String> {
    let fields = match from {
        Value::Object(fields) => fields,
        Value::Null => return Ok(FieldTable::new()),
        Value::Array(items) if items.is_empty() => return Ok(FieldTable::new()),
        other => return Err(format!("{other} is not an object")),
    };
    let mut table = FieldTable::new();
    for (name, value) in fields {
        if name.len() > 255 {
            return Err(format!("the name '{name}' is longer than 255 bytes"));
        }
        table.push(name, field(value, depth + 1)?);
    }
    Ok(table)
}

fn field(from: &Value, depth: usize) -> Result<FieldValue, String> {
    if depth > MAX_DEPTH {
        return Err(format!("tables and arrays are nested deeper than {MAX_DEPTH}"));
    }
    Ok(match from {
        Value::Null => FieldValue::Void,
        Value::Bool(flag) => FieldValue::Bool(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => FieldValue::I64(number),
            (None, Some(float)) if number.is_f64() => FieldValue::F64(float),
            _ => return Err(format!("{number} is no 64-bit number")),
        },
        Value::String(text) => FieldValue::text(text.as_str()),
        Value::Array(items) => {
            FieldValue::Array(items.iter().map(|item| field(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        Value::Object(_) => FieldValue::Table(table_at(from, depth)?),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_json_can_say_comes_back_as_it_was() {
        let arguments = json!({
            "n": -7, "f": 0.5, "b": true, "t": "text", "a": ["x", 1, {"k": "v"}], "o": {"x": {"y": []}}, "none": null,
            "big": i64::MAX
        });
        assert_eq!(object(&table(&arguments).unwrap()), arguments);
        assert!(table(&json!([])).unwrap().is_empty());
        assert!(table(&json!(null)).unwrap().is_empty());
    }

    #[test]
    fn what_no_table_can_hold_is_refused() {
        let mut deep = json!(1);
        for _ in 0..40 {
            deep = json!({"d": deep});
        }
        for wrong in [json!("x"), json!([1]), json!({"n": u64::MAX}), deep, json!({"k".repeat(256): 1})] {
            assert!(table(&wrong).is_err(), "{wrong}");
        }
    }
}
