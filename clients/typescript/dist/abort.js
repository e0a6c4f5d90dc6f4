const calls = new WeakMap();
/**
 * Has call called when signal is aborted, until the function that it returns is called. A signal has one listener,
 * however many wait by it: Node takes more than ten for a leak, and warns.
 */
export function onAbort(signal, call) {
    if (!signal)
        return () => undefined;
    let known = calls.get(signal);
    if (!known) {
        const all = new Set();
        known = { all, listener: () => [...all].forEach((each) => each()) };
        calls.set(signal, known);
        signal.addEventListener("abort", known.listener);
    }
    const { all, listener } = known;
    all.add(call);
    return () => {
        all.delete(call);
        if (all.size > 0 || calls.get(signal)?.all !== all)
            return;
        calls.delete(signal);
        signal.removeEventListener("abort", listener);
    };
}
/** What work returns, unless signal is aborted before. Work goes on then, and its end is of no interest. */
export function orAborted(work, signal) {
    if (!signal)
        return work;
    return new Promise((resolve, reject) => {
        const off = onAbort(signal, () => reject(signal.reason));
        if (signal.aborted)
            reject(signal.reason);
        void work.then(resolve, reject).finally(off);
    });
}
