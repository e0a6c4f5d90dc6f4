/**
 * Has call called when signal is aborted, until the function that it returns is called. A signal has one listener,
 * however many wait by it: Node takes more than ten for a leak, and warns.
 */
export declare function onAbort(signal: AbortSignal | undefined, call: () => void): () => void;
/** What work returns, unless signal is aborted before. Work goes on then, and its end is of no interest. */
export declare function orAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T>;
