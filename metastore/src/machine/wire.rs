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
    /// What to answer about the nodes touched; absent: nothing. From machine version 2 on.
    #[prost(message, optional, tag = "2")]
    pub report: Option<Report>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Report {
    #[prost(bool, tag = "1")]
    pub payload: bool,
    #[prost(bool, tag = "2")]
    pub payload_version: bool,
    #[prost(bool, tag = "3")]
    pub child_list: bool,
    #[prost(bool, tag = "4")]
    pub revisions: bool,
    #[prost(bool, tag = "5")]
    pub indirect_deletes: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Op {
    #[prost(oneof = "OpKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14")]
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
    // From here on of machine version 2.
    #[prost(message, tag = "11")]
    PutMany(PutMany),
    #[prost(message, tag = "12")]
    Patch(Patch),
    #[prost(message, tag = "13")]
    ForEach(ForEach),
    /// 1 nothing, 2 the last result, 3 all results.
    #[prost(uint32, tag = "14")]
    Return(u32),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutMany {
    #[prost(message, optional, tag = "1")]
    pub pattern: Option<Pattern>,
    #[prost(message, optional, tag = "2")]
    pub payload: Option<Payload>,
    #[prost(message, optional, tag = "3")]
    pub keep_while: Option<KeepWhile>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Patch {
    #[prost(message, optional, tag = "1")]
    pub pattern: Option<Pattern>,
    #[prost(message, repeated, tag = "2")]
    pub assignments: Vec<Assignment>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Assignment {
    #[prost(string, tag = "1")]
    pub field: String,
    #[prost(oneof = "AssignmentKind", tags = "2, 3, 4")]
    pub kind: Option<AssignmentKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum AssignmentKind {
    #[prost(message, tag = "2")]
    Set(FieldValue),
    #[prost(sint64, tag = "3")]
    Add(i64),
    #[prost(message, tag = "4")]
    Unset(Empty),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FieldValue {
    #[prost(oneof = "FieldValueKind", tags = "1, 2, 3, 4, 5")]
    pub kind: Option<FieldValueKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum FieldValueKind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(sint64, tag = "2")]
    Integer(i64),
    #[prost(bool, tag = "3")]
    Bool(bool),
    #[prost(bytes, tag = "4")]
    Bytes(Vec<u8>),
    #[prost(message, tag = "5")]
    List(FieldValues),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FieldValues {
    #[prost(message, repeated, tag = "1")]
    pub list: Vec<FieldValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ForEach {
    #[prost(message, optional, tag = "1")]
    pub pattern: Option<Pattern>,
    #[prost(message, repeated, tag = "2")]
    pub ops: Vec<EachOp>,
}

/// An operation whose path depends on a node: the path, and an operation whose own path, or pattern, is empty.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EachOp {
    #[prost(message, repeated, tag = "1")]
    pub path: Vec<Part>,
    #[prost(message, optional, tag = "2")]
    pub op: Option<Op>,
    /// Of a put; its operation says by an empty `keep_while` that there are some.
    #[prost(message, repeated, tag = "3")]
    pub watches: Vec<EachWatch>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EachWatch {
    #[prost(message, repeated, tag = "1")]
    pub path: Vec<Part>,
    #[prost(message, optional, tag = "2")]
    pub condition: Option<Condition>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Part {
    #[prost(oneof = "PartKind", tags = "1, 2, 3, 4")]
    pub kind: Option<PartKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum PartKind {
    #[prost(bytes, tag = "1")]
    Literal(Vec<u8>),
    #[prost(message, tag = "2")]
    Path(Empty),
    #[prost(uint32, tag = "3")]
    Name(u32),
    #[prost(message, tag = "4")]
    Parent(Empty),
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
    #[prost(oneof = "ConditionKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16")]
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
    // From here on of machine version 2.
    #[prost(string, tag = "14")]
    NameRegex(String),
    /// Empty: any name.
    #[prost(message, tag = "15")]
    PathMatches(PathMatches),
    #[prost(message, tag = "16")]
    Data(Predicate),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PathMatches {
    #[prost(string, optional, tag = "1")]
    pub regex: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Predicate {
    #[prost(oneof = "PredicateKind", tags = "1, 2, 3, 4")]
    pub kind: Option<PredicateKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum PredicateKind {
    #[prost(message, tag = "1")]
    Field(FieldTest),
    #[prost(message, tag = "2")]
    Not(Box<Predicate>),
    #[prost(message, tag = "3")]
    All(Predicates),
    #[prost(message, tag = "4")]
    Any(Predicates),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Predicates {
    #[prost(message, repeated, tag = "1")]
    pub list: Vec<Predicate>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FieldTest {
    #[prost(string, tag = "1")]
    pub field: String,
    /// 1 eq, 2 ne, 3 lt, 4 le, 5 gt, 6 ge; 7 is set, 8 in, 9 prefix, 10 regex.
    #[prost(uint32, tag = "2")]
    pub operator: u32,
    /// None for 7, any number for 8, otherwise one: for 9 octets, for 10 a text.
    #[prost(message, repeated, tag = "3")]
    pub values: Vec<FieldValue>,
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
    #[prost(oneof = "OpResultKind", tags = "1, 2, 3, 4, 5, 6")]
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
    #[prost(message, tag = "6")]
    Touched(TouchedNodes),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TouchedNodes {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<Touched>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Touched {
    #[prost(message, optional, tag = "1")]
    pub node: Option<NodeAt>,
    /// There was no such node: nothing but the path counts.
    #[prost(bool, tag = "2")]
    pub created: bool,
    /// 0 it is there, 1 explicit, 2 keep-while.
    #[prost(uint32, tag = "3")]
    pub deleted: u32,
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
    /// 7 invalid path, 8 wrong kind, 9 unknown command, 10 expired, 11 invalid field, 12 update in a read-only transaction.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    #[prost(message, optional, tag = "2")]
    pub node: Option<NodeAt>,
    /// The abort code, or the number of the watch.
    #[prost(uint32, tag = "3")]
    pub number: u32,
    /// The name of the field.
    #[prost(string, tag = "4")]
    pub field: String,
}
