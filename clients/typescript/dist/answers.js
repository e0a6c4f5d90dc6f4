// What the server answers, with its shape checked. An answer of another shape is none: a proxy's, or one that was cut
// off. The request is repeated then, as after silence.
import { Unavailable } from "./errors.js";
export function opened(answer) {
    const a = object(answer);
    return { session: text(a, "session"), valid: milliseconds(a, "valid_ms", 1), adoptable: array(a, "can").includes("adopt") };
}
export function alive(answer) {
    const a = object(answer);
    const late = array(a, "late", true).map(object).map((l) => [whole(l, "lock", 1), milliseconds(l, "valid_ms", 0)]);
    return { valid: milliseconds(a, "valid_ms", 0), late: new Map(late), lost: losses(a, true) };
}
export function entered(answer) {
    const a = object(answer);
    const state = text(a, "state");
    const quarantine = a["quarantine_ms"] === undefined ? 0 : milliseconds(a, "quarantine_ms", 0);
    if (state === "busy")
        return { state, token: 0n, entry: "", quarantine };
    if (state !== "held" && state !== "waiting")
        throw odd(`the state ${JSON.stringify(state)}`);
    return { state, token: token(a), entry: text(a, "entry"), quarantine };
}
export function news(answer) {
    const a = object(answer);
    const made = { version: whole(a, "version", 0), lost: losses(a), held: new Map(), waiting: [], draining: a["draining"] === true };
    for (const each of array(a, "changed", true).map(object)) {
        const number = whole(each, "lock", 1);
        if (each["state"] === "held")
            made.held.set(number, token(each));
        else
            made.waiting.push(number);
    }
    return made;
}
/** What the holder in a queue has published; undefined if nothing in it holds. */
export function published(answer) {
    const holder = array(object(answer), "entries").map(object).find((e) => !e["waits"]);
    return holder && Buffer.from(String(holder["value"] ?? ""), "base64");
}
/** Of what is only done. Somebody else's 200 does not say that it was. */
export function nothing(answer) {
    if (answer !== undefined)
        throw odd("something where nothing is said");
}
function odd(what) {
    return new Unavailable(`the answer is not that of hasp serve (${what}): something is in between`);
}
function object(value) {
    if (typeof value !== "object" || value === null || Array.isArray(value))
        throw odd("no object");
    return value;
}
function array(a, key, absent = false) {
    const value = absent && a[key] === undefined ? [] : a[key];
    if (!Array.isArray(value))
        throw odd(key);
    return value;
}
function text(a, key) {
    const value = a[key];
    if (typeof value !== "string" || value === "")
        throw odd(key);
    return value;
}
function whole(a, key, least, absent = false) {
    const value = absent && a[key] === undefined ? 0 : a[key];
    if (!Number.isSafeInteger(value) || value < least)
        throw odd(key);
    return value;
}
/** 0 if there is none. The transport reads as a BigInt what a number would round. */
function token(a) {
    const value = a["token"];
    return typeof value === "bigint" ? value : BigInt(whole(a, "token", 0, true));
}
function milliseconds(a, key, least) {
    const value = a[key];
    if (typeof value !== "number" || !Number.isFinite(value) || value < least)
        throw odd(key);
    return value;
}
function losses(a, absent = false) {
    return new Map(array(a, "lost", absent).map(object).map((l) => [whole(l, "lock", 1), String(l["detail"] ?? "the store has it no more")]));
}
