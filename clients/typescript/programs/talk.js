// Does what it is told on its standard input, line by line, and says what has come of it. For tests of the clients.
//
// lock NAME: "NAME held TOKEN" when it is. try NAME: the same, or "NAME busy", at once. held NAME: "NAME true" or "NAME false". release NAME: "NAME released".
// An error instead: "NAME error KIND: TEXT". What nothing catches ends the program.
import { createInterface } from "node:readline";
import { Client, HaspError } from "../dist/index.js";

const client = new Client({ url: process.argv[2], ttl: 1000 * process.argv[3] });
const leases = new Map();

async function run(what, name) {
  switch (what) {
    case "lock":
      leases.set(name, await client.lock(name, { timeout: 30_000 }).acquire());
      return `held ${leases.get(name).token}`;
    case "try": {
      const lease = await client.tryLock(name);
      if (lease) leases.set(name, lease);
      return lease ? `held ${lease.token}` : "busy";
    }
    case "held":
      return String(leases.get(name).held());
    default: {
      const lease = leases.get(name);
      leases.delete(name);
      await lease.release();
      return "released";
    }
  }
}

for await (const line of createInterface(process.stdin)) {
  const [what, name] = line.split(" ");
  run(what, name).catch((e) => {
    if (!(e instanceof HaspError)) throw e;
    return `error ${e.name}: ${e.message}`;
  }).then((text) => console.log(name, text));
}
await client.close();
