// What the server answers, with its shape checked. An answer of another shape is none: a proxy's, or one that was cut
// off. The request is repeated then, as after silence.
import { Unavailable } from "./errors.js";

export interface Opened {
  session: string;
  valid: number; // milliseconds
  adoptable: boolean;
}

export interface Alive {
  valid: number;
  /** What the store has not renewed, and for how long it is valid. */
  late: Map<number, number>;
  /** And why. */
  lost: Map<number, string>;
}

export interface Entered {
  state: "held" | "waiting" | "busy";
  token: bigint;
  entry: string;
  /** Milliseconds: the store grants nothing for so long, and no holder is known. */
  quarantine: number;
}

export interface News {
  version: number;
  lost: Map<number, string>;
  /** Numbers of locks that waited, and their tokens. */
  held: Map<number, bigint>;
  /** Those that the server waits for no longer. */
  waiting: number[];
  draining: boolean;
}

export function opened(answer: unknown): Opened {
  const a = object(answer);
  return { session: text(a, "session"), valid: milliseconds(a, "valid_ms", 1), adoptable: array(a, "can").includes("adopt") };
}

export function alive(answer: unknown): Alive {
  const a = object(answer);
  const late = array(a, "late", true).map(object).map((l) => [whole(l, "lock", 1), milliseconds(l, "valid_ms", 0)] as const);
  return { valid: milliseconds(a, "valid_ms", 0), late: new Map(late), lost: losses(a, true) };
}

export function entered(answer: unknown): Entered {
  const a = object(answer);
  const state = text(a, "state");
  const quarantine = a["quarantine_ms"] === undefined ? 0 : milliseconds(a, "quarantine_ms", 0);
  if (state === "busy") return { state, token: 0n, entry: "", quarantine };
  if (state !== "held" && state !== "waiting") throw odd(`the state ${JSON.stringify(state)}`);
  return { state, token: token(a), entry: text(a, "entry"), quarantine };
}

export function news(answer: unknown): News {
  const a = object(answer);
  const made: News = { version: whole(a, "version", 0), lost: losses(a), held: new Map(), waiting: [], draining: a["draining"] === true };
  for (const each of array(a, "changed", true).map(object)) {
    const number = whole(each, "lock", 1);
    if (each["state"] === "held") made.held.set(number, token(each));
    else made.waiting.push(number);
  }
  return made;
}

/** What the holder in a queue has published; undefined if nothing in it holds. */
export function published(answer: unknown): Buffer | undefined {
  const holder = array(object(answer), "entries").map(object).find((e) => !e["waits"]);
  return holder && Buffer.from(String(holder["value"] ?? ""), "base64");
}

/** Of what is only done. Somebody else's 200 does not say that it was. */
export function nothing(answer: unknown): void {
  if (answer !== undefined) throw odd("something where nothing is said");
}

type Fields = Record<string, unknown>;

function odd(what: string): Unavailable {
  return new Unavailable(`the answer is not that of hasp serve (${what}): something is in between`);
}

function object(value: unknown): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw odd("no object");
  return value as Fields;
}

function array(a: Fields, key: string, absent = false): unknown[] {
  const value = absent && a[key] === undefined ? [] : a[key];
  if (!Array.isArray(value)) throw odd(key);
  return value;
}

function text(a: Fields, key: string): string {
  const value = a[key];
  if (typeof value !== "string" || value === "") throw odd(key);
  return value;
}

function whole(a: Fields, key: string, least: number, absent = false): number {
  const value = absent && a[key] === undefined ? 0 : a[key];
  if (!Number.isSafeInteger(value) || (value as number) < least) throw odd(key);
  return value as number;
}

/** 0 if there is none. The transport reads as a BigInt what a number would round. */
function token(a: Fields): bigint {
  const value = a["token"];
  return typeof value === "bigint" ? value : BigInt(whole(a, "token", 0, true));
}

function milliseconds(a: Fields, key: string, least: number): number {
  const value = a[key];
  if (typeof value !== "number" || !Number.isFinite(value) || value < least) throw odd(key);
  return value;
}

function losses(a: Fields, absent = false): Map<number, string> {
  return new Map(array(a, "lost", absent).map(object).map((l) => [whole(l, "lock", 1), String(l["detail"] ?? "the store has it no more")]));
}
