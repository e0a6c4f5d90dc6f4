import { Agent, request as plain, type IncomingMessage, type RequestOptions as Sent } from "node:http";
import { Agent as SecureAgent, request as secure } from "node:https";
import { isIPv4 } from "node:net";
import type { ConnectionOptions } from "node:tls";
import { onAbort } from "./abort.js";
import { HaspError, Refused, Unavailable, fromProblem } from "./errors.js";

/** As those of node:tls. cert and key are the client's, where the server wants a certificate. */
export type TLSOptions = Pick<ConnectionOptions, "ca" | "cert" | "key" | "pfx" | "passphrase" | "servername">;

export interface RequestOptions {
  body?: unknown;
  session?: string;
  /** Milliseconds that the server may wait, beside answering. */
  wait?: number;
  /** Milliseconds for an answer that waits for nothing. */
  patience?: number;
  signal?: AbortSignal | undefined;
}

export interface Transport {
  request(method: string, path: string, options?: RequestOptions): Promise<unknown>;
  /** Reads lines until line returns false, the server ends them, or it is silent for as long as an answer may take. */
  follow(path: string, signal: AbortSignal, line: (text: string) => Promise<boolean>): Promise<void>;
  /** Closes the connections: those that no request uses now, and the others after their requests. */
  close(): void;
}

const patience = 15_000;
const largest = 64 << 20; // bytes of an answer
const kept = 4; // connections that no request uses

/**
 * Makes requests of one server. An error other than Refused, Gone and SessionGone says nothing about the outcome.
 *
 * Not fetch: it follows redirects unless it is told not to, and takes no certificate of the client.
 */
export function newTransport(url: string, token: string | undefined, tls: TLSOptions | undefined): Transport {
  const base = parse(url, token, tls);
  const https = base.protocol === "https:";
  const { ca, cert, key, pfx, passphrase, servername } = tls ?? {};
  const given = Object.fromEntries(Object.entries({ ca, cert, key, pfx, passphrase, servername }).filter(([, v]) => v !== undefined));
  const agent = https ? new SecureAgent({ keepAlive: true, maxFreeSockets: kept, ...given }) : new Agent({ keepAlive: true, maxFreeSockets: kept });
  const to: Sent = { host: base.hostname.replace(/^\[|\]$/g, ""), port: base.port || (https ? 443 : 80), agent };
  const who = `hasp serve at ${base.host}`;

  // ask sends a request, and returns the answer's head. ends has what gives the request up.
  function ask(method: string, path: string, o: RequestOptions, ends: { call?: () => void }): Promise<IncomingMessage> {
    const body = o.body === undefined ? undefined : Buffer.from(encode(o.body));
    const headers: Record<string, string | number> = {};
    if (body) Object.assign(headers, { "Content-Type": "application/json", "Content-Length": body.length });
    if (token) headers["Authorization"] = "Bearer " + token;
    if (o.session) headers["Hasp-Session"] = o.session;
    return new Promise((resolve, reject) => {
      const q = (https ? secure : plain)({ ...to, method, path, headers });
      ends.call = () => q.destroy(new Error("no answer in time"));
      q.on("response", (r) => {
        r.on("error", () => undefined); // of one that is not read to its end; the reader has its own
        resolve(r);
      });
      q.on("error", (e: NodeJS.ErrnoException) => {
        // A connection that was kept, and has just been closed. Every request of the API may be repeated.
        if (q.reusedSocket && (e.code === "ECONNRESET" || e.code === "EPIPE")) reject(new Stale());
        else reject(e);
      });
      q.on("close", () => reject(new Error("no answer"))); // of one that is neither answered nor failed, as after a status 101
      q.end(body);
    });
  }

  // use makes a request, and hands its answer to read. Both have the time that heard, called for each sign of life, gives anew.
  async function use<T>(method: string, path: string, o: RequestOptions, read: (r: IncomingMessage, heard: () => void) => Promise<T>): Promise<T> {
    const ends: { call?: () => void } = {};
    o.signal?.throwIfAborted();
    let over = false;
    const end = () => {
      over = true;
      ends.call?.();
    };
    const late = setTimeout(end, (o.patience ?? patience) + (o.wait ?? 0));
    const off = onAbort(o.signal, end);
    try {
      for (;;) {
        try {
          return await read(await ask(method, path, o, ends), () => late.refresh());
        } catch (e) {
          if (!(e instanceof Stale) || over) throw e; // until no kept one is left
        }
      }
    } catch (e) {
      if (e instanceof HaspError) throw e;
      o.signal?.throwIfAborted();
      throw new Unavailable(`${who}: ${e instanceof Error ? e.message : String(e)}`);
    } finally {
      clearTimeout(late);
      off();
    }
  }

  return {
    request: (method, path, o = {}) => use(method, path, o, async (r) => answer(who, r, await whole(r))),
    follow: (path, signal, line) => use("GET", path, { signal }, async (r, heard) => {
      if (r.statusCode !== 200) {
        answer(who, r, await whole(r));
        throw new Unavailable(`${who} answers ${r.statusCode} where lines are sent: something is in between`);
      }
      let rest = "";
      for await (const chunk of r.setEncoding("utf8")) {
        heard();
        const lines = (rest + chunk).split("\n");
        rest = (lines.pop() ?? "").slice(0, 1000);
        for (const l of lines) if (!(await line(l))) return;
      }
    }),
    close: () => {
      agent.maxFreeSockets = 0;
      for (const free of Object.values(agent.freeSockets)) for (const socket of free ?? []) socket.destroy();
    },
  };
}

class Stale extends Error {}

function parse(url: string, token: string | undefined, tls: TLSOptions | undefined): URL {
  let base: URL | undefined;
  try {
    base = new URL(url);
  } catch {
    // below
  }
  if (!base || !["http:", "https:"].includes(base.protocol) || base.pathname !== "/" || base.search || base.username || base.password) {
    throw new TypeError("the URL of a server is as http://127.0.0.1:7070 or https://locks.example.com");
  }
  // By the address, not by how it is written: 127.0.0.1.example.com is a name, and anybody's.
  const { hostname } = base;
  const thisMachine = hostname === "localhost" || hostname === "[::1]" || (isIPv4(hostname) && hostname.startsWith("127."));
  if (token && base.protocol === "http:" && !thisMachine) throw new TypeError("a token is sent over TLS, or to this machine: use https");
  if (token && !/^[\x21-\x7e]+$/.test(token)) throw new TypeError("a token has no spaces and no line ends");
  if (tls && base.protocol === "http:") throw new TypeError("with TLS the URL begins with https");
  return base;
}

/** All of an answer. One that was cut off, or never ends, is none. */
async function whole(r: IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of r) {
    parts.push(part);
    size += part.length;
    if (size > largest) throw new Error("the answer never ends");
  }
  if (!r.complete) throw new Error("the answer was cut off");
  return Buffer.concat(parts).toString("utf8");
}

// Tokens have up to 63 bits, and JSON of JavaScript rounds beyond 53. Inside of a text there are no such keys: its quotes have
// backslashes.
const longToken = /"token"\s*:\s*(\d{16,})(?=\s*[,}])/g;
const longSeq = /"seq":"(\d+)"/;

function decode(text: string): unknown {
  return JSON.parse(text.replace(longToken, '"token":"$1"'), (key, value: unknown) =>
    key === "token" && typeof value === "string" && /^\d{16,}$/.test(value) ? BigInt(value) : value);
}

function encode(body: unknown): string {
  return JSON.stringify(body, (_, value: unknown) => (typeof value === "bigint" ? String(value) : value)).replace(longSeq, '"seq":$1');
}

/** What was answered, as JSON; undefined is an answer without content, which has a status of its own: 204. */
function answer(who: string, r: IncomingMessage, text: string): unknown {
  const status = r.statusCode ?? 0;
  if (status === 204) return undefined;
  let value: unknown = null;
  try {
    value = decode(text);
  } catch {
    // below
  }
  if (status >= 200 && status < 300) {
    if (value === null) throw new Unavailable(`${who} has answered something else than JSON: something is in between`);
    return value;
  }
  // What is sent has the session in it, which is the key to its locks, and maybe a token.
  if (status >= 300 && status < 400) throw new Refused(`${who} answers ${status}: no redirect is followed, so give the URL of the server itself`);
  if (r.headers["content-type"]?.split(";")[0] !== "application/problem+json" || typeof value !== "object" || value === null) {
    const words = `${who} answers ${status}, and is not hasp serve, or something is in between`;
    throw status >= 400 && status < 500 ? new Refused(words) : new Unavailable(words);
  }
  throw fromProblem(status, value as Record<string, unknown>);
}
