import { setMaxListeners } from "node:events";
import { LockLost } from "./errors.js";
/** @internal */
export const over = "its time was over: the server, or its store, was not reached, or this program stood still";
/**
 * A held lock. token grows from one holder to the next: hand it to what is written to, which refuses a smaller one
 * than it has seen. It has up to 63 bits, and JSON takes String(token). held() is a look at the clock: call it before anything that must not happen without the lock.
 */
export class Lease {
    client;
    wanted;
    name;
    token;
    /** @internal Not held any more: a release has begun. */ over = false;
    /** @internal The release is confirmed, or found the lock lost. */ done = false;
    /** @internal */ entry;
    /** @internal */ session;
    /** @internal */ number;
    #reason = "";
    #values = 0;
    #lost = new AbortController();
    /** @internal */
    constructor(client, place, /** @internal */ wanted) {
        this.client = client;
        this.wanted = wanted;
        this.name = wanted.name;
        this.token = place.token;
        this.entry = place.entry;
        this.session = place.session;
        this.number = place.number;
        setMaxListeners(0, this.#lost.signal); // it is for all that is done under the lock
    }
    /** Aborted when the lock is lost, before the store may grant it to another. */
    get signal() {
        this.#look();
        return this.#lost.signal;
    }
    /** Why it was lost; "" while it is not. */
    get reason() {
        this.#look();
        return this.#reason;
    }
    /** Whether the lock is held for sure at this moment. */
    held() {
        return this.#look() > 0;
    }
    /** Milliseconds for which it is held for sure if no keep-alive succeeds from now on. */
    remaining() {
        return this.#look();
    }
    /** @internal Until when it is held for sure. What the last keep-alive did not renew has its own time, and not the session's. */
    deadline() {
        return Math.min(this.session.deadline, this.session.late.get(this.number) ?? Infinity);
    }
    /** Throws LockLost unless the lock is held. */
    check() {
        if (!this.held())
            throw new LockLost(`the lock ${JSON.stringify(this.name)} is not held: ${this.#reason || "it was released"}`);
    }
    /** Replaces the value that others see with the lock (1 KB at most). */
    async publish(value) {
        this.check();
        await this.client.of(this, "PUT", "/value", { value: Buffer.from(value).toString("base64"), number: ++this.#values });
    }
    /**
     * Gives the lock back. LockLost if it was lost before. Any other error says that it is not confirmed. The client
     * repeats the release then, for as long as its session lives; a second call of release asks again.
     */
    async release() {
        await this.client.releaseLease(this);
    }
    async [Symbol.asyncDispose]() {
        await this.release();
    }
    /** @internal Whether it was told as lost, without a look at the clock. */
    get told() {
        return this.#lost.signal.aborted;
    }
    /** @internal */
    end(reason) {
        if (this.over || this.told)
            return;
        this.#reason = reason;
        this.#lost.abort(new LockLost(`the lock ${JSON.stringify(this.name)} is lost: ${reason}`));
    }
    /**
     * How long it is held for sure, by the clock: 0 if it is not. What is over is lost from this moment on: after
     * a pause the program may come here before any timer of the client, and a keep-alive that succeeds a moment later
     * must not make held what was told as lost.
     */
    #look() {
        if (this.over || this.told)
            return 0;
        const left = this.deadline() - this.client.now();
        if (left > 0)
            return left;
        this.client.lapse(this);
        this.end(over);
        return 0;
    }
}
/** A lock of a name. */
export class Lock {
    client;
    wanted;
    options;
    /** @internal */
    constructor(client, wanted, options) {
        this.client = client;
        this.wanted = wanted;
        this.options = options;
    }
    /**
     * Waits for the lock, first come, first served. Busy when the timeout is over; Unavailable instead, if the server
     * cannot be reached then; of one that is silent, some 15 seconds later.
     */
    async acquire(options = {}) {
        const o = { ...this.options, ...options };
        return (await this.client.acquire(this.wanted, o.timeout, o.signal));
    }
    /**
     * Runs work under the lock, and releases. If the lock is lost meanwhile, its signal is aborted; when work has
     * ended then without an error, this throws LockLost.
     */
    async run(work, options = {}) {
        const lease = await this.acquire(options);
        let done = false;
        try {
            const result = await work(lease);
            done = true;
            return result;
        }
        finally {
            try {
                await lease.release();
            }
            catch (e) {
                // Of a lock that is not confirmed as released nothing more depends: the store frees it when its time is over.
                if (done && e instanceof LockLost)
                    throw e;
            }
        }
    }
}
