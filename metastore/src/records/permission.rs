//! What a user may do in a vhost.

use std::sync::Arc;

use prost::Message;

use super::stored::{self, Invalid, Record, Stored, Unknown};
use super::{layout, user, vhost};
use crate::machine::Write;
use crate::tree::{AbortCode, Condition, Op, Path, Pattern, Payload, Step, Tree, Watch};

/// Three regular expressions, matched unanchored on resource names; the empty one matches nothing.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Permission {
    /// The user.
    pub user: Arc<str>,
    /// The vhost.
    pub vhost: Arc<str>,
    /// What it may declare and delete.
    pub configure: String,
    /// What it may publish to and bind queues to.
    pub write: String,
    /// What it may consume from and bind exchanges from.
    pub read: String,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    user: String,
    #[prost(string, tag = "2")]
    vhost: String,
    #[prost(string, tag = "3")]
    configure: String,
    #[prost(string, tag = "4")]
    write: String,
    #[prost(string, tag = "5")]
    read: String,
}

impl Record for Permission {
    const KIND: u16 = 5;
    const WHAT: &'static str = "permission";

    fn encode(&self) -> Payload {
        let wire = Wire {
            user: self.user.to_string(),
            vhost: self.vhost.to_string(),
            configure: self.configure.clone(),
            write: self.write.clone(),
            read: self.read.clone(),
        };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 5)?;
        Ok(Permission {
            user: wire.user.into(),
            vhost: wire.vhost.into(),
            configure: wire.configure,
            write: wire.write,
            read: wire.read,
            unknown,
        })
    }
}

impl Permission {
    /// Everything, as a vhost's creator has.
    pub fn full(user: &str, vhost: &str) -> Self {
        Permission {
            user: user.into(),
            vhost: vhost.into(),
            configure: ".*".into(),
            write: ".*".into(),
            read: ".*".into(),
            unknown: Unknown::default(),
        }
    }

    /// The permission of a user in a vhost.
    pub fn get(tree: &Tree, vhost: &str, user: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::permission(vhost, user))
    }

    /// All permissions in a vhost, in order of the users' names.
    pub fn list(tree: &Tree, vhost: &str) -> Result<Vec<Stored<Self>>, Invalid> {
        stored::list(tree, &layout::permissions(vhost), &[])
    }

    /// Sets it; aborts with `NoSuchUser` or `NoSuchVhost`.
    pub fn set(&self) -> Write {
        guarded(&self.user, &self.vhost, self.put())
    }

    pub(super) fn put(&self) -> Op {
        put_kept_by_user(layout::permission(&self.vhost, &self.user), &self.user, self.encode())
    }

    /// Removes all permissions and topic permissions in a vhost; the reply counts the two.
    pub fn clear_all(vhost: &str) -> Write {
        let all = Pattern::from(layout::permissions(vhost)).join([Step::Where(Condition::AnyName)]);
        Write::new(vec![Op::Delete(all), Op::Delete(layout::all_topic_permissions(vhost))])
    }

    /// Removes it. To remove none is no error: the reply's count tells.
    pub fn clear(vhost: &str, user: &str) -> Write {
        Op::Delete(layout::permission(vhost, user).into()).into()
    }
}

/// A put that lasts as long as the user does.
pub(super) fn put_kept_by_user(path: Path, user: &str, payload: Payload) -> Op {
    Op::Put {
        path,
        condition: Condition::always(),
        payload: Some(payload),
        keep_while: Some(vec![Watch::exists(layout::user(user))]),
    }
}

/// Does `op` if both exist.
pub(super) fn guarded(user: &str, vhost: &str, op: Op) -> Write {
    let no_vhost = vec![Op::Abort(AbortCode::NoSuchVhost)];
    let with_user = vec![Op::If(vhost::exists(vhost), vec![op], no_vhost)];
    Op::If(user::exists(user), with_user, vec![Op::Abort(AbortCode::NoSuchUser)]).into()
}
