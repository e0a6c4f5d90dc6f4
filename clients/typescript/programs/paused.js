// Works under a lock of three seconds, and asks before each step whether it holds. For a test, which stops it.
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "../dist/index.js";

const lease = await new Client({ url: process.argv[2], ttl: 3000 }).lock(process.argv[3]).acquire();
let last = performance.now();
console.log(lease.held());
for (let held = true; held; last = performance.now()) {
  await sleep(1);
  held = lease.held();
  if (performance.now() - last > 1500) console.log("stopped, " + held);
}
process.exit();
