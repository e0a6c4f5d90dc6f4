import type { Opened } from "./answers.js";
import type { Lease } from "./lease.js";

// Trust ends a tenth before the store's time does: for clocks that differ, and for what is on its way.
export const trust = 0.9;

/** A session at the server, as its client knows it. */
export class Session {
  readonly id: string;
  /** By another server. */
  readonly adoptable: boolean;
  deadline: number;
  last = 0;
  /** Numbers that the last keep-alive did not renew, and their own deadlines. */
  late = new Map<number, number>();
  /** Numbers of leases that ended alone, and when their places are given up. */
  readonly rest = new Map<number, number>();
  /** Aborted to look at the time before the next look is due. */
  look = new AbortController();
  /** To another server: its keep-alives say nothing about what that one has adopted. */
  moving = false;
  readonly leases = new Map<number, Lease>();
  /** Of acquisitions that are under way. */
  readonly places = new Map<number, Place>();
  /** Numbers whose release is not confirmed. */
  readonly leaving = new Set<number>();
  /** They are being released. */
  cleaning = false;
  /** When the server has last answered with news, or that there are none. */
  heard: number;
  /** The server is about to end, and tells no news any more. */
  draining = false;
  /** Aborted to cut off the request for news. */
  readonly left = new AbortController();

  constructor(opened: Opened, readonly valid: number, sent: number) {
    this.id = opened.session;
    this.adoptable = opened.adoptable;
    this.deadline = sent + valid * trust;
    this.heard = sent;
  }

  /** A place for another lock. */
  place(): Place {
    const made = new Place(this, ++this.last);
    this.places.set(made.number, made);
    return made;
  }

  /** Has all who wait in it look. */
  ring(): void {
    for (const place of this.places.values()) place.ring();
  }
}

/** Of an acquisition. It is there before its request is sent, so that news that overtake the answer find it. */
export class Place {
  /** ask: the server waits for it no longer. */
  news: "" | "held" | "ask" | "gone" = "";
  /** The server has forgotten the session. */
  left = false;
  token = 0n;
  entry = "";
  /** When a store that may have forgotten locks grants again. */
  opens = 0;
  /** Ends the wait for news. */
  ring: () => void = () => undefined;

  constructor(readonly session: Session, readonly number: number) {}

  /** Notes news. What is held may be lost afterwards, and nothing else comes after these two. */
  hear(news: "held" | "ask" | "gone", token = 0n): void {
    if (this.news === "gone" || (this.news === "held" && news === "ask")) return;
    this.news = news;
    this.token = token;
    this.ring();
  }
}
