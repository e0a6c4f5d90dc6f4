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

export type Request = (method: string, path: string, options?: RequestOptions) => Promise<any>;

const patience = 15_000;

/** Makes requests of one server. An error other than Refused, Gone and SessionGone says nothing about the outcome. */
export function newTransport(url: string, token: string | undefined): Request {
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

  return async (method, path, o = {}) => {
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
      return answer(who, response.status, response.headers.get("Content-Type") ?? "", await response.text());
    } catch (e) {
      if (e instanceof HaspError) throw e;
      o.signal?.throwIfAborted();
      const cause = e instanceof Error && e.cause instanceof Error ? e.cause : e;
      throw new Unavailable(`${who}: ${cause instanceof Error ? cause.message : String(cause)}`);
    } finally {
      clearTimeout(late);
      o.signal?.removeEventListener("abort", abort);
    }
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
