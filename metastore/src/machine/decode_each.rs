//! Operations whose paths depend on a node, from their stored form.

use super::{decode, wire};
use crate::tree::{AbortCode, Component, EachOp, EachWatch, MAX_DEPTH, MAX_WATCHES, Part, Template};

/// `None` for what this binary does not know, as [`decode`].
pub(super) fn op(stored: wire::EachOp) -> Option<EachOp> {
    let path = template(stored.path)?;
    if stored.watches.len() > MAX_WATCHES {
        return None;
    }
    let watches = stored.watches.into_iter().map(watch).collect::<Option<Vec<_>>>()?;
    Some(match stored.op?.kind? {
        wire::OpKind::Put(put) => EachOp::Put {
            path,
            condition: decode::condition(put.condition?)?,
            payload: decode::optional(put.payload, decode::payload)?,
            keep_while: put.keep_while.map(|_| watches),
        },
        wire::OpKind::Delete(_) => EachOp::Delete(path),
        wire::OpKind::ClearPayload(_) => EachOp::ClearPayload(path),
        wire::OpKind::SetAdd(add) => EachOp::SetAdd {
            path,
            kind: u16::try_from(add.kind).ok()?,
            schema: u16::try_from(add.schema).ok()?,
            element: add.element.into(),
        },
        wire::OpKind::SetRemove(remove) => EachOp::SetRemove {
            path,
            kind: u16::try_from(remove.kind).ok()?,
            element: remove.element.into(),
            delete_if_empty: remove.delete_if_empty,
        },
        wire::OpKind::CounterAdd(add) => EachOp::CounterAdd { path, delta: add.delta, initial: add.initial },
        wire::OpKind::Patch(patch) => EachOp::Patch(path, decode::assignments(patch.assignments)?),
        wire::OpKind::Abort(code) => EachOp::Abort(AbortCode::from_number(code)),
        // One level: nothing in it contains operations, and nothing in it answers.
        wire::OpKind::Get(_)
        | wire::OpKind::Count(_)
        | wire::OpKind::If(_)
        | wire::OpKind::PutMany(_)
        | wire::OpKind::ForEach(_)
        | wire::OpKind::Return(_) => return None,
    })
}

fn watch(stored: wire::EachWatch) -> Option<EachWatch> {
    Some(EachWatch { path: template(stored.path)?, condition: decode::condition(stored.condition?)? })
}

fn template(stored: Vec<wire::Part>) -> Option<Template> {
    if stored.len() > 2 * MAX_DEPTH {
        return None;
    }
    let part = |part: wire::Part| {
        Some(match part.kind? {
            wire::PartKind::Literal(bytes) => {
                let mut rest = &bytes[..];
                Part::Literal(Component::decode(&mut rest).filter(|_| rest.is_empty())?)
            }
            wire::PartKind::Path(_) => Part::Path,
            wire::PartKind::Name(at) => Part::Name(u8::try_from(at).ok()?),
            wire::PartKind::Parent(_) => Part::Parent,
        })
    };
    stored.into_iter().map(part).collect::<Option<_>>().map(Template)
}
