// A program of several workers, against a real hasp serve: each has a client of its own, and none has another's locks.
import assert from "node:assert/strict";
import cluster from "node:cluster";
import { once } from "node:events";
import { closeSync, mkdtempSync, openSync, rmSync, unlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import { Client } from "../dist/index.js";
import { fixture, skip } from "../programs/fixture.js";

const program = fileURLToPath(new URL("../programs/worker.js", import.meta.url));
const kinds = {
  cluster: (data) => {
    cluster.setupPrimary({ exec: program, args: [JSON.stringify(data)] });
    const worker = cluster.fork();
    return { worker, kill: () => worker.process.kill("SIGKILL") };
  },
  worker_threads: (workerData) => {
    const worker = new Worker(program, { workerData });
    return { worker, kill: () => worker.terminate() };
  },
};

for (const [kind, start] of Object.entries(kinds)) {
  test(`workers of ${kind}`, { skip }, async (t) => {
    const { name, client, queue } = await fixture(t);
    const own = client();
    const dir = mkdtempSync(join(tmpdir(), "hasp-lock-"));
    t.after(() => rmSync(dir, { recursive: true }));
    const data = { url: own.url, name, file: join(dir, "inside"), grants: 5 };
    const lease = await own.lock(name).acquire(); // the session that no worker may share
    const workers = Array.from({ length: 3 }, () => start(data).worker);
    const ended = workers.map((worker) => Promise.all([once(worker, "message"), once(worker, "exit")]));
    await lease.release();
    const tokens = [String(lease.token)];
    for (let i = 0; i < data.grants; i++) {
      await own.withLock(name, async ({ token }) => {
        closeSync(openSync(data.file, "wx"));
        await sleep(2);
        tokens.push(String(token));
        unlinkSync(data.file);
      });
    }
    for (const [[of], [code]] of await Promise.all(ended)) {
      assert.equal(code, 0);
      assert.equal(of.length, data.grants);
      tokens.push(...of);
    }
    assert.equal(new Set(tokens).size, 1 + 4 * data.grants);
    assert.deepEqual(await queue(own), []);
  });

  test(`a worker of ${kind} that dies frees its lock by its own TTL, and only that`, { skip }, async (t) => {
    const { name, client, queue } = await fixture(t);
    const own = client({ ttl: 3000 });
    const held = await own.lock(name + "/own").acquire();
    const { worker, kill } = start({ url: own.url, name, grants: 0, stays: true });
    await once(worker, "message");
    const [entry] = await queue(own);
    const exit = once(worker, "exit");
    await kill();
    await exit;
    const lease = await own.lock(name).acquire();
    assert.ok(lease.token > entry.seq, `token ${lease.token} after ${entry.seq}`);
    assert.ok(held.held(), held.reason);
  });
}

test("no client goes to a worker", async () => {
  const client = new Client();
  assert.throws(() => new Worker(program, { workerData: { client } }), { name: "DataCloneError" });
  await client.close();
});
