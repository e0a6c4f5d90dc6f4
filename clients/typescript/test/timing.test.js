// What the client believes, against a server and a clock that the test makes.
import assert from "node:assert/strict";
import { syncBuiltinESMExports } from "node:module";
import os from "node:os";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Busy, Client, Closed, LockLost, Quarantine } from "../dist/index.js";
import { newClock } from "../dist/clock.js";
import { Refused, SessionGone, Unavailable } from "../dist/errors.js";

/** A client whose server answers what the test says, at once: each request may take time before and after. */
function fixture() {
  const f = {
    time: 1_000_000, there: 0, back: 0, fail: undefined, can: ["adopt"], asked: [], forgotten: new Set(), tokens: 0,
    late: [], // what the next keep-alive does not renew
    waits: [], // what is called while the next PUT is under way, which is answered that it waits
    bodies: [],
  };
  const client = new Client({ ttl: 60_000 });
  client.now = () => f.time;
  client.http = async (method, path, o = {}) => {
    f.asked.push(method + " " + path.split("?")[0]);
    f.bodies.push(o.body);
    if (path.startsWith("/v1/session/events")) return new Promise(() => {}); // for ever
    f.time += f.there;
    if (f.fail) throw f.fail;
    if (f.forgotten.has(o.session)) throw new SessionGone("no such session");
    f.time += f.back;
    if (path === "/v1/session" && method === "POST") return { session: "s" + f.asked.length, valid_ms: 60_000, can: f.can };
    if (path === "/v1/session/keepalive") return { valid_ms: 60_000, late: f.late };
    if (path.endsWith("/adopt")) return { state: "held", token: o.body.seq, entry: "new" };
    if (method === "PUT" && f.waits.length > 0) {
      await f.waits.shift()();
      return { state: "waiting", entry: "e" };
    }
    if (method === "PUT") return { state: "held", token: ++f.tokens, entry: "e" };
    return undefined;
  };
  /** News by which a lock that waits is held. */
  f.granted = (number, token = 7n) => client.hear(client.session, { version: 1, lost: new Map(), held: new Map([[number, token]]), waiting: [], draining: false });
  return { f, client };
}

/** The first requests of each method fail so, after the server has noted them. */
function failing(client, failures) {
  const http = client.http;
  client.http = async (method, path, o) => {
    const answer = await http(method, path, o);
    if (failures[method]?.length > 0) throw failures[method].shift();
    return answer;
  };
}

/** setTimeout is the test's from here on. */
function mockTimers(t) {
  const old = process.version.startsWith("v18.");
  t.mock.timers.enable(old ? ["setTimeout"] : { apis: ["setTimeout"] });
}

async function until(what, check) {
  for (const end = Date.now() + 60_000; !check(); await sleep(1)) if (Date.now() > end) throw new Error("waited for nothing: " + what);
}

test("trust is counted from before the request", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  f.there = f.back = 10_000;
  const lease = await client.lock("a").acquire();
  // Opened at 1,000 s, granted for 60, of which a tenth is not used.
  assert.equal(lease.session.deadline, 1_054_000);
  f.time = 1_053_999;
  assert.equal(lease.held(), true);
  f.time = 1_054_000;
  assert.equal(lease.held(), false);
  // The control: counted from the answer, it would be trusted for longer than the store has granted, at 1,010 s at the earliest.
  f.there = 10_000, f.back = 50_000, f.time = 1_000_000;
  const session = await client.open();
  assert.ok(session.deadline < 1_070_000 && f.time + 54_000 > 1_070_000);
});

test("a keep-alive extends the trust, from before it was sent", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const { session } = await client.lock("a").acquire();
  f.time += 20_000;
  f.back = 5_000;
  await client.keepOnce(session);
  assert.equal(session.deadline, 1_020_000 + 54_000);
});

test("the loss is told soon after a suspension", async (t) => {
  mockTimers(t); // they stand still while the machine sleeps
  const { f, client } = fixture();
  t.after(() => client.close());
  const lease = await client.lock("a").acquire();
  f.time += 3_600_000;
  t.mock.timers.tick(1000);
  await new Promise(setImmediate);
  assert.equal(lease.signal.aborted, true);
});

/** A lease that the last keep-alive has renewed, and one that was late by then, has waited, and was granted afterwards. */
async function lateAndGranted({ f, client }) {
  const renewed = await client.lock("a").acquire();
  f.waits = [async () => {
    f.time += 20_000;
    f.late = [{ lock: 2, valid_ms: 40_000 }];
    assert.ok(await client.keepOnce(renewed.session) <= 1000); // it asks again soon
    await f.granted(2);
  }];
  return [renewed, await client.lock("b").acquire()];
}

test("what was late when it waited is trusted for its own time, and lost alone", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const [renewed, late] = await lateAndGranted({ f, client });
  const { session } = renewed;
  // Not renewed at 1,020 s, when the store kept it for 40 more, of which a tenth is not used.
  assert.equal(client.expire(session), 1_056_000);
  f.time = 1_055_999;
  assert.equal(late.held(), true);
  f.time = 1_056_000;
  assert.equal(late.held(), false);
  assert.equal(renewed.held(), true);
  // Its place is given up when its time in the store is over, not before.
  const next = client.expire(session);
  assert.equal(late.signal.aborted, true);
  assert.equal(renewed.signal.aborted, false);
  assert.ok(next >= 1_060_000);
  f.time = next - 1;
  client.expire(session);
  assert.deepEqual([...session.leaving], []);
  f.time = next;
  client.expire(session);
  assert.deepEqual([...session.leaving], [2]);
});

test("what was late and is renewed", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const [renewed, late] = await lateAndGranted({ f, client });
  f.time += 1000;
  f.late = [];
  await client.keepOnce(renewed.session);
  f.time = 1_021_000 + 53_999;
  assert.equal(late.held(), true);
});

test("what is late and held is trusted for its own time, and what was renewed for the session's", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const renewed = await client.lock("a").acquire(), late = await client.lock("b").acquire();
  f.late = [{ lock: 2, valid_ms: 10_000 }];
  await client.keepOnce(renewed.session);
  assert.equal(late.held(), true);
  f.time += 9_000;
  assert.equal(late.held(), false);
  assert.equal(renewed.held(), true);
});

test("what is late and lost during a move is not kept by the new session", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const [renewed, late] = await lateAndGranted({ f, client });
  const old = renewed.session, http = client.http;
  client.http = async (method, path, o) => {
    if (path.endsWith("/adopt") && o.body.name === "b") {
      f.time = 1_056_000;
      client.expire(old);
    }
    return http(method, path, o);
  };
  await client.recover(old);
  assert.equal(late.signal.aborted, true);
  assert.equal(renewed.held(), true);
  await until("the place to be left", () => f.asked.includes("DELETE /v1/locks/2"));
});

test("the loss is told at the deadline", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const lease = await client.lock("a").acquire();
  f.fail = new Unavailable("no answer");
  f.time += 20_000;
  await client.keepOnce(lease.session);
  assert.equal(lease.held(), true);
  f.time = 1_054_000;
  client.expire(lease.session);
  assert.equal(lease.signal.aborted, true);
  assert.ok(lease.signal.reason instanceof LockLost);
  await assert.rejects(lease.release(), LockLost);
});

test("withLock throws if the lock was lost, and not over the block's own error", async (t) => {
  const { client } = fixture();
  t.after(() => client.close());
  await assert.rejects(client.withLock("a", (lease) => lease.end("test")), LockLost);
  await assert.rejects(client.withLock("a", (lease) => { lease.end("test"); throw new RangeError("mine"); }), RangeError);
});

test("a session that its server has forgotten moves", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const lease = await client.lock("a").acquire();
  const old = lease.session;
  f.forgotten.add(old.id);
  await client.keepOnce(old);
  assert.notEqual(lease.session, old);
  assert.equal(lease.held(), true);
  assert.ok(f.asked.includes("POST /v1/locks/1/adopt"));
  await lease.release();
  assert.equal(f.asked.at(-1), "DELETE /v1/locks/1");
});

test("a release that the old session confirms while the lock moves is repeated", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const lease = await client.lock("a").acquire();
  const old = lease.session, http = client.http;
  client.http = async (method, path, o) => {
    if (method === "DELETE" && o.session === old.id) {
      f.forgotten.add(old.id);
      void client.recover(old); // another request
      return undefined;
    }
    return http(method, path, o);
  };
  await lease.release();
  assert.equal(f.asked.at(-1), "DELETE /v1/locks/1");
  assert.notEqual(lease.session, old);
});

test("a time that is over during a move leaves nothing that is kept alive", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const lease = await client.lock("a").acquire();
  const old = lease.session, http = client.http;
  client.http = async (method, path, o) => {
    if (path.endsWith("/adopt")) {
      f.time = old.deadline;
      client.expire(old);
    }
    return http(method, path, o);
  };
  await client.recover(old);
  assert.equal(lease.signal.aborted, true);
  assert.equal(f.asked.at(-1), "DELETE /v1/session");
  await client.close();
  assert.equal(f.asked.filter((a) => a === "DELETE /v1/session").length, 1); // there is no other one
});

test("no keep-alive counts during a move", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const lease = await client.lock("a").acquire();
  const old = lease.session, http = client.http, believed = [];
  client.http = async (method, path, o) => {
    if (!path.endsWith("/adopt")) return http(method, path, o);
    f.time += 20_000;
    if (f.time < old.deadline) await client.keepOnce(old); // a server that is about to end still answers
    believed.push(old.deadline);
    throw new Unavailable("the answer is lost");
  };
  await client.recover(old);
  assert.ok(believed.length > 1 && believed.every((b) => b === 1_054_000), String(believed));
  assert.equal(lease.signal.aborted, true);
});

test("a keep-alive that a move has kept from counting is repeated soon", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const { session } = await client.lock("a").acquire();
  const http = client.http;
  let due;
  client.http = async (method, path, o) => {
    if (path !== "/v1/session" || method !== "POST") return http(method, path, o);
    f.time += 20_000;
    due = await client.keepOnce(session);
    throw new Unavailable("it is about to end");
  };
  await assert.rejects(client.recover(session), Unavailable);
  assert.deepEqual([due, session.deadline], [1000, 1_054_000]);
  await client.keepOnce(session);
  assert.equal(session.deadline, 1_020_000 + 54_000);
});

/**
 * A server that answers events of its first session by what answer is called with, from then on, and may refuse to open others. opened: how
 * often one was asked for then. asked: all requests, each with its session.
 */
function listens(client, { refuses }) {
  const http = client.http, s = { opened: 0, asked: [] };
  let events, first;
  const answered = new Promise((resolve) => { s.answer = (by) => resolve(events = by); });
  client.http = async (method, path, o = {}) => {
    s.asked.push(`${method} ${path.split("?")[0]} ${o.session ?? ""}`);
    if (path.startsWith("/v1/session/events") && o.session === (first ??= o.session)) {
      await answered;
      return events();
    }
    if (refuses && events && path === "/v1/session" && method === "POST") {
      s.opened++;
      throw new Unavailable("it is about to end");
    }
    return http(method, path, o);
  };
  return s;
}

/** The times in ms, by mocked timers, at which check changes. */
async function changes(t, until, check) {
  const at = [];
  for (let ms = 0, last = check(); ms <= until; ms += 50) {
    if (ms > 0) t.mock.timers.tick(50);
    await new Promise(setImmediate);
    if (check() !== last) at.push(ms);
    last = check();
  }
  return at;
}

test("a server that is about to end keeps what the store cannot hand on", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  f.can = [];
  const s = listens(client, { refuses: false });
  const lease = await client.lock("a").acquire();
  let answers = 0;
  s.answer(() => ({ version: 0, lost: [], draining: ++answers > 0 }));
  await until("the second answer", () => answers === 2);
  assert.equal(s.asked.filter((a) => a === "POST /v1/session ").length, 1);
  assert.equal(lease.held(), true);
  await lease.release();
  await until("the end of the session", () => s.asked.at(-1) === `DELETE /v1/session ${lease.session.id}`); // nothing is held there any more
});

test("a server that is about to end has nothing left", async (t) => {
  const { client } = fixture();
  t.after(() => client.close());
  const s = listens(client, { refuses: false });
  const lease = await client.lock("a").acquire();
  const old = lease.session;
  s.answer(() => ({ version: 0, lost: [], draining: true }));
  await until("the end of the old session", () => s.asked.at(-1) === `DELETE /v1/session ${old.id}`);
  const since = s.asked.slice(s.asked.indexOf("POST /v1/session ", 1)).filter((a) => !a.includes("/events"));
  assert.deepEqual(since, ["POST /v1/session ", `POST /v1/locks/1/adopt ${lease.session.id}`, `DELETE /v1/session ${old.id}`]);
  assert.equal(lease.held(), true);
});

test("a waiter whose session was left queues in the next one", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const s = listens(client, { refuses: false });
  const first = await client.lock("a").acquire();
  const old = first.session;
  await first.release();
  f.waits = [() => client.recover(old)]; // another request
  const lease = await client.lock("a").acquire();
  const since = s.asked.slice(s.asked.lastIndexOf(`PUT /v1/locks/2 ${old.id}`)).filter((a) => !a.includes("/events"));
  const { id } = lease.session;
  assert.notEqual(id, old.id);
  assert.deepEqual(since, [`PUT /v1/locks/2 ${old.id}`, "POST /v1/session ", `POST /v1/evict ${id}`, `PUT /v1/locks/1 ${id}`]);
});

test("a waiter at a server that waits for nothing any more asks less and less often", async (t) => {
  mockTimers(t);
  t.mock.method(Math, "random", () => 1);
  const { f, client } = fixture();
  t.after(() => client.close());
  const { session } = await client.lock("b").acquire();
  session.draining = true;
  f.waits = Array.from({ length: 50 }, () => () => undefined);
  void client.lock("a").acquire().catch(() => undefined);
  const asked = () => f.asked.filter((a) => a === "PUT /v1/locks/2").length;
  assert.deepEqual(await changes(t, 4000, asked), [0, 50, 150, 350, 750, 1550, 3150]);
});

/** An acquisition that waits for news, and all that the server was asked for by then. */
async function waiter({ f, client }, options) {
  f.waits = [() => undefined];
  const lease = client.lock("a", options).acquire();
  lease.catch(() => undefined);
  await until("the wait", () => client.session?.places.get(1)?.entry);
  await new Promise(setImmediate);
  return { lease, place: client.session.places.get(1), asked: [...f.asked] };
}

test("a grant comes as news", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const w = await waiter({ f, client });
  await f.granted(1, 41n);
  const lease = await w.lease;
  assert.deepEqual([lease.token, lease.entry, lease.held()], [41n, "e", true]);
  assert.deepEqual(f.asked, w.asked); // without another request
  assert.equal(client.session.places.size, 0);
});

test("a grant overtakes the answer that it waits", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  f.waits = [() => f.granted(1, 41n)];
  assert.equal((await client.lock("a").acquire()).token, 41n);
});

const news = { version: 1, lost: new Map(), held: new Map(), waiting: [], draining: false };

test("a loss overtakes the answer that it is held", async (t) => {
  const { client } = fixture();
  t.after(() => client.close());
  const http = client.http;
  client.http = async (method, path, o) => {
    const answer = await http(method, path, o);
    if (path === "/v1/locks/1") await client.hear(client.session, { ...news, lost: new Map([[1, "evicted"]]) });
    return answer;
  };
  const lease = await client.lock("a").acquire();
  assert.deepEqual([lease.number, lease.held()], [2, true]); // it has queued again
});

test("a place that is lost queues again", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const { lease } = await waiter({ f, client });
  await client.hear(client.session, { ...news, lost: new Map([[1, "evicted"]]) });
  assert.equal((await lease).number, 2);
});

test("a server that waits no longer is asked again", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const { lease } = await waiter({ f, client });
  await client.hear(client.session, { ...news, waiting: [1] });
  assert.equal((await lease).number, 1);
  assert.deepEqual(f.asked.slice(-2), ["PUT /v1/locks/1", "PUT /v1/locks/1"]);
});

test("a waiter without news for long asks again", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const { lease, place } = await waiter({ f, client });
  f.time += 41_000; // no answer to a request for news in that time: they may not come through
  client.session.deadline += 41_000;
  place.ring();
  assert.equal((await lease).number, 1);
  assert.deepEqual(f.asked.slice(-2), ["PUT /v1/locks/1", "PUT /v1/locks/1"]);
});

test("a wait ends with its time, and with the client", async (t) => {
  const { f, client } = fixture();
  const { lease, place } = await waiter({ f, client }, { timeout: 5000 });
  f.time += 5000;
  place.ring();
  await assert.rejects(lease, Busy);
  assert.equal(f.asked.at(-1), "DELETE /v1/locks/1");
  f.waits = [() => undefined];
  const waits = client.lock("a").acquire();
  waits.catch(() => undefined);
  await until("the wait", () => client.session.places.get(2)?.entry);
  await client.close();
  await assert.rejects(waits, Closed);
});

test("the first acquisition waits for a server that is away", async (t) => {
  for (const [timeout, attempts] of [[30_000, 3], [5000, 1]]) {
    const { f, client } = fixture();
    t.after(() => client.close());
    const http = client.http;
    let away = 2, asked = 0;
    client.http = async (method, path, o) => {
      if (path !== "/v1/session" || method !== "POST") return http(method, path, o);
      asked++;
      if (away === 0) return http(method, path, o);
      away--;
      f.time += 6000;
      throw new Unavailable("connection refused");
    };
    if (attempts === 3) assert.equal((await client.lock("a", { timeout }).acquire()).held(), true);
    else await assert.rejects(client.lock("a", { timeout }).acquire(), Unavailable);
    assert.equal(asked, attempts);
  }
});

test("the default TTL is that of all clients", async (t) => {
  const { f, client } = fixture();
  const { http } = client, plain = new Client();
  t.after(() => Promise.all([client.close(), plain.close()]));
  plain.http = http;
  await plain.lock("a").acquire();
  assert.deepEqual(f.bodies[0], { ttl_ms: 10_000 });
});

test("a time that is over is told by the first look at it, and stays over", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  for (const look of [(l) => l.signal.aborted, (l) => l.reason !== "", (l) => !l.held(), (l) => l.remaining() === 0]) {
    const lease = await client.lock("a").acquire();
    const { session } = lease;
    assert.equal(look(lease), false);
    f.time = session.deadline; // the process stood still
    assert.equal(look(lease), true);
    assert.throws(() => lease.check(), /its time was over/);
    // A keep-alive may come through all the same. What was told as lost stays lost, and is left.
    await client.keepOnce(session);
    assert.equal(lease.held(), false);
    f.time += 7000;
    client.expire(session);
    await until("the place to be left", () => f.asked.includes(`DELETE /v1/locks/${lease.number}`));
  }
});

test("no time beyond the TTL is trusted", async (t) => {
  const { f, client } = fixture();
  const { http } = client, short = new Client({ ttl: 10_000 });
  t.after(() => Promise.all([client.close(), short.close()]));
  short.http = http; // its answers say 60 s
  short.now = () => f.time;
  const lease = await short.lock("a").acquire();
  await short.keepOnce(lease.session);
  assert.equal(lease.remaining(), 9000);
});

test("a hundred that wait by one signal are no leak", async (t) => {
  const warned = [];
  const warns = (w) => warned.push(w.name);
  process.on("warning", warns);
  t.after(() => process.off("warning", warns));
  const { f, client } = fixture();
  t.after(() => client.close());
  await client.lock("b").acquire();
  f.waits = Array.from({ length: 100 }, () => () => undefined);
  const ends = new AbortController();
  const all = Array.from({ length: 100 }, (_, i) => client.lock("a" + i, { signal: ends.signal }).acquire());
  const ended = Promise.allSettled(all);
  await until("all to wait", () => client.session.places.size === 100 && [...client.session.places.values()].every((p) => p.entry));
  const lease = await client.tryLock("c");
  for (let i = 0; i < 20; i++) lease.signal.addEventListener("abort", () => undefined);
  ends.abort(new RangeError("enough"));
  for (const each of await ended) assert.ok(each.reason instanceof RangeError);
  await new Promise(setImmediate);
  assert.deepEqual(warned, []);
});

for (const [what, events] of [
  ["is about to end", () => ({ version: 0, lost: [], draining: true })],
  ["has forgotten the session", () => { throw new SessionGone("no such session"); }],
]) {
  test(`a server that ${what} is asked less and less often where there is no other one`, async (t) => {
    mockTimers(t);
    const { client } = fixture();
    t.after(() => client.close());
    const s = listens(client, { refuses: true });
    const lease = await client.lock("a").acquire();
    s.answer(events);
    assert.deepEqual(await changes(t, 6000, () => s.opened), [0, 100, 300, 700, 1500, 3100, 5100]);
    assert.equal(lease.held(), true);
  });
}

test("a lock that is granted during a move goes with it", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const first = await client.lock("a").acquire();
  const old = first.session, http = client.http;
  let second;
  client.http = async (method, path, o) => {
    if (path.endsWith("/adopt") && !second) second = await client.lock("b").acquire();
    return http(method, path, o);
  };
  await client.recover(old);
  assert.notEqual(first.session, old);
  assert.equal(second.session, first.session);
  assert.equal(f.asked.filter((a) => a.endsWith("/adopt")).length, 2);
});

test("a release outlasts a server that is away for a moment", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const lease = await client.lock("a").acquire();
  const http = client.http;
  f.forgotten.add(lease.session.id);
  let away = true;
  client.http = async (method, path, o) => {
    if (path === "/v1/session" && away) {
      away = false;
      throw new Unavailable("it is about to start");
    }
    return http(method, path, o);
  };
  await lease.release();
  assert.ok(f.asked.includes("POST /v1/locks/1/adopt"));
  assert.equal(f.asked.at(-1), "DELETE /v1/locks/1");
});

test("a silent server is given as long as it was to wait", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const http = client.http, waits = [];
  client.http = async (method, path, o = {}) => {
    if (method !== "PUT") return http(method, path, o);
    waits.push(o.wait);
    f.time += 15_000;
    throw new Unavailable("no answer");
  };
  await assert.rejects(client.tryLock("a"), Unavailable);
  await assert.rejects(client.lock("a", { timeout: 1000 }).acquire(), Unavailable);
  await assert.rejects(client.lock("a", { timeout: 30_000 }).acquire(), Unavailable);
  assert.deepEqual(waits, [undefined, undefined, undefined, undefined]); // the last one is asked again: its time is not over
});

for (const silent of ["POST", "PUT"]) {
  test(`a signal ends a wait for a silent server at once: ${silent}`, async (t) => {
    const { client } = fixture();
    t.after(() => client.close());
    const http = client.http, asked = [];
    const never = (signal) => new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
    client.http = (method, path, o = {}) => {
      asked.push(method + " " + path.split("?")[0]);
      const silence = method === silent || method === "DELETE" && path !== "/v1/session";
      return silence ? never(o.signal) : http(method, path, o);
    };
    const ends = new AbortController();
    let error;
    client.lock("a", { signal: ends.signal }).acquire().catch((e) => { error = e; });
    await until("the request", () => asked.some((a) => a.startsWith(silent)));
    ends.abort(new RangeError("enough"));
    await until("the end", () => error);
    assert.ok(error instanceof RangeError);
    if (silent === "PUT") await until("the place to be left", () => asked.includes("DELETE /v1/locks/1"));
  });
}

for (const error of [new Unavailable("no answer"), new Refused("a proxy answers 403")]) {
  test(`a place is given up until that is confirmed: ${error}`, async (t) => {
    const { f, client } = fixture();
    t.after(() => client.close());
    failing(client, { PUT: [error], DELETE: [new Unavailable("no answer"), new Refused("a proxy answers 403")] });
    await assert.rejects(client.tryLock("a"), (e) => e === error);
    const deletes = () => f.asked.filter((a) => a === "DELETE /v1/locks/1").length;
    const { session } = await client.tryLock("a");
    await until("the place to be left", () => session.leaving.size === 0);
    assert.equal(deletes(), 3);
  });
}

test("a release that is not confirmed", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  failing(client, { DELETE: [new Refused("a proxy answers 403"), new Refused("a proxy answers 403")] });
  const lease = await client.lock("a").acquire();
  await assert.rejects(lease.release(), Refused);
  assert.equal(lease.held(), false);
  assert.deepEqual([...lease.session.leaving], [1]);
  await assert.rejects(lease.release(), Refused); // it does not say that it has succeeded
  await lease.release();
  assert.equal(lease.session.leaving.size, 0);
  const asked = f.asked.length;
  await lease.release(); // again: nothing happens
  assert.equal(f.asked.length, asked);
});

test("a release that is not confirmed while the session moves", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const lease = await client.lock("a").acquire();
  const old = lease.session, http = client.http;
  client.http = async (method, path, o) => {
    if (method !== "DELETE" || o.session !== old.id) return http(method, path, o);
    void client.recover(old); // another request
    throw new Refused("a proxy answers 403");
  };
  await assert.rejects(lease.release(), Refused);
  assert.notEqual(lease.session, old);
  assert.equal(lease.session.leases.size, 0);
  await until("the place to be left", () => f.asked.at(-1) === "DELETE /v1/locks/1");
});

for (const [why, answer] of [["another token", { state: "held", token: 99, entry: "new" }], ["refused", new Refused("a proxy answers 403")]]) {
  test(`what is adopted and lost all the same is left: ${why}`, async (t) => {
    const { f, client } = fixture();
    t.after(() => client.close());
    const lease = await client.lock("a").acquire();
    const http = client.http;
    client.http = async (method, path, o) => {
      if (!path.endsWith("/adopt")) return http(method, path, o);
      if (answer instanceof Error) throw answer;
      return answer;
    };
    await client.recover(lease.session);
    assert.equal(lease.signal.aborted, true);
    await until("the place to be left", () => f.asked.includes("DELETE /v1/locks/1"));
  });
}

test("a lock without a token is adopted", async (t) => {
  const { client } = fixture();
  t.after(() => client.close());
  const http = client.http;
  client.http = async (...args) => {
    const { token, ...answer } = (await http(...args)) ?? {};
    return answer;
  };
  const lease = await client.lock("a").acquire();
  await client.recover(lease.session);
  assert.equal(lease.held(), true, lease.reason);
});

test("the clock counts a suspension, and never goes back", () => {
  let monotonic = 0, wall = 5_000;
  const now = newClock(() => monotonic, () => wall);
  monotonic += 10, wall += 10;
  assert.equal(now(), 10);
  wall += 60_000; // suspended: the monotonic clock stood still
  assert.equal(now(), 60_010);
  monotonic += 5, wall -= 100_000; // somebody has set the wall clock back
  assert.equal(now(), 60_015);
});

test("a quarantine is not busy", async (t) => {
  const { f, client } = fixture();
  t.after(() => client.close());
  const http = client.http;
  client.http = async (method, path, o) => {
    const answer = await http(method, path, o);
    if (method !== "PUT") return answer;
    return { state: o.body.no_wait ? "busy" : "waiting", entry: "e", quarantine_ms: 7312 };
  };
  await assert.rejects(client.tryLock("a"), (e) => e instanceof Quarantine && !(e instanceof Busy) && e.milliseconds === 7312);
  await assert.rejects(client.lock("a", { timeout: 0 }).acquire(), /no holder of the lock "a" is known.* another 7312 ms/);
  assert.equal(f.asked.at(-1), "DELETE /v1/locks/2"); // the place is given up
});

test("a user without an entry in the passwd file", async (t) => {
  t.after(() => syncBuiltinESMExports());
  t.mock.method(os, "userInfo", () => {
    throw new Error("uv_os_get_passwd returned ENOENT");
  });
  syncBuiltinESMExports();
  const { f, client } = fixture();
  t.after(() => client.close());
  await client.lock("a").acquire();
  assert.match(f.bodies.at(-1).note, /\(uid \d+@/);
});

test("bad input", () => {
  for (const url of ["127.0.0.1:7070", "ftp://x", "http://x/path", "http://u@x", "http://:p@x"]) assert.throws(() => new Client({ url }), TypeError);
  for (const url of ["http://192.0.2.1", "http://127.0.0.1.evil.example", "http://localhost.evil.example", "http://127.evil.example"]) {
    assert.throws(() => new Client({ url, token: "secret" }), TypeError, url);
  }
  for (const url of ["http://127.0.0.1:7070", "http://127.9.9.9", "http://[::1]:7070", "http://localhost", "https://locks.example.com"]) new Client({ url, token: "secret" });
  for (const token of ["two words", "a line\n", "\u00e9"]) assert.throws(() => new Client({ token }), TypeError);
  assert.throws(() => new Client({ tls: {} }), TypeError);
  assert.throws(() => new Client({ ttl: 0 }), RangeError);
  assert.throws(() => new Client().lock(""), TypeError);
});
