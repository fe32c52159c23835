//! The metadata tree as it is, for operators: `metadata get|list|tree|export`. Reads this node's copy and changes nothing;
//! hashes of passwords are left out.

use serde_json::{Value, json};
use warren_broker::Broker;
use warren_metastore::export::{self, Secrets};
use warren_metastore::records::described;
use warren_metastore::tree::{Component, Node, Path, Pattern, Step, Symbol, Tree};

use super::protocol::{Code, LINE, Refusal, Request, Row};
use super::{Answer, Outcome, row};

/// Lines of one answer, at most.
const MAX_LINES: usize = 200_000;

type Lines = Result<Vec<String>, Refusal>;

/// `metadata get|list|tree|export [path]`.
pub async fn show(broker: &Broker, request: &Request) -> Outcome {
    let (action, text) = (request.text("action").to_owned(), request.text("path").to_owned());
    let tree = broker.metadata().tree();
    let revision = broker.metadata().projections().peek().applied();
    // A big tree takes a while; the handle does not change meanwhile.
    let work = tokio::task::spawn_blocking(move || match action.as_str() {
        "get" => get(&tree, &text),
        "list" => list(&tree, &text),
        "tree" => outline(&tree, &text),
        "export" if text.is_empty() => bounded(export::lines(&tree, revision, Secrets::Hidden)),
        "export" => export_some(&tree, &text),
        other => Err(Refusal::new(Code::Invalid, format!("unknown action `{other}`: get, list, tree or export"))),
    });
    let lines = work.await.map_err(|error| Refusal::new(Code::Internal, error.to_string()))??;
    Ok(Answer::Rows(lines.into_iter().map(|line| -> Row { row([(LINE, Value::String(line))]) }).collect()))
}

/// The pattern of a text; what does not begin with `/` lies where records do.
fn pattern(text: &str) -> Result<Pattern, Refusal> {
    let base = Symbol::new("warren").map(|word| Step::Literal(Component::Symbol(word)));
    Pattern::parse(text, &Pattern::new(base.into_iter().collect()))
        .map_err(|error| Refusal::new(Code::Invalid, error.to_string()))
}

/// One node, which must be there.
fn get(tree: &Tree, text: &str) -> Lines {
    let (path, _) = pattern(text)?.target().map_err(|error| Refusal::new(Code::Invalid, error.to_string()))?;
    let node = tree.node(&path).ok_or_else(|| not_found(&path))?;
    let mut shown = export::line(&path, node, Secrets::Hidden);
    let children: Vec<String> = node.children().map(|(component, _)| component.to_string()).collect();
    if let Some(object) = shown.as_object_mut() {
        // What it says is in the fields.
        if object.contains_key("fields") {
            object.remove("payload");
        }
        object.insert("child_list_length".to_owned(), json!(children.len()));
        children_shown(object, children);
    }
    let pretty = serde_json::to_string_pretty(&shown).map_err(|e| Refusal::new(Code::Internal, e.to_string()))?;
    Ok(pretty.lines().map(str::to_owned).collect())
}

/// Names of children that `get` shows.
const MAX_CHILDREN: usize = 100;

fn children_shown(object: &mut serde_json::Map<String, Value>, mut children: Vec<String>) {
    if children.len() <= MAX_CHILDREN {
        object.insert("children".to_owned(), json!(children));
    } else {
        children.truncate(MAX_CHILDREN);
        object.insert("first_children".to_owned(), json!(children));
    }
}

/// The paths of all nodes that match, each with its kind of record; of one node, those of its children.
fn list(tree: &Tree, text: &str) -> Lines {
    let pattern = pattern(text)?;
    if let Some(path) = pattern.as_path() {
        let node = tree.node(&path).ok_or_else(|| not_found(&path))?;
        return bounded(node.children().map(|(name, child)| labelled(&path.child(name.clone()).to_string(), child)));
    }
    let mut lines = Vec::new();
    tree.visit(&pattern, &mut |at, node| {
        lines.push(labelled(&Path::new(at.to_vec()).to_string(), node));
        lines.len() <= MAX_LINES
    });
    bounded(lines.into_iter())
}

/// A node and all beneath it, each deeper level further to the right.
fn outline(tree: &Tree, text: &str) -> Lines {
    fn walk(depth: usize, name: &str, node: &Node, lines: &mut Vec<String>) {
        if lines.len() > MAX_LINES {
            return;
        }
        lines.push(format!("{}{}", "  ".repeat(depth), labelled(name, node)));
        for (component, child) in node.children() {
            walk(depth + 1, &component.to_string(), child, lines);
        }
    }
    let path = pattern(text)?.as_path().ok_or_else(|| Refusal::new(Code::Invalid, "`tree` shows one node"))?;
    let node = tree.node(&path).ok_or_else(|| not_found(&path))?;
    let mut lines = Vec::new();
    walk(0, &path.to_string(), node, &mut lines);
    bounded(lines.into_iter())
}

/// Lines of an export about some nodes, without its first.
fn export_some(tree: &Tree, text: &str) -> Lines {
    let mut lines = Vec::new();
    tree.visit(&pattern(text)?, &mut |at, node| {
        lines.push(export::line(&Path::new(at.to_vec()), node, Secrets::Hidden).to_string());
        lines.len() <= MAX_LINES
    });
    bounded(lines.into_iter())
}

fn labelled(name: &str, node: &Node) -> String {
    match node.payload() {
        None => name.to_owned(),
        Some(payload) => {
            let what = described(payload).map_or_else(|| format!("kind {}", payload.kind), |(what, _)| what.to_owned());
            format!("{name} [{what}]")
        }
    }
}

fn bounded(lines: impl Iterator<Item = String>) -> Lines {
    let lines: Vec<String> = lines.take(MAX_LINES + 1).collect();
    if lines.len() > MAX_LINES {
        let text = format!("more than {MAX_LINES} nodes match: name a path or a pattern that fewer match");
        return Err(Refusal::new(Code::Invalid, text));
    }
    Ok(lines)
}

fn not_found(path: &Path) -> Refusal {
    Refusal::new(Code::NotFound, format!("node_not_found: {path} does not exist"))
}

#[cfg(test)]
mod tests {
    use warren_metastore::machine::{Machine, Meta};
    use warren_metastore::records::{User, Vhost};
    use warren_proto::ids::Reference;

    use super::*;

    fn tree() -> Tree {
        let mut machine = Machine::new();
        let user = User::with_password("guest", b"guest", [7; 4], vec!["administrator".into()]);
        for (n, write) in [user.create(), Vhost::named("a/b").create(Some("guest"))].iter().enumerate() {
            let reference = Reference::new(n as u64 + 1, 0);
            let meta = Meta { reference, ts_ms: 0, version: *Machine::VERSIONS.end() };
            assert!(machine.apply(meta, &write.to_bytes(None)).reply.is_ok());
        }
        machine.tree()
    }

    #[test]
    fn paths_are_given_from_the_root_or_from_where_records_lie() {
        let tree = tree();
        let expected = ["/:warren/:vhosts/a%2Fb [virtual host]"];
        assert_eq!(list(&tree, "/:warren/:vhosts/*").unwrap(), expected);
        assert_eq!(list(&tree, ":vhosts").unwrap(), expected);
        let found = list(&tree, "/**/guest").unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(get(&tree, ":vhosts/x").unwrap_err().code, Code::NotFound);
        let many = get(&tree, ":vhosts/*").unwrap_err();
        assert!(many.code == Code::Invalid && many.message.starts_with("possibly_matching_many_nodes"));
        assert_eq!(get(&tree, ":Vhosts").unwrap_err().code, Code::Invalid);
    }

    #[test]
    fn no_hash_of_a_password_is_shown() {
        let tree = tree();
        let shown = get(&tree, ":users/guest").unwrap().join("\n");
        assert!(shown.contains("administrator") && !shown.contains("07070707"), "{shown}");
        let lines = export_some(&tree, "/**").unwrap();
        assert!(lines.iter().all(|line| !line.contains("07070707")) && lines.len() > 10);
    }

    #[test]
    fn the_outline_has_a_line_for_each_node() {
        let tree = tree();
        let lines = outline(&tree, "/").unwrap();
        assert_eq!(lines.len() as u64, tree.count());
        assert_eq!(lines[..2], ["/", "  :warren"]);
        assert!(lines.contains(&"          amq.topic [exchange]".to_owned()), "{lines:?}");
    }
}
