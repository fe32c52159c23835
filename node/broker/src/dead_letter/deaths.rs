//! The story of a message's deaths, as its headers tell it (spec: quorum-queues.md, section 8.4).

use bytes::Bytes;
use warren_proto::amqp091::{FieldTable, FieldValue, Properties, ShortStr};
use warren_proto::message::{KeysHeader, Message};
use warren_queues::quorum::{DeadLetter, DeadReason};

const DEATHS: &str = "x-death";
const FIRST: [&str; 3] = ["x-first-death-queue", "x-first-death-reason", "x-first-death-exchange"];
const LAST: [&str; 3] = ["x-last-death-queue", "x-last-death-reason", "x-last-death-exchange"];

/// Deaths in one queue for one reason.
#[derive(Debug, Clone, PartialEq)]
struct Death {
    count: i64,
    reason: Bytes,
    queue: Bytes,
    /// Of the first, in s since 1970.
    time: FieldValue,
    exchange: FieldValue,
    routing_keys: FieldValue,
    original_expiration: Option<FieldValue>,
}

impl Death {
    fn read(table: &FieldTable) -> Option<Self> {
        let text = |name| match table.get(name)? {
            FieldValue::LongStr(text) => Some(text.clone()),
            _ => None,
        };
        Some(Death {
            count: table.get("count")?.as_int()?,
            reason: text("reason")?,
            queue: text("queue")?,
            time: table.get("time")?.clone(),
            exchange: table.get("exchange")?.clone(),
            routing_keys: table.get("routing-keys")?.clone(),
            original_expiration: table.get("original-expiration").cloned(),
        })
    }

    fn write(self) -> FieldValue {
        let mut table = FieldTable::new()
            .with("count", self.count)
            .with("reason", FieldValue::LongStr(self.reason))
            .with("queue", FieldValue::LongStr(self.queue))
            .with("time", self.time)
            .with("exchange", self.exchange)
            .with("routing-keys", self.routing_keys);
        if let Some(expiration) = self.original_expiration {
            table.push("original-expiration", expiration);
        }
        FieldValue::Table(table)
    }
}

/// A dead message in the form in which it is published again.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub message: Message,
    /// The keys to route it by.
    pub keys: Vec<Bytes>,
    /// The queues that it died in since it was last rejected: back there it would only go round.
    died_in: Vec<Bytes>,
}

impl Rewritten {
    /// Whether the message has come back to where it died without anybody having handled it.
    pub fn is_cycle(&self, queue: &str) -> bool {
        self.died_in.iter().any(|died| *died == queue.as_bytes())
    }
}

/// What becomes of a message that died in `queue`. `None` if its properties cannot be read, which were checked when it was
/// published.
pub(super) fn rewrite(
    message: &Message,
    queue: &str,
    reason: DeadReason,
    to: &DeadLetter,
    now_ms: u64,
) -> Option<Rewritten> {
    let mut properties = message.properties().to_properties().ok()?;
    let mut headers = properties.headers.take().unwrap_or_default();
    let mut deaths = if message.is_dead_lettered() { known_deaths(&headers) } else { Vec::new() };
    if !message.is_dead_lettered() {
        // A client that publishes such headers tells of another message.
        [DEATHS].iter().chain(&FIRST).chain(&LAST).for_each(|name| drop(headers.remove(name)));
    }
    let own_keys: Vec<Bytes> = std::iter::once(message.routing_key())
        .chain(message.keys_in(KeysHeader::Cc).into_iter().flatten())
        .map(Bytes::copy_from_slice)
        .collect();
    let hidden_keys: Vec<Bytes> =
        message.keys_in(KeysHeader::Bcc).into_iter().flatten().map(Bytes::copy_from_slice).collect();
    headers.remove(KeysHeader::Bcc.name());
    let expiration = properties.expiration.take();
    record(&mut deaths, queue, reason, message, &own_keys, expiration, now_ms);
    // The newest first: what came before a rejection is no part of a cycle.
    let since_rejected = deaths.iter().take_while(|death| *death.reason != *b"rejected");
    let died_in = since_rejected.map(|death| death.queue.clone()).collect();

    let exchange = message.exchange();
    if headers.get(FIRST[0]).is_none() {
        tell(&mut headers, FIRST, queue, reason, exchange);
    }
    tell(&mut headers, LAST, queue, reason, exchange);
    headers.set(DEATHS, FieldValue::Array(deaths.into_iter().map(Death::write).collect()));
    if to.routing_key.is_some() {
        headers.remove(KeysHeader::Cc.name());
    }
    properties.headers = Some(headers);
    let keys = match &to.routing_key {
        Some(key) => vec![Bytes::copy_from_slice(key.as_bytes())],
        // Those in `BCC` count as well, once: they are told to nobody, not even in the record.
        None => own_keys.into_iter().chain(hidden_keys).collect(),
    };
    let block = Properties::to_bytes(&properties);
    let message = Message::dead_lettered(&to.exchange, &keys[0], &block, message.body().clone());
    Some(Rewritten { message, keys, died_in })
}

fn known_deaths(headers: &FieldTable) -> Vec<Death> {
    let deaths = headers.get(DEATHS).and_then(FieldValue::as_array).unwrap_or_default();
    deaths.iter().filter_map(|death| Death::read(death.as_table()?)).collect()
}

fn record(
    deaths: &mut Vec<Death>,
    queue: &str,
    reason: DeadReason,
    message: &Message,
    keys: &[Bytes],
    expiration: Option<ShortStr>,
    now_ms: u64,
) {
    let same = |death: &Death| *death.queue == *queue.as_bytes() && *death.reason == *reason.name().as_bytes();
    let death = match deaths.iter().position(same) {
        Some(at) => {
            let mut death = deaths.remove(at);
            death.count = death.count.saturating_add(1);
            death
        }
        None => Death {
            count: 1,
            reason: Bytes::from_static(reason.name().as_bytes()),
            queue: Bytes::copy_from_slice(queue.as_bytes()),
            time: FieldValue::Timestamp(now_ms / 1000),
            exchange: FieldValue::text(message.exchange()),
            routing_keys: FieldValue::Array(keys.iter().cloned().map(FieldValue::LongStr).collect()),
            original_expiration: expiration.map(|text| FieldValue::text(text.as_str())),
        },
    };
    deaths.insert(0, death);
}

fn tell(headers: &mut FieldTable, names: [&str; 3], queue: &str, reason: DeadReason, exchange: &str) {
    for (name, value) in names.into_iter().zip([queue, reason.name(), exchange]) {
        headers.set(name, FieldValue::text(value));
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use warren_queues::quorum::DeadLetterStrategy;

    use super::*;

    fn to(routing_key: Option<&str>) -> DeadLetter {
        let strategy = DeadLetterStrategy::AtMostOnce;
        DeadLetter { exchange: "dlx".into(), routing_key: routing_key.map(str::to_owned), strategy }
    }

    fn published(headers: FieldTable) -> Message {
        let properties = Properties {
            headers: Some(headers),
            expiration: ShortStr::try_from("50").ok(),
            priority: Some(7),
            ..Properties::persistent()
        };
        Message::new(&mut BytesMut::new(), "ex", b"key", &properties.to_bytes(), Bytes::from_static(b"body"))
    }

    fn headers(message: &Message) -> FieldTable {
        message.headers().and_then(|headers| headers.to_table().ok()).unwrap_or_default()
    }

    fn deaths(message: &Message) -> Vec<(i64, String, String)> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        known_deaths(&headers(message)).iter().map(|d| (d.count, text(&d.queue), text(&d.reason))).collect()
    }

    fn dies(message: &Message, queue: &str, reason: DeadReason) -> Rewritten {
        rewrite(message, queue, reason, &to(None), 1_700_000_000_999).expect("rewritten")
    }

    #[test]
    fn a_first_death_is_recorded_with_where_the_message_came_from() {
        let cc = FieldTable::new().with("CC", FieldValue::Array(vec!["other".into()])).with("app", 5_i64);
        let rewritten = dies(&published(cc), "q", DeadReason::Expired);
        let message = &rewritten.message;
        assert_eq!((message.exchange(), message.routing_key()), ("dlx", &b"key"[..]));
        assert_eq!(rewritten.keys, [&b"key"[..], b"other"]);
        assert_eq!((message.expiration_ms(), message.priority(), message.is_persistent()), (None, Some(7), true));
        let told = headers(message);
        let death = told.get(DEATHS).and_then(FieldValue::as_array).and_then(|deaths| deaths[0].as_table()).unwrap();
        let keys = FieldValue::Array(vec!["key".into(), "other".into()]);
        let expected = FieldTable::new()
            .with("count", 1_i64)
            .with("reason", "expired")
            .with("queue", "q")
            .with("time", FieldValue::Timestamp(1_700_000_000))
            .with("exchange", "ex")
            .with("routing-keys", keys)
            .with("original-expiration", "50");
        assert_eq!(*death, expected);
        for names in [FIRST, LAST] {
            let values = names.map(|name| told.get(name).and_then(FieldValue::as_str).unwrap_or_default().to_owned());
            assert_eq!(values, ["q", "expired", "ex"]);
        }
        assert_eq!(told.get("app").and_then(FieldValue::as_int), Some(5));
        assert!(told.get("CC").is_some());
    }

    #[test]
    fn hidden_keys_route_a_dead_message_and_are_not_told() {
        let headers = FieldTable::new().with("BCC", FieldValue::Array(vec!["hidden".into()]));
        let block = Properties { headers: Some(headers), ..Properties::default() }.to_bytes();
        let message = Message::with_bcc(&mut BytesMut::new(), "ex", b"key", &block, Bytes::from_static(b"body"));
        let rewritten = dies(&message, "q", DeadReason::MaxLen);
        assert_eq!(rewritten.keys, [&b"key"[..], b"hidden"]);
        let told = self::headers(&rewritten.message);
        assert!(told.get("BCC").is_none());
        let death = told.get(DEATHS).and_then(FieldValue::as_array).and_then(|deaths| deaths[0].as_table()).unwrap();
        assert_eq!(death.get("routing-keys"), Some(&FieldValue::Array(vec!["key".into()])));
    }

    #[test]
    fn a_configured_key_replaces_all_of_the_messages_own() {
        let cc = FieldTable::new().with("CC", FieldValue::Array(vec!["other".into()]));
        let rewritten = rewrite(&published(cc), "q", DeadReason::MaxLen, &to(Some("dead")), 0).unwrap();
        assert_eq!(rewritten.keys, [&b"dead"[..]]);
        assert_eq!(rewritten.message.routing_key(), b"dead");
        assert!(headers(&rewritten.message).get("CC").is_none());
    }

    #[test]
    fn deaths_of_one_queue_and_reason_are_counted_and_the_newest_comes_first() {
        let first = dies(&published(FieldTable::new()), "a", DeadReason::Expired).message;
        let second = dies(&first, "b", DeadReason::Rejected).message;
        let third = dies(&second, "a", DeadReason::Expired).message;
        let counts = [(2, "a".to_owned(), "expired".to_owned()), (1, "b".to_owned(), "rejected".to_owned())];
        assert_eq!(deaths(&third), counts);
        let told = headers(&third);
        assert_eq!(told.get("x-first-death-queue").and_then(FieldValue::as_str), Some("a"));
        assert_eq!(told.get("x-first-death-exchange").and_then(FieldValue::as_str), Some("ex"));
        assert_eq!(told.get("x-last-death-exchange").and_then(FieldValue::as_str), Some("dlx"));
    }

    #[test]
    fn what_a_client_says_of_deaths_is_not_believed() {
        let claimed = Death {
            count: 9,
            reason: Bytes::from_static(b"expired"),
            queue: Bytes::from_static(b"b"),
            time: FieldValue::Timestamp(1),
            exchange: "x".into(),
            routing_keys: FieldValue::Array(Vec::new()),
            original_expiration: None,
        };
        let headers =
            FieldTable::new().with(DEATHS, FieldValue::Array(vec![claimed.write()])).with("x-first-death-queue", "b");
        let rewritten = dies(&published(headers), "q", DeadReason::Expired);
        assert_eq!(deaths(&rewritten.message), [(1, "q".to_owned(), "expired".to_owned())]);
        assert!(!rewritten.is_cycle("b"));
    }

    #[test]
    fn a_message_that_nobody_rejected_does_not_go_round() {
        let first = dies(&published(FieldTable::new()), "a", DeadReason::Expired);
        assert!(first.is_cycle("a") && !first.is_cycle("b"));
        let second = dies(&first.message, "b", DeadReason::Expired);
        assert!(second.is_cycle("a") && second.is_cycle("b"));
        let rejected = dies(&first.message, "b", DeadReason::Rejected);
        assert!(!rejected.is_cycle("a") && !rejected.is_cycle("b"));
        let later = dies(&rejected.message, "c", DeadReason::Expired);
        assert!(later.is_cycle("c") && !later.is_cycle("b") && !later.is_cycle("a"));
    }
}
