'use strict';
// Node's side of the protocol that protocol.go describes: node-redlock over ioredis, on the
// one server or the several that the address names.

const fs = require('fs/promises');
const readline = require('readline');
const Redis = require('ioredis');
const Redlock = require('redlock');

const ttl = Number(process.env.HASP_TTL_MS);
const servers = process.env.HASP_ADDRESS.split(',').map((a) => new Redis(a.split(':')[1], a.split(':')[0]));
const patient = new Redlock(servers, { retryCount: -1, retryDelay: 10, retryJitter: 5 });
const hasty = new Redlock(servers, { retryCount: 0 });

let held = null;

class Lost extends Error {}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const micros = () => 'ok ' + Math.round((performance.timeOrigin + performance.now()) * 1000);

async function unlock() {
  const lock = held;
  held = null;
  try {
    await lock.unlock();
  } catch (e) {
    throw new Lost(e.message);
  }
}

async function increment(file) {
  const n = Number(await fs.readFile(file, 'utf8')) || 0;
  await sleep(1);
  await fs.writeFile(file, String(n + 1));
}

async function count(rounds, pause, file, name) {
  for (let i = 0; i < rounds; i++) {
    held = await patient.lock(name, ttl);
    await increment(file);
    await unlock();
    await sleep(pause);
  }
}

async function answer(words) {
  switch (words[0]) {
    case 'lock':
      held = await patient.lock(words[1], ttl);
      return micros();
    case 'try':
      try {
        held = await hasty.lock(words[1], ttl);
      } catch (e) {
        if (e instanceof Redlock.LockError) return 'busy';
        throw e;
      }
      return micros();
    case 'unlock': {
      const before = micros();
      await unlock();
      return before;
    }
    case 'check':
      return held.expiration > Date.now() ? 'held' : 'lost';
    case 'count':
      await count(Number(words[1]), Number(words[2]), words[3], words[4]);
      return micros();
  }
  return 'error: no such command';
}

async function main() {
  await Promise.all(servers.map((s) => s.ping()));
  const version = (name) => require(name + '/package.json').version;
  console.log('ready node-redlock ' + version('redlock') + ', ioredis ' + version('ioredis'));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let text;
    try {
      text = await answer(line.split(' '));
    } catch (e) {
      text = (e instanceof Lost ? 'lost ' : 'error: ') + e.message;
    }
    console.log(text.replace(/\n/g, ' '));
  }
  process.exit(0);
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
