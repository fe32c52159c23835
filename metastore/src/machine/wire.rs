//! Commands as they lie in the log. Additive only: numbers are never given a new meaning, and what this binary does not
//! know makes the whole command unknown rather than partly done.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Command {
    /// Who asked, for the dedup of retries; absent where a repeat is harmless.
    #[prost(message, optional, tag = "1")]
    pub request: Option<RequestId>,
    /// Wall clock ms after which nobody asks again; 0 = never.
    #[prost(uint64, tag = "2")]
    pub deadline_ms: u64,
    /// The origin needs no reply of its own below this sequence number any more.
    #[prost(uint64, tag = "3")]
    pub acked_below: u64,
    #[prost(oneof = "Body", tags = "4, 5, 6, 7")]
    pub body: Option<Body>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RequestId {
    #[prost(fixed64, tag = "1")]
    pub origin: u64,
    #[prost(uint64, tag = "2")]
    pub seq: u64,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Body {
    #[prost(message, tag = "4")]
    Write(Ops),
    #[prost(message, tag = "5")]
    DedupAck(RequestIds),
    #[prost(message, tag = "6")]
    DropDedups(RequestIds),
    #[prost(message, tag = "7")]
    Noop(Empty),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestIds {
    #[prost(message, repeated, tag = "1")]
    pub ids: Vec<RequestId>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Ops {
    #[prost(message, repeated, tag = "1")]
    pub ops: Vec<Op>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Op {
    #[prost(oneof = "OpKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub kind: Option<OpKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum OpKind {
    #[prost(message, tag = "1")]
    Get(Pattern),
    #[prost(message, tag = "2")]
    Count(Pattern),
    #[prost(message, tag = "3")]
    Put(Put),
    #[prost(message, tag = "4")]
    Delete(Pattern),
    #[prost(message, tag = "5")]
    ClearPayload(Pattern),
    #[prost(message, tag = "6")]
    SetAdd(SetAdd),
    #[prost(message, tag = "7")]
    SetRemove(SetRemove),
    #[prost(message, tag = "8")]
    CounterAdd(CounterAdd),
    #[prost(message, tag = "9")]
    If(If),
    #[prost(uint32, tag = "10")]
    Abort(u32),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Absent: any.
    #[prost(message, optional, tag = "2")]
    pub condition: Option<Condition>,
    /// Absent: left as it is.
    #[prost(message, optional, tag = "3")]
    pub payload: Option<Payload>,
    /// Absent: left as they are.
    #[prost(message, optional, tag = "4")]
    pub keep_while: Option<KeepWhile>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Payload {
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    #[prost(uint32, tag = "2")]
    pub schema: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub bytes: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeepWhile {
    #[prost(message, repeated, tag = "1")]
    pub watches: Vec<Watch>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Watch {
    #[prost(message, optional, tag = "1")]
    pub pattern: Option<Pattern>,
    #[prost(message, optional, tag = "2")]
    pub condition: Option<Condition>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetAdd {
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub kind: u32,
    #[prost(uint32, tag = "3")]
    pub schema: u32,
    #[prost(bytes = "vec", tag = "4")]
    pub element: Vec<u8>,
    #[prost(message, optional, tag = "5")]
    pub keep_while: Option<KeepWhile>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetRemove {
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub kind: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub element: Vec<u8>,
    #[prost(bool, tag = "4")]
    pub delete_if_empty: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CounterAdd {
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    #[prost(sint64, tag = "2")]
    pub delta: i64,
    #[prost(sint64, tag = "3")]
    pub initial: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct If {
    #[prost(message, optional, tag = "1")]
    pub guard: Option<Guard>,
    #[prost(message, repeated, tag = "2")]
    pub then: Vec<Op>,
    #[prost(message, repeated, tag = "3")]
    pub otherwise: Vec<Op>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Guard {
    #[prost(oneof = "GuardKind", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub kind: Option<GuardKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum GuardKind {
    #[prost(message, tag = "1")]
    Exists(Pattern),
    #[prost(message, tag = "2")]
    Absent(Pattern),
    #[prost(message, tag = "3")]
    Count(GuardCount),
    #[prost(message, tag = "4")]
    Test(GuardTest),
    #[prost(message, tag = "5")]
    Not(Box<Guard>),
    #[prost(message, tag = "6")]
    All(Guards),
    #[prost(message, tag = "7")]
    Any(Guards),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Guards {
    #[prost(message, repeated, tag = "1")]
    pub list: Vec<Guard>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GuardCount {
    #[prost(message, optional, tag = "1")]
    pub pattern: Option<Pattern>,
    #[prost(message, optional, tag = "2")]
    pub compare: Option<Compare>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GuardTest {
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    pub condition: Option<Condition>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pattern {
    #[prost(message, repeated, tag = "1")]
    pub steps: Vec<Step>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Step {
    #[prost(oneof = "StepKind", tags = "1, 2, 3")]
    pub kind: Option<StepKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum StepKind {
    /// Several literal steps, encoded as a path: most patterns are one of these.
    #[prost(bytes, tag = "1")]
    Literals(Vec<u8>),
    #[prost(message, tag = "2")]
    Where(Condition),
    #[prost(message, tag = "3")]
    AnyDepth(Empty),
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Compare {
    /// 1 eq, 2 ne, 3 lt, 4 le, 5 gt, 6 ge.
    #[prost(uint32, tag = "1")]
    pub operator: u32,
    #[prost(uint64, tag = "2")]
    pub value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Condition {
    #[prost(oneof = "ConditionKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13")]
    pub kind: Option<ConditionKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum ConditionKind {
    #[prost(bytes, tag = "1")]
    Is(Vec<u8>),
    #[prost(message, tag = "2")]
    AnyName(Empty),
    #[prost(bytes, tag = "3")]
    NameMatches(Vec<u8>),
    #[prost(bool, tag = "4")]
    HasPayload(bool),
    #[prost(bool, tag = "5")]
    NodeExists(bool),
    #[prost(message, tag = "6")]
    PayloadVersion(Compare),
    #[prost(message, tag = "7")]
    ChildListVersion(Compare),
    #[prost(message, tag = "8")]
    ChildListLength(Compare),
    #[prost(message, tag = "9")]
    CreateRevision(Compare),
    #[prost(message, tag = "10")]
    ModRevision(Compare),
    #[prost(message, tag = "11")]
    Not(Box<Condition>),
    #[prost(message, tag = "12")]
    All(Conditions),
    #[prost(message, tag = "13")]
    Any(Conditions),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Conditions {
    #[prost(message, repeated, tag = "1")]
    pub list: Vec<Condition>,
}

/// A remembered reply.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reply {
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<OpResult>,
    #[prost(message, optional, tag = "2")]
    pub error: Option<Error>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OpResult {
    #[prost(oneof = "OpResultKind", tags = "1, 2, 3, 4, 5")]
    pub kind: Option<OpResultKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum OpResultKind {
    #[prost(message, tag = "1")]
    Nodes(Nodes),
    #[prost(uint64, tag = "2")]
    Count(u64),
    #[prost(bool, tag = "3")]
    PutCreated(bool),
    #[prost(bool, tag = "4")]
    SetChanged(bool),
    #[prost(message, tag = "5")]
    Counter(Counter),
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Counter {
    #[prost(sint64, optional, tag = "1")]
    pub old: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nodes {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NodeAt>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeAt {
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    pub payload: Option<Payload>,
    #[prost(uint64, tag = "3")]
    pub payload_version: u64,
    #[prost(uint64, tag = "4")]
    pub child_list_version: u64,
    #[prost(uint64, tag = "5")]
    pub child_list_length: u64,
    #[prost(uint64, tag = "6")]
    pub create_revision: u64,
    #[prost(uint64, tag = "7")]
    pub mod_revision: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Error {
    /// 1 not found, 2 mismatching, 3 keep-while, 4 aborted, 5 payload too large, 6 transaction too large,
    /// 7 invalid path, 8 wrong kind, 9 unknown command, 10 expired.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    #[prost(message, optional, tag = "2")]
    pub node: Option<NodeAt>,
    /// The abort code, or the number of the watch.
    #[prost(uint32, tag = "3")]
    pub number: u32,
}
