import { type TLSOptions } from "./http.js";
import { Keeper } from "./keeper.js";
import { Lease, Lock } from "./lease.js";
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
export declare class Client extends Keeper {
    #private;
    constructor(options?: ClientOptions);
    /** The mutex of a name. */
    lock(name: string, options?: LockOptions): Lock;
    /** The same lock for one of many readers. */
    readLock(name: string, options?: LockOptions): Lock;
    /** units of capacity permits. All users of the name say the same capacity. */
    semaphore(name: string, capacity: number, units?: number, options?: LockOptions): Lock;
    /** The lock of a leader, which publishes value: the one that has it leads. See leader and observe. */
    election(name: string, value: string | Uint8Array, options?: LockOptions): Lock;
    /** lock(name).run(work). */
    withLock<T>(name: string, work: (lease: Lease) => Promise<T> | T, options?: LockOptions): Promise<T>;
    /** The mutex if it is free at this moment. Quarantine if no holder is known, and the store grants nothing yet. */
    tryLock(name: string, options?: LockOptions): Promise<Lease | undefined>;
    /** What the holder of a lock has published; undefined if there is no holder. */
    leader(name: string): Promise<Buffer | undefined>;
    /**
     * What leader returns, at once and whenever it changes, until signal is aborted or the client is closed. When the server cannot be
     * reached later on, it goes on when it can.
     */
    observe(name: string, options?: {
        signal?: AbortSignal;
    }): AsyncGenerator<Buffer | undefined>;
    /** Releases everything. What is still held counts as lost. */
    close(): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
}
