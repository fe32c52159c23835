//! AMQP field tables as JSON, for people and scripts.

use serde_json::{Map, Value};
use warren_proto::amqp091::{FieldTable, FieldValue};

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
    if let Some(flag) = field.as_bool() {
        return Value::Bool(flag);
    }
    if let Some(number) = field.as_int() {
        return Value::from(number);
    }
    if let Some(number) = field.as_float() {
        return Value::from(number);
    }
    if let Some(text) = field.as_str() {
        return Value::from(text);
    }
    if let Some(table) = field.as_table() {
        return object(table);
    }
    if let Some(items) = field.as_array() {
        return items.iter().map(value).collect();
    }
    Value::Null
}
