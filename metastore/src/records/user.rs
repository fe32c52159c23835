//! Users and their passwords.

use std::sync::Arc;

use md5::Md5;
use prost::Message;
use sha2::{Digest, Sha256, Sha512};
use warren_proto::ids::Reference;

use super::layout;
use super::stored::{self, Invalid, Record, Stored, Unknown};
use crate::machine::Write;
use crate::tree::{Comparison, Condition, Guard, Op, Payload, Tree};

const SALT: usize = 4;

/// How the stored password hash was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HashingAlgorithm {
    /// `rabbit_password_hashing_sha256`
    #[default]
    Sha256,
    /// `rabbit_password_hashing_sha512`
    Sha512,
    /// `rabbit_password_hashing_md5`: of old definitions, never chosen for a new password.
    Md5,
    /// One that a newer binary stored; no password matches it here.
    Other(u32),
}

impl HashingAlgorithm {
    /// The name in definitions files.
    pub fn name(self) -> &'static str {
        match self {
            HashingAlgorithm::Sha256 => "rabbit_password_hashing_sha256",
            HashingAlgorithm::Sha512 => "rabbit_password_hashing_sha512",
            HashingAlgorithm::Md5 => "rabbit_password_hashing_md5",
            HashingAlgorithm::Other(_) => "unknown",
        }
    }

    /// The algorithm of a name in a definitions file.
    pub fn from_name(name: &str) -> Option<Self> {
        let known = [HashingAlgorithm::Sha256, HashingAlgorithm::Sha512, HashingAlgorithm::Md5];
        known.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The octets of a hash with its salt; `None` where this binary does not know the algorithm.
    fn stored_len(self) -> Option<usize> {
        match self {
            HashingAlgorithm::Sha256 => Some(SALT + 32),
            HashingAlgorithm::Sha512 => Some(SALT + 64),
            HashingAlgorithm::Md5 => Some(SALT + 16),
            HashingAlgorithm::Other(_) => None,
        }
    }

    /// H(salt + password).
    fn hash(self, salt: &[u8], password: &[u8]) -> Option<Vec<u8>> {
        fn of<D: Digest>(salt: &[u8], password: &[u8]) -> Option<Vec<u8>> {
            Some(D::new().chain_update(salt).chain_update(password).finalize().to_vec())
        }
        match self {
            HashingAlgorithm::Sha256 => of::<Sha256>(salt, password),
            HashingAlgorithm::Sha512 => of::<Sha512>(salt, password),
            HashingAlgorithm::Md5 => of::<Md5>(salt, password),
            HashingAlgorithm::Other(_) => None,
        }
    }
}

/// A user.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct User {
    /// The name.
    pub name: Arc<str>,
    /// Salt (4 octets) and H(salt + password); empty = no login by password.
    pub password_hash: Vec<u8>,
    /// What H is.
    pub hashing_algorithm: HashingAlgorithm,
    /// `administrator`, `monitoring`, ..., and free words.
    pub tags: Vec<String>,
    /// Connections at most; negative or `None` = no limit.
    pub max_connections: Option<i64>,
    /// Channels at most; negative or `None` = no limit.
    pub max_channels: Option<i64>,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    password_hash: Vec<u8>,
    /// 0 sha256, 1 sha512, 2 md5.
    #[prost(uint32, tag = "3")]
    hashing_algorithm: u32,
    #[prost(string, repeated, tag = "4")]
    tags: Vec<String>,
    #[prost(sint64, optional, tag = "5")]
    max_connections: Option<i64>,
    #[prost(sint64, optional, tag = "6")]
    max_channels: Option<i64>,
}

impl Record for User {
    const KIND: u16 = 4;
    const WHAT: &'static str = "user";

    fn encode(&self) -> Payload {
        let wire = Wire {
            name: self.name.to_string(),
            password_hash: self.password_hash.clone(),
            hashing_algorithm: match self.hashing_algorithm {
                HashingAlgorithm::Sha256 => 0,
                HashingAlgorithm::Sha512 => 1,
                HashingAlgorithm::Md5 => 2,
                HashingAlgorithm::Other(number) => number,
            },
            tags: self.tags.clone(),
            max_connections: self.max_connections,
            max_channels: self.max_channels,
        };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 6)?;
        Ok(User {
            name: wire.name.into(),
            password_hash: wire.password_hash,
            hashing_algorithm: match wire.hashing_algorithm {
                0 => HashingAlgorithm::Sha256,
                1 => HashingAlgorithm::Sha512,
                2 => HashingAlgorithm::Md5,
                other => HashingAlgorithm::Other(other),
            },
            tags: wire.tags,
            max_connections: wire.max_connections,
            max_channels: wire.max_channels,
            unknown,
        })
    }
}

impl User {
    /// A user with a password; the salt must be random.
    pub fn with_password(name: &str, password: &[u8], salt: [u8; SALT], tags: Vec<String>) -> Self {
        let mut user = User { name: name.into(), tags, ..User::default() };
        user.set_password(password, salt);
        user
    }

    /// Replaces the password; the salt must be random.
    pub fn set_password(&mut self, password: &[u8], salt: [u8; SALT]) {
        self.set_password_with(HashingAlgorithm::Sha256, password, salt);
    }

    /// [`set_password`](Self::set_password) with an algorithm that this binary knows.
    pub fn set_password_with(&mut self, algorithm: HashingAlgorithm, password: &[u8], salt: [u8; SALT]) {
        self.hashing_algorithm = algorithm;
        let hash = algorithm.hash(&salt, password).unwrap_or_default();
        self.password_hash = [&salt[..], &hash].concat();
    }

    /// Whether a stored hash can be one of this algorithm. The empty one can: it is that of a user without a password.
    pub fn is_hash(algorithm: HashingAlgorithm, stored: &[u8]) -> bool {
        stored.is_empty() || algorithm.stored_len() == Some(stored.len())
    }

    /// Whether this is the user's password. An empty one never is, nor is any of a user without a hash.
    pub fn verify(&self, password: &[u8]) -> bool {
        let Some((salt, stored)) = self.password_hash.split_at_checked(SALT) else {
            return false;
        };
        if password.is_empty() {
            return false;
        }
        let Some(computed) = self.hashing_algorithm.hash(salt, password) else {
            return false;
        };
        // Takes as long wherever they differ.
        let differing = computed.iter().zip(stored).fold(0, |bits, (a, b)| bits | (a ^ b));
        stored.len() == computed.len() && differing == 0
    }

    /// Whether the user has the tag.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|t| t == tag)
    }

    /// The user of a name.
    pub fn get(tree: &Tree, name: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::user(name))
    }

    /// All users, in order of their names.
    pub fn list(tree: &Tree) -> Result<Vec<Stored<Self>>, Invalid> {
        stored::list(tree, &layout::users(), &[])
    }

    /// Creates the user. Read the reply with [`Record::created`].
    pub fn create(&self) -> Write {
        self.put(Condition::NodeExists(false))
    }

    /// Replaces the record if it has not changed since it was read; otherwise `MismatchingNode`, and the caller reads
    /// again and retries.
    pub fn update(&self, mod_revision: Reference) -> Write {
        self.put(Condition::ModRevision(Comparison::Eq, mod_revision))
    }

    /// Sets the record, whatever was there.
    pub fn set(&self) -> Write {
        self.put(Condition::always())
    }

    fn put(&self, condition: Condition) -> Write {
        let payload = Some(self.encode());
        Op::Put { path: layout::user(&self.name), condition, payload, keep_while: None }.into()
    }

    /// Deletes the user; its permissions in every vhost go with it.
    pub fn delete(name: &str) -> Write {
        Op::Delete(layout::user(name).into()).into()
    }
}

/// "The user exists."
pub(super) fn exists(name: &str) -> Guard {
    Guard::Test(layout::user(name), Condition::HasPayload(true))
}
