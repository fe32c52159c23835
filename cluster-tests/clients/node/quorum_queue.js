'use strict';
// Priorities, limits, single active consumers, dead letters and timeouts of quorum queues, as amqplib programs use them.

const { run, collect, sleep } = require('./scenario');

run('quorum_queue.js', async (scenario) => {
  const channel = await scenario.confirmChannel(0);
  const declare = async (stem, more = {}) => {
    const queue = scenario.nameOf(stem);
    await channel.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'quorum', ...more } });
    return queue;
  };
  const publish = (queue, text, options = {}) =>
    new Promise((resolve) => {
      const confirmed = (error) => resolve(error === null || error === undefined);
      channel.sendToQueue(queue, Buffer.from(text), { persistent: true, ...options }, confirmed);
    });
  const drain = async (queue) => {
    const texts = [];
    for (let got = await channel.get(queue, { noAck: true }); got; got = await channel.get(queue, { noAck: true })) {
      texts.push(got.content.toString());
    }
    return texts;
  };
  const ready = async (queue) => (await channel.checkQueue(queue)).messageCount;
  const becomes = async (what, queue, count) => {
    for (let tries = 0; tries < 200 && (await ready(queue)) !== count; tries += 1) await sleep(50);
    scenario.equal(what, await ready(queue), count);
  };

  await priorities(scenario, declare, publish, drain);
  await limits(scenario, declare, publish, drain);
  await singleActive(scenario, declare, publish);
  await deadLetters(scenario, channel, declare, publish, becomes);
  await timeouts(scenario, declare, publish, becomes);
});

async function priorities(scenario, declare, publish, drain) {
  const queue = await declare('js-priorities');
  for (const priority of [0, 9, 5]) await publish(queue, String(priority), { priority });
  await publish(queue, 'none');
  scenario.equal('the highest priority first', await drain(queue), ['9', '5', 'none', '0']);
}

async function limits(scenario, declare, publish, drain) {
  const refusing = await declare('js-refusing', { 'x-max-length': 1, 'x-overflow': 'reject-publish' });
  const taken = [await publish(refusing, 'a'), await publish(refusing, 'b'), await publish(refusing, 'c')];
  scenario.equal('ok, ok, nack', taken, [true, true, false]);
  const dropping = await declare('js-dropping', { 'x-max-length': 2 });
  for (const text of ['a', 'b', 'c', 'd']) await publish(dropping, text);
  scenario.equal('the last two stay', await drain(dropping), ['c', 'd']);
}

async function singleActive(scenario, declare, publish) {
  const queue = await declare('js-single', { 'x-single-active-consumer': true });
  const consumer = async (node) => {
    const channel = await scenario.channel(node);
    const got = [];
    const { consumerTag } = await channel.consume(queue, (message) => {
      got.push(message.content.toString());
      channel.ack(message);
    });
    return { channel, got, consumerTag };
  };
  const [a, b] = [await consumer(0), await consumer(1)];
  for (const text of ['1', '2', '3']) await publish(queue, text);
  await collect(a.got, 3, 10_000);
  scenario.equal('the first gets all', [a.got, b.got], [['1', '2', '3'], []]);
  await a.channel.cancel(a.consumerTag);
  await publish(queue, '4');
  await collect(b.got, 1, 10_000);
  scenario.equal('then the second', b.got, ['4']);
}

async function deadLetters(scenario, channel, declare, publish, becomes) {
  const dead = await declare('js-dead');
  const arguments_ = { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': dead, 'x-message-ttl': 50 };
  const queue = await declare('js-dying', arguments_);
  await publish(queue, 'old', { headers: { app: 5 } });
  await becomes('it is dead', dead, 1);
  const message = await channel.get(dead, { noAck: true });
  const [death] = message.properties.headers['x-death'];
  scenario.equal('of what and where', [death.reason, death.queue, death.count], ['expired', queue, 1]);
  scenario.equal('its own header is there', message.properties.headers.app, 5);
}

async function timeouts(scenario, declare, publish, becomes) {
  const queue = await declare('js-timeout');
  await publish(queue, 'held');
  const channel = await scenario.channel(1);
  const got = [];
  await channel.consume(queue, (message) => got.push(message), { arguments: { 'x-consumer-timeout': 1000 } });
  await collect(got, 2, 15_000);
  scenario.equal('a message, then the end of the consumer', [got[0].content.toString(), got[1]], ['held', null]);
  await becomes('the message is ready again', queue, 1);
}
