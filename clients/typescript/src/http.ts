import { Gone, HaspError, Refused, SessionGone, Unavailable, fromProblem } from "./errors.js";

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
  request(method: string, path: string, options?: RequestOptions): Promise<any>;
  /** Reads lines until line returns false, the server ends them, or it is silent for as long as an answer may take. */
  follow(path: string, signal: AbortSignal, line: (text: string) => Promise<boolean>): Promise<void>;
}

const patience = 15_000;

/** Makes requests of one server. An error other than Refused, Gone and SessionGone says nothing about the outcome. */
export function newTransport(url: string, token: string | undefined): Transport {
  let base: URL;
  try {
    base = new URL(url);
  } catch {
    throw new TypeError("the URL of a server is as http://127.0.0.1:7070 or https://locks.example.com");
  }
  if (!["http:", "https:"].includes(base.protocol) || base.pathname !== "/" || base.search !== "" || base.username !== "") {
    throw new TypeError("the URL of a server is as http://127.0.0.1:7070 or https://locks.example.com");
  }
  const loopback = base.hostname === "localhost" || base.hostname === "[::1]" || base.hostname.startsWith("127.");
  if (token && base.protocol === "http:" && !loopback) throw new TypeError("a token is sent over TLS, or to this machine: use https");
  const who = `hasp serve at ${base.host}`;

  // use makes a request, and hands its answer to read. Both have the time that heard, called for each sign of life, gives anew.
  async function use<T>(method: string, path: string, o: RequestOptions, read: (r: Response, heard: () => void) => Promise<T>): Promise<T> {
    const headers: Record<string, string> = {};
    if (o.body !== undefined) headers["Content-Type"] = "application/json";
    if (token) headers["Authorization"] = "Bearer " + token;
    if (o.session) headers["Hasp-Session"] = o.session;
    const ends = new AbortController();
    const late = setTimeout(() => ends.abort(), (o.patience ?? patience) + (o.wait ?? 0));
    const abort = () => ends.abort();
    o.signal?.addEventListener("abort", abort);
    if (o.signal?.aborted) abort();
    try {
      const response = await fetch(new URL(path, base), {
        method, headers, signal: ends.signal, ...(o.body === undefined ? {} : { body: JSON.stringify(o.body) }),
      });
      return await read(response, () => late.refresh());
    } catch (e) {
      if (e instanceof HaspError) throw e;
      o.signal?.throwIfAborted();
      const cause = e instanceof Error && e.cause instanceof Error ? e.cause : e;
      throw new Unavailable(`${who}: ${cause instanceof Error ? cause.message : String(cause)}`);
    } finally {
      clearTimeout(late);
      o.signal?.removeEventListener("abort", abort);
    }
  }
  const whole = async (r: Response) => answer(who, r.status, r.headers.get("Content-Type") ?? "", await r.text());

  return {
    request: (method, path, o = {}) => use(method, path, o, whole),
    follow: (path, signal, line) => use("GET", path, { signal }, async (r, heard) => {
      if (r.status !== 200 || !r.body) return void (await whole(r));
      const text = new TextDecoder();
      let rest = "";
      const reader = r.body.getReader();
      try {
        for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
          heard();
          const lines = (rest + text.decode(chunk.value, { stream: true })).split("\n");
          rest = lines.pop() ?? "";
          for (const l of lines) if (!(await line(l))) return;
        }
      } finally {
        await reader.cancel().catch(() => undefined); // the connection may be broken
      }
    }),
  };
}

function answer(who: string, status: number, kind: string, text: string): unknown {
  let value: unknown;
  try {
    value = text === "" ? undefined : JSON.parse(text);
  } catch {
    value = undefined;
  }
  if (status >= 200 && status < 300) {
    if (text !== "" && value === undefined) throw new Unavailable(`${who} has answered something else than JSON: something is in between`);
    return value;
  }
  if (kind.split(";")[0] !== "application/problem+json" || typeof value !== "object" || value === null) {
    const words = `${who} answers ${status}, and is not hasp serve, or something is in between`;
    throw status >= 400 && status < 500 ? new Refused(words) : new Unavailable(words);
  }
  throw fromProblem(status, value as Record<string, unknown>);
}

export { Gone, SessionGone };
