//! Two transports in one process, over loopback.

use std::future::Future;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use warren_proto::peer::frame::Kind;

use super::*;

const A: &str = "a@localhost";
const B: &str = "b@localhost";

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn config(name: &str, listen: SocketAddr) -> TransportConfig {
    TransportConfig {
        me: NodeId::of_name(name),
        name: name.to_owned(),
        incarnation: 1,
        listen,
        unix_socket: None,
        secret: Bytes::from_static(b"the secret"),
        suspicion: Suspicion::default(),
        introduction: None,
    }
}

fn frame(payload: Vec<u8>) -> Frame {
    Frame { kind: Some(Kind::Broker(payload.into())) }
}

fn number(frame: &Frame) -> u64 {
    match &frame.kind {
        Some(Kind::Broker(b)) => u64::from_le_bytes(b[..8].try_into().unwrap()),
        other => panic!("unexpected {other:?}"),
    }
}

/// Waits until `what` holds.
async fn eventually(what: impl Fn() -> bool) {
    for _ in 0..1000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never happened");
}

/// Sends, waiting while the lane is full.
async fn push(t: &Transport, to: NodeId, lane: Lane, mut frame: Frame) {
    for _ in 0..20_000 {
        match t.send(to, lane, frame) {
            Ok(()) => return,
            Err(back) => frame = back,
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the lane stays full");
}

fn pair() -> (Transport, Transport, SocketAddr, SocketAddr) {
    let (addr_a, addr_b) = (free_address(), free_address());
    let a = Transport::start(config(A, addr_a)).unwrap();
    let b = Transport::start(config(B, addr_b)).unwrap();
    a.set_peer(b.me(), B, &addr_b.to_string());
    b.set_peer(a.me(), A, &addr_a.to_string());
    (a, b, addr_a, addr_b)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_arrive_once_and_in_order_on_every_lane_under_load() {
    let (a, b, ..) = pair();
    let got: Arc<[AtomicU64; 4]> = Arc::default();
    for lane in Lane::ALL {
        let got = got.clone();
        b.on_frame(
            lane,
            Arc::new(move |from, frame| {
                assert_eq!(from, NodeId::of_name(A));
                assert_eq!(number(&frame), got[lane.number()].fetch_add(1, Ordering::Relaxed));
            }),
        );
    }
    for i in 0..20_000u64 {
        for lane in [Lane::Append, Lane::Queue, Lane::Control] {
            let mut payload = i.to_le_bytes().to_vec();
            payload.resize(8 + (i as usize % 1500), 1);
            push(&a, b.me(), lane, frame(payload)).await;
        }
    }
    eventually(|| [0, 1, 2].iter().all(|n| got[*n].load(Ordering::Relaxed) == 20_000)).await;
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_is_up_when_it_beats_and_down_when_its_process_ends_and_is_redialled() {
    let (a, b, addr_a, addr_b) = pair();
    let b_id = b.me();
    let mut events = a.events();
    eventually(|| a.is_up(b_id) && b.is_up(a.me())).await;
    b.shutdown().await;
    let ended = Instant::now();
    drop(b);
    eventually(|| !a.is_up(b_id)).await;
    assert!(ended.elapsed() < Duration::from_millis(900), "took {:?}", ended.elapsed());

    let mut again = config(B, addr_b);
    again.incarnation = 2;
    let b = Transport::start(again).unwrap();
    let got = Arc::new(AtomicU64::new(0));
    let seen = got.clone();
    b.on_frame(Lane::Queue, Arc::new(move |_, frame| seen.store(number(&frame), Ordering::Relaxed)));
    b.set_peer(a.me(), A, &addr_a.to_string());
    let back = Instant::now();
    push(&a, b_id, Lane::Queue, frame(77u64.to_le_bytes().to_vec())).await;
    eventually(|| got.load(Ordering::Relaxed) == 77).await;
    assert!(back.elapsed() < Duration::from_secs(2), "took {:?}", back.elapsed());
    eventually(|| a.is_up(b_id)).await;
    let mut seen = Vec::new();
    while let Ok(event) = events.try_recv() {
        if !matches!(event, PeerEvent::Gap(..)) {
            seen.push(event);
        }
    }
    let tail = &seen[seen.len() - 2..];
    assert_eq!(tail, [PeerEvent::Down(b_id), PeerEvent::Up(b_id, 2)]);
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_secret_gets_nothing_but_the_challenge() {
    let (addr_a, addr_b) = (free_address(), free_address());
    let a = Transport::start(config(A, addr_a)).unwrap();
    a.on_call(Arc::new(Echo));
    let mut wrong = config(B, addr_b);
    wrong.secret = Bytes::from_static(b"another secret");
    let b = Transport::start(wrong).unwrap();
    b.set_peer(a.me(), A, &addr_a.to_string());
    a.set_peer(b.me(), B, &addr_b.to_string());
    let refused = client_call(
        CallTarget::Address(addr_a.to_string()),
        b"another secret",
        "echo",
        Bytes::new(),
        Duration::from_secs(5),
    )
    .await;
    assert!(matches!(refused, Err(CallError::AuthenticationFailed(_))));
    let refused = b.call(CallTarget::Node(a.me()), "echo", Bytes::new(), Duration::from_secs(5)).await;
    assert!(matches!(refused, Err(CallError::AuthenticationFailed(_))));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!a.is_up(b.me()) && !b.is_up(a.me()));
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_that_skips_the_challenge_is_refused() {
    let address = free_address();
    let a = Transport::start(config(A, address)).unwrap();
    a.on_call(Arc::new(Echo));
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = wire::peer_client::PeerClient::new(channel);
    let call = warren_proto::peer::CallRequest { method: "echo".into(), payload: Bytes::new() };
    assert_eq!(client.call(call).await.unwrap_err().code(), tonic::Code::Unauthenticated);
    let lane = client.lane(tokio_stream::iter([Frame::default()])).await;
    assert_eq!(lane.unwrap_err().code(), tonic::Code::Unauthenticated);
    a.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_peer_that_is_away_is_bounded_and_given_up() {
    let (addr_a, addr_b) = (free_address(), free_address());
    let a = Transport::start(config(A, addr_a)).unwrap();
    let b = NodeId::of_name(B);
    assert!(a.send(b, Lane::Append, frame(vec![0; 8])).is_err(), "an unknown peer has no lane");
    a.set_peer(b, B, &addr_b.to_string());
    let mut taken = 0;
    while a.send(b, Lane::Append, frame(vec![0; 1 << 20])).is_ok() {
        taken += 1;
        assert!(taken < 100, "unbounded");
    }
    assert!(taken >= 63);
    // Long enough away: nothing is taken any more, and what waited is dropped.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert!(a.send(b, Lane::Control, frame(vec![0; 8])).is_err());
    let link = a.inner.links.read().get(&b).cloned().unwrap();
    assert_eq!(link.lanes[Lane::Control.number()].waiting(), 0);
    a.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_peer_is_refused_until_it_is_set_again() {
    let (a, b, _, addr_b) = pair();
    let got = Arc::new(AtomicU64::new(0));
    let seen = got.clone();
    a.on_frame(Lane::Queue, Arc::new(move |_, _| _ = seen.fetch_add(1, Ordering::Relaxed)));
    push(&b, a.me(), Lane::Queue, frame(vec![0; 8])).await;
    eventually(|| got.load(Ordering::Relaxed) == 1).await;
    a.remove_peer(b.me());
    for _ in 0..20 {
        let _ = b.send(a.me(), Lane::Queue, frame(vec![0; 8]));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(got.load(Ordering::Relaxed), 1);
    a.set_peer(b.me(), B, &addr_b.to_string());
    for _ in 0..500 {
        let _ = b.send(a.me(), Lane::Queue, frame(vec![0; 8]));
        if got.load(Ordering::Relaxed) > 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(got.load(Ordering::Relaxed) > 1);
    a.shutdown().await;
    b.shutdown().await;
}

/// Forwards connections to `target`. Those that exist while `cut` is set never get anything through again, as with TCP
/// when its pauses have grown long.
async fn proxy(target: SocketAddr, cut: tokio::sync::watch::Receiver<bool>) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut cut = cut.clone();
            tokio::spawn(async move {
                let Ok(mut far) = tokio::net::TcpStream::connect(target).await else { return };
                tokio::select! {
                    _ = cut.wait_for(|cut| *cut) => {}
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                }
                tokio::time::sleep(Duration::from_secs(60)).await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_are_back_within_a_second_after_a_partition() {
    let (addr_a, addr_b) = (free_address(), free_address());
    let a = Transport::start(config(A, addr_a)).unwrap();
    let b = Transport::start(config(B, addr_b)).unwrap();
    let (cut, cuts) = tokio::sync::watch::channel(false);
    a.set_peer(b.me(), B, &proxy(addr_b, cuts.clone()).await.to_string());
    b.set_peer(a.me(), A, &proxy(addr_a, cuts).await.to_string());
    let got = Arc::new(AtomicU64::new(0));
    let seen = got.clone();
    b.on_frame(Lane::Queue, Arc::new(move |_, frame| seen.store(number(&frame), Ordering::Relaxed)));
    push(&a, b.me(), Lane::Queue, frame(1u64.to_le_bytes().to_vec())).await;
    eventually(|| got.load(Ordering::Relaxed) == 1 && a.is_up(b.me()) && b.is_up(a.me())).await;
    for (round, pause) in [(2, 300), (3, 2500), (4, 5000)] {
        cut.send_replace(true);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        cut.send_replace(false);
        let healed = Instant::now();
        for _ in 0..600 {
            let _ = a.send(b.me(), Lane::Queue, frame(u64::to_le_bytes(round).to_vec()));
            if got.load(Ordering::Relaxed) == round {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let took = healed.elapsed();
        assert_eq!(got.load(Ordering::Relaxed), round);
        // The short cut is noticed only after it ended, when the silence has lasted long enough.
        assert!(took < Duration::from_millis(2500), "{took:?} after a cut of {pause} ms");
        println!("{took:?} after a cut of {pause} ms");
        eventually(|| a.is_up(b.me()) && b.is_up(a.me())).await;
    }
    a.shutdown().await;
    b.shutdown().await;
}

struct Echo;

impl CallHandler for Echo {
    fn call(&self, call: IncomingCall, replies: Replies) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            match call.method.as_str() {
                "echo" => {
                    for _ in 0..100 {
                        replies.send(call.payload.clone()).await;
                    }
                }
                "who" => drop(replies.send(format!("{:?}", call.caller)).await),
                "hang" => std::future::pending().await,
                other => replies.fail("unknown_method", other).await,
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_streams_its_replies_and_knows_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("admin.sock");
    let (addr_a, addr_b) = (free_address(), free_address());
    let mut with_admin = config(A, addr_a);
    with_admin.unix_socket = Some(socket.clone());
    let a = Transport::start(with_admin).unwrap();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    a.on_call(Arc::new(Echo));
    let b = Transport::start(config(B, addr_b)).unwrap();
    b.set_peer(a.me(), A, &addr_a.to_string());
    let time = Duration::from_secs(5);

    let replies = b.call(CallTarget::Node(a.me()), "echo", vec![7; 100_000], time).await.unwrap();
    let replies = replies.collect().await.unwrap();
    assert_eq!(replies.len(), 100);
    assert!(replies.iter().all(|r| r.len() == 100_000));

    let who = b.call(CallTarget::Node(a.me()), "who", Bytes::new(), time).await.unwrap().one().await.unwrap();
    assert!(String::from_utf8_lossy(&who).contains(B));
    let who = client_call(CallTarget::Unix(socket.clone()), b"", "who", Bytes::new(), time).await.unwrap();
    assert_eq!(who.one().await.unwrap(), "Local");
    let address = CallTarget::Address(addr_a.to_string());
    let who = client_call(address, b"the secret", "who", Bytes::new(), time).await.unwrap();
    assert_eq!(who.one().await.unwrap(), "Client");

    let unknown = b.call(CallTarget::Node(a.me()), "nope", Bytes::new(), time).await.unwrap().collect().await;
    assert_eq!(unknown.unwrap_err(), CallError::failed("unknown_method", "nope"));
    let short = Duration::from_millis(300);
    let hangs = b.call(CallTarget::Node(a.me()), "hang", Bytes::new(), short).await;
    let hangs = match hangs {
        Ok(replies) => replies.collect().await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(hangs, CallError::TimedOut(short));
    a.shutdown().await;
    assert!(!socket.exists());
    b.shutdown().await;
}

/// `cargo test --release -p warren-raft transport -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn how_fast_frames_pass() {
    let (a, b, ..) = pair();
    let got = Arc::new(AtomicU64::new(0));
    for lane in [Lane::Append, Lane::Queue] {
        let got = got.clone();
        b.on_frame(lane, Arc::new(move |_, _| _ = got.fetch_add(1, Ordering::Relaxed)));
    }
    eventually(|| a.is_up(b.me())).await;
    for (size, count) in [(100, 1_000_000u64), (1000, 500_000), (100_000, 30_000)] {
        let payload = Bytes::from(vec![5; size]);
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let before = got.load(Ordering::Relaxed);
        for _ in 0..count {
            let mut frame = Frame { kind: Some(Kind::Broker(payload.clone())) };
            while let Err(back) = a.send(b.me(), Lane::Append, frame) {
                frame = back;
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
        eventually(|| got.load(Ordering::Relaxed) == before + count).await;
        let took = start.elapsed().as_secs_f64();
        println!(
            "{size} B: {:.0} frames/s, {:.3} GB/s, {:.2} CPU s in {took:.2} s",
            count as f64 / took,
            (count * size as u64) as f64 / took / 1e9,
            cpu_seconds() - cpu
        );
    }
    a.shutdown().await;
    b.shutdown().await;
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) / 100.0
}

/// Takes only those who say the same.
#[derive(Debug)]
struct Says(&'static str);

impl Introduction for Says {
    fn version(&self) -> String {
        "1.0.0".to_owned()
    }

    fn say(&self) -> Bytes {
        Bytes::from_static(self.0.as_bytes())
    }

    fn judge(&self, name: &str, version: &str, said: &[u8]) -> Result<(), String> {
        match said == self.0.as_bytes() && version == "1.0.0" {
            true => Ok(()),
            false => Err(format!("incompatible_words: {name} says something else")),
        }
    }

    fn refused(&self, reason: &str) {
        assert!(reason.starts_with("incompatible_words: "), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_do_not_go_together_refuse_each_other_with_the_reason() {
    let start = |name: &str, says: Option<&'static str>| {
        let introduction = says.map(|word| Arc::new(Says(word)) as Arc<dyn Introduction>);
        let address = free_address();
        let transport = Transport::start(TransportConfig { introduction, ..config(name, address) }).unwrap();
        (transport, address.to_string())
    };
    let (one, one_at) = start("a@h", Some("x"));
    let (same, same_at) = start("b@h", Some("x"));
    let (other, other_at) = start("c@h", Some("y"));
    let (silent, silent_at) = start("d@h", None);
    let nodes =
        [(&one, "a@h", &one_at), (&same, "b@h", &same_at), (&other, "c@h", &other_at), (&silent, "d@h", &silent_at)];
    for (transport, ..) in nodes {
        for (_, name, address) in nodes {
            transport.set_peer(NodeId::of_name(name), name, address);
        }
    }
    eventually(|| one.is_up(same.me()) && same.is_up(one.me())).await;
    let call = async |from: &Transport, to: &str| {
        let target = CallTarget::Address(to.to_owned());
        from.call(target, "x", Bytes::new(), Duration::from_secs(5)).await.err()
    };
    // Both the listener and the dialer judge: one that judges nobody is judged all the same.
    for (from, to) in [(&one, &other_at), (&other, &one_at), (&silent, &one_at), (&one, &silent_at)] {
        let refused = call(from, to).await;
        assert!(
            matches!(&refused, Some(CallError::Failed { code, .. }) if code == "incompatible_words"),
            "{refused:?}"
        );
    }
    assert!(!one.is_up(other.me()) && !other.is_up(one.me()) && !one.is_up(silent.me()));
    // A command line is no node.
    let target = CallTarget::Address(one_at.clone());
    let asked = client_call(target, b"the secret", "x", Bytes::new(), Duration::from_secs(5)).await;
    assert!(!matches!(&asked, Err(CallError::Failed { code, .. }) if code == "incompatible_words"));
    for (transport, ..) in nodes {
        transport.shutdown().await;
    }
}
