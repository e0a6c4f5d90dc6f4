// A server of hasp serve, of the program HASPLOCK_BIN over the store HASP_STORE, for tests.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "../dist/index.js";

export const { HASPLOCK_BIN: bin, HASP_STORE: store } = process.env;
export const patience = 60_000;
export const skip = !bin || !store ? "HASPLOCK_BIN and HASP_STORE are not set" : false;

class Server {
  address = "127.0.0.1:0";

  async start() {
    this.process = spawn(bin, ["serve", "--store", store, "--listen", this.address, "--log", "off"], { stdio: ["ignore", "ignore", "pipe"] });
    for await (const line of createInterface(this.process.stderr)) {
      const found = / at http:\/\/(\S+)/.exec(line);
      if (found) {
        this.address = found[1];
        return;
      }
    }
    throw new Error("hasp serve has ended");
  }

  async kill() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const exit = once(this.process, "exit");
    this.process.kill("SIGKILL");
    await exit;
  }
}

export async function until(what, check) {
  for (const end = Date.now() + patience; !(await check()); await sleep(10)) if (Date.now() > end) throw new Error("waited for nothing: " + what);
}

let number = 0;
export async function fixture(t) {
  const server = new Server();
  await server.start();
  t.after(() => server.kill());
  const name = `node/${process.pid}/${Date.now()}/${++number}`;
  const client = (options = {}) => {
    const c = new Client({ url: "http://" + server.address, ttl: 30_000, ...options });
    t.after(() => c.close());
    c.url = "http://" + server.address;
    return c;
  };
  const queue = async (c) => (await c.http("GET", "/v1/queue?name=" + encodeURIComponent(name))).entries;
  return { server, name, client, queue };
}
