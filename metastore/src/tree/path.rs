//! Components and paths.

use std::fmt;
use std::sync::Arc;

/// Components in a path, at most.
pub const MAX_DEPTH: usize = 32;
/// Octets in a name, at most.
pub const MAX_NAME: usize = 65_535;
/// Octets in a symbol, at most.
const MAX_SYMBOL: usize = 64;

/// A fixed word of the schema, such as `vhosts` or `queue`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol(Arc<str>);

impl Symbol {
    /// The symbol of this word, or `None` where it is not 1 to 64 octets of `a-z`, `0-9` and `_`.
    pub fn new(word: &str) -> Option<Self> {
        let fits = (1..=MAX_SYMBOL).contains(&word.len());
        let plain = word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        (fits && plain).then(|| Symbol(super::interned(word)))
    }

    /// A word that the schema itself defines.
    pub(crate) fn of_schema(word: &'static str) -> Self {
        Symbol(super::interned(word))
    }

    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ":{}", self.0)
    }
}

/// One step of a path. The symbol `queue` and the name `queue` are different children; symbols sort before names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// A word of the schema.
    Symbol(Symbol),
    /// Arbitrary octets, possibly none.
    Name(Arc<[u8]>),
}

impl Component {
    /// A name.
    pub fn name(octets: impl AsRef<[u8]>) -> Self {
        Component::Name(Arc::from(octets.as_ref()))
    }

    /// The octets of a name; `None` for a symbol.
    pub fn as_name(&self) -> Option<&[u8]> {
        match self {
            Component::Name(octets) => Some(octets),
            Component::Symbol(_) => None,
        }
    }

    /// The word of a symbol; `None` for a name.
    pub fn as_symbol(&self) -> Option<&str> {
        match self {
            Component::Symbol(symbol) => Some(symbol.as_str()),
            Component::Name(_) => None,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (tag, octets) = match self {
            Component::Symbol(symbol) => (0, symbol.as_str().as_bytes()),
            Component::Name(octets) => (1, &octets[..]),
        };
        out.push(tag);
        prost::encoding::encode_varint(octets.len() as u64, out);
        out.extend_from_slice(octets);
    }

    pub(crate) fn decode(input: &mut &[u8]) -> Option<Self> {
        let (&tag, rest) = input.split_first()?;
        *input = rest;
        let len = usize::try_from(prost::encoding::decode_varint(input).ok()?).ok()?;
        if len > MAX_NAME {
            return None;
        }
        let (octets, rest) = input.split_at_checked(len)?;
        *input = rest;
        match tag {
            0 => Some(Component::Symbol(Symbol::new(std::str::from_utf8(octets).ok()?)?)),
            1 => Some(Component::name(octets)),
            _ => None,
        }
    }
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text form: symbols prefixed with `:`, other octets percent-encoded.
impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Component::Symbol(symbol) => fmt::Debug::fmt(symbol, f),
            Component::Name(octets) => {
                let dots = matches!(&octets[..], b"." | b"..");
                for &b in octets.iter() {
                    if b.is_ascii_alphanumeric() || b"-_.~".contains(&b) && !dots {
                        write!(f, "{}", b as char)?;
                    } else {
                        write!(f, "%{b:02X}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// The place of a node, from the root. Cloning shares the components. A parent sorts before its children, siblings in
/// component order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Arc<[Component]>);

impl Path {
    /// A path of these components; the root has none.
    pub fn new(components: Vec<Component>) -> Self {
        Path(components.into())
    }

    /// The components.
    pub fn components(&self) -> &[Component] {
        &self.0
    }

    /// Number of components.
    pub fn depth(&self) -> usize {
        self.0.len()
    }

    /// The last component; `None` at the root.
    pub fn last(&self) -> Option<&Component> {
        self.0.last()
    }

    /// The path one step up; `None` at the root.
    pub fn parent(&self) -> Option<Path> {
        self.0.split_last().map(|(_, up)| Path(up.into()))
    }

    /// The path one step down.
    pub fn child(&self, component: Component) -> Path {
        Path(self.0.iter().cloned().chain([component]).collect())
    }

    /// The path of these steps below this one.
    pub fn join(&self, below: impl IntoIterator<Item = Component>) -> Path {
        Path(self.0.iter().cloned().chain(below).collect())
    }

    /// Whether `self` is `other` or lies beneath it.
    pub fn starts_with(&self, other: &[Component]) -> bool {
        self.0.starts_with(other)
    }

    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 * self.depth());
        self.0.iter().for_each(|c| c.encode(&mut out));
        out
    }

    pub(crate) fn decode(mut input: &[u8]) -> Option<Self> {
        let mut components = Vec::new();
        while !input.is_empty() {
            if components.len() == MAX_DEPTH {
                return None;
            }
            components.push(Component::decode(&mut input)?);
        }
        Some(Path::new(components))
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        // Otherwise it would look like the root.
        if matches!(&self.0[..], [Component::Name(name)] if name.is_empty()) {
            return f.write_str("/%");
        }
        self.0.iter().try_for_each(|c| write!(f, "/{c}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_sort_before_names_and_a_parent_before_its_children() {
        let symbol = Component::Symbol(Symbol::new("zz").unwrap());
        assert!(symbol < Component::name(""));
        assert!(Component::name("a") < Component::name("b"));
        let up = Path::new(vec![symbol]);
        assert!(up < up.child(Component::name("")));
    }

    #[test]
    fn a_path_survives_its_encoding_whatever_its_names() {
        let path = Path::new(vec![
            Component::Symbol(Symbol::new("vhosts").unwrap()),
            Component::name(""),
            Component::name([0, b'/', 0xff, b'*', b'.']),
        ]);
        assert_eq!(Path::decode(&path.encoded()), Some(path.clone()));
        assert_eq!(path.to_string(), "/:vhosts//%00%2F%FF%2A.");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Path::decode(&bytes);
        }
    }
}
