import type { Opened } from "./answers.js";
import type { Lease } from "./lease.js";
export declare const trust = 0.9;
/** A session at the server, as its client knows it. */
export declare class Session {
    readonly valid: number;
    readonly id: string;
    /** By another server. */
    readonly adoptable: boolean;
    deadline: number;
    last: number;
    /** Numbers that the last keep-alive did not renew, and their own deadlines. */
    late: Map<number, number>;
    /** Numbers of leases that ended alone, and when their places are given up. */
    readonly rest: Map<number, number>;
    /** Aborted to look at the time before the next look is due. */
    look: AbortController;
    /** To another server: its keep-alives say nothing about what that one has adopted. */
    moving: boolean;
    readonly leases: Map<number, Lease>;
    /** Of acquisitions that are under way. */
    readonly places: Map<number, Place>;
    /** Numbers whose release is not confirmed. */
    readonly leaving: Set<number>;
    /** They are being released. */
    cleaning: boolean;
    /** When the server has last answered with news, or that there are none. */
    heard: number;
    /** The server is about to end, and tells no news any more. */
    draining: boolean;
    /** Aborted to cut off the request for news. */
    readonly left: AbortController;
    constructor(opened: Opened, valid: number, sent: number);
    /** A place for another lock. */
    place(): Place;
    /** Has all who wait in it look. */
    ring(): void;
}
/** Of an acquisition. It is there before its request is sent, so that news that overtake the answer find it. */
export declare class Place {
    readonly session: Session;
    readonly number: number;
    /** ask: the server waits for it no longer. */
    news: "" | "held" | "ask" | "gone";
    /** The server has forgotten the session. */
    left: boolean;
    token: bigint;
    entry: string;
    /** When a store that may have forgotten locks grants again. */
    opens: number;
    /** Ends the wait for news. */
    ring: () => void;
    constructor(session: Session, number: number);
    /** Notes news. What is held may be lost afterwards, and nothing else comes after these two. */
    hear(news: "held" | "ask" | "gone", token?: bigint): void;
}
