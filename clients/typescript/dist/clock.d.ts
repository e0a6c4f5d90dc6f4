/**
 * A clock in milliseconds that never goes back and counts the time in which the machine was suspended. Node's
 * monotonic clock stands still then, and the wall clock may be set: between two readings the longer of the two
 * counts. A wall clock that is set forward so ends a lock too early, never too late.
 */
export declare function newClock(monotonic?: () => number, wall?: () => number): () => number;
