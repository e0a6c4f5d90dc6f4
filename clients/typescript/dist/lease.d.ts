import type { Client, LockOptions } from "./client.js";
/**
 * A held lock. token grows from one holder to the next: hand it to what is written to, which refuses a smaller one
 * than it has seen. It has up to 63 bits, and JSON takes String(token). held() is a look at the clock: call it before anything that must not happen without the lock.
 */
export declare class Lease {
    #private;
    readonly client: Client;
    readonly name: string;
    readonly token: bigint;
    /** Aborted when the lock is lost, before the store may grant it to another. */
    get signal(): AbortSignal;
    /** Why it was lost; "" while it is not. */
    get reason(): string;
    /** Whether the lock is held for sure at this moment. */
    held(): boolean;
    /** Milliseconds for which it is held for sure if no keep-alive succeeds from now on. */
    remaining(): number;
    /** Throws LockLost unless the lock is held. */
    check(): void;
    /** Replaces the value that others see with the lock (1 KB at most). */
    publish(value: string | Uint8Array): Promise<void>;
    /**
     * Gives the lock back. LockLost if it was lost before. Any other error says that it is not confirmed. The client
     * repeats the release then, for as long as its session lives; a second call of release asks again.
     */
    release(): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
}
/** A lock of a name. */
export declare class Lock {
    readonly client: Client;
    private readonly wanted;
    private readonly options;
    /**
     * Waits for the lock, first come, first served. Busy when the timeout is over; Unavailable instead, if the server
     * cannot be reached then; of one that is silent, some 15 seconds later.
     */
    acquire(options?: LockOptions): Promise<Lease>;
    /**
     * Runs work under the lock, and releases. If the lock is lost meanwhile, its signal is aborted; when work has
     * ended then without an error, this throws LockLost.
     */
    run<T>(work: (lease: Lease) => Promise<T> | T, options?: LockOptions): Promise<T>;
}
