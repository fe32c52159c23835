'use strict';
// The client programs that newcomers write first: hello, work queues, publish/subscribe, routing, topics, RPC, confirms.

const { randomUUID } = require('node:crypto');
const { run, collect, sleep, QUORUM } = require('./scenario');

run('tutorials.js', async (scenario) => {
  await hello(scenario);
  await workQueue(scenario, 'classic', { durable: true });
  await workQueue(scenario, 'quorum', QUORUM);
  await publishSubscribe(scenario);
  await routing(scenario);
  await topics(scenario);
  await headers(scenario);
  await rpc(scenario);
  await directReplyTo(scenario);
  await publisherConfirms(scenario);
  await errorsKeepTheConnection(scenario);
});

/** One queue, one message, one consumer without acknowledgements. */
async function hello(scenario) {
  const queue = scenario.nameOf('hello');
  const sender = await scenario.channel();
  await sender.assertQueue(queue, { durable: false });
  sender.sendToQueue(queue, Buffer.from('Hello World!'));
  const receiver = await scenario.channel();
  await receiver.assertQueue(queue, { durable: false });
  const got = [];
  await receiver.consume(queue, (message) => got.push(message.content.toString()), { noAck: true });
  await collect(got, 1, 10_000);
  scenario.equal('hello', got, ['Hello World!']);
  await sender.deleteQueue(queue);
}

/** A durable queue of persistent tasks, shared fairly by two workers with a prefetch of one. */
async function workQueue(scenario, kind, options) {
  const queue = scenario.nameOf(`task-queue-${kind}`);
  const channel = await scenario.channel();
  await channel.assertQueue(queue, options);
  const done = [];
  const share = [0, 0];
  for (const worker of [0, 1]) {
    const its = await scenario.channel(worker);
    await its.assertQueue(queue, options);
    await its.prefetch(1);
    await its.consume(queue, async (message) => {
      if (message === null) return; // the queue was deleted
      const task = message.content.toString();
      await sleep(10 * (task.split('.').length - 1));
      done.push(task);
      share[worker] += 1;
      its.ack(message);
    });
  }
  const tasks = [...Array(30).keys()].map((n) => `task ${n}${'.'.repeat((n % 3) + 1)}`);
  for (const task of tasks) channel.sendToQueue(queue, Buffer.from(task), { persistent: true });
  await collect(done, tasks.length, 20_000);
  scenario.equal(`work queue (${kind}): each task once`, [...done].sort(), [...tasks].sort());
  scenario.check(`work queue (${kind}): both worked`, Math.min(...share) >= 5, share);
  await channel.deleteQueue(queue);
}

/**
 * Waits until the publisher's node routes by what other nodes have declared: it answers a declaration of its own once it
 * has applied everything before.
 */
async function seenByPublisher(scenario) {
  const channel = await scenario.channel();
  const exchange = scenario.nameOf(`seen-${Date.now()}-${Math.random()}`);
  await channel.assertExchange(exchange, 'fanout', { durable: false });
  await channel.deleteExchange(exchange);
  await channel.close();
}

/** A server-named exclusive queue bound with those keys, and the list of what it receives. */
async function subscriber(scenario, node, exchange, keys, args = undefined) {
  const channel = await scenario.channel(node);
  const { queue } = await channel.assertQueue('', { exclusive: true });
  scenario.check('a server-named queue has a generated name', queue.startsWith('amq.gen-'), queue);
  for (const key of keys) await channel.bindQueue(queue, exchange, key, args);
  const got = [];
  await channel.consume(queue, (m) => got.push([m.fields.routingKey, m.content.toString()]), { noAck: true });
  await seenByPublisher(scenario);
  return got;
}

/** A fanout exchange gives every subscriber each message. */
async function publishSubscribe(scenario) {
  const exchange = scenario.nameOf('logs');
  const channel = await scenario.channel();
  await channel.assertExchange(exchange, 'fanout', { durable: false });
  const subscribers = await Promise.all([0, 1, 2].map((node) => subscriber(scenario, node, exchange, [''])));
  const lines = [...Array(20).keys()].map((n) => `line ${n}`);
  for (const line of lines) channel.publish(exchange, '', Buffer.from(line));
  for (const [node, got] of subscribers.entries()) {
    await collect(got, lines.length, 10_000);
    scenario.equal(`publish/subscribe: subscriber ${node}`, got.map(([, text]) => text), lines);
  }
  await channel.deleteExchange(exchange);
}

/** A direct exchange gives each subscriber the severities that it asked for. */
async function routing(scenario) {
  const exchange = scenario.nameOf('direct-logs');
  const channel = await scenario.channel();
  await channel.assertExchange(exchange, 'direct', { durable: false });
  const errors = await subscriber(scenario, 1, exchange, ['error']);
  const most = await subscriber(scenario, 2, exchange, ['info', 'warning', 'error']);
  const sent = [...Array(16).keys()].map((n) => [['info', 'warning', 'error', 'debug'][n % 4], String(n)]);
  for (const [severity, text] of sent) channel.publish(exchange, severity, Buffer.from(text));
  await collect(most, 12, 10_000);
  await collect(errors, 4, 10_000);
  scenario.equal('routing: one severity', errors, sent.filter(([severity]) => severity === 'error'));
  scenario.equal('routing: three severities', most, sent.filter(([severity]) => severity !== 'debug'));
  await channel.deleteExchange(exchange);
}

/** A topic exchange matches words: `*` is one, `#` any number. */
async function topics(scenario) {
  const exchange = scenario.nameOf('topic-logs');
  const channel = await scenario.channel();
  await channel.assertExchange(exchange, 'topic', { durable: false });
  const keys = ['kern.critical', 'kern', 'kern.info.disk', 'cron.critical', 'critical', 'a.b.critical'];
  const expected = {
    '#': keys,
    'kern.*': ['kern.critical'],
    '*.critical': ['kern.critical', 'cron.critical'],
    'kern.#': ['kern.critical', 'kern', 'kern.info.disk'],
    '#.critical': ['kern.critical', 'cron.critical', 'critical', 'a.b.critical'],
  };
  const subscribers = [];
  for (const [n, pattern] of Object.keys(expected).entries()) {
    subscribers.push([pattern, await subscriber(scenario, n, exchange, [pattern])]);
  }
  for (const key of keys) channel.publish(exchange, key, Buffer.from(key));
  for (const [pattern, got] of subscribers) {
    await collect(got, expected[pattern].length, 10_000);
    scenario.equal(`topics: ${pattern}`, got.map(([key]) => key), expected[pattern]);
  }
  await channel.deleteExchange(exchange);
}

/** A headers exchange matches all or any of the bound header values. */
async function headers(scenario) {
  const exchange = scenario.nameOf('headers');
  const channel = await scenario.channel();
  await channel.assertExchange(exchange, 'headers', { durable: false });
  const all = await subscriber(scenario, 1, exchange, [''], { 'x-match': 'all', format: 'pdf', pages: 3 });
  const any = await subscriber(scenario, 2, exchange, [''], { 'x-match': 'any', format: 'pdf', pages: 3 });
  const publish = (text, table) => channel.publish(exchange, '', Buffer.from(text), { headers: table });
  publish('both', { format: 'pdf', pages: 3 });
  publish('one', { format: 'pdf', pages: 4 });
  publish('none', { format: 'zip' });
  await collect(any, 2, 10_000);
  await collect(all, 1, 10_000);
  scenario.equal('headers: all', all.map(([, text]) => text), ['both']);
  scenario.equal('headers: any', any.map(([, text]) => text), ['both', 'one']);
  await channel.deleteExchange(exchange);
}

function fibonacci(n) {
  let [before, number] = [0n, 1n];
  for (let i = 0; i < n; i += 1) [before, number] = [number, before + number];
  return before;
}

/** Answers each request on the queue that it names. */
async function serve(scenario, node, queue) {
  const channel = await scenario.channel(node);
  await channel.assertQueue(queue, { durable: false });
  await channel.prefetch(1);
  await channel.consume(queue, (request) => {
    if (request === null) return; // the queue was deleted
    const answer = fibonacci(Number(request.content.toString())).toString();
    const { replyTo, correlationId } = request.properties;
    channel.sendToQueue(replyTo, Buffer.from(answer), { correlationId });
    channel.ack(request);
  });
}

async function call(scenario, channel, queue, replyTo, answers, argument) {
  const correlationId = randomUUID();
  const answered = [];
  answers.set(correlationId, answered);
  channel.sendToQueue(queue, Buffer.from(String(argument)), { correlationId, replyTo });
  await collect(answered, 1, 10_000);
  scenario.equal(`the answer to ${argument} through ${replyTo.split('-')[0]}`, answered, [fibonacci(argument).toString()]);
}

function listen(channel, queue, answers) {
  return channel.consume(
    queue,
    (message) => answers.get(message.properties.correlationId)?.push(message.content.toString()),
    { noAck: true },
  );
}

/** Requests to a shared queue, answers to the caller's exclusive queue. */
async function rpc(scenario) {
  const queue = scenario.nameOf('rpc-queue');
  await serve(scenario, 0, queue);
  const channel = await scenario.channel(1);
  const { queue: replies } = await channel.assertQueue('', { exclusive: true });
  const answers = new Map();
  await listen(channel, replies, answers);
  for (const argument of [0, 1, 10, 90]) await call(scenario, channel, queue, replies, answers, argument);
  await channel.deleteQueue(queue);
}

/** The same without a reply queue: answers come straight to the channel that asked. */
async function directReplyTo(scenario) {
  const queue = scenario.nameOf('rpc-direct');
  await serve(scenario, 0, queue);
  const channel = await scenario.channel(1);
  const answers = new Map();
  await listen(channel, 'amq.rabbitmq.reply-to', answers);
  for (const argument of [1, 10, 50]) {
    await call(scenario, channel, queue, 'amq.rabbitmq.reply-to', answers, argument);
  }
  await channel.deleteQueue(queue);
}

/** Every publish is confirmed; what no queue takes comes back. */
async function publisherConfirms(scenario) {
  const queue = scenario.nameOf('confirmed');
  const channel = await scenario.confirmChannel();
  await channel.assertQueue(queue, QUORUM);
  let confirmed = 0;
  let refused = 0;
  for (let n = 0; n < 500; n += 1) {
    channel.sendToQueue(queue, Buffer.from(String(n)), { persistent: true }, (error) => {
      if (error) refused += 1;
      else confirmed += 1;
    });
  }
  await channel.waitForConfirms();
  scenario.equal('confirms: all, and no refusal', [confirmed, refused], [500, 0]);
  const { messageCount } = await channel.purgeQueue(queue);
  scenario.equal('confirms: everything is in the queue', messageCount, 500);
  const returned = [];
  channel.on('return', (message) => returned.push([message.fields.replyCode, message.content.toString()]));
  channel.publish('', scenario.nameOf('nowhere'), Buffer.from('lost'), { mandatory: true });
  await channel.waitForConfirms();
  scenario.equal('confirms: an unroutable mandatory message comes back first', returned, [[312, 'lost']]);
  await channel.deleteQueue(queue);
}

/** A channel error ends the channel with its code; the connection goes on. */
async function errorsKeepTheConnection(scenario) {
  const connection = await scenario.connect(2);
  const channel = await connection.createChannel();
  const errors = [];
  channel.on('error', (error) => errors.push(error.code));
  await channel.checkQueue(scenario.nameOf('missing')).catch(() => {});
  await collect(errors, 1, 5_000);
  scenario.equal('errors: a missing queue', errors, [404]);
  const second = await connection.createChannel();
  const { queue } = await second.assertQueue('', { exclusive: true });
  scenario.check('errors: another channel of the connection works', queue.length > 0);
}
