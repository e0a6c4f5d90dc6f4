import type { ConnectionOptions } from "node:tls";
/** As those of node:tls. cert and key are the client's, where the server wants a certificate. */
export type TLSOptions = Pick<ConnectionOptions, "ca" | "cert" | "key" | "pfx" | "passphrase" | "servername">;
export interface RequestOptions {
    body?: unknown;
    session?: string;
    /** Milliseconds that the server may wait, beside answering. */
    wait?: number;
    /** Milliseconds for an answer that waits for nothing. */
    patience?: number;
    signal?: AbortSignal | undefined;
}
export interface Transport {
    request(method: string, path: string, options?: RequestOptions): Promise<unknown>;
    /** Reads lines until line returns false, the server ends them, or it is silent for as long as an answer may take. */
    follow(path: string, signal: AbortSignal, line: (text: string) => Promise<boolean>): Promise<void>;
    /** Closes the connections: those that no request uses now, and the others after their requests. */
    close(): void;
}
/**
 * Makes requests of one server. An error other than Refused, Gone and SessionGone says nothing about the outcome.
 *
 * Not fetch: it follows redirects unless it is told not to, and takes no certificate of the client.
 */
export declare function newTransport(url: string, token: string | undefined, tls: TLSOptions | undefined): Transport;
