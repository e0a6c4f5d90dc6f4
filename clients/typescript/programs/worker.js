// Takes a lock again and again, as a worker of cluster or of worker_threads, and tells its tokens. Where two are inside
// at once, the second finds the first one's file.
import { closeSync, openSync, unlinkSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { parentPort, workerData } from "node:worker_threads";
import { Client } from "../dist/index.js";

const { url, name, file, grants, stays } = workerData ?? JSON.parse(process.argv[2]);
const client = new Client({ url, ttl: 3000 });
const tokens = [];
for (let i = 0; i < grants; i++) {
  await client.withLock(name, async (lease) => {
    closeSync(openSync(file, "wx"));
    await sleep(2);
    lease.check();
    tokens.push(String(lease.token)); // by JSON, from a worker of cluster
    unlinkSync(file);
  });
}
if (stays) await client.lock(name).acquire(); // and ends with it
const tell = parentPort ? (message) => parentPort.postMessage(message) : (message) => process.send(message);
tell(tokens);
if (!stays) {
  await client.close();
  if (!parentPort) process.disconnect();
}
