/**
 * Distributed locks through hasp serve.
 *
 *     const client = new Client({ url: "http://127.0.0.1:7070" });
 *     await client.withLock("nightly-report", async (lease) => {
 *       await writeReport({ token: String(lease.token), signal: lease.signal });
 *     });
 *
 * See README.md, and docs/SERVE.md of hasp for what is promised.
 */
export { Client } from "./client.js";
export { Lease, Lock } from "./lease.js";
export type { ClientOptions, LockOptions } from "./client.js";
export type { TLSOptions } from "./http.js";
export { Busy, Closed, HaspError, LockLost, Quarantine, Refused, Unavailable } from "./errors.js";
