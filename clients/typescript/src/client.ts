import { hostname, userInfo } from "node:os";
import { basename } from "node:path";
import { newClock } from "./clock.js";
import { Busy, Closed, Gone, HaspError, LockLost, Refused, SessionGone, Unavailable } from "./errors.js";
import { newTransport, type RequestOptions, type Transport } from "./http.js";

// Trust ends a tenth before the store's time does: for clocks that differ, and for what is on its way.
const trust = 0.9;
const long = 20_000; // milliseconds that one request waits at the server
const look = 1000; // milliseconds between looks at the clock: unlike it, a timer stands still while the machine sleeps

export interface ClientOptions {
  /** http://127.0.0.1:7070 if absent. */
  url?: string;
  token?: string;
  /** After how many milliseconds others get the locks of a client that has died; 60000 if absent. */
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

interface Wanted {
  name: string;
  note: string;
  asks?: string;
  kind?: string;
  capacity?: number;
  units?: number;
  value?: string;
  no_wait?: boolean;
}

interface Answer {
  state: string;
  token?: number;
  entry?: string;
}

class Session {
  deadline: number;
  last = 0;
  /** Numbers that the last keep-alive did not renew, and their own deadlines. */
  late = new Map<number, number>();
  /** Numbers of leases that ended alone, and when their places are given up. */
  readonly rest = new Map<number, number>();
  /** Aborted to look at the time before the next look is due. */
  look = new AbortController();
  /** To another server: its keep-alives say nothing about what that one has adopted. */
  moving = false;
  readonly leases = new Map<number, Lease>();
  /** Numbers whose release is not confirmed. */
  readonly leaving = new Set<number>();
  /** They are being released. */
  cleaning = false;
  /** adoptable: by another server. */
  constructor(readonly id: string, readonly valid: number, sent: number, readonly adoptable: boolean) {
    this.deadline = sent + valid * trust;
  }
}

/**
 * A held lock. token grows from one holder to the next: hand it to what is written to, which refuses a smaller one
 * than it has seen. held() is a look at the clock: call it before anything that must not happen without the lock.
 */
export class Lease {
  readonly name: string;
  readonly token: number;
  /** Why it was lost; "" while it is not. */
  reason = "";
  /** @internal Not held any more: a release has begun. */ over = false;
  /** @internal The release is confirmed, or found the lock lost. */ done = false;
  /** @internal */ entry: string;
  #values = 0;
  readonly #lost = new AbortController();

  /** @internal */
  constructor(readonly client: Client, /** @internal */ public session: Session, /** @internal */ public number: number, /** @internal */ readonly wanted: Wanted, answer: Answer) {
    this.name = wanted.name;
    this.token = answer.token ?? 0;
    this.entry = answer.entry ?? "";
  }

  /** Aborted when the lock is lost, before the store may grant it to another. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Whether the lock is held for sure at this moment. */
  held(): boolean {
    return !this.over && !this.signal.aborted && this.client.now() < this.deadline();
  }

  /** Milliseconds for which it is held for sure if no keep-alive succeeds from now on. */
  remaining(): number {
    return this.held() ? this.deadline() - this.client.now() : 0;
  }

  /** @internal Until when it is held for sure. What the last keep-alive did not renew has its own time, and not the session's. */
  deadline(): number {
    return Math.min(this.session.deadline, this.session.late.get(this.number) ?? Infinity);
  }

  /** Throws LockLost unless the lock is held. */
  check(): void {
    if (!this.held()) throw new LockLost(`the lock ${JSON.stringify(this.name)} is not held: ${this.reason || "it was released, or its time is over"}`);
  }

  /** Replaces the value that others see with the lock (1 KB at most). */
  async publish(value: string | Uint8Array): Promise<void> {
    this.check();
    await this.client.of(this, "PUT", "/value", { value: Buffer.from(value).toString("base64"), number: ++this.#values });
  }

  /**
   * Gives the lock back. LockLost if it was lost before. Any other error says that it is not confirmed. The client
   * repeats the release then, for as long as its session lives; a second call of release asks again.
   */
  async release(): Promise<void> {
    await this.client.releaseLease(this);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  /** @internal */
  end(reason: string): void {
    if (this.over || this.signal.aborted) return;
    this.reason = reason;
    this.#lost.abort(new LockLost(`the lock ${JSON.stringify(this.name)} is lost: ${reason}`));
  }
}

/** A lock of a name. */
export class Lock {
  /** @internal */
  constructor(readonly client: Client, private readonly wanted: Wanted, private readonly options: LockOptions) {}

  /** Waits for the lock, first come, first served. */
  async acquire(options: LockOptions = {}): Promise<Lease> {
    const o = { ...this.options, ...options };
    return (await this.client.acquire(this.wanted, o.timeout, o.signal)) as Lease;
  }

  /**
   * Runs work under the lock, and releases. If the lock is lost meanwhile, its signal is aborted; when work has
   * ended then without an error, this throws LockLost.
   */
  async run<T>(work: (lease: Lease) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    const lease = await this.acquire(options);
    let done = false;
    try {
      const result = await work(lease);
      done = true;
      return result;
    } finally {
      try {
        await lease.release();
      } catch (e) {
        // Of a lock that is not confirmed as released nothing more depends: the store frees it when its time is over.
        if (done && e instanceof LockLost) throw e;
      }
    }
  }
}

/**
 * Locks at a server of hasp serve. One session, which is kept alive in the background, serves all locks. Call
 * close() at the end: until then it keeps the process running.
 */
export class Client {
  /** @internal */ now: () => number = newClock();
  /** @internal */ http: Transport["request"];
  /** @internal */ follow: Transport["follow"];
  readonly #ttl: number;
  readonly #note: string;
  #session: Session | undefined;
  #closed = false;
  readonly #closing = new AbortController();
  #moving: Promise<void> = Promise.resolve();

  constructor(options: ClientOptions = {}) {
    this.#ttl = options.ttl ?? 60_000;
    if (!(this.#ttl >= 1 && this.#ttl <= 86_400_000)) throw new RangeError("ttl is a number of milliseconds from 1 to 86400000");
    this.#note = options.note ?? "";
    const transport = newTransport(options.url ?? "http://127.0.0.1:7070", options.token);
    this.http = transport.request;
    this.follow = transport.follow;
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

  /** The mutex if it is free at this moment. */
  async tryLock(name: string, options: LockOptions = {}): Promise<Lease | undefined> {
    return this.acquire({ ...this.#wants(name, options, {}), no_wait: true }, 0, options.signal);
  }

  /** What the holder of a lock has published; undefined if there is no holder. */
  async leader(name: string): Promise<Buffer | undefined> {
    const answer = await this.http("GET", "/v1/queue?limit=1&name=" + encodeURIComponent(name));
    const holder = answer.entries.find((e: { waits?: boolean }) => !e.waits);
    return holder && Buffer.from(holder.value ?? "", "base64");
  }

  /**
   * What leader returns, at once and whenever it changes, until signal is aborted or the client is closed. When the server cannot be
   * reached later on, it goes on when it can.
   */
  async *observe(name: string, options: { signal?: AbortSignal } = {}): AsyncGenerator<Buffer | undefined> {
    const ended = () => this.#closed || options.signal?.aborted;
    const signal = options.signal ? AbortSignal.any([this.#closing.signal, options.signal]) : this.#closing.signal;
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
        await this.#pause(1000, options.signal).catch(() => undefined); // a store that cannot tell of changes is looked at
      }
    }
  }

  /** Releases everything. What is still held counts as lost. */
  async close(): Promise<void> {
    const session = this.#session;
    this.#session = undefined;
    this.#closed = true;
    this.#closing.abort();
    if (!session) return;
    for (const lease of session.leases.values()) lease.end("the client was closed");
    await this.#free(session);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #wants(name: string, options: LockOptions, more: Partial<Wanted>): Wanted {
    if (!name) throw new TypeError("a lock has a name");
    const who = `${userInfo().username}@${hostname()} pid ${process.pid}`;
    return { name, note: options.note || this.#note || `${basename(process.argv[1] ?? "node")} (${who})`, ...(options.ask ? { asks: options.ask } : {}), ...more };
  }

  // Acquisition.

  /** @internal */
  async acquire(wanted: Wanted, timeout: number | undefined, signal: AbortSignal | undefined): Promise<Lease | undefined> {
    const end = timeout === undefined ? Infinity : this.now() + timeout;
    signal?.throwIfAborted();
    let [session, number] = await orAborted(this.#next(), signal);
    let gone = false; // the server does not know the session
    let pause = 50;
    try {
      for (;;) {
        const sent = this.now(), left = Math.max(0, Math.min(end - sent, long));
        const body = wanted.no_wait ? wanted : { ...wanted, wait_ms: Math.floor(left) };
        let answer: Answer;
        try {
          if (gone) [session, number] = await orAborted(this.#nextPlace(session, number, wanted.name), signal);
          gone = false;
          answer = await this.http("PUT", `/v1/locks/${number}`, { body, session: session.id, wait: left, signal });
        } catch (e) {
          if (e instanceof SessionGone) gone = true;
          else if (e instanceof Gone) [session, number] = await orAborted(this.#next(), signal); // its place was taken from it: it queues again
          else if (e instanceof Unavailable && this.now() < end) {
            await this.#pause(Math.min(pause * (0.5 + Math.random() / 2), end - this.now()), signal);
            pause = Math.min(2 * pause, 2000);
            gone ||= !this.#current(session); // a server that drains refuses, and was left meanwhile
          } else throw e;
          continue;
        }
        if (answer.state === "held") {
          const lease = this.#grant(session, number, wanted, answer);
          if (lease) return lease;
          await this.#leave(session, number); // it is too old to be trusted
          [session, number] = await orAborted(this.#next(), signal);
        } else if (answer.state === "busy") {
          return undefined;
        } else if (this.now() >= end) {
          throw new Busy(`the lock ${JSON.stringify(wanted.name)} is held by others, and ${timeout} ms are over`);
        } else if (!this.#current(session)) {
          gone = true; // it has moved, or was left: a place stays behind, and what is granted there is given back
        } else if (this.now() - sent < left / 2) { // its server does not wait any more: it is about to end
          await this.#pause(Math.min(pause * (0.5 + Math.random() / 2), end - this.now()), signal);
          pause = Math.min(2 * pause, 2000);
          continue;
        }
        pause = 50;
      }
    } catch (e) {
      // A server that is silent would keep the caller here.
      if (e instanceof Unavailable || e instanceof Closed || signal?.aborted) this.#leaveLater(session, number);
      else await this.#leave(session, number); // also after Refused: it may be a proxy's, and the place be there from a request before
      throw e;
    }
  }

  /** A number in the session after this one, for a lock whose place was left in it. */
  async #nextPlace(old: Session, place: number, name: string): Promise<[Session, number]> {
    await this.recover(old);
    const [session, number] = await this.#next();
    await this.#abandon(session, name, old, place);
    return [session, number];
  }

  #grant(session: Session, number: number, wanted: Wanted, answer: Answer): Lease | undefined {
    const lease = new Lease(this, session, number, wanted, answer);
    if (session !== this.#session || !lease.held()) return undefined;
    session.leases.set(number, lease);
    return lease;
  }

  async #leave(session: Session, number: number): Promise<void> {
    if (!(await this.#left(session, number))) this.#leaveLater(session, number);
  }

  /** One attempt to give a place up; whether it is confirmed that the session has no such place. */
  async #left(session: Session, number: number): Promise<boolean> {
    try {
      await this.http("DELETE", `/v1/locks/${number}`, { session: session.id });
    } catch (e) {
      if (!(e instanceof Gone)) return false; // also SessionGone: a server says so as well when it cannot reach the one that has the session
    }
    session.leaving.delete(number);
    return true;
  }

  #leaveLater(session: Session, number: number): void {
    session.leaving.add(number);
    void this.#clean(session);
  }

  /** Repeats the releases that are not confirmed: a session that is kept alive keeps all places that it has. */
  async #clean(session: Session): Promise<void> {
    if (session.cleaning) return;
    session.cleaning = true;
    for (let pause = 100; session.leaving.size > 0; pause = Math.min(2 * pause, 2000)) {
      await this.#pause(pause).catch(() => undefined);
      const rest = [...session.leaving].sort(() => Math.random() - 0.5); // one that fails each time must not keep the others
      for (const number of rest) if (!this.#current(session) || !(await this.#left(session, number))) break;
      if (!this.#current(session)) break;
    }
    session.cleaning = false;
  }

  /** Removes our place of a session that has moved, so that the lock is not granted to it. */
  async #abandon(session: Session, name: string, old: Session, number: number): Promise<void> {
    const body = { name, from_session: old.id, from_lock: number };
    await this.http("POST", "/v1/evict", { body, session: session.id }).catch(() => undefined); // its time will be over
  }

  #pause(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const ended = () => {
        clearTimeout(timer);
        this.#closing.signal.removeEventListener("abort", ended);
        signal?.removeEventListener("abort", ended);
        if (this.#closed) reject(new Closed("the client is closed"));
        else if (signal?.aborted) reject(signal.reason);
        else resolve();
      };
      const timer = setTimeout(ended, ms);
      this.#closing.signal.addEventListener("abort", ended);
      signal?.addEventListener("abort", ended);
      if (this.#closed || signal?.aborted) ended();
    });
  }

  // Release, and other requests of a lease.

  /**
   * @internal A request of a held lock. It follows the lock to another server: what a session says of a lock that
   * another one has adopted meanwhile, gone or released, does not count.
   */
  async of(lease: Lease, method: string, more: string, body?: unknown): Promise<void> {
    for (let pause = 50; ; pause = Math.min(2 * pause, 1000)) {
      const session = lease.session;
      if (lease.signal.aborted) throw new LockLost(`the lock ${JSON.stringify(lease.name)} was lost: ${lease.reason}`);
      try {
        await this.http(method, `/v1/locks/${lease.number}${more}`, { session: session.id, ...(body === undefined ? {} : { body }) }).catch(async (e) => {
          if (!(e instanceof SessionGone)) throw e;
          await this.recover(session);
          if (lease.session === session && !lease.signal.aborted) throw new LockLost(`the lock ${JSON.stringify(lease.name)} was lost with its server`);
        });
        await this.#moving;
        if (lease.session === session && !lease.signal.aborted) return;
      } catch (e) {
        if (e instanceof Gone) {
          await this.#moving;
          if (lease.session === session) {
            this.#drop(lease);
            lease.end(e.message);
            throw new LockLost(`the lock ${JSON.stringify(lease.name)} was lost: ${e.message}`);
          }
        } else if (e instanceof Unavailable && this.now() < session.deadline) {
          await this.#pause(pause);
        } else throw e;
      }
    }
  }

  /** @internal */
  async releaseLease(lease: Lease): Promise<void> {
    if (lease.done) return;
    if (!lease.signal.aborted) lease.over = true; // from here on nothing is told as lost
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
        await this.#exclusively(async () => { // a move that is under way would take the lease along
          this.#drop(lease);
          this.#leaveLater(lease.session, lease.number);
        });
      }
    }
  }

  #drop(lease: Lease): void {
    if (lease.session.leases.get(lease.number) === lease) lease.session.leases.delete(lease.number);
  }

  // The session.

  /** The session, and a number for a new lock. */
  async #next(): Promise<[Session, number]> {
    for (;;) {
      if (this.#closed) throw new Closed("the client is closed");
      const session = this.#session;
      if (session && (session.leases.size > 0 || this.now() < session.deadline)) return [session, ++session.last];
      await this.#exclusively(async () => {
        if (this.#session === session) await this.#begin(session, await this.open());
      });
    }
  }

  /** One move, or one beginning, of a session at a time. */
  #exclusively(work: () => Promise<void>): Promise<void> {
    const done = this.#moving.then(work);
    this.#moving = done.catch(() => undefined);
    return done;
  }

  /** @internal */
  async open(): Promise<Session> {
    const sent = this.now(); // before the request: the store counts from later
    const answer = await this.http("POST", "/v1/session", { body: { ttl_ms: Math.floor(this.#ttl) } });
    return new Session(answer.session, answer.valid_ms, sent, answer.can.includes("adopt"));
  }

  /**
   * Puts a session in the place of the old one, unless that one's time was over meanwhile, or the client was closed:
   * its leases were told as lost, and nothing may keep them.
   */
  async #begin(old: Session | undefined, next: Session): Promise<void> {
    if (this.#session !== old || this.#closed) {
      await this.#free(next);
      return;
    }
    this.#session = next;
    void this.#keep(next);
    void this.#watch(next);
    void this.#listen(next);
    void this.#clean(next); // what the move has left
  }

  /** Has the server free all that is in a session. */
  async #free(session: Session): Promise<void> {
    await this.http("DELETE", "/v1/session", { session: session.id }).catch(() => undefined); // else the store frees it
  }

  #current(session: Session): boolean {
    return this.#session === session && !this.#closed;
  }

  /** Keeps the session alive every third of its time. */
  async #keep(session: Session): Promise<void> {
    for (let pause = session.valid / 3; ; pause = await this.keepOnce(session)) {
      await this.#pause(pause).catch(() => undefined);
      if (!this.#current(session)) return;
    }
  }

  /** @internal One keep-alive; in how many milliseconds the next one is due. */
  async keepOnce(session: Session): Promise<number> {
    const soon = Math.min(session.valid / 20, 1000);
    const sent = this.now();
    let answer: { valid_ms: number; late?: { lock: number; valid_ms: number }[]; lost?: { lock: number; detail?: string }[] };
    try {
      answer = await this.http("POST", "/v1/session/keepalive", { session: session.id, patience: Math.min(Math.max(session.deadline - sent, session.valid / 10), 15_000) });
    } catch (e) {
      if (!(e instanceof SessionGone)) return soon;
      return this.recover(session).then(() => 0, () => soon);
    }
    const late = new Map((answer.late ?? []).map((l) => [l.lock, sent + l.valid_ms * trust]));
    const { moving } = session;
    if (this.#current(session) && !moving) {
      // What the store has not renewed keeps its own time, also if it waits now and is granted later: a grant may extend
      // nothing. One that is not late any more was renewed by this keep-alive.
      session.late = late;
      session.deadline = Math.max(session.deadline, sent + answer.valid_ms * trust);
      if (late.size > 0) session.look.abort(); // the time of one may be over before the next look
    }
    await this.#lose(session, answer.lost ?? []);
    // One that did not count is repeated: the move may fail, and then this server is the one that keeps the locks.
    return late.size > 0 || moving ? soon : session.valid / 3;
  }

  /** Ends the leases when their time is over, also while a request hangs. */
  async #watch(session: Session): Promise<void> {
    while (this.#current(session)) {
      session.look = new AbortController();
      const next = this.expire(session);
      if (this.#current(session)) await this.#pause(Math.min(next - this.now(), look), session.look.signal).catch(() => undefined);
    }
  }

  /** @internal Ends what is over, and returns when there may be more. */
  expire(session: Session): number {
    if (!this.#current(session)) return Infinity;
    const now = this.now();
    for (const [number, time] of session.rest) {
      if (now < time) continue;
      session.rest.delete(number);
      this.#leaveLater(session, number);
    }
    const over = now >= session.deadline;
    if (over) this.#session = undefined; // the next acquisition begins another
    for (const [number, lease] of session.leases) {
      if (!over && (lease.session !== session || now < lease.deadline())) continue; // also if a move has taken it along
      session.leases.delete(number);
      // A later keep-alive may renew its entry for ever. But not before its time in the store is over may another have it:
      // until then the program stops, as it does where the session ends.
      if (!over) session.rest.set(number, now + session.valid * (1 - trust));
      lease.end("its time was over: the server, or its store, was not reached");
    }
    return Math.min(session.deadline, ...session.rest.values(), ...[...session.late.values()].filter((time) => time > now));
  }

  /** Hears of losses as soon as the store tells them, and of a server that is about to end. */
  async #listen(session: Session): Promise<void> {
    for (let seen = 0, pause = 100; this.#current(session); pause = Math.min(2 * pause, 2000)) {
      const began = this.now();
      try {
        const answer = await this.http("GET", `/v1/session/events?after=${seen}&wait_ms=${long}`, { session: session.id, wait: long, signal: this.#closing.signal });
        await this.#lose(session, answer.lost);
        seen = answer.version;
        if (answer.draining) {
          await this.recover(session, true); // fails as long as there is no other server
          // What is held has left the session, and nothing new comes into it: who was granted a lock there gives it back.
          // The places that are left keep others waiting, and the server from ending.
          if (!this.#current(session)) return this.#closed ? undefined : await this.#free(session);
        } else if (answer.lost.length > 0 || this.now() - began >= 1000) {
          pause = 50;
          continue;
        } else pause = 1000; // a server that does not wait
      } catch (e) {
        if (e instanceof SessionGone) await this.recover(session).catch(() => undefined);
      }
      if (!this.#current(session)) return;
      await this.#pause(pause).catch(() => undefined);
    }
  }

  async #lose(session: Session, lost: { lock: number; detail?: string }[]): Promise<void> {
    if (lost.length === 0) return;
    await this.#moving; // while a session moves, its server may tell as lost what the next one has adopted
    if (!this.#current(session)) return;
    for (const each of lost) {
      const lease = session.leases.get(each.lock);
      session.leases.delete(each.lock);
      lease?.end(each.detail ?? "the store has it no more");
    }
  }

  /**
   * @internal Goes on at the server that answers: it adopts what is held. Another request may have done it. kept: the server
   * of the session still keeps it, so that it stays where it is if the store cannot hand locks on: elsewhere all would be lost.
   */
  recover(old: Session, kept = false): Promise<void> {
    return this.#exclusively(async () => {
      if (!this.#current(old)) return;
      if (old.leases.size === 0) {
        this.#session = undefined;
        return;
      }
      if (kept && !old.adoptable) return;
      old.moving = true;
      let next: Session;
      try {
        next = await this.open();
      } catch (e) {
        old.moving = false;
        throw e;
      }
      // An acquisition that was on its way may add to them meanwhile.
      for (let rest; (rest = [...old.leases.values()].filter((lease) => lease.session === old)).length > 0; ) {
        await Promise.all(rest.map((lease) => this.#adopt(lease, old, next, ++next.last)));
      }
      await this.#begin(old, next);
    });
  }

  async #adopt(lease: Lease, old: Session, next: Session, number: number): Promise<void> {
    const { value: _, no_wait: __, ...wanted } = lease.wanted;
    const body = { ...wanted, from: lease.entry, seq: lease.token, from_session: old.id, from_lock: lease.number };
    const options: RequestOptions = { body, session: next.id };
    const lost = (reason: string) => {
      next.leaving.add(number); // if it was adopted all the same, no lease has it
      old.leases.delete(lease.number);
      lease.end(reason);
    };
    for (;;) {
      try {
        const answer: Answer = await this.http("POST", `/v1/locks/${number}/adopt`, options);
        if (answer.state !== "held" || (answer.token ?? 0) !== lease.token) return lost("its server has ended, and no other one has adopted it");
        if (lease.signal.aborted) return lost(lease.reason); // its time was over meanwhile: nothing may keep it
        lease.session = next;
        lease.number = number;
        lease.entry = answer.entry ?? "";
        next.leases.set(number, lease);
        return;
      } catch (e) {
        if (!(e instanceof Unavailable) || this.now() >= Math.min(lease.deadline(), next.deadline)) {
          return lost(`its server has ended: ${e instanceof HaspError ? e.message : String(e)}`);
        }
        await this.#pause(50).catch(() => undefined); // at the end of the client all are lost
      }
    }
  }
}

/** What work returns, unless signal is aborted before. Work goes on then, and its end is of no interest. */
function orAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return work;
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal.reason);
    signal.addEventListener("abort", aborted);
    if (signal.aborted) aborted();
    void work.then(resolve, reject).finally(() => signal.removeEventListener("abort", aborted));
  });
}
