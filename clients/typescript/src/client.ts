import { hostname, userInfo } from "node:os";
import { basename } from "node:path";
import { orAborted } from "./abort.js";
import * as answers from "./answers.js";
import { Busy, Closed, Gone, LockLost, Quarantine, Refused, SessionGone, Unavailable } from "./errors.js";
import { newTransport, type TLSOptions, type Transport } from "./http.js";
import { Keeper, long } from "./keeper.js";
import { Lease, Lock, type Wanted } from "./lease.js";
import type { Place, Session } from "./session.js";

const first = 50; // milliseconds before a request is repeated; then longer and longer

export interface ClientOptions {
  /** http://127.0.0.1:7070 if absent. */
  url?: string;
  token?: string;
  /** The authority of the server's certificate, and a certificate of the client, where the server wants one. */
  tls?: TLSOptions;
  /** After how many milliseconds others get the locks of a client that has died; 10000 if absent. Use one for all programs of a store. */
  ttl?: number;
  /** What others read of who holds. */
  note?: string;
}

export interface LockOptions {
  /** Milliseconds to wait before Busy is thrown; for ever if absent. */
  timeout?: number;
  /** Ends the wait. */
  signal?: AbortSignal;
  note?: string;
  /** A reason to give the lock up, for its holder: one that listens is told while this client waits, and decides. */
  ask?: string;
}

/**
 * Locks at a server of hasp serve. One session, which is kept alive in the background, serves all locks. Call
 * close() at the end: until then it keeps the process running.
 */
export class Client extends Keeper {
  /** @internal */ follow: Transport["follow"];
  readonly #note: string;
  readonly #disconnect: () => void;

  constructor(options: ClientOptions = {}) {
    const ttl = options.ttl ?? 10_000;
    if (!(ttl >= 1 && ttl <= 86_400_000)) throw new RangeError("ttl is a number of milliseconds from 1 to 86400000");
    const transport = newTransport(options.url ?? "http://127.0.0.1:7070", options.token, options.tls);
    super(transport.request, ttl);
    this.follow = transport.follow;
    this.#disconnect = transport.close;
    this.#note = options.note ?? "";
  }

  /** The mutex of a name. */
  lock(name: string, options: LockOptions = {}): Lock {
    return new Lock(this, this.#wants(name, options, {}), options);
  }

  /** The same lock for one of many readers. */
  readLock(name: string, options: LockOptions = {}): Lock {
    return new Lock(this, this.#wants(name, options, { kind: "read" }), options);
  }

  /** units of capacity permits. All users of the name say the same capacity. */
  semaphore(name: string, capacity: number, units = 1, options: LockOptions = {}): Lock {
    return new Lock(this, this.#wants(name, options, { kind: "semaphore", capacity, units }), options);
  }

  /** The lock of a leader, which publishes value: the one that has it leads. See leader and observe. */
  election(name: string, value: string | Uint8Array, options: LockOptions = {}): Lock {
    return new Lock(this, this.#wants(name, options, { value: Buffer.from(value).toString("base64") }), options);
  }

  /** lock(name).run(work). */
  withLock<T>(name: string, work: (lease: Lease) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    return this.lock(name, options).run(work);
  }

  /** The mutex if it is free at this moment. Quarantine if no holder is known, and the store grants nothing yet. */
  async tryLock(name: string, options: LockOptions = {}): Promise<Lease | undefined> {
    return this.acquire({ ...this.#wants(name, options, {}), no_wait: true }, 0, options.signal);
  }

  /** What the holder of a lock has published; undefined if there is no holder. */
  async leader(name: string): Promise<Buffer | undefined> {
    return answers.published(await this.http("GET", "/v1/queue?limit=1&name=" + encodeURIComponent(name)));
  }

  /**
   * What leader returns, at once and whenever it changes, until signal is aborted or the client is closed. When the server cannot be
   * reached later on, it goes on when it can.
   */
  async *observe(name: string, options: { signal?: AbortSignal } = {}): AsyncGenerator<Buffer | undefined> {
    const ended = () => this.closed || options.signal?.aborted;
    const signal = options.signal ? AbortSignal.any([this.closing.signal, options.signal]) : this.closing.signal;
    let last: Buffer | undefined | null = null;
    const differs = (now: Buffer | undefined) => last === null || !(now && last ? now.equals(last) : now === last);
    while (!ended()) {
      try {
        const now = await this.leader(name);
        if (differs(now)) {
          last = now;
          yield now;
          continue;
        }
        // The server says every five seconds that a watch stands.
        await this.follow("/v1/watch?name=" + encodeURIComponent(name), signal, async (line) => line !== "changed" || !differs(await this.leader(name)));
      } catch (e) {
        if (ended()) return;
        if (last === null || !(e instanceof Unavailable || (e instanceof Refused && e.type === "unsupported"))) throw e;
        await this.pause(1000, options.signal).catch(() => undefined); // a store that cannot tell of changes is looked at
      }
    }
  }

  /** Releases everything. What is still held counts as lost. */
  async close(): Promise<void> {
    const session = this.session;
    this.closed = true;
    this.replace(undefined);
    this.closing.abort();
    if (session) {
      for (const lease of session.leases.values()) lease.end("the client was closed");
      await this.free(session);
    }
    this.#disconnect();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #wants(name: string, options: LockOptions, more: Partial<Wanted>): Wanted {
    if (!name) throw new TypeError("a lock has a name");
    const who = `${user()}@${hostname()} pid ${process.pid}`;
    return { name, note: options.note || this.#note || `${basename(process.argv[1] ?? "node")} (${who})`, ...(options.ask ? { asks: options.ask } : {}), ...more };
  }

  // Acquisition.

  /**
   * @internal Asks until there is a lease, or the time to wait is over: one loop, also for a server that is away, and
   * for the session that is opened first.
   */
  async acquire(wanted: Wanted, timeout: number | undefined, signal: AbortSignal | undefined): Promise<Lease | undefined> {
    const end = timeout === undefined ? Infinity : this.now() + timeout;
    signal?.throwIfAborted();
    let place: Place | undefined;
    let pause = first;
    const lessOften = async () => {
      await this.pause(Math.max(0, Math.min(pause * (0.5 + Math.random() / 2), end - this.now())), signal);
      pause = Math.min(2 * pause, 2000);
    };
    try {
      for (;;) {
        let state: string;
        try {
          place = await this.#placed(place, wanted.name, signal);
          state = await this.#ask(place, wanted, signal);
        } catch (e) {
          if (place && (e instanceof Gone || e instanceof SessionGone)) {
            place.left ||= e instanceof SessionGone;
            place.news = "gone"; // also where its place was taken from it: it queues again
            if (pause > first) await lessOften();
            else pause *= 2;
          } else if (e instanceof Unavailable && this.now() < end) await lessOften();
          else throw e;
          continue;
        }
        if (state === "busy") {
          if (place.opens > 0) throw new Quarantine(wanted.name, place.opens - this.now());
          return undefined;
        }
        if (state === "waiting") await this.#await(place, end, signal);
        if (place.news === "held") {
          const lease = await this.#grant(place, wanted);
          if (lease) return lease;
        } else if (this.now() >= end) {
          if (place.opens > this.now()) throw new Quarantine(wanted.name, place.opens - this.now());
          throw new Busy(`the lock ${JSON.stringify(wanted.name)} is held by others, and ${timeout} ms are over`);
        } else if (place.news !== "gone" && this.current(place.session)) {
          await lessOften(); // its server does not wait for it any more
          continue;
        }
        pause = first;
      }
    } catch (e) {
      // A server that is silent would keep the caller here.
      if (place && (e instanceof Unavailable || e instanceof Closed || signal?.aborted)) this.leaveLater(place.session, place.number);
      else if (place) await this.leave(place.session, place.number); // also after Refused: it may be a proxy's, and the place be there from a request before
      throw e;
    } finally {
      this.#forget(place);
    }
  }

  /** The place that is asked for: another one, if it is gone or its session was left. */
  async #placed(place: Place | undefined, name: string, signal: AbortSignal | undefined): Promise<Place> {
    if (place && place.news !== "gone" && this.current(place.session)) return place;
    const placing = this.#replaced(place, name);
    try {
      return await orAborted(placing, signal);
    } catch (e) {
      void placing.then((late) => this.#forget(late), () => undefined); // the wait for it was given up
      throw e;
    }
  }

  async #replaced(place: Place | undefined, name: string): Promise<Place> {
    const left = place && (place.left || !this.current(place.session));
    if (left) await this.recover(place.session);
    const next = await this.next();
    this.#forget(place);
    // It has moved, or was left: a place stays behind, and what is granted there is given back.
    if (left) await this.#abandon(next.session, name, place);
    return next;
  }

  #forget(place: Place | undefined): void {
    place?.session.places.delete(place.number);
  }

  /** Asks the server once. It does not wait: a grant comes as news. */
  async #ask(place: Place, wanted: Wanted, signal: AbortSignal | undefined): Promise<string> {
    if (place.news === "ask") place.news = "";
    const answer = answers.entered(await this.http("PUT", `/v1/locks/${place.number}`, { body: wanted, session: place.session.id, signal }));
    if (place.news === "gone") throw new Gone("the place was lost"); // it has overtaken the answer
    place.entry = answer.entry;
    place.opens = answer.quarantine && this.now() + answer.quarantine;
    if (answer.state === "held") place.hear("held", answer.token);
    return place.news === "held" ? "held" : answer.state;
  }

  /**
   * Waits until there are news of a place, its session is left, or its time is over. Also until a server is about to
   * end, which tells no news, and while none have come for long.
   */
  async #await(place: Place, end: number, signal: AbortSignal | undefined): Promise<void> {
    for (const asked = this.now(); !place.news && this.current(place.session) && !place.session.draining; ) {
      const now = this.now();
      if (now >= end || now - Math.max(asked, place.session.heard) >= 2 * long) return;
      await this.pause(Math.min(end - now, long), signal, place);
    }
  }

  async #grant(place: Place, wanted: Wanted): Promise<Lease | undefined> {
    const { session, number } = place;
    const lease = new Lease(this, place, wanted);
    if (session === this.session && this.now() < lease.deadline()) {
      session.leases.set(number, lease);
      return lease;
    }
    place.news = "gone"; // it is too old to be trusted
    await this.leave(session, number);
    return undefined;
  }

  /** Removes our place of a session that has moved, so that the lock is not granted to it. */
  async #abandon(session: Session, name: string, old: Place): Promise<void> {
    const body = { name, from_session: old.session.id, from_lock: old.number };
    await this.http("POST", "/v1/evict", { body, session: session.id }).catch(() => undefined); // its time will be over
  }

  // Release, and other requests of a lease.

  /**
   * @internal A request of a held lock. It follows the lock to another server: what a session says of a lock that
   * another one has adopted meanwhile, gone or released, does not count.
   */
  async of(lease: Lease, method: string, more: string, body?: unknown): Promise<void> {
    for (let pause = 50; ; pause = Math.min(2 * pause, 1000)) {
      const session = lease.session;
      if (lease.told) throw new LockLost(`the lock ${JSON.stringify(lease.name)} was lost: ${lease.reason}`);
      try {
        await this.http(method, `/v1/locks/${lease.number}${more}`, { session: session.id, ...(body === undefined ? {} : { body }) }).then(answers.nothing).catch(async (e) => {
          if (!(e instanceof SessionGone)) throw e;
          await this.recover(session);
          if (lease.session === session && !lease.told) throw new LockLost(`the lock ${JSON.stringify(lease.name)} was lost with its server`);
        });
        await this.moving;
        if (lease.session === session && !lease.told) return;
      } catch (e) {
        if (e instanceof Gone) {
          await this.moving;
          if (lease.session === session) {
            this.#drop(lease);
            lease.end(e.message);
            throw new LockLost(`the lock ${JSON.stringify(lease.name)} was lost: ${e.message}`);
          }
        } else if (e instanceof Unavailable && this.now() < session.deadline) {
          await this.pause(pause);
        } else throw e;
      }
    }
  }

  /** @internal */
  async releaseLease(lease: Lease): Promise<void> {
    if (lease.done) return;
    if (!lease.told) lease.over = true; // from here on nothing is told as lost
    try {
      await this.of(lease, "DELETE", "");
      lease.done = true;
    } catch (e) {
      if (e instanceof LockLost) lease.done = true;
      throw e;
    } finally {
      lease.over = true;
      if (lease.done) {
        this.#drop(lease);
        lease.session.leaving.delete(lease.number);
      } else {
        await this.exclusively(async () => { // a move that is under way would take the lease along
          this.#drop(lease);
          this.leaveLater(lease.session, lease.number);
        });
      }
    }
  }

  #drop(lease: Lease): void {
    if (lease.session.leases.get(lease.number) === lease) lease.session.leases.delete(lease.number);
  }
}

function user(): string {
  try {
    return userInfo().username;
  } catch {
    return `uid ${process.getuid?.()}`; // it has no entry in the passwd file, as in OpenShift
  }
}
