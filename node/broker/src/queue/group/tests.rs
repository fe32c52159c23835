//! One member, fed by hand.

use std::net::TcpListener;

use warren_raft::transport::{Suspicion, Transport, TransportConfig};

use parking_lot::Mutex;
use warren_queues::quorum::SUPPORTED;

use super::*;
use crate::queue::protocol::QueuedMessage;
use crate::session::registry::{EventReceiver, NoLog, SessionEvent};

const GROUP: GroupId = GroupId(7);
const LEADER: NodeId = NodeId(99);
const VERSION: MachineVersion = MachineVersion(2);

struct Fixture {
    member: QuorumMachine,
    me: NodeId,
    role: Role,
    index: u64,
    now_ms: u64,
    session: SessionRef,
    events: EventReceiver,
    /// What the metadata says.
    wanted: Arc<parking_lot::Mutex<Option<Config>>>,
    unreachable: Arc<Mutex<Vec<(GroupId, NodeId)>>>,
}

impl Fixture {
    /// A member on a node without peers, and one session there.
    async fn new(role: Role) -> Self {
        let name = "w1@localhost".to_owned();
        let me = NodeId::of_name(&name);
        let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let transport = Transport::start(TransportConfig {
            me,
            name,
            incarnation: 1,
            listen,
            unix_socket: None,
            secret: Bytes::from_static(b"secret"),
            suspicion: Suspicion::default(),
            introduction: None,
        });
        let sessions = Arc::new(Sessions::new(me, 1));
        let links = Links::new(Arc::clone(&sessions), transport.unwrap(), tokio::runtime::Handle::current());
        let (sender, events) = Sessions::channel(Arc::new(NoLog));
        let session = sessions.register(sender);
        let wanted = Arc::new(parking_lot::Mutex::new(None));
        let configuration = Arc::clone(&wanted);
        let unreachable = Arc::<Mutex<Vec<_>>>::default();
        let noted = Arc::clone(&unreachable);
        let context = GroupContext {
            me,
            sessions,
            links: Arc::new(links),
            supported: SUPPORTED,
            is_deleted: Box::new(|_| false),
            dead_letters: Arc::new(DeadLetters::new(tokio::runtime::Handle::current())),
            unused: tokio::sync::mpsc::unbounded_channel().0,
            configuration: Box::new(move |_| configuration.lock().clone()),
            unreachable: Box::new(move |group, node| noted.lock().push((group, node))),
        };
        let member = QuorumMachine::new(Arc::new(context), Config::default());
        Fixture { member, me, role, index: 0, now_ms: 1_000_000, session, events, wanted, unreachable }
    }

    fn cx(&self) -> GroupCx<'static> {
        let leader = Some(if self.role == Role::Leader { self.me } else { LEADER });
        GroupCx { group: GROUP, role: self.role, term: 1, leader, now_ms: self.now_ms, entries: &NoLog }
    }

    fn apply(&mut self, batch: &mut BatchBuilder) {
        self.index += 1;
        let batch = Batch::parse(batch.finish(self.now_ms)).unwrap();
        let cx = self.cx();
        self.member.apply(Applied { index: self.index, term: 1, version: VERSION, batch, live: true }, &cx);
    }

    fn attach(&mut self, session: SessionRef) {
        let mut batch = BatchBuilder::new(VERSION);
        let attach = QueueRequest::Attach {
            tag: Bytes::from_static(b"t"),
            no_ack: false,
            exclusive: false,
            prefetch: 0,
            priority: 0,
            arguments: Bytes::new(),
            user: "guest".into(),
            timeout_ms: None,
            default_timeout_ms: None,
        };
        Encoder::for_group(VERSION).encode(&command(session, attach), &mut batch).unwrap();
        self.apply(&mut batch);
    }

    fn publish(&mut self, count: u64, bytes: usize) {
        let mut batch = BatchBuilder::new(VERSION);
        let publisher = SessionRef { id: 77, ..self.session };
        let body = Bytes::from(vec![b'x'; bytes]);
        let message = QueuedMessage { head: Bytes::from_static(b"h"), body, ..QueuedMessage::default() };
        for seq in 1..=count {
            let origin = Origin { session: publisher, seq };
            Encoder::for_group(VERSION)
                .encode_publish(origin, &message.traits, &message.head, &message.body, &mut batch)
                .unwrap();
        }
        self.apply(&mut batch);
    }

    /// The delivery events that wait.
    fn deliveries(&mut self) -> Vec<(NodeId, Vec<u64>)> {
        let mut all = Vec::new();
        while let Some(event) = self.events.try_recv() {
            all.extend(delivery(event));
        }
        all
    }

    /// What the member appends when it is ticked as leader, a second later.
    fn tick(&mut self) -> Vec<Command> {
        self.now_ms += RECHECK_MS;
        let cx = self.cx();
        self.appended(|member, out| member.tick(out, &cx))
    }

    /// What the member appends when it hears that its policies changed.
    fn told(&mut self) -> Vec<Command> {
        let cx = self.cx();
        self.appended(|member, out| member.prepare(GroupRequest::Configure, out, &cx))
    }

    fn appended(&mut self, act: impl FnOnce(&mut QuorumMachine, &mut BatchBuilder)) -> Vec<Command> {
        let mut out = BatchBuilder::new(VERSION);
        act(&mut self.member, &mut out);
        let batch = Batch::parse(out.finish(self.now_ms)).unwrap();
        batch.iter().map(|bytes| Command::decode(VERSION, bytes).unwrap()).collect()
    }

    /// What the member appends for a request.
    fn prepare(&mut self, request: GroupRequest) -> Vec<Command> {
        let mut out = BatchBuilder::new(VERSION);
        let cx = self.cx();
        self.member.prepare(request, &mut out, &cx);
        let batch = Batch::parse(out.finish(self.now_ms)).unwrap();
        batch.iter().map(|bytes| Command::decode(VERSION, bytes).unwrap()).collect()
    }
}

/// Whom a delivery event names as leader, and its message ids.
fn delivery(event: SessionEvent) -> Option<(NodeId, Vec<u64>)> {
    match event {
        SessionEvent::Queue(ToSession { leader, event: QueueEvent::Deliver { messages, .. }, .. }) => {
            Some((leader, messages.iter().map(|m| m.msg_id).collect()))
        }
        _ => None,
    }
}

#[tokio::test]
async fn a_follower_delivers_to_the_sessions_of_its_node_and_names_the_leader() {
    let mut f = Fixture::new(Role::Follower).await;
    f.attach(f.session);
    f.publish(2, 10);
    assert_eq!(f.deliveries(), [(LEADER, vec![0, 1])]);
}

#[tokio::test]
async fn a_delivery_event_carries_a_bounded_number_of_bytes_but_at_least_one_message() {
    let mut f = Fixture::new(Role::Leader).await;
    f.attach(f.session);
    f.publish(5, DELIVERY_BYTES / 2);
    let me = f.me;
    assert_eq!(f.deliveries(), [(me, vec![0, 1]), (me, vec![2, 3]), (me, vec![4])]);
    let mut f = Fixture::new(Role::Leader).await;
    f.attach(f.session);
    f.publish(2, DELIVERY_BYTES * 2);
    assert_eq!(f.deliveries(), [(f.me, vec![0]), (f.me, vec![1])]);
}

#[tokio::test]
async fn a_member_restored_from_a_snapshot_hands_out_what_it_skipped() {
    let mut f = Fixture::new(Role::Follower).await;
    f.attach(f.session);
    f.publish(2, 10);
    let state = f.member.snapshot().state;
    f.deliveries();
    let cx = f.cx();
    f.member.restore(&state, f.index, VERSION, &cx).unwrap();
    // Its bodies are in the log.
    assert_eq!(f.events.recv().await.and_then(delivery), Some((LEADER, vec![0, 1])));
}

#[tokio::test]
async fn a_leader_corrects_what_its_queue_believes_of_sessions() {
    let mut f = Fixture::new(Role::Leader).await;
    let elsewhere = SessionRef { node: NodeId(5), incarnation: 1, id: 1 };
    f.attach(f.session);
    f.attach(elsewhere);
    // Nobody told it that the other node is out of reach, which it is.
    let loss = SessionLoss::NoConnection;
    assert!(f.tick().contains(&Command::SessionDown { session: elsewhere, loss }));

    // The queue believes this node's session to be cut off: word of its return came while nobody led.
    let mut batch = BatchBuilder::new(VERSION);
    for session in [f.session, elsewhere] {
        Encoder::for_group(VERSION).encode(&Command::SessionDown { session, loss }, &mut batch).unwrap();
    }
    f.apply(&mut batch);
    assert_eq!(f.tick(), [Command::NodeUp { node: f.me }]);
    let mut batch = BatchBuilder::new(VERSION);
    Encoder::for_group(VERSION).encode(&Command::NodeUp { node: f.me }, &mut batch).unwrap();
    f.apply(&mut batch);
    assert_eq!(f.tick(), []);

    let session = f.session;
    f.member.context.sessions.unregister(session);
    assert_eq!(f.tick(), [Command::SessionDown { session, loss: SessionLoss::Gone }]);
}

#[tokio::test]
async fn a_leader_appends_the_configuration_that_the_metadata_says_until_the_queue_has_it() {
    let mut f = Fixture::new(Role::Leader).await;
    let limit = |limit| Config { delivery_limit: Some(limit), ..Config::default() };
    // Nothing is known of the queue yet.
    assert_eq!(f.tick(), []);
    assert!(f.told().is_empty());
    assert_eq!(f.member.wake_at(), Some(f.now_ms + RECHECK_MS), "a sleeping queue's leader looks again");
    *f.wanted.lock() = Some(Config::default());
    assert!(f.told().is_empty());
    assert_eq!(f.member.wake_at(), None);
    *f.wanted.lock() = Some(limit(3));
    assert_eq!(f.told(), [Command::UpdateConfig(limit(3))]);
    assert!(f.told().is_empty(), "it is on its way");
    *f.wanted.lock() = Some(limit(4));
    assert_eq!(f.told(), [Command::UpdateConfig(limit(4))]);
    let cx = f.cx();
    f.member.proposed(Err(Refusal::Busy), &cx);
    assert_eq!(f.told(), [Command::UpdateConfig(limit(4))]);

    // A leader whose queue sleeps has to look for itself what it was not told while another one led.
    f.member.role_changed(&cx);
    assert_eq!(f.member.wake_at(), Some(0));
    let session = f.session;
    let purge = QueueItem::Command { correlation: 1, request: QueueRequest::Purge };
    let asked = f.appended(|member, out| {
        let to = ToQueue { group: GROUP, from: session, items: vec![purge] };
        member.prepare(GroupRequest::Session(to), out, &cx);
    });
    assert_eq!(asked, [Command::UpdateConfig(limit(4)), Command::Purge]);
    f.member.role_changed(&cx);
    assert_eq!(f.tick(), [Command::UpdateConfig(limit(4))]);
    let mut batch = BatchBuilder::new(VERSION);
    Encoder::for_group(VERSION).encode(&Command::UpdateConfig(limit(4)), &mut batch).unwrap();
    f.apply(&mut batch);
    assert_eq!(f.member.queue.config(), &limit(4));
    assert_eq!(f.member.wake_at(), None);
    *f.wanted.lock() = Some(limit(5));
    let appended: Vec<Command> = (0..=CONFIGURE_MS / RECHECK_MS).flat_map(|_| f.tick()).collect();
    assert_eq!(appended, [Command::UpdateConfig(limit(5))]);
}

#[tokio::test]
async fn a_leader_has_sessions_of_nodes_that_left_the_cluster_purged() {
    let mut f = Fixture::new(Role::Leader).await;
    let (left, stays) = (NodeId(5), NodeId(6));
    f.attach(f.session);
    for id in [1, 2] {
        f.attach(SessionRef { node: left, incarnation: 1, id });
    }
    assert!(f.unreachable.lock().is_empty());
    let mut batch = BatchBuilder::new(VERSION);
    for command in f.tick() {
        Encoder::for_group(VERSION).encode(&command, &mut batch).unwrap();
    }
    assert!(f.unreachable.lock().is_empty(), "the queue has to know first that they are cut off");
    f.apply(&mut batch);
    // Whoever knows the cluster is asked again and again, once for all sessions of a node.
    for looks in 1..3 {
        assert_eq!(f.tick(), []);
        assert_eq!(*f.unreachable.lock(), vec![(GROUP, left); looks]);
    }

    let me = f.me;
    assert_eq!(f.prepare(GroupRequest::NodesLeft(vec![stays, me])), [], "it has no sessions of one, and is the other");
    let purge = Command::PurgeNodes { nodes: vec![left] };
    assert_eq!(f.prepare(GroupRequest::NodesLeft(vec![left, stays])), std::slice::from_ref(&purge));
    let mut batch = BatchBuilder::new(VERSION);
    Encoder::for_group(VERSION).encode(&purge, &mut batch).unwrap();
    f.apply(&mut batch);
    assert_eq!(f.prepare(GroupRequest::NodesLeft(vec![left])), []);
    assert_eq!(f.member.queue.sessions().map(|(session, _)| session).collect::<Vec<_>>(), [f.session]);
}
