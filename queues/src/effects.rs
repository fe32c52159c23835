//! A buffer for what must happen outside a machine, in order, with its memory reused.

use bytes::Bytes;
use warren_proto::ids::SessionRef;

use crate::consumer::ConsumerKey;

/// Vectors kept for reuse, at most.
const MAX_SPARE: usize = 64;
/// Messages a kept vector may have room for: one huge delivery must not hold its memory for ever.
const MAX_SPARE_CAPACITY: usize = 4096;

/// Messages handed to one consumer, ascending by message id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deliver<M> {
    /// The consumer's session.
    pub session: SessionRef,
    /// The consumer's tag.
    pub tag: Bytes,
    /// The consumer's key.
    pub key: ConsumerKey,
    /// The messages.
    pub messages: Vec<M>,
}

/// An effect type that has a delivery among its variants.
pub trait Carries: Sized {
    /// A message in a delivery.
    type Message;

    /// The variant that delivers.
    fn from_deliver(deliver: Deliver<Self::Message>) -> Self;

    /// The effect that has a session watched.
    fn monitor(session: SessionRef) -> Self;

    /// The effect that ends that.
    fn demonitor(session: SessionRef) -> Self;

    /// The delivery, if it is one.
    fn deliver_mut(&mut self) -> Option<&mut Deliver<Self::Message>>;
}

/// Collects the effects of one or many applies. Deliveries to one consumer are merged into one effect, so that a batch
/// of commands costs each consumer one hand-over. Empty it with [`drain`](Self::drain) or [`clear`](Self::clear) and
/// use it again.
#[derive(Debug)]
pub struct Effects<E: Carries> {
    list: Vec<E>,
    spare: Vec<Vec<E::Message>>,
}

impl<E: Carries> Default for Effects<E> {
    fn default() -> Self {
        Effects { list: Vec::new(), spare: Vec::new() }
    }
}

/// Where in an effect buffer a consumer's open delivery is, perhaps: checked before use, so that it may be stale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DeliverSlot(Option<u32>);

impl<E: Carries> Effects<E> {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// The effects in the order in which they must happen.
    pub fn iter(&self) -> std::slice::Iter<'_, E> {
        self.list.iter()
    }

    /// Takes the effects out, in order. A delivery's vector can be given back with [`recycle`](Self::recycle).
    pub fn drain(&mut self) -> std::vec::Drain<'_, E> {
        self.list.drain(..)
    }

    /// Forgets all effects and keeps their memory.
    pub fn clear(&mut self) {
        for effect in &mut self.list {
            if let Some(deliver) = effect.deliver_mut() {
                let messages = std::mem::take(&mut deliver.messages);
                recycle(&mut self.spare, messages);
            }
        }
        self.list.clear();
    }

    /// Gives back a delivery's vector for reuse.
    pub fn recycle(&mut self, messages: Vec<E::Message>) {
        recycle(&mut self.spare, messages);
    }

    /// Number of effects.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn push(&mut self, effect: E) {
        self.list.push(effect);
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut E> {
        self.list.last_mut()
    }

    /// Adds a message to the consumer's open delivery, or opens one.
    pub(crate) fn deliver(
        &mut self,
        slot: &mut DeliverSlot,
        key: ConsumerKey,
        message: E::Message,
        consumer: impl FnOnce() -> (SessionRef, Bytes),
    ) {
        let open = slot.0.and_then(|at| self.list.get_mut(at as usize)).and_then(E::deliver_mut);
        if let Some(deliver) = open.filter(|deliver| deliver.key == key) {
            deliver.messages.push(message);
            return;
        }
        let (session, tag) = consumer();
        let mut messages = self.spare.pop().unwrap_or_default();
        messages.push(message);
        slot.0 = u32::try_from(self.list.len()).ok();
        self.list.push(E::from_deliver(Deliver { session, tag, key, messages }));
    }
}

fn recycle<M>(spare: &mut Vec<Vec<M>>, mut messages: Vec<M>) {
    if spare.len() < MAX_SPARE && messages.capacity() > 0 && messages.capacity() <= MAX_SPARE_CAPACITY {
        messages.clear();
        spare.push(messages);
    }
}
