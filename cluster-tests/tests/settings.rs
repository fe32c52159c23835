//! What the configuration file says about clients, as clients find it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lapin::options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties, Error, ExchangeKind};
use warren_cluster_tests::{Cluster, Node, Setup, amqp, wait_for};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime can be started")
}

/// The reply code that ended a channel or a connection.
fn code<T: std::fmt::Debug>(outcome: Result<T, Error>) -> u16 {
    let error = outcome.expect_err("it is refused");
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => error.get_id(),
        other => panic!("{other:?}"),
    }
}

/// The first frame that the server sends: `connection.start`.
fn connection_start(node: &Node) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", node.amqp_port())).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    let mut head = [0; 7];
    socket.read_exact(&mut head).unwrap();
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let mut payload = vec![0; length as usize + 1];
    socket.read_exact(&mut payload).unwrap();
    payload
}

fn holds(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// A long string as it is on the wire.
fn long(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn only_the_mechanisms_that_are_listed_are_offered_and_taken() {
    let setup = Setup::new()
        .line("auth_mechanisms.1 = AMQPLAIN")
        .line("auth_failure_delay = 700")
        .line("server_properties.site = Leiden")
        .line("server_properties.product = Custom");
    let cluster = setup.start(1);
    let start = connection_start(&cluster[0]);
    assert!(holds(&start, &long("AMQPLAIN")), "{}", String::from_utf8_lossy(&start));
    assert!(holds(&start, &[b"\x04siteS", &long("Leiden")[..]].concat()));
    assert!(holds(&start, &[b"\x07productS", &long("Custom")[..]].concat()));

    let uri = |more: &str| format!("amqp://guest:guest@127.0.0.1:{}/%2f{more}", cluster[0].amqp_port());
    runtime().block_on(async {
        let started = Instant::now();
        let plain = Connection::connect(&uri("?auth_mechanism=plain"), ConnectionProperties::default()).await;
        assert!(plain.is_err(), "PLAIN is not listed");
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(700) && took < Duration::from_millis(2800), "refused after {took:?}");
        let table = Connection::connect(&uri("?auth_mechanism=amqplain"), ConnectionProperties::default()).await;
        table.expect("AMQPLAIN is listed");
    });
}

#[test]
fn queues_exchanges_channels_and_consumers_are_limited() {
    let setup = Setup::new()
        .line("cluster_queue_limit = 2")
        // seven are there from the start
        .line("cluster_exchange_limit = 8")
        .line("channel_max_per_node = 3")
        .line("consumer_max_per_channel = 1");
    let cluster = setup.start(1);
    runtime().block_on(async {
        let connection = amqp::connect(&cluster[0]).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        amqp::declare_quorum(&channel, "one").await.unwrap();
        channel.queue_declare("two".into(), QueueDeclareOptions::default(), FieldTable::default()).await.unwrap();
        amqp::declare_quorum(&channel, "one").await.expect("it is there already");
        assert_eq!(code(amqp::declare_quorum(&channel, "three").await), 406);

        let channel = connection.create_channel().await.unwrap();
        let declare = |name: &'static str| {
            channel.exchange_declare(
                name.into(),
                ExchangeKind::Fanout,
                ExchangeDeclareOptions::default(),
                FieldTable::default(),
            )
        };
        declare("eighth").await.unwrap();
        declare("eighth").await.expect("it is there already");
        assert_eq!(code(declare("ninth").await), 406);

        let channel = connection.create_channel().await.unwrap();
        let consume = |tag: &'static str| {
            channel.basic_consume("one".into(), tag.into(), BasicConsumeOptions::default(), FieldTable::default())
        };
        let _consumer = consume("first").await.unwrap();
        let other = amqp::connect(&cluster[0]).await.unwrap();
        let _second = other.create_channel().await.unwrap();
        let _third = other.create_channel().await.unwrap();
        assert_eq!(code(other.create_channel().await), 530, "a fourth channel of the node");
        assert_eq!(code(consume("second").await), 530, "a second consumer of the channel");
    });
}

#[test]
fn list_channels_shows_every_channel_of_every_node() {
    let cluster = Cluster::start(3);
    runtime().block_on(async {
        let (_publishing, publisher) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&publisher, "listed").await.unwrap();
        for _ in 0..5 {
            let confirmed = amqp::publish(&publisher, "listed", b"x", amqp::ANSWER_LIMIT).await;
            assert_eq!(confirmed.unwrap(), Some(true));
        }
        let consuming = amqp::connect(&cluster[2]).await.unwrap();
        let consumer = consuming.create_channel().await.unwrap();
        consumer.basic_qos(3, lapin::options::BasicQosOptions::default()).await.unwrap();
        let options = BasicConsumeOptions::default();
        let _deliveries =
            consumer.basic_consume("listed".into(), "tag".into(), options, FieldTable::default()).await.unwrap();

        let columns = [
            "list_channels",
            "user",
            "vhost",
            "number",
            "confirm",
            "transactional",
            "consumer_count",
            "messages_unacknowledged",
            "messages_unconfirmed",
            "prefetch_count",
        ];
        let rows = wait_for("the consumer to have its three", Duration::from_secs(10), || {
            let rows = cluster[1].ctl_rows(&columns)?;
            rows.iter().any(|row| row["messages_unacknowledged"] == 3).then_some(rows)
        });
        assert_eq!(rows.len(), 2, "{rows:?}");
        for row in &rows {
            assert_eq!((&row["user"], &row["vhost"], &row["number"]), (&"guest".into(), &"/".into(), &1.into()));
            assert_eq!(row["transactional"], false);
            assert_eq!(row["messages_unconfirmed"], 0);
            let consumes = row["consumer_count"] == 1;
            assert_eq!(row["confirm"], !consumes, "{row}");
            assert_eq!(row["prefetch_count"], if consumes { 3 } else { 0 }, "{row}");
        }

        // By default it has rabbitmqctl's columns, and the ids are those that list_consumers shows.
        let text = cluster[1].ctl_ok(&["-q", "list_channels"]);
        assert_eq!(text.lines().next(), Some("pid\tuser\tconsumer_count\tmessages_unacknowledged"));
        let consumers = cluster[1].ctl_ok(&["-s", "list_consumers", "channel_pid"]);
        assert!(text.contains(&format!("{}\tguest\t1\t3", consumers.trim())), "{text}{consumers}");
    });
}
