// Against a real hasp serve.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Busy, Client, LockLost, Refused, Unavailable } from "../dist/index.js";
import { bin, fixture, patience, skip, store, until } from "../programs/fixture.js";

function other(...args) {
  return new Promise((resolve) => spawn(bin, ["run", "--store", store, ...args, "--", "true"], { stdio: "ignore" }).on("exit", resolve));
}

test("one at a time", { skip }, async (t) => {
  const { name, client, queue } = await fixture(t);
  const clients = Array.from({ length: 4 }, () => client());
  let inside = 0, most = 0;
  const tokens = [];
  await Promise.all(clients.map(async (c) => {
    for (let i = 0; i < 10; i++) {
      await c.withLock(name, async (lease) => {
        most = Math.max(most, ++inside);
        tokens.push(lease.token);
        await sleep(1);
        inside--;
      });
    }
  }));
  assert.equal(most, 1);
  assert.equal(new Set(tokens).size, 40);
  assert.deepEqual(tokens, [...tokens].sort((a, b) => Number(a - b)));
  assert.deepEqual(await queue(clients[0]), []);
});

test("a hundred waiting locks have one open request, and are no leak", { skip }, async (t) => {
  const warned = [];
  const warns = (w) => warned.push(w.name);
  process.on("warning", warns);
  t.after(() => process.off("warning", warns));
  const { name, client } = await fixture(t);
  const c = client(), other = client(), signal = new AbortController().signal;
  const names = Array.from({ length: 100 }, (_, i) => `${name}/${i}`);
  const held = await Promise.all(names.map((n) => other.lock(n).acquire()));
  await c.withLock(name, () => undefined); // its session
  const http = c.http, open = [];
  c.http = async (method, path, o) => {
    const what = `${method} ${path.split("?")[0]}`;
    open.push(what);
    return http(method, path, o).finally(() => open.splice(open.indexOf(what), 1));
  };
  const granted = names.map((n) => c.lock(n, { signal }).run((lease) => lease.token));
  const waiting = async () => /^hasp_serve_waiting\S* 100$/m.test(await (await fetch(c.url + "/metrics")).text());
  await until("all to wait", waiting);
  await until("the last answer", () => !open.some((o) => o.startsWith("PUT")));
  const others = open.filter((o) => o !== "POST /v1/session/keepalive");
  assert.ok(others.length <= 1 && others.every((o) => o === "GET /v1/session/events"), String(others));
  await Promise.all(held.map((l) => l.release()));
  assert.equal(new Set(await Promise.all(granted)).size, 100);
  assert.deepEqual(warned, []);
});

test("TLS with a certificate of the client", { skip: !process.env.TLS_URL && "TLS_URL is not set" }, async (t) => {
  const { TLS_URL: url, TLS_CA, TLS_CERT, TLS_KEY } = process.env;
  const ca = readFileSync(TLS_CA), name = `node/tls/${process.pid}`;
  const without = new Client({ url, tls: { ca } }), client = new Client({ url, tls: { ca, cert: readFileSync(TLS_CERT), key: readFileSync(TLS_KEY) } });
  t.after(() => Promise.all([without.close(), client.close()]));
  await assert.rejects(without.tryLock(name), Unavailable);
  await (await client.tryLock(name)).release();
  await assert.rejects(new Client({ url }).tryLock(name), Unavailable); // of an authority that this program does not know
});

test("the holder is asked", { skip }, async (t) => {
  const { name, client, queue } = await fixture(t);
  const holder = spawn(bin, ["run", "--store", store, name, "--", "sleep", "60"], { stdio: ["ignore", "ignore", "pipe"] });
  t.after(() => holder.kill("SIGKILL"));
  const c = client();
  await until("the holder", async () => (await queue(c)).length === 1);
  const lease = c.lock(name, { ask: "the disk is full" }).acquire();
  for await (const line of createInterface(holder.stderr)) if (line.includes("the disk is full")) break;
  holder.kill();
  await (await lease).release();
});

test("busy, and a wait that is given up", { skip }, async (t) => {
  const { name, client, queue } = await fixture(t);
  const one = client(), two = client();
  const lease = await one.lock(name).acquire();
  assert.equal(await two.tryLock(name), undefined);
  await assert.rejects(two.lock(name, { timeout: 100 }).acquire(), Busy);
  const ends = new AbortController();
  const waits = two.lock(name, { signal: ends.signal }).acquire();
  await until("a waiter", async () => (await queue(one)).length === 2);
  ends.abort(new RangeError("enough"));
  await assert.rejects(waits, RangeError);
  await until("the place to be left", async () => (await queue(one)).length === 1);
  await lease.release();
  assert.equal(lease.held(), false);
  await lease.release(); // again: nothing happens
  await (await two.tryLock(name)).release();
});

test("kinds", { skip }, async (t) => {
  const { name, client, queue } = await fixture(t);
  const c = client();
  await c.readLock(name).run(() => c.readLock(name).run(async () => assert.equal((await queue(c)).length, 2)));
  await c.semaphore(name, 3, 2).run(() => assert.rejects(c.semaphore(name, 3, 2, { timeout: 100 }).acquire(), Busy));
  await c.withLock(name, () => assert.rejects(c.semaphore(name, 3).acquire(), Refused));
});

test("election", { skip }, async (t) => {
  const { name, client } = await fixture(t);
  const seen = client().observe(name);
  const next = async () => (await seen.next()).value?.toString();
  assert.equal(await next(), undefined);
  await client().election(name, "http://one:1").run(async (lease) => {
    assert.equal(await next(), "http://one:1");
    await lease.publish("http://one:2");
    assert.equal(await next(), "http://one:2");
  });
  assert.equal(await next(), undefined);
});

test("an observer outlasts the server", { skip }, async (t) => {
  const { server, name, client } = await fixture(t);
  const seen = client().observe(name);
  assert.equal((await seen.next()).value, undefined);
  const next = seen.next();
  await server.kill();
  await server.start();
  await client().election(name, "http://one:1").run(async () => assert.equal((await next).value.toString(), "http://one:1"));
});

test("the server is started anew", { skip }, async (t) => {
  const { server, name, client, queue } = await fixture(t);
  const c = client();
  const lease = await c.lock(name).acquire();
  const waits = client().lock(name).acquire();
  await until("a waiter", async () => (await queue(c)).length === 2);
  await server.kill();
  await server.start();
  const old = lease.session;
  await until("the session to move", () => lease.session !== old);
  assert.equal(lease.held(), true, lease.reason);
  assert.equal(BigInt((await queue(c))[0].seq), lease.token);
  await lease.release();
  const next = await waits;
  assert.ok(next.token > lease.token);
  await next.release();
  assert.deepEqual(await queue(c), []);
});

test("a loss is told before the next grant", { skip }, async (t) => {
  const { server, name, client } = await fixture(t);
  const lease = await client({ ttl: 3000 }).lock(name).acquire();
  let told;
  lease.signal.addEventListener("abort", () => { told = performance.now(); });
  await server.kill(); // and nothing takes its place
  assert.equal(await other(name), 0);
  const granted = performance.now();
  await until("the loss", () => told);
  assert.ok(told < granted, `told ${told - granted} ms after the grant`);
  await assert.rejects(lease.release(), LockLost);
});

/** Loses an answer or a request for each of lost, [method, whether it reaches the server], in their order. */
function outage(c, ...lost) {
  const http = c.http;
  c.http = async (method, ...args) => {
    if (lost[0]?.[0] !== method) return http(method, ...args);
    const [, arrives] = lost.shift();
    if (arrives) await http(method, ...args);
    throw new Unavailable("the network is away");
  };
}

test("a place that is given up in an outage", { skip }, async (t) => {
  const { name, client, queue } = await fixture(t);
  const c = client(), other = client();
  outage(c, ["PUT", true], ["DELETE", false], ["DELETE", false]);
  await other.withLock(name, async () => {
    await assert.rejects(c.lock(name, { timeout: 0 }).acquire(), Unavailable);
    await until("the place to be left", async () => (await queue(other)).length === 1);
  });
});

test("a lock that is granted in an outage", { skip }, async (t) => {
  const { name, client } = await fixture(t);
  const c = client();
  outage(c, ["PUT", true], ["DELETE", false], ["DELETE", false]);
  await assert.rejects(c.tryLock(name), Unavailable);
  await client().withLock(name, () => undefined, { timeout: patience });
});

test("evicted", { skip }, async (t) => {
  const { name, client, queue } = await fixture(t);
  const c = client();
  const lease = await c.lock(name).acquire();
  await c.http("POST", "/v1/evict", { body: { name, entry: (await queue(c))[0].entry } });
  await until("the loss", () => lease.signal.aborted);
});

test("a paused process", { skip }, async (t) => {
  const { server, name } = await fixture(t);
  const child = spawn(process.execPath, [fileURLToPath(new URL("../programs/paused.js", import.meta.url)), "http://" + server.address, name], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => child.kill("SIGKILL"));
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  assert.equal((await lines.next()).value, "true");
  child.kill("SIGSTOP");
  assert.equal(await other(name), 0);
  child.kill("SIGCONT");
  assert.equal((await lines.next()).value, "stopped, false"); // the first thing that it does is to ask
});
