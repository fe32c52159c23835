'use strict';
// Publish with confirms, consume and acknowledge one quorum queue through every node of the cluster.

const { run, collect, QUORUM } = require('./scenario');

const MESSAGES = 200;

run('each_node.js', async (scenario) => {
  const queue = scenario.nameOf('each-node-js');
  const first = await scenario.channel(0);
  await first.assertQueue(queue, QUORUM);

  for (const publisher of scenario.ports.keys()) {
    for (const consumer of scenario.ports.keys()) {
      await roundTrip(scenario, queue, publisher, consumer);
    }
  }

  const { messageCount } = await first.checkQueue(queue);
  scenario.equal('nothing is left after everything was acknowledged', messageCount, 0);
  await first.deleteQueue(queue);
});

/** A batch of confirmed messages from one node to another, in order, each acknowledged. */
async function roundTrip(scenario, queue, publisher, consumer) {
  const label = `published on node ${publisher}, consumed on node ${consumer}`;
  const out = await scenario.confirmChannel(publisher);
  const bodies = [...Array(MESSAGES).keys()].map((n) => `${publisher}-${consumer}-${n}`);
  for (const body of bodies) out.sendToQueue(queue, Buffer.from(body), { persistent: true });
  await out.waitForConfirms();

  const into = await scenario.channel(consumer);
  await into.prefetch(50);
  const got = [];
  const { consumerTag } = await into.consume(queue, (message) => {
    got.push([message.content.toString(), message.fields.redelivered]);
    into.ack(message);
  });
  await collect(got, MESSAGES, 20_000);
  scenario.equal(`${label}: bodies and their order`, got.map(([body]) => body), bodies);
  scenario.check(`${label}: first deliveries`, got.every(([, again]) => !again));
  await into.cancel(consumerTag);
  await out.connection.close();
  await into.connection.close();
}
