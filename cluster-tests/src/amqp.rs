//! The little that tests need on top of lapin.

use std::time::Duration;

use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, PublisherConfirm, Queue, Result,
};

use crate::Node;

/// How long a healthy cluster may take to answer a publish; generous, since the machine may be busy.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Connects to the node as `guest`.
pub async fn connect(node: &Node) -> Result<Connection> {
    let uri = format!("amqp://guest:guest@127.0.0.1:{}/%2f", node.amqp_port());
    Connection::connect(&uri, ConnectionProperties::default()).await
}

/// Connects until the node lets it, and opens a channel in confirm mode.
pub async fn confirm_channel(node: &Node) -> Result<(Connection, Channel)> {
    let connection = connect(node).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok((connection, channel))
}

/// Declares a quorum queue.
pub async fn declare_quorum(channel: &Channel, queue: &str) -> Result<Queue> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await
}

/// How many messages are ready.
pub async fn ready(channel: &Channel, queue: &str) -> Result<u32> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::durable() };
    let queue = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    Ok(queue.message_count())
}

/// Publishes one persistent message to a queue; the answer is for the caller to await.
pub async fn answer(channel: &Channel, queue: &str, body: &[u8]) -> Result<PublisherConfirm> {
    channel
        .basic_publish(
            "".into(),
            queue.into(),
            BasicPublishOptions::default(),
            body,
            BasicProperties::default().with_delivery_mode(2),
        )
        .await
}

/// Publishes one persistent message to a queue and waits for its answer; `None` when none comes in time.
pub async fn publish(channel: &Channel, queue: &str, body: &[u8], limit: Duration) -> Result<Option<bool>> {
    let answer = answer(channel, queue, body).await?;
    match tokio::time::timeout(limit, answer).await {
        Ok(confirmation) => Ok(Some(matches!(confirmation?, Confirmation::Ack(_)))),
        Err(_) => Ok(None),
    }
}

/// Takes every ready message with `basic.get`, acknowledging each; gives back the bodies.
pub async fn drain(channel: &Channel, queue: &str) -> Result<Vec<Vec<u8>>> {
    let mut bodies = Vec::new();
    while let Some(message) = channel.basic_get(queue.into(), BasicGetOptions::default()).await? {
        message.acker.ack(BasicAckOptions::default()).await?;
        bodies.push(message.delivery.data);
    }
    Ok(bodies)
}
