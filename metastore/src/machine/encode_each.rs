//! Operations whose paths depend on a node, to their stored form: an ordinary operation without a path, and the path.

use super::{encode, wire};
use crate::tree::{EachOp, EachWatch, Part, Path, Template};

pub(super) fn op(op: &EachOp) -> wire::EachOp {
    let nowhere = || Path::new(Vec::new()).encoded();
    let pattern = || wire::Pattern { steps: Vec::new() };
    let mut watches = Vec::new();
    let (path, kind) = match op {
        EachOp::Put { path, condition, payload, keep_while } => {
            watches.extend(keep_while.iter().flatten().map(watch));
            let put = wire::Put {
                path: nowhere(),
                condition: Some(encode::condition(condition)),
                payload: payload.as_ref().map(encode::payload),
                keep_while: keep_while.as_ref().map(|_| wire::KeepWhile { watches: Vec::new() }),
            };
            (Some(path), wire::OpKind::Put(put))
        }
        EachOp::Delete(path) => (Some(path), wire::OpKind::Delete(pattern())),
        EachOp::ClearPayload(path) => (Some(path), wire::OpKind::ClearPayload(pattern())),
        EachOp::SetAdd { path, kind, schema, element } => {
            let add = wire::SetAdd {
                path: nowhere(),
                kind: u32::from(*kind),
                schema: u32::from(*schema),
                element: element.to_vec(),
                keep_while: None,
            };
            (Some(path), wire::OpKind::SetAdd(add))
        }
        EachOp::SetRemove { path, kind, element, delete_if_empty } => {
            let remove = wire::SetRemove {
                path: nowhere(),
                kind: u32::from(*kind),
                element: element.to_vec(),
                delete_if_empty: *delete_if_empty,
            };
            (Some(path), wire::OpKind::SetRemove(remove))
        }
        EachOp::CounterAdd { path, delta, initial } => {
            let add = wire::CounterAdd { path: nowhere(), delta: *delta, initial: *initial };
            (Some(path), wire::OpKind::CounterAdd(add))
        }
        EachOp::Patch(path, assignments) => (Some(path), wire::OpKind::Patch(encode::patch(None, assignments))),
        EachOp::Abort(code) => (None, wire::OpKind::Abort(code.number())),
    };
    let path = path.map(template).unwrap_or_default();
    wire::EachOp { path, op: Some(wire::Op { kind: Some(kind) }), watches }
}

fn watch(watch: &EachWatch) -> wire::EachWatch {
    wire::EachWatch { path: template(&watch.path), condition: Some(encode::condition(&watch.condition)) }
}

fn template(template: &Template) -> Vec<wire::Part> {
    let part = |part: &Part| wire::Part {
        kind: Some(match part {
            Part::Literal(component) => {
                let mut bytes = Vec::new();
                component.encode(&mut bytes);
                wire::PartKind::Literal(bytes)
            }
            Part::Path => wire::PartKind::Path(wire::Empty {}),
            Part::Name(at) => wire::PartKind::Name(u32::from(*at)),
            Part::Parent => wire::PartKind::Parent(wire::Empty {}),
        }),
    };
    template.0.iter().map(part).collect()
}
