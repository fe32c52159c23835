//! The whole tree as lines of JSON, for people to read and for an empty store to take in.
//!
//! The first line says what it is: `{"format":"warren-metadata","version":1,"revision":R,"nodes":N}`. Then comes one line
//! for each node, in path order: `path` as text; `kind`, `schema` and `payload` (hexadecimal) where there is one; `record`
//! and `fields` for people, which an import does not read; `versions` and `revisions`; `keep` where the node depends on
//! something: `"placeholder"`, or the conditions as they are stored, in hexadecimal. Hashes of passwords are in payloads:
//! [`Secrets`] says whether they may be there.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use prost::Message;
use serde_json::{Map, Value, json};
use warren_proto::ids::Reference;

use crate::machine::{self, Write};
use crate::records::{Record, User, described};
use crate::tree::{
    AbortCode, Condition, FieldValue, Guard, Keep, KeepWhile, Node, Op, Path, Pattern, Payload, Step, TextError, Tree,
    Watch,
};

const FORMAT: &str = "warren-metadata";
const VERSION: u64 = 1;
/// Operations in one command of an import, at most.
const BATCH_OPS: usize = 500;
/// Octets of payload in one command of an import, from which on the next begins.
const BATCH_OCTETS: usize = 1 << 20;

/// Whether an export contains hashes of passwords.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Secrets {
    /// Users are exported without their payload: for people. Such an export cannot be imported.
    Hidden,
    /// All of it.
    Included,
}

/// Text that is no export, or of one that cannot be imported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// It does not begin as one.
    #[error("not an export of metadata of a known format")]
    Format,
    /// A line cannot be read.
    #[error("line {line}: {why}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// Lines are missing at the end.
    #[error("the export has {found} of {expected} nodes: it is cut off")]
    CutOff {
        /// Nodes there.
        found: u64,
        /// Nodes that there should be.
        expected: u64,
    },
}

/// The lines of a tree, without line ends.
pub fn lines(tree: &Tree, revision: Reference, secrets: Secrets) -> impl Iterator<Item = String> + use<> {
    // Siblings that are still to come, the next last. A handle per level would borrow from the tree; nodes are shared.
    let mut open: Vec<(Path, Arc<Node>)> = beneath(&Path::new(Vec::new()), tree.root());
    let nodes = tree.count() - 1;
    let head = json!({"format": FORMAT, "version": VERSION, "revision": revision.0, "nodes": nodes}).to_string();
    let rest = std::iter::from_fn(move || {
        let (path, node) = open.pop()?;
        open.extend(beneath(&path, &node));
        Some(line(&path, &node, secrets).to_string())
    });
    std::iter::once(head).chain(rest)
}

/// A node's children, the first last.
fn beneath(path: &Path, node: &Node) -> Vec<(Path, Arc<Node>)> {
    let mut children: Vec<_> =
        node.children.iter().map(|(name, child)| (path.child(name.clone()), Arc::clone(child))).collect();
    children.reverse();
    children
}

/// One node as JSON.
pub fn line(path: &Path, node: &Node, secrets: Secrets) -> Value {
    let mut out = Map::new();
    out.insert("path".into(), path.to_string().into());
    if let Some(payload) = node.payload() {
        out.insert("kind".into(), payload.kind.into());
        out.insert("schema".into(), payload.schema.into());
        if secrets == Secrets::Included || payload.kind != User::KIND {
            out.insert("payload".into(), hex(&payload.bytes).into());
        }
        if let Some((what, fields)) = described(payload) {
            out.insert("record".into(), what.into());
            let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), json(&value)));
            out.insert("fields".into(), Value::Object(fields.collect()));
        }
    }
    let properties = node.properties();
    out.insert("versions".into(), json!([properties.payload_version, properties.child_list_version]));
    out.insert("revisions".into(), json!([properties.create_revision.0, properties.mod_revision.0]));
    match &node.keep {
        Keep::Always => {}
        Keep::Placeholder => drop(out.insert("keep".into(), "placeholder".into())),
        Keep::While(keep) => {
            out.insert("keep".into(), hex(&machine::stored_keep_while(keep).encode_to_vec()).into());
        }
    }
    Value::Object(out)
}

/// A field as JSON; octets as hexadecimal.
pub fn json(value: &FieldValue) -> Value {
    match value {
        FieldValue::Text(text) => Value::from(text.as_str()),
        FieldValue::Integer(number) => Value::from(*number),
        FieldValue::Bool(value) => Value::from(*value),
        FieldValue::Bytes(octets) => Value::from(hex(octets)),
        FieldValue::List(list) => Value::Array(list.iter().map(json).collect()),
    }
}

fn hex(octets: &[u8]) -> String {
    octets.iter().fold(String::with_capacity(2 * octets.len()), |mut out, octet| {
        let _ = write!(out, "{octet:02x}");
        out
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

/// A node of an export.
struct Imported {
    path: Path,
    payload: Option<Payload>,
    watches: Vec<Watch>,
}

/// The commands that make an empty store hold what an export says, to be proposed in this order: payloads and conditions,
/// with versions and revisions of the new store's own. The first aborts with `InUse` where the store is not empty.
pub fn import<'t>(lines: impl IntoIterator<Item = &'t str>) -> Result<Vec<Write>, ImportError> {
    let mut lines = lines.into_iter().enumerate().map(|(at, text)| (at + 1, text));
    let head: Value = lines.next().and_then(|(_, text)| serde_json::from_str(text).ok()).ok_or(ImportError::Format)?;
    if head["format"] != FORMAT || head["version"] != VERSION {
        return Err(ImportError::Format);
    }
    let expected = head["nodes"].as_u64().ok_or(ImportError::Format)?;
    let mut batches = Batches::default();
    let anything = Pattern::new(vec![Step::Where(Condition::AnyName)]);
    batches.push(Op::If(Guard::Exists(anything), vec![Op::Abort(AbortCode::InUse)], Vec::new()), 0);
    let mut later = VecDeque::new();
    let mut found = 0;
    for (line, text) in lines {
        found += 1;
        let wrong = |why: String| ImportError::Line { line, why };
        let Some(node) = imported(text).map_err(wrong)? else { continue };
        // Watches on what lies beneath may be unmet as long as the node is being made, and only then; others need what
        // may come later.
        let (own, others): (Vec<_>, Vec<_>) =
            node.watches.into_iter().partition(|watch| watch.is_within(node.path.components()));
        let octets = node.payload.as_ref().map_or(0, |payload| payload.bytes.len());
        let condition = Condition::always();
        if others.is_empty() {
            let keep_while = (!own.is_empty()).then_some(own);
            batches.push(Op::Put { path: node.path, condition, payload: node.payload, keep_while }, octets);
        } else {
            batches
                .push(Op::Put { path: node.path.clone(), condition, payload: node.payload, keep_while: None }, octets);
            later.push_back((node.path, own.into_iter().chain(others).collect()));
        }
    }
    if found != expected {
        return Err(ImportError::CutOff { found, expected });
    }
    for (path, watches) in later {
        let keep_while: Option<Vec<Watch>> = Some(watches);
        batches.push(Op::Put { path, condition: Condition::NodeExists(true), payload: None, keep_while }, 0);
    }
    Ok(batches.done)
}

/// `None` for a node that its descendants bring along.
fn imported(text: &str) -> Result<Option<Imported>, String> {
    let value: Value = serde_json::from_str(text).map_err(|why| why.to_string())?;
    let path = value["path"].as_str().ok_or("there is no path")?;
    let path = Path::parse(path, &Path::new(Vec::new())).map_err(|why: TextError| why.to_string())?;
    let number = |name: &str| value[name].as_u64().and_then(|number| u16::try_from(number).ok());
    let payload = match (number("kind"), number("schema"), value["payload"].as_str().map(unhex)) {
        (Some(kind), Some(schema), Some(Some(bytes))) => Some(Payload { kind, schema, bytes: bytes.into() }),
        (None, None, None) => None,
        (Some(_), Some(_), None) => return Err("its payload was left out: it was exported without secrets".into()),
        _ => return Err("its payload cannot be read".into()),
    };
    let watches = match &value["keep"] {
        Value::Null => Vec::new(),
        Value::String(word) if word == "placeholder" && payload.is_none() => return Ok(None),
        Value::String(word) if word == "placeholder" => Vec::new(),
        Value::String(stored) => {
            let keep = unhex(stored).and_then(|bytes| machine::restored_keep_while(&bytes));
            let KeepWhile(watches) = keep.ok_or("its conditions cannot be read")?;
            watches
        }
        _ => return Err("its conditions cannot be read".into()),
    };
    Ok(Some(Imported { path, payload, watches }))
}

/// Operations in commands of bounded size.
#[derive(Default)]
struct Batches {
    done: Vec<Write>,
    ops: usize,
    octets: usize,
}

impl Batches {
    fn push(&mut self, op: Op, octets: usize) {
        let full = self.ops >= BATCH_OPS || self.octets >= BATCH_OCTETS;
        match self.done.pop() {
            Some(last) if !full => self.done.push(last.and(op.into())),
            Some(last) => {
                self.done.extend([last, op.into()]);
                (self.ops, self.octets) = (0, 0);
            }
            None => self.done.push(op.into()),
        }
        self.ops += 1;
        self.octets += octets;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::random_writes::{Act, Log, act};
    use crate::tree::{Component, MetaError};

    fn exported(log: &Log) -> Vec<String> {
        lines(&log.machine.tree(), log.machine.applied(), Secrets::Included).collect()
    }

    /// What an import brings back.
    fn content(log: &Log) -> Vec<(Path, Option<Payload>, Vec<Watch>)> {
        fn walk(at: &Path, node: &Node, out: &mut Vec<(Path, Option<Payload>, Vec<Watch>)>) {
            for (component, child) in node.children() {
                let path = at.child(component.clone());
                let watches = match &child.keep {
                    Keep::While(keep) => keep.0.clone(),
                    Keep::Always | Keep::Placeholder => Vec::new(),
                };
                out.push((path.clone(), child.payload.clone(), watches));
                walk(&path, child, out);
            }
        }
        let mut out = Vec::new();
        walk(&Path::new(Vec::new()), log.machine.tree().root(), &mut out);
        out
    }

    fn started() -> Log {
        let mut log = Log::default();
        [Act::PutUser(0), Act::CreateVhost(0)].iter().for_each(|act| drop(log.act(act)));
        log
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn an_empty_store_holds_after_an_import_what_was_exported(acts in vec(act(), 1..100)) {
            let mut log = Log::default();
            acts.iter().for_each(|act| drop(log.act(act)));
            let text = exported(&log);
            let mut other = Log::default();
            for write in import(text.iter().map(String::as_str)).unwrap() {
                let reply = other.write(&write).reply;
                prop_assert!(reply.is_ok(), "{:?}", reply);
            }
            prop_assert_eq!(content(&other), content(&log));
            prop_assert_eq!(other.machine.check_invariants(), Ok(()));
        }
    }

    #[test]
    fn a_store_that_holds_something_refuses_an_import() {
        let mut log = started();
        let writes = import(exported(&log).iter().map(String::as_str)).unwrap();
        assert_eq!(log.write(&writes[0]).reply, Err(MetaError::Aborted { code: AbortCode::InUse }));
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_refused_with_its_line() {
        let text = exported(&started());
        let import = |lines: &[String]| super::import(lines.iter().map(String::as_str)).unwrap_err();
        let nodes = text.len() as u64 - 1;
        assert_eq!(import(&text[..text.len() - 1]), ImportError::CutOff { found: nodes - 1, expected: nodes });
        assert_eq!(import(&text[1..]), ImportError::Format);
        assert_eq!(import(&[]), ImportError::Format);
        let mut damaged = text.clone();
        damaged[2] = damaged[2].replace("\"path\":\"/", "\"path\":\"/%");
        assert!(matches!(import(&damaged), ImportError::Line { line: 3, .. }));
    }

    #[test]
    fn without_secrets_there_is_no_hash_and_no_import() {
        let log = started();
        let text: Vec<String> = lines(&log.machine.tree(), log.machine.applied(), Secrets::Hidden).collect();
        let user = User::get(&log.machine.tree(), "u0").unwrap().unwrap();
        let hash = hex(&user.password_hash);
        assert!(exported(&log).iter().any(|line| line.contains(&hash)), "it is there where it may be");
        assert!(text.iter().all(|line| !line.contains(&hash)));
        assert!(matches!(import(text.iter().map(String::as_str)), Err(ImportError::Line { .. })));
    }

    #[test]
    fn a_big_store_is_imported_in_commands_of_bounded_size() {
        let mut log = started();
        let name = |n: u32| Component::name(n.to_be_bytes());
        for n in 0..3 * BATCH_OPS as u32 {
            let payload = Payload { kind: 99, schema: 1, bytes: vec![0; 4000].into() };
            log.write(&Op::create(Path::new(vec![name(n)]), payload).into());
        }
        let writes = import(exported(&log).iter().map(String::as_str)).unwrap();
        assert!(writes.len() >= 6);
        for write in &writes {
            assert!(write.ops().len() <= BATCH_OPS && write.to_bytes(None).len() < 2 * BATCH_OCTETS);
        }
    }
}
