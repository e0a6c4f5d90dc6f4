// What is an answer of hasp serve, and what is not; by a server that answers bytes.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import { test } from "node:test";
import * as answers from "../dist/answers.js";
import { Refused, Unavailable } from "../dist/errors.js";
import { newTransport } from "../dist/http.js";

const odd = [
  null, 0, "", [], {}, true, { valid_ms: null }, { valid_ms: "60000" }, { valid_ms: true }, { valid_ms: -1 }, { valid_ms: {} },
  { session: 1, valid_ms: 1, can: [] }, { session: "", valid_ms: 1, can: [] }, { session: "s", valid_ms: 0, can: [] },
  { session: "s", valid_ms: 1, can: "adopt" }, { valid_ms: 1, late: {} }, { valid_ms: 1, late: [1] }, { valid_ms: 1, late: [{ lock: 0, valid_ms: 1 }] },
  { valid_ms: 1, lost: [{}] }, { valid_ms: 1, lost: "1" }, { state: "held" }, { state: "held", entry: 1 }, { state: "lost", entry: "e" },
  { state: "busy", quarantine_ms: "1" }, { state: "busy", quarantine_ms: -1 }, { state: "held", entry: "e", token: "1795884431328080" },
  { state: "held", entry: "e", token: 1.5 }, { state: "held", entry: "e", token: -1 }, { version: 1, lost: [null] }, { version: -1 }, { version: 1 }, { version: 1, lost: null }, { version: 1, lost: [], changed: null }, { valid_ms: 1, late: null }, { state: "held", entry: "e", token: null }, { version: 1, changed: [[]] },
  { entries: null }, { entries: [1] },
];

test("odd answers are none", () => {
  for (const answer of [undefined, ...odd]) {
    for (const read of [answers.opened, answers.alive, answers.entered, answers.news, answers.published, answers.nothing]) {
      if (read === answers.nothing && answer === undefined) continue;
      if (read === answers.alive && answer?.session !== undefined) continue; // more than is asked for
      assert.throws(() => read(answer), Unavailable, `${read.name} ${JSON.stringify(answer)}`);
    }
  }
});

test("answers", () => {
  const alive = answers.alive({ valid_ms: 1500, late: [{ lock: 2, valid_ms: 10 }], lost: [{ lock: 3, detail: "why" }] });
  assert.deepEqual(alive, { valid: 1500, late: new Map([[2, 10]]), lost: new Map([[3, "why"]]) });
  assert.deepEqual(answers.entered({ state: "held", entry: "e" }), { state: "held", token: 0n, entry: "e", quarantine: 0 });
  assert.deepEqual(answers.entered({ state: "busy", quarantine_ms: 1500 }), { state: "busy", token: 0n, entry: "", quarantine: 1500 });
  const news = answers.news({ version: 9, lost: [], changed: [{ lock: 3, state: "held", token: 41 }, { lock: 4, state: "waiting" }], draining: true });
  assert.deepEqual(news, { version: 9, lost: new Map(), held: new Map([[3, 41n]]), waiting: [4], draining: true });
  assert.equal(answers.published({ entries: [{ waits: true }, { value: "YQ==" }] }).toString(), "a");
});

/** A server that answers each request so, and then closes the connection. */
async function bytes(t) {
  const s = { answer: "", asked: 0 };
  const server = createServer((c) => {
    c.on("error", () => undefined);
    c.once("data", (data) => {
      s.asked++;
      s.heard = String(data);
      c.end(s.answer);
    });
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  s.url = `http://127.0.0.1:${server.address().port}`;
  return s;
}

function response(status, body = "", { kind = "application/json", length = Buffer.byteLength(body), more = "" } = {}) {
  return `HTTP/1.1 ${status} x\r\nContent-Type: ${kind}\r\n${more || `Content-Length: ${length}\r\n`}\r\n${body}`;
}

test("a token of 63 bits", async (t) => {
  const s = await bytes(t);
  const transport = newTransport(s.url);
  const most = 2n ** 63n - 1n;
  for (const space of ["", " "]) {
    s.answer = response(200, `{"state":"held","entry":"\\"token\\":1795884431328080,","token"${space}:${space}${most}${space}}`);
    const entered = answers.entered(await transport.request("PUT", "/"));
    assert.deepEqual([entered.token, entered.entry], [most, '"token":1795884431328080,']);
  }
  const name = '"seq":"1"';
  await transport.request("POST", "/", { body: { name, seq: most } });
  assert.match(s.heard, new RegExp(`"seq":${most}}`));
  assert.equal(JSON.parse(s.heard.slice(s.heard.indexOf("{"))).name, name);
});

test("what is no answer", async (t) => {
  const s = await bytes(t);
  const transport = newTransport(s.url, "secret");
  const ask = (answer) => {
    s.answer = answer;
    return transport.request("GET", "/v1", { session: "s", patience: 5000 });
  };
  assert.deepEqual(await ask(response(200, '{"a":1}')), { a: 1 });
  assert.equal(await ask(response(204)), undefined);
  const chunked = { more: "Transfer-Encoding: chunked\r\n" };
  for (const answer of [
    "", "\x00\xff".repeat(50), "HTTP/1.1 200\r\n", "HTTP/9.9 abc\r\n\r\n", response(200), response(200, "null"), response(200, "{"), response(200, "[".repeat(100_000)),
    response(200, '{"a": NaN}'), response(200, "<html>"), response(200, '{"a":1}', { length: 100 }), response(200, "1", { length: 3 }), response(200, "zz\r\n", chunked),
    response(200, "5\r\n{}", chunked), response(502, "<html>", { kind: "text/html" }), response(500, "1", { kind: "application/problem+json" }),
    "HTTP/1.1 101 x\r\nUpgrade: y\r\nConnection: upgrade\r\n\r\n",
  ]) await assert.rejects(ask(answer), Unavailable, answer.slice(0, 80));
});

test("no redirect is followed", async (t) => {
  const s = await bytes(t), elsewhere = await bytes(t);
  elsewhere.answer = response(200, '{"a":1}');
  const transport = newTransport(s.url, "secret");
  for (const status of [301, 302, 303, 307, 308]) {
    s.answer = response(status, "", { more: `Location: ${elsewhere.url}/v1\r\nContent-Length: 0\r\n` });
    await assert.rejects(transport.request("GET", "/v1", { session: "s" }), Refused);
  }
  assert.equal(elsewhere.asked, 0);
});
