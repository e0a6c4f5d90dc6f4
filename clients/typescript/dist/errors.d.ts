/** The base of all errors. `type` is the server's, such as "refused"; "" if the error is not the server's. */
export declare class HaspError extends Error {
    type: string;
    get name(): string;
}
/** The lock is not held any more, or may be another's at any moment. */
export declare class LockLost extends HaspError {
}
/** The lock is held by others, and the time to wait is over. */
export declare class Busy extends HaspError {
}
/**
 * No holder of the lock is known, but the store may have forgotten locks: it grants none for another `milliseconds`. It
 * is not Busy: do not take it for another that does the work.
 */
export declare class Quarantine extends HaspError {
    readonly milliseconds: number;
}
/** The server or the store refuses: a missing right, a limit, a name that is used by another kind of lock. */
export declare class Refused extends HaspError {
}
/** There is no answer, or the store does not answer the server. The outcome is unknown. */
export declare class Unavailable extends HaspError {
}
/** The client is closed. */
export declare class Closed extends HaspError {
}
