//! Publishing: the checks of `basic.publish` in their order, routing, and what cannot be routed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use warren_broker::access::{Permission, Resource, check_topics};
use warren_broker::error::no_exchange;
use warren_broker::{BrokerError, QueuedMessage, Traits};
use warren_metastore::projections::{HeaderLookup, QueueTarget, Routed};
use warren_metastore::records::QueueKind;
use warren_proto::amqp091::{
    BasicPublish, Content, Egress, OutgoingContent, PropertiesRef, Property, ProtocolError, PublishRef, ReplyCode,
    TableRef, verbatim, write_return,
};
use warren_proto::message::{KeysHeader, Message, keys_in, parse_expiration};

use super::reply_to::{REPLY_TO, ReplyAddress};
use super::{Channel, Context};
use crate::errors::from_broker;

/// Exchanges of which a channel remembers that its user may write to them.
const REMEMBERED: usize = 12;
/// How long it remembers, at most: a change by an operator takes effect no later.
const REMEMBER: Duration = Duration::from_secs(60);
/// Property blocks that a channel remembers of publishes with one method: ten priorities and some more.
const VARIANTS: usize = 16;
/// Of publishes in a row that are unlike all that is remembered, every one in so many is remembered.
const SELDOM: u32 = 64;
/// The tag of users who may publish in another's name.
const IMPERSONATOR: &str = "impersonator";

/// A publish whose content is on its way.
#[derive(Debug)]
pub struct Pending {
    payload: Bytes,
    /// The method is that of the remembered publish, octet by octet.
    repeats: bool,
}

/// What a channel remembers between publishes.
#[derive(Default)]
pub struct Publisher {
    writable: SmallVec<[(String, Instant); 2]>,
    last: Option<Remembered>,
    /// Publishes in a row that were not like the remembered one.
    misses: u32,
}

/// A publish that was checked and routed: most publishers send the next one with the same method and one of few property
/// blocks (say, another priority), which then needs neither.
struct Remembered {
    /// The method frame's payload.
    payload: Bytes,
    /// What the publishes with it looked like; all go to the same queues.
    variants: SmallVec<[Variant; 1]>,
    /// The variant that a header was last found to be like.
    at: usize,
    queues: Routed,
    /// Of the view that the route was found in.
    generation: u64,
    /// When the permission was checked.
    checked: Instant,
    /// [`REMEMBER`] has not passed since; looked at once a batch.
    fresh: bool,
    /// Only exchange and key decided on the route.
    by_key: bool,
}

/// What depends on a message's properties.
struct Variant {
    /// The property block as it was sent.
    block: Bytes,
    /// The stored message's head.
    head: Bytes,
    traits: Traits,
}

impl Remembered {
    /// Finds the variant with a property block; whether there is one.
    fn find(&mut self, block: &[u8]) -> bool {
        let found = self.variants.iter().position(|variant| variant.block == block);
        self.at = found.unwrap_or(self.at);
        found.is_some()
    }

    /// Whether another publish goes where this one goes, whatever its properties.
    fn goes_with(&self, other: &Remembered) -> bool {
        self.by_key && other.by_key && self.generation == other.generation && self.payload == other.payload
    }

    /// Adds another publish's variants, in the place of the one after the last found where there are many.
    fn join(&mut self, other: Remembered) {
        self.checked = self.checked.min(other.checked);
        for variant in other.variants {
            if self.variants.len() < VARIANTS {
                self.variants.push(variant);
            } else {
                self.at = (self.at + 1) % VARIANTS;
                self.variants[self.at] = variant;
            }
        }
    }

    /// Whether the permission and the route still hold.
    fn holds(&self, context: &Context) -> bool {
        self.fresh && self.generation == context.broker.metadata().projections().generation()
    }
}

impl Publisher {
    /// Whether the user may write to the exchange; asks the broker once a minute.
    fn may_write(&mut self, exchange: &str, context: &Context) -> Result<Instant, ProtocolError> {
        let now = Instant::now();
        if let Some((_, checked)) = self.writable.iter().find(|(name, _)| name == exchange)
            && now.duration_since(*checked) < REMEMBER
        {
            return Ok(*checked);
        }
        let (user, vhost) = (&context.caller.user.name, &context.caller.vhost);
        context.broker.check(user, vhost, Permission::Write, Resource::Exchange(exchange)).map_err(from_broker)?;
        self.writable.retain(|(name, _)| name != exchange);
        if self.writable.len() == REMEMBERED {
            self.writable.remove(0);
        }
        self.writable.push((exchange.to_owned(), now));
        Ok(now)
    }

    /// Forgets what the user may write to.
    pub fn forget_permissions(&mut self) {
        self.writable.clear();
        self.last = None;
    }

    /// Whether a property block is one of those remembered, which were checked.
    pub fn knows(&mut self, block: &[u8]) -> bool {
        self.last.as_mut().is_some_and(|last| last.find(block))
    }

    /// Notes what time has done to what is remembered; called once a batch.
    pub fn age(&mut self) {
        if let Some(last) = &mut self.last {
            last.fresh = last.checked.elapsed() < REMEMBER;
        }
    }

    /// Whether to remember a publish that was unlike the remembered ones. Not each time: publishers whose messages all
    /// differ would pay for nothing.
    fn missed(&mut self) -> bool {
        self.misses = self.misses.wrapping_add(1);
        self.misses.is_power_of_two() || self.misses.is_multiple_of(SELDOM)
    }

    /// Remembers a publish: beside those with the same method and route, or instead of what was remembered.
    fn remember(&mut self, publish: Remembered) {
        // Messages that all differ are not worth searching among many.
        let differ = self.misses >= SELDOM;
        match &mut self.last {
            Some(last) if !differ && last.fresh && last.goes_with(&publish) => last.join(publish),
            last => *last = Some(publish),
        }
    }

    /// The queues that a message reaches, and the generation of the view that says so; an exchange that is missing or
    /// internal is an error.
    fn route(
        &self,
        exchange: &str,
        keys: &[&[u8]],
        headers: Option<TableRef<'_>>,
        context: &Context,
    ) -> Result<(Routed, u64), BrokerError> {
        let name = &*context.caller.vhost;
        let view = context.broker.metadata().projections().peek();
        let missing = || no_exchange(name, exchange);
        let vhost = view.vhost(name).ok_or_else(missing)?;
        if !exchange.is_empty() {
            let record = vhost.exchange(exchange).ok_or_else(missing)?.record();
            if record.internal {
                return Err(BrokerError::AccessRefused(format!(
                    "cannot publish to internal exchange '{exchange}' in vhost '{name}'"
                )));
            }
            check_topics(vhost, &context.caller.user.name, record, Permission::Write, keys)?;
        }
        let mut queues = Routed::new();
        let headers = headers.as_ref().map(|table| table as &dyn HeaderLookup);
        vhost.route_into(exchange, keys, headers, &mut queues);
        Ok((queues, view.generation()))
    }
}

impl Channel {
    /// Takes the method of a publish.
    pub(super) fn begin_publish(&mut self, payload: Bytes) -> Result<(), ProtocolError> {
        let repeats = self.publisher.last.as_ref().is_some_and(|last| last.payload == payload);
        if !repeats && PublishRef::decode(&payload)?.immediate {
            let error = ProtocolError::new(ReplyCode::NotImplemented, "immediate=true");
            return Err(error.in_method(BasicPublish::IDS));
        }
        self.assembly.begin(Pending { payload, repeats }, BasicPublish::IDS);
        Ok(())
    }

    /// Checks, routes and hands over a message. Confirms and requests to queues follow at the batch's end.
    pub(super) fn publish(
        &mut self,
        content: Content<Pending>,
        context: &Context,
        arena: &mut BytesMut,
        egress: &mut Egress,
    ) -> Result<(), ProtocolError> {
        if content.method.repeats
            && let Some(last) = &self.publisher.last
            && let Some(variant) = last.variants.get(last.at)
            && variant.block == content.properties
            && last.holds(context)
        {
            self.publisher.misses = 0;
            let message = QueuedMessage { head: variant.head.clone(), body: content.body, traits: variant.traits };
            self.session.publish(&last.queues, message);
            return Ok(());
        }
        self.publish_unlike(content, context, arena, egress)
    }

    /// Publishes a message that is unlike the remembered one.
    fn publish_unlike(
        &mut self,
        content: Content<Pending>,
        context: &Context,
        arena: &mut BytesMut,
        egress: &mut Egress,
    ) -> Result<(), ProtocolError> {
        let publish = PublishRef::decode(&content.method.payload)?;
        let checked = self.publisher.may_write(publish.exchange, context)?;
        let properties = PropertiesRef::locate(&content.properties)?;
        let headers = properties.headers();
        let mut keys: SmallVec<[&[u8]; 4]> = SmallVec::from_slice(&[publish.routing_key.as_bytes()]);
        let has_bcc = more_keys(properties, headers, &mut keys)?;
        let known = self
            .publisher
            .last
            .as_ref()
            .filter(|last| content.method.repeats && headers.is_none() && last.by_key && last.holds(context));
        let (targets, generation) = match known {
            Some(last) => (last.queues.clone(), last.generation),
            None => self.publisher.route(publish.exchange, &keys, headers, context).map_err(from_broker)?,
        };
        let traits = check_properties(&properties, &targets, context)?;
        let replies = reply_addresses(publish.exchange, &keys);

        let block = self.stored_properties(&properties, &content.properties)?;
        let returned = targets.is_empty() && replies.is_empty() && publish.mandatory;
        if returned {
            let shown = if has_bcc { without_bcc(&PropertiesRef::locate(&block)?) } else { Bytes::new() };
            let returned = OutgoingContent {
                channel: self.number,
                frame_max: context.frame_max,
                properties: verbatim(if has_bcc { &shown } else { &block }),
                body: &content.body,
            };
            write_return(egress, publish.exchange, publish.routing_key, returned);
        }
        let key = publish.routing_key.as_bytes();
        let new = if has_bcc { Message::with_bcc } else { Message::new };
        let message = new(arena, publish.exchange, key, &block, content.body);
        // What needs more than to be handed to the queues is not remembered, nor what depends on a reply consumer.
        let plain = !returned && replies.is_empty() && properties.reply_to() != Some(REPLY_TO);
        if plain && self.publisher.missed() {
            let variant = Variant {
                block: Bytes::copy_from_slice(&content.properties),
                head: Bytes::copy_from_slice(message.head()),
                traits,
            };
            self.publisher.remember(Remembered {
                payload: Bytes::copy_from_slice(&content.method.payload),
                variants: SmallVec::from_buf([variant]),
                at: 0,
                queues: targets.clone(),
                generation,
                checked,
                fresh: true,
                by_key: headers.is_none(),
            });
        }
        for address in replies {
            address.send(&message, context);
        }
        let message = QueuedMessage { head: message.head().clone(), body: message.body().clone(), traits };
        self.session.publish(&targets, message);
        Ok(())
    }

    /// The property block to store: as it was sent, but with the real address of direct replies.
    fn stored_properties(&self, properties: &PropertiesRef<'_>, sent: &Bytes) -> Result<Bytes, ProtocolError> {
        let block = sent.clone();
        if properties.reply_to() != Some(REPLY_TO) {
            return Ok(block);
        }
        let address = self.reply_address().ok_or_else(|| refused("fast reply consumer does not exist"))?;
        let mut rewritten = BytesMut::with_capacity(block.len() + address.len());
        PropertiesRef::locate(&block)?.write_with_text(Property::ReplyTo, address, &mut rewritten);
        Ok(rewritten.freeze())
    }
}

/// The direct reply addresses among the keys of a message to the default exchange, each once.
fn reply_addresses(exchange: &str, keys: &[&[u8]]) -> SmallVec<[ReplyAddress; 1]> {
    let mut addresses: SmallVec<[ReplyAddress; 1]> = SmallVec::new();
    if exchange.is_empty() {
        for address in keys.iter().filter_map(|key| ReplyAddress::decode(key)) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    addresses
}

fn refused(text: impl Into<std::borrow::Cow<'static, str>>) -> ProtocolError {
    ProtocolError::new(ReplyCode::PreconditionFailed, text)
}

/// When a message is to expire, in ms. Classic queues cannot have it expire yet: one that quietly stays is handled long
/// after its time, so it is refused where it would go to one.
fn expiry(expiration: &str, targets: &[Arc<QueueTarget>]) -> Result<u64, ProtocolError> {
    let ttl = parse_expiration(expiration).map_err(|e| refused(format!("invalid expiration '{expiration}': {e}")))?;
    match targets.iter().find(|target| target.kind == QueueKind::Classic) {
        None => Ok(ttl),
        Some(target) => Err(refused(format!(
            "expiration '{expiration}': message expiration is not available for classic queues such as '{}' in vhost \
             '{}' in this version of Warren",
            target.name, target.vhost
        ))),
    }
}

/// What the queues have to know of the message.
fn check_properties(
    properties: &PropertiesRef<'_>,
    targets: &[Arc<QueueTarget>],
    context: &Context,
) -> Result<Traits, ProtocolError> {
    let ttl_ms = properties.expiration().map(|expiration| expiry(expiration, targets)).transpose()?;
    let traits = Traits { delivery_count: 0, priority: properties.priority(), ttl_ms };
    if let Some(claimed) = properties.user_id() {
        let user = &context.caller.user;
        if claimed != &*user.name && !user.tags.iter().any(|tag| tag == IMPERSONATOR) {
            return Err(refused(format!(
                "user_id property set to '{claimed}' but authenticated user was '{}'",
                user.name
            )));
        }
    }
    Ok(traits)
}

/// Adds the keys of `CC` and `BCC`. Whether there is a `BCC` header, which nobody is to see.
fn more_keys<'a>(
    properties: PropertiesRef<'a>,
    headers: Option<TableRef<'a>>,
    keys: &mut SmallVec<[&'a [u8]; 4]>,
) -> Result<bool, ProtocolError> {
    let Some(headers) = headers else {
        return Ok(false);
    };
    for header in [KeysHeader::Cc, KeysHeader::Bcc] {
        keys.extend(keys_in(properties, header).map_err(|e| refused(e.to_string()))?);
    }
    Ok(headers.get(KeysHeader::Bcc.name()).is_some())
}

fn without_bcc(properties: &PropertiesRef<'_>) -> Bytes {
    let mut block = BytesMut::with_capacity(properties.block().len());
    properties.write_without_header(KeysHeader::Bcc.name(), &mut block);
    block.freeze()
}

#[cfg(test)]
mod tests {
    use warren_proto::amqp091::{FieldTable, FieldValue, Properties};

    use super::*;

    fn with_headers(headers: FieldTable) -> Bytes {
        Properties { headers: Some(headers), ..Properties::default() }.to_bytes()
    }

    fn array(keys: &[&str]) -> FieldValue {
        FieldValue::Array(keys.iter().map(|key| (*key).into()).collect())
    }

    fn keys_of(block: &Bytes) -> Result<(Vec<Vec<u8>>, bool), ProtocolError> {
        let properties = PropertiesRef::parse(block)?;
        let mut keys: SmallVec<[&[u8]; 4]> = SmallVec::from_slice(&[b"k".as_slice()]);
        let has_bcc = more_keys(properties, properties.headers(), &mut keys)?;
        Ok((keys.iter().map(|key| key.to_vec()).collect(), has_bcc))
    }

    #[test]
    fn a_message_goes_to_its_key_and_those_of_cc_and_bcc() {
        let block = with_headers(FieldTable::new().with("CC", array(&["a", "b"])).with("BCC", array(&["c"])));
        let (keys, has_bcc) = keys_of(&block).expect("keys");
        assert_eq!(keys, [b"k", b"a", b"b", b"c"]);
        assert!(has_bcc);
        let stored = without_bcc(&PropertiesRef::parse(&block).expect("properties"));
        let (keys, has_bcc) = keys_of(&stored).expect("keys");
        assert_eq!(keys, [b"k", b"a", b"b"]);
        assert!(!has_bcc);
    }

    #[test]
    fn expiration_is_a_number_of_milliseconds_in_text() {
        assert_eq!(expiry("60000", &[]).ok(), Some(60_000));
        assert_eq!(expiry("+5", &[]).ok(), Some(5));
        assert_eq!(expiry("0", &[]).ok(), Some(0));
        let error = expiry("10ms", &[]).expect_err("refused");
        assert_eq!(error.code, ReplyCode::PreconditionFailed);
        assert!(error.explanation.contains("not an integer"), "{error}");
    }

    fn remembered(key: &'static [u8], priority: u8, generation: u64) -> Remembered {
        let block = Properties { priority: Some(priority), ..Properties::default() }.to_bytes();
        let traits = Traits { priority: Some(priority), ..Traits::default() };
        Remembered {
            payload: Bytes::from_static(key),
            variants: SmallVec::from_buf([Variant { block, head: Bytes::new(), traits }]),
            at: 0,
            queues: Routed::new(),
            generation,
            checked: Instant::now(),
            fresh: true,
            by_key: true,
        }
    }

    fn known_priority(publisher: &mut Publisher, priority: u8) -> Option<u8> {
        let block = Properties { priority: Some(priority), ..Properties::default() }.to_bytes();
        let known = publisher.knows(&block);
        let last = publisher.last.as_ref()?;
        known.then(|| last.variants[last.at].traits.priority)?
    }

    #[test]
    fn property_blocks_of_publishes_with_one_route_are_remembered_beside_each_other() {
        let mut publisher = Publisher::default();
        for priority in 0..10 {
            publisher.remember(remembered(b"a", priority, 1));
        }
        for priority in (0..10).rev() {
            assert_eq!(known_priority(&mut publisher, priority), Some(priority));
        }
        // Many, and the last ones are there.
        for priority in 0..100 {
            publisher.remember(remembered(b"a", priority, 1));
            assert_eq!(known_priority(&mut publisher, priority), Some(priority));
        }
        assert_eq!(publisher.last.as_ref().map(|last| last.variants.len()), Some(VARIANTS));
    }

    #[test]
    fn what_goes_elsewhere_is_remembered_instead() {
        let other_generation = remembered(b"a", 2, 2);
        let by_headers = Remembered { by_key: false, ..remembered(b"a", 2, 1) };
        for other in [remembered(b"b", 2, 1), other_generation, by_headers] {
            let mut publisher = Publisher::default();
            publisher.remember(remembered(b"a", 1, 1));
            publisher.remember(other);
            assert_eq!(known_priority(&mut publisher, 1), None);
            assert_eq!(known_priority(&mut publisher, 2), Some(2));
        }
        // Messages that all differ: one is enough.
        let mut publisher = Publisher::default();
        publisher.remember(remembered(b"a", 1, 1));
        publisher.misses = SELDOM;
        publisher.remember(remembered(b"a", 2, 1));
        assert_eq!((known_priority(&mut publisher, 1), known_priority(&mut publisher, 2)), (None, Some(2)));
    }

    #[test]
    fn cc_and_bcc_must_be_arrays() {
        for name in ["CC", "BCC"] {
            let block = with_headers(FieldTable::new().with(name, "a"));
            let error = keys_of(&block).expect_err("not an array");
            assert_eq!(error.code, ReplyCode::PreconditionFailed);
        }
    }
}
