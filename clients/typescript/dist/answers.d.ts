export interface Opened {
    session: string;
    valid: number;
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
export declare function opened(answer: unknown): Opened;
export declare function alive(answer: unknown): Alive;
export declare function entered(answer: unknown): Entered;
export declare function news(answer: unknown): News;
/** What the holder in a queue has published; undefined if nothing in it holds. */
export declare function published(answer: unknown): Buffer | undefined;
/** Of what is only done. Somebody else's 200 does not say that it was. */
export declare function nothing(answer: unknown): void;
