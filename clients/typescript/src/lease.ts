import { setMaxListeners } from "node:events";
import type { Client, LockOptions } from "./client.js";
import { LockLost } from "./errors.js";
import type { Place, Session } from "./session.js";

/** @internal */
export const over = "its time was over: the server, or its store, was not reached, or this program stood still";

/** @internal What is asked for. */
export interface Wanted {
  name: string;
  note: string;
  asks?: string;
  kind?: string;
  capacity?: number;
  units?: number;
  value?: string;
  no_wait?: boolean;
}

/**
 * A held lock. token grows from one holder to the next: hand it to what is written to, which refuses a smaller one
 * than it has seen. It has up to 63 bits, and JSON takes String(token). held() is a look at the clock: call it before anything that must not happen without the lock.
 */
export class Lease {
  readonly name: string;
  readonly token: bigint;
  /** @internal Not held any more: a release has begun. */ over = false;
  /** @internal The release is confirmed, or found the lock lost. */ done = false;
  /** @internal */ entry: string;
  /** @internal */ session: Session;
  /** @internal */ number: number;
  #reason = "";
  #values = 0;
  readonly #lost = new AbortController();

  /** @internal */
  constructor(readonly client: Client, place: Place, /** @internal */ readonly wanted: Wanted) {
    this.name = wanted.name;
    this.token = place.token;
    this.entry = place.entry;
    this.session = place.session;
    this.number = place.number;
    setMaxListeners(0, this.#lost.signal); // it is for all that is done under the lock
  }

  /** Aborted when the lock is lost, before the store may grant it to another. */
  get signal(): AbortSignal {
    this.#look();
    return this.#lost.signal;
  }

  /** Why it was lost; "" while it is not. */
  get reason(): string {
    this.#look();
    return this.#reason;
  }

  /** Whether the lock is held for sure at this moment. */
  held(): boolean {
    return this.#look() > 0;
  }

  /** Milliseconds for which it is held for sure if no keep-alive succeeds from now on. */
  remaining(): number {
    return this.#look();
  }

  /** @internal Until when it is held for sure. What the last keep-alive did not renew has its own time, and not the session's. */
  deadline(): number {
    return Math.min(this.session.deadline, this.session.late.get(this.number) ?? Infinity);
  }

  /** Throws LockLost unless the lock is held. */
  check(): void {
    if (!this.held()) throw new LockLost(`the lock ${JSON.stringify(this.name)} is not held: ${this.#reason || "it was released"}`);
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

  /** @internal Whether it was told as lost, without a look at the clock. */
  get told(): boolean {
    return this.#lost.signal.aborted;
  }

  /** @internal */
  end(reason: string): void {
    if (this.over || this.told) return;
    this.#reason = reason;
    this.#lost.abort(new LockLost(`the lock ${JSON.stringify(this.name)} is lost: ${reason}`));
  }

  /**
   * How long it is held for sure, by the clock: 0 if it is not. What is over is lost from this moment on: after
   * a pause the program may come here before any timer of the client, and a keep-alive that succeeds a moment later
   * must not make held what was told as lost.
   */
  #look(): number {
    if (this.over || this.told) return 0;
    const left = this.deadline() - this.client.now();
    if (left > 0) return left;
    this.client.lapse(this);
    this.end(over);
    return 0;
  }
}

/** A lock of a name. */
export class Lock {
  /** @internal */
  constructor(readonly client: Client, private readonly wanted: Wanted, private readonly options: LockOptions) {}

  /**
   * Waits for the lock, first come, first served. Busy when the timeout is over; Unavailable instead, if the server
   * cannot be reached then; of one that is silent, some 15 seconds later.
   */
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
