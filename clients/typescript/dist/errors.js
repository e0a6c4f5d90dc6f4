/** The base of all errors. `type` is the server's, such as "refused"; "" if the error is not the server's. */
export class HaspError extends Error {
    type = "";
    get name() {
        return this.constructor.name;
    }
}
/** The lock is not held any more, or may be another's at any moment. */
export class LockLost extends HaspError {
}
/** The lock is held by others, and the time to wait is over. */
export class Busy extends HaspError {
}
/**
 * No holder of the lock is known, but the store may have forgotten locks: it grants none for another `milliseconds`. It
 * is not Busy: do not take it for another that does the work.
 */
export class Quarantine extends HaspError {
    milliseconds;
    /** @internal */
    constructor(name, left) {
        const milliseconds = Math.max(0, Math.ceil(left));
        super(`no holder of the lock ${JSON.stringify(name)} is known, but the store may have forgotten locks, and grants none for another ${milliseconds} ms: try again then, or wait`);
        this.milliseconds = milliseconds;
    }
}
/** The server or the store refuses: a missing right, a limit, a name that is used by another kind of lock. */
export class Refused extends HaspError {
}
/** There is no answer, or the store does not answer the server. The outcome is unknown. */
export class Unavailable extends HaspError {
}
/** The client is closed. */
export class Closed extends HaspError {
}
/** @internal The server does not know the session (any more). */
export class SessionGone extends HaspError {
}
/** @internal The lock is gone from the store. */
export class Gone extends HaspError {
}
const passing = new Set(["unknown", "overtaken", "draining", "limit"]);
/** @internal The error of an answer of application/problem+json. */
export function fromProblem(status, problem) {
    const kind = String(problem["type"] ?? "").replace(/^urn:hasp:/, "");
    const text = String(problem["detail"] ?? problem["title"] ?? `HTTP status ${status}`);
    let error;
    if (kind === "session-gone")
        error = new SessionGone(text);
    else if (kind === "gone" || kind === "forgotten")
        error = new Gone(text);
    else if (passing.has(kind) || (kind === "refused" && !problem["final"]) || (status >= 500 && kind === ""))
        error = new Unavailable(text);
    else
        error = new Refused(text);
    error.type = kind;
    return error;
}
