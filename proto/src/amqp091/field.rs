//! Field tables: the typed name-value lists of arguments and headers.
//!
//! [`TableRef`] and [`ValueRef`] read an encoded table in place; [`FieldTable`] and [`FieldValue`] own their
//! content. Order and duplicates are kept; look-ups take the first match. Type tags are RabbitMQ's where they differ
//! from the standard's text.

use bytes::{BufMut, Bytes, BytesMut};

use super::octets::{Octets, put_long, put_short, put_sized};
use super::short_str::ShortStr;

/// Tables and arrays inside each other, at most, so that a hostile table cannot exhaust the stack.
pub const MAX_DEPTH: usize = 128;

/// A field table that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// It ends inside a field.
    #[error("field table is truncated")]
    Truncated,
    /// A type tag that nobody defined.
    #[error("unknown field type {0:#04x}")]
    UnknownType(u8),
    /// A name that is not UTF-8.
    #[error("a field name is not valid UTF-8")]
    NotUtf8,
    /// More than [`MAX_DEPTH`] levels.
    #[error("field table is nested too deeply")]
    TooDeep,
}

/// An owned field table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FieldTable(Vec<(ShortStr, FieldValue)>);

/// An owned field value.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`, and `L` when read
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: a value and its number of decimal places
    Decimal {
        /// Decimal places.
        scale: u8,
        /// The digits.
        value: u32,
    },
    /// `S`: arbitrary bytes, usually text
    LongStr(Bytes),
    /// `x`
    ByteArray(Bytes),
    /// `A`
    Array(Vec<FieldValue>),
    /// `F`
    Table(FieldTable),
    /// `T`: seconds since 1970
    Timestamp(u64),
    /// `V`
    Void,
}

/// A field value inside an encoded table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueRef<'a> {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l` or `L`
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`
    Decimal {
        /// Decimal places.
        scale: u8,
        /// The digits.
        value: u32,
    },
    /// `S`
    LongStr(&'a [u8]),
    /// `x`
    ByteArray(&'a [u8]),
    /// `A`
    Array(ArrayRef<'a>),
    /// `F`
    Table(TableRef<'a>),
    /// `T`
    Timestamp(u64),
    /// `V`
    Void,
}

/// An encoded table without its length, read in place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableRef<'a>(&'a [u8]);

/// An encoded array without its length, read in place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrayRef<'a>(&'a [u8]);

impl<'a> TableRef<'a> {
    /// A table whose encoding, without its length, is `bytes`. Nothing is checked yet.
    pub fn new(bytes: &'a [u8]) -> Self {
        TableRef(bytes)
    }

    /// The encoding, without its length.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks every field, so that reading cannot fail later.
    pub fn check(&self) -> Result<(), TableError> {
        self.check_at(1)
    }

    fn check_at(&self, depth: usize) -> Result<(), TableError> {
        check_depth(depth)?;
        self.iter().try_for_each(|field| field?.1.check_at(depth))
    }

    /// The fields in order; ends after the first that cannot be read.
    pub fn iter(&self) -> impl Iterator<Item = Result<(&'a str, ValueRef<'a>), TableError>> + use<'a> {
        let mut octets = Octets::new(self.0);
        std::iter::from_fn(move || {
            if octets.is_empty() {
                return None;
            }
            let field = read_field(&mut octets);
            if field.is_err() {
                octets = Octets::new(&[]);
            }
            Some(field)
        })
    }

    /// The first field of that name, if the table can be read as far as it.
    pub fn get(&self, name: &str) -> Option<ValueRef<'a>> {
        self.iter().map_while(Result::ok).find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// A copy that owns its content.
    pub fn to_table(&self) -> Result<FieldTable, TableError> {
        self.to_table_at(1)
    }

    fn to_table_at(self, depth: usize) -> Result<FieldTable, TableError> {
        check_depth(depth)?;
        let fields = self.iter().map(|field| {
            let (name, value) = field?;
            let name = ShortStr::try_from(name).map_err(|_| TableError::Truncated)?;
            Ok((name, value.to_value_at(depth)?))
        });
        Ok(FieldTable(fields.collect::<Result<_, TableError>>()?))
    }
}

impl<'a> ArrayRef<'a> {
    /// The array without elements.
    pub const EMPTY: ArrayRef<'static> = ArrayRef(&[]);

    /// The elements in order; ends after the first that cannot be read.
    pub fn iter(&self) -> impl Iterator<Item = Result<ValueRef<'a>, TableError>> + use<'a> {
        let mut octets = Octets::new(self.0);
        std::iter::from_fn(move || {
            if octets.is_empty() {
                return None;
            }
            let value = read_value(&mut octets);
            if value.is_err() {
                octets = Octets::new(&[]);
            }
            Some(value)
        })
    }
}

fn check_depth(depth: usize) -> Result<(), TableError> {
    if depth > MAX_DEPTH { Err(TableError::TooDeep) } else { Ok(()) }
}

fn read_field<'a>(octets: &mut Octets<'a>) -> Result<(&'a str, ValueRef<'a>), TableError> {
    let name = octets.short().ok_or(TableError::Truncated)?;
    let name = std::str::from_utf8(name).map_err(|_| TableError::NotUtf8)?;
    Ok((name, read_value(octets)?))
}

fn read_value<'a>(octets: &mut Octets<'a>) -> Result<ValueRef<'a>, TableError> {
    let tag = octets.u8().ok_or(TableError::Truncated)?;
    let value = match tag {
        b't' => octets.u8().map(|v| ValueRef::Bool(v != 0)),
        b'b' => octets.u8().map(|v| ValueRef::I8(v as i8)),
        b'B' => octets.u8().map(ValueRef::U8),
        b's' => octets.u16().map(|v| ValueRef::I16(v as i16)),
        b'u' => octets.u16().map(ValueRef::U16),
        b'I' => octets.u32().map(|v| ValueRef::I32(v as i32)),
        b'i' => octets.u32().map(ValueRef::U32),
        b'l' | b'L' => octets.u64().map(|v| ValueRef::I64(v as i64)),
        b'f' => octets.u32().map(|v| ValueRef::F32(f32::from_bits(v))),
        b'd' => octets.u64().map(|v| ValueRef::F64(f64::from_bits(v))),
        b'D' => octets.u8().and_then(|scale| octets.u32().map(|value| ValueRef::Decimal { scale, value })),
        b'S' => octets.long().map(ValueRef::LongStr),
        b'x' => octets.long().map(ValueRef::ByteArray),
        b'A' => octets.long().map(|v| ValueRef::Array(ArrayRef(v))),
        b'F' => octets.long().map(|v| ValueRef::Table(TableRef(v))),
        b'T' => octets.u64().map(ValueRef::Timestamp),
        b'V' => Some(ValueRef::Void),
        unknown => return Err(TableError::UnknownType(unknown)),
    };
    value.ok_or(TableError::Truncated)
}

impl<'a> ValueRef<'a> {
    fn check_at(self, depth: usize) -> Result<(), TableError> {
        match self {
            ValueRef::Table(table) => table.check_at(depth + 1),
            ValueRef::Array(array) => {
                check_depth(depth + 1)?;
                array.iter().try_for_each(|value| value?.check_at(depth + 1))
            }
            _ => Ok(()),
        }
    }

    /// A copy that owns its content.
    pub fn to_value(self) -> Result<FieldValue, TableError> {
        self.to_value_at(1)
    }

    fn to_value_at(self, depth: usize) -> Result<FieldValue, TableError> {
        Ok(match self {
            ValueRef::Bool(v) => FieldValue::Bool(v),
            ValueRef::I8(v) => FieldValue::I8(v),
            ValueRef::U8(v) => FieldValue::U8(v),
            ValueRef::I16(v) => FieldValue::I16(v),
            ValueRef::U16(v) => FieldValue::U16(v),
            ValueRef::I32(v) => FieldValue::I32(v),
            ValueRef::U32(v) => FieldValue::U32(v),
            ValueRef::I64(v) => FieldValue::I64(v),
            ValueRef::F32(v) => FieldValue::F32(v),
            ValueRef::F64(v) => FieldValue::F64(v),
            ValueRef::Decimal { scale, value } => FieldValue::Decimal { scale, value },
            ValueRef::LongStr(v) => FieldValue::LongStr(Bytes::copy_from_slice(v)),
            ValueRef::ByteArray(v) => FieldValue::ByteArray(Bytes::copy_from_slice(v)),
            ValueRef::Array(v) => {
                check_depth(depth + 1)?;
                let values = v.iter().map(|value| value?.to_value_at(depth + 1));
                FieldValue::Array(values.collect::<Result<_, _>>()?)
            }
            ValueRef::Table(v) => FieldValue::Table(v.to_table_at(depth + 1)?),
            ValueRef::Timestamp(v) => FieldValue::Timestamp(v),
            ValueRef::Void => FieldValue::Void,
        })
    }

    /// The value of an integer of any width.
    pub fn as_int(self) -> Option<i64> {
        match self {
            ValueRef::I8(v) => Some(v.into()),
            ValueRef::U8(v) => Some(v.into()),
            ValueRef::I16(v) => Some(v.into()),
            ValueRef::U16(v) => Some(v.into()),
            ValueRef::I32(v) => Some(v.into()),
            ValueRef::U32(v) => Some(v.into()),
            ValueRef::I64(v) => Some(v),
            _ => None,
        }
    }

    /// The value of a float of either width.
    pub fn as_float(self) -> Option<f64> {
        match self {
            ValueRef::F32(v) => Some(v.into()),
            ValueRef::F64(v) => Some(v),
            _ => None,
        }
    }

    /// The bytes of a long string.
    pub fn as_long_str(self) -> Option<&'a [u8]> {
        match self {
            ValueRef::LongStr(v) => Some(v),
            _ => None,
        }
    }
}

impl FieldValue {
    /// A long string of this text.
    pub fn text(text: impl Into<String>) -> Self {
        FieldValue::LongStr(Bytes::from(text.into()))
    }

    /// The value of an integer of any width.
    pub fn as_int(&self) -> Option<i64> {
        self.as_ref_scalar().and_then(ValueRef::as_int)
    }

    /// The value of a float of either width.
    pub fn as_float(&self) -> Option<f64> {
        self.as_ref_scalar().and_then(ValueRef::as_float)
    }

    /// The value of a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            FieldValue::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// The text of a long string that is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            FieldValue::LongStr(v) => std::str::from_utf8(v).ok(),
            _ => None,
        }
    }

    /// The table inside.
    pub fn as_table(&self) -> Option<&FieldTable> {
        match self {
            FieldValue::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The elements inside.
    pub fn as_array(&self) -> Option<&[FieldValue]> {
        match self {
            FieldValue::Array(values) => Some(values),
            _ => None,
        }
    }

    /// The value, unless it has to be encoded to be referred to.
    fn as_ref_scalar(&self) -> Option<ValueRef<'_>> {
        Some(match self {
            FieldValue::Bool(v) => ValueRef::Bool(*v),
            FieldValue::I8(v) => ValueRef::I8(*v),
            FieldValue::U8(v) => ValueRef::U8(*v),
            FieldValue::I16(v) => ValueRef::I16(*v),
            FieldValue::U16(v) => ValueRef::U16(*v),
            FieldValue::I32(v) => ValueRef::I32(*v),
            FieldValue::U32(v) => ValueRef::U32(*v),
            FieldValue::I64(v) => ValueRef::I64(*v),
            FieldValue::F32(v) => ValueRef::F32(*v),
            FieldValue::F64(v) => ValueRef::F64(*v),
            FieldValue::Decimal { scale, value } => ValueRef::Decimal { scale: *scale, value: *value },
            FieldValue::LongStr(v) => ValueRef::LongStr(v),
            FieldValue::ByteArray(v) => ValueRef::ByteArray(v),
            FieldValue::Timestamp(v) => ValueRef::Timestamp(*v),
            FieldValue::Void => ValueRef::Void,
            FieldValue::Array(_) | FieldValue::Table(_) => return None,
        })
    }

    /// The name of its type, as error texts call it.
    pub const fn type_name(&self) -> &'static str {
        match self {
            FieldValue::Bool(_) => "bool",
            FieldValue::I8(_) => "byte",
            FieldValue::U8(_) => "unsignedbyte",
            FieldValue::I16(_) => "short",
            FieldValue::U16(_) => "unsignedshort",
            FieldValue::I32(_) => "signedint",
            FieldValue::U32(_) => "unsignedint",
            FieldValue::I64(_) => "long",
            FieldValue::F32(_) => "float",
            FieldValue::F64(_) => "double",
            FieldValue::Decimal { .. } => "decimal",
            FieldValue::LongStr(_) => "longstr",
            FieldValue::ByteArray(_) => "binary",
            FieldValue::Array(_) => "array",
            FieldValue::Table(_) => "table",
            FieldValue::Timestamp(_) => "timestamp",
            FieldValue::Void => "void",
        }
    }

    /// Whether two values are the same to a declaration: integers of any width compare by value, floats of either
    /// width too; an integer never equals a float or a string.
    pub fn equivalent(&self, other: &FieldValue) -> bool {
        match (self, other) {
            (FieldValue::Array(a), FieldValue::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equivalent(b))
            }
            (FieldValue::Table(a), FieldValue::Table(b)) => a.equivalent(b),
            _ => match other.as_ref_scalar() {
                Some(other) => self.matches(other),
                None => false,
            },
        }
    }

    /// Whether a message's header has this value, by the rules of [`FieldValue::equivalent`]. Tables and arrays
    /// never match.
    pub fn matches(&self, header: ValueRef<'_>) -> bool {
        let Some(own) = self.as_ref_scalar() else {
            return false;
        };
        match (own.as_int(), header.as_int()) {
            (Some(a), Some(b)) => return a == b,
            (None, None) => {}
            _ => return false,
        }
        match (own.as_float(), header.as_float()) {
            (Some(a), Some(b)) => a == b,
            (None, None) => own == header,
            _ => false,
        }
    }

    /// Writes the type tag and the value.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            FieldValue::Bool(v) => tagged(out, b't').put_u8(u8::from(*v)),
            FieldValue::I8(v) => tagged(out, b'b').put_i8(*v),
            FieldValue::U8(v) => tagged(out, b'B').put_u8(*v),
            FieldValue::I16(v) => tagged(out, b's').put_i16(*v),
            FieldValue::U16(v) => tagged(out, b'u').put_u16(*v),
            FieldValue::I32(v) => tagged(out, b'I').put_i32(*v),
            FieldValue::U32(v) => tagged(out, b'i').put_u32(*v),
            FieldValue::I64(v) => tagged(out, b'l').put_i64(*v),
            FieldValue::F32(v) => tagged(out, b'f').put_f32(*v),
            FieldValue::F64(v) => tagged(out, b'd').put_f64(*v),
            FieldValue::Decimal { scale, value } => {
                tagged(out, b'D').put_u8(*scale);
                out.put_u32(*value);
            }
            FieldValue::LongStr(v) => put_long(tagged(out, b'S'), v),
            FieldValue::ByteArray(v) => put_long(tagged(out, b'x'), v),
            FieldValue::Array(values) => put_sized(tagged(out, b'A'), |out| {
                values.iter().for_each(|value| value.encode(out));
            }),
            FieldValue::Table(table) => table.encode(tagged(out, b'F')),
            FieldValue::Timestamp(v) => tagged(out, b'T').put_u64(*v),
            FieldValue::Void => tagged(out, b'V').put_slice(&[]),
        }
    }
}

fn tagged(out: &mut BytesMut, tag: u8) -> &mut BytesMut {
    out.put_u8(tag);
    out
}

impl From<bool> for FieldValue {
    fn from(v: bool) -> Self {
        FieldValue::Bool(v)
    }
}

impl From<i64> for FieldValue {
    fn from(v: i64) -> Self {
        FieldValue::I64(v)
    }
}

impl From<&str> for FieldValue {
    fn from(v: &str) -> Self {
        FieldValue::LongStr(Bytes::copy_from_slice(v.as_bytes()))
    }
}

impl From<String> for FieldValue {
    fn from(v: String) -> Self {
        FieldValue::text(v)
    }
}

impl From<FieldTable> for FieldValue {
    fn from(v: FieldTable) -> Self {
        FieldValue::Table(v)
    }
}

impl FieldTable {
    /// An empty table.
    pub fn new() -> Self {
        FieldTable::default()
    }

    /// Reads a table from its encoding without the length, as [`FieldTable::encode_bare`] writes it.
    pub fn decode_bare(bytes: &[u8]) -> Result<Self, TableError> {
        TableRef::new(bytes).to_table()
    }

    /// Appends a field; names over 255 bytes are cut.
    pub fn push(&mut self, name: &str, value: impl Into<FieldValue>) {
        self.0.push((ShortStr::truncated(name), value.into()));
    }

    /// The same table with one more field.
    pub fn with(mut self, name: &str, value: impl Into<FieldValue>) -> Self {
        self.push(name, value);
        self
    }

    /// Replaces the first field of that name, or appends one.
    pub fn set(&mut self, name: &str, value: impl Into<FieldValue>) {
        match self.0.iter_mut().find(|(n, _)| n == name) {
            Some((_, slot)) => *slot = value.into(),
            None => self.push(name, value),
        }
    }

    /// Removes every field of that name and answers the first one's value.
    pub fn remove(&mut self, name: &str) -> Option<FieldValue> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        let (_, value) = self.0.remove(at);
        self.0.retain(|(n, _)| n != name);
        Some(value)
    }

    /// The first field of that name.
    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// The fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FieldValue)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v))
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same fields sorted by name; fields of one name keep their order. What a binding's identity is made of.
    pub fn sorted(&self) -> Self {
        let mut fields = self.0.clone();
        fields.sort_by(|(a, _), (b, _)| a.cmp(b));
        FieldTable(fields)
    }

    /// Whether both have the same fields, in any order, with equivalent values.
    pub fn equivalent(&self, other: &FieldTable) -> bool {
        let (a, b) = (self.sorted(), other.sorted());
        a.len() == b.len() && a.0.iter().zip(&b.0).all(|((an, av), (bn, bv))| an == bn && av.equivalent(bv))
    }

    /// Writes the table with its length before it.
    pub fn encode(&self, out: &mut BytesMut) {
        put_sized(out, |out| self.encode_bare(out));
    }

    /// Writes the fields without a length.
    pub fn encode_bare(&self, out: &mut BytesMut) {
        for (name, value) in &self.0 {
            put_short(out, name.as_bytes());
            value.encode(out);
        }
    }

    /// The encoding without a length.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode_bare(&mut out);
        out.freeze()
    }
}

impl FromIterator<(ShortStr, FieldValue)> for FieldTable {
    fn from_iter<I: IntoIterator<Item = (ShortStr, FieldValue)>>(fields: I) -> Self {
        FieldTable(fields.into_iter().collect())
    }
}

impl IntoIterator for FieldTable {
    type Item = (ShortStr, FieldValue);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
