'use strict';
// Node's side of the protocol that protocol.go describes.

const fs = require('fs/promises');
const path = require('path');
const readline = require('readline');

const ttl = Number(process.env.HASP_TTL_MS);
const address = process.env.HASP_ADDRESS;

class Lost extends Error {}

// node-redlock over ioredis, on the one server or the several that the address names.
async function redlock() {
  const Redis = require('ioredis');
  const Redlock = require('redlock');
  const servers = address.split(',').map((a) => new Redis(a.split(':')[1], a.split(':')[0]));
  const patient = new Redlock(servers, { retryCount: -1, retryDelay: 10, retryJitter: 5 });
  const hasty = new Redlock(servers, { retryCount: 0 });
  await Promise.all(servers.map((s) => s.ping()));
  const version = (name) => require(name + '/package.json').version;
  let held = null;
  return {
    version: 'node-redlock ' + version('redlock') + ', ioredis ' + version('ioredis'),
    async lock(name) {
      held = await patient.lock(name, ttl);
    },
    async tryLock(name) {
      try {
        held = await hasty.lock(name, ttl);
      } catch (e) {
        if (e instanceof Redlock.LockError) return false;
        throw e;
      }
      return true;
    },
    async unlock() {
      const lock = held;
      held = null;
      await lock.unlock().catch((e) => {
        throw new Lost(e.message);
      });
    },
    check: () => held.expiration > Date.now(),
  };
}

// hasp's own client for hasp serve, of this repository, where it was compiled.
async function hasp() {
  const { Client, LockLost } = await import(path.resolve(process.env.HASP_CLIENTS, 'typescript/dist/index.js'));
  const client = new Client({ url: 'http://' + address, ttl });
  let held = null;
  return {
    version: 'hasp-lock',
    async lock(name) {
      held = await client.lock(name).acquire();
      return held.token;
    },
    async tryLock(name) {
      held = await client.tryLock(name);
      return held !== undefined;
    },
    async unlock() {
      await held.release().catch((e) => {
        throw e instanceof LockLost ? new Lost(e.message) : e;
      });
    },
    check: () => held.held(),
  };
}

const libraries = { redlock, 'hasp-lock': hasp };

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const micros = () => 'ok ' + Math.round((performance.timeOrigin + performance.now()) * 1000);

async function increment(file) {
  const n = Number(await fs.readFile(file, 'utf8')) || 0;
  await sleep(1);
  await fs.writeFile(file, String(n + 1));
}

async function count(client, rounds, pause, file, name) {
  for (let i = 0; i < rounds; i++) {
    await client.lock(name);
    await increment(file);
    await client.unlock();
    await sleep(pause);
  }
}

async function answer(client, words) {
  switch (words[0]) {
    case 'lock': {
      const token = await client.lock(words[1]);
      return token === undefined ? micros() : micros() + ' ' + token;
    }
    case 'try':
      return (await client.tryLock(words[1])) ? micros() : 'busy';
    case 'unlock': {
      const before = micros();
      await client.unlock();
      return before;
    }
    case 'check':
      return client.check() ? 'held' : 'lost';
    case 'count':
      await count(client, Number(words[1]), Number(words[2]), words[3], words[4]);
      return micros();
  }
  return 'error: no such command';
}

async function main() {
  const client = await libraries[process.argv[2]]();
  console.log('ready ' + client.version);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let text;
    try {
      text = await answer(client, line.split(' '));
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
