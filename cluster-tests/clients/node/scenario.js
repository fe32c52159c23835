'use strict';
// What every scenario program shares: its arguments, its connections and its one-line verdict.

const { parseArgs } = require('node:util');
const { randomBytes } = require('node:crypto');
const { setTimeout: sleep } = require('node:timers/promises');
const amqp = require('amqplib');

class CheckFailed extends Error {}

/** One run of one program against the nodes that listen on `ports`. */
class Scenario {
  constructor(name, options) {
    this.name = name;
    this.ports = options.ports.split(',').map(Number);
    this.passed = [];
    this.suffix = randomBytes(4).toString('hex');
    this.connections = [];
  }

  /** A name that no other run uses, so that programs can share a cluster. */
  nameOf(stem) {
    return `${stem}-${this.suffix}`;
  }

  /** A connection to the node at that index, closed when the program ends. */
  async connect(node = 0) {
    const port = this.ports[node % this.ports.length];
    const connection = await amqp.connect(`amqp://guest:guest@127.0.0.1:${port}/%2f`);
    connection.on('error', () => {});
    this.connections.push(connection);
    return connection;
  }

  /** A channel on a connection of its own. */
  async channel(node = 0) {
    const connection = await this.connect(node);
    const channel = await connection.createChannel();
    channel.on('error', () => {});
    return channel;
  }

  /** A confirm channel on a connection of its own. */
  async confirmChannel(node = 0) {
    const connection = await this.connect(node);
    const channel = await connection.createConfirmChannel();
    channel.on('error', () => {});
    return channel;
  }

  check(what, condition, detail = '') {
    if (!condition) throw new CheckFailed(detail === '' ? what : `${what}: ${detail}`);
    this.passed.push(what);
  }

  equal(what, got, expected) {
    const [a, b] = [JSON.stringify(got), JSON.stringify(expected)];
    this.check(what, a === b, `got ${a}, expected ${b}`);
  }

  async close() {
    for (const connection of this.connections) {
      await connection.close().catch(() => {});
    }
  }
}

/** Waits until the list holds `count` items, or the time is over. */
async function collect(list, count, milliseconds) {
  const deadline = Date.now() + milliseconds;
  while (list.length < count && Date.now() < deadline) await sleep(10);
}

/** Parses the arguments, runs `body(scenario)`, prints the verdict, exits. */
async function run(name, body) {
  const { values } = parseArgs({
    options: { ports: { type: 'string' }, limit: { type: 'string', default: '120' } },
  });
  if (values.ports === undefined) {
    console.error('--ports is needed: AMQP ports on loopback, one per node, comma-separated');
    process.exit(2);
  }
  const scenario = new Scenario(name, values);
  const started = Date.now();
  const finish = (failure) => {
    const verdict = {
      program: name,
      verdict: failure === undefined ? 'pass' : 'fail',
      seconds: (Date.now() - started) / 1000,
      checks: scenario.passed.length,
    };
    if (failure !== undefined) Object.assign(verdict, { failure, passed: scenario.passed });
    process.stdout.write(`${JSON.stringify(verdict)}\n`, () => process.exit(failure === undefined ? 0 : 1));
  };
  setTimeout(() => finish(`gave up after ${values.limit} s`), Number(values.limit) * 1000).unref();
  try {
    await body(scenario);
    await scenario.close();
    finish();
  } catch (error) {
    if (!(error instanceof CheckFailed)) console.error(error);
    finish(error instanceof CheckFailed ? error.message : String(error));
  }
}

const QUORUM = { durable: true, arguments: { 'x-queue-type': 'quorum' } };

module.exports = { run, collect, sleep, QUORUM };
