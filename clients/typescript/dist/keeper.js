import { onAbort } from "./abort.js";
import * as answers from "./answers.js";
import { newClock } from "./clock.js";
import { Closed, Gone, HaspError, SessionGone, Unavailable } from "./errors.js";
import { over } from "./lease.js";
import { trust, Session } from "./session.js";
const look = 1000; // milliseconds between looks at the clock: unlike it, a timer stands still while the machine sleeps
/** @internal Milliseconds that a request for news waits at the server. */
export const long = 20_000;
/** Keeps the client's session alive, hears its news, and moves it to another server: what goes on in the background. */
export class Keeper {
    ttl;
    /** @internal */ now = newClock();
    /** @internal */ http;
    /** @internal */ session;
    /** @internal */ closed = false;
    /** @internal */ closing = new AbortController();
    /** @internal One move, or one beginning, of a session at a time. */ moving = Promise.resolve();
    /** @internal */
    constructor(http, /** @internal */ ttl) {
        this.ttl = ttl;
        this.http = http;
    }
    /** @internal A place for a new lock. */
    async next() {
        for (;;) {
            if (this.closed)
                throw new Closed("the client is closed");
            const session = this.session;
            if (session && (session.leases.size > 0 || this.now() < session.deadline))
                return session.place();
            await this.exclusively(async () => {
                if (this.session === session)
                    await this.#begin(session, await this.open());
            });
        }
    }
    /** @internal */
    exclusively(work) {
        const done = this.moving.then(work);
        this.moving = done.catch(() => undefined);
        return done;
    }
    /** @internal */
    async open() {
        const sent = this.now(); // before the request: the store counts from later
        const answer = await this.http("POST", "/v1/session", { body: { ttl_ms: Math.floor(this.ttl) } }).catch((e) => {
            // Of a session that is none yet: something is in between.
            throw e instanceof Gone || e instanceof SessionGone ? new Unavailable(e.message) : e;
        });
        const opened = answers.opened(answer);
        return new Session(opened, Math.min(opened.valid, this.ttl), sent);
    }
    /**
     * Puts a session in the place of the old one, unless that one's time was over meanwhile, or the client was closed:
     * its leases were told as lost, and nothing may keep them.
     */
    async #begin(old, next) {
        if (this.session !== old || this.closed) {
            await this.free(next);
            return;
        }
        this.replace(next);
        void this.#keep(next);
        void this.#watch(next);
        void this.#listen(next);
        void this.clean(next); // what the move has left
    }
    /**
     * @internal Makes another session the client's. Those who wait in the one before queue again. The request for news of
     * that one is cut off: its server may live on, and where a store shows no waiters it would take free locks for those
     * who have gone.
     */
    replace(session) {
        const old = this.session;
        this.session = session;
        old?.ring();
        old?.left.abort();
    }
    /** @internal Has the server free all that is in a session. */
    async free(session) {
        await this.http("DELETE", "/v1/session", { session: session.id }).catch(() => undefined); // else the store frees it
    }
    /** @internal */
    current(session) {
        return this.session === session && !this.closed;
    }
    /** @internal Waits for a time, and less if the client is closed, the signal aborted, or the place rung. */
    pause(ms, signal, place) {
        return new Promise((resolve, reject) => {
            const ended = () => {
                clearTimeout(timer);
                for (const off of offs)
                    off();
                if (place)
                    place.ring = () => undefined;
                if (this.closed)
                    reject(new Closed("the client is closed"));
                else if (signal?.aborted)
                    reject(signal.reason);
                else
                    resolve();
            };
            const timer = setTimeout(ended, ms);
            const offs = [onAbort(this.closing.signal, ended), onAbort(signal, ended)];
            if (place)
                place.ring = ended;
            if (this.closed || signal?.aborted)
                ended();
        });
    }
    /** Keeps the session alive every third of its time. */
    async #keep(session) {
        for (let pause = session.valid / 3;; pause = await this.keepOnce(session)) {
            await this.pause(pause).catch(() => undefined);
            if (!this.current(session))
                return;
        }
    }
    /** @internal One keep-alive; in how many milliseconds the next one is due. */
    async keepOnce(session) {
        const soon = Math.min(session.valid / 20, 1000);
        const sent = this.now();
        let alive;
        try {
            const patience = Math.min(Math.max(session.deadline - sent, session.valid / 10), 15_000);
            alive = answers.alive(await this.http("POST", "/v1/session/keepalive", { session: session.id, patience }));
        }
        catch (e) {
            if (!(e instanceof SessionGone))
                return soon;
            return this.recover(session).then(() => 0, () => soon);
        }
        const late = new Map([...alive.late].map(([number, valid]) => [number, sent + Math.min(valid, session.valid) * trust]));
        const { moving } = session;
        if (this.current(session) && !moving) {
            // What the store has not renewed keeps its own time, also if it waits now and is granted later: a grant may extend
            // nothing. One that is not late any more was renewed by this keep-alive.
            session.late = late;
            session.deadline = Math.max(session.deadline, sent + Math.min(alive.valid, this.ttl) * trust);
            if (late.size > 0)
                session.look.abort(); // the time of one may be over before the next look
        }
        await this.#lose(session, alive.lost);
        // One that did not count is repeated: the move may fail, and then this server is the one that keeps the locks.
        return late.size > 0 || moving ? soon : session.valid / 3;
    }
    /** Ends the leases when their time is over, also while a request hangs. */
    async #watch(session) {
        while (this.current(session)) {
            session.look = new AbortController();
            const next = this.expire(session);
            if (this.current(session))
                await this.pause(Math.min(next - this.now(), look), session.look.signal).catch(() => undefined);
        }
    }
    /** @internal Ends what is over, and returns when there may be more. */
    expire(session) {
        if (!this.current(session))
            return Infinity;
        const now = this.now();
        for (const [number, time] of session.rest) {
            if (now < time)
                continue;
            session.rest.delete(number);
            this.leaveLater(session, number);
        }
        const ends = now >= session.deadline;
        const ended = [...session.leases.values()].filter((lease) => ends || (lease.session === session && now >= lease.deadline())); // also if a move has taken it along
        if (ends) {
            session.leases.clear();
            this.replace(undefined); // the next acquisition begins another
        }
        for (const lease of ended) {
            this.lapse(lease);
            lease.end(over);
        }
        return Math.min(session.deadline, ...session.rest.values(), ...[...session.late.values()].filter((time) => time > now));
    }
    /**
     * @internal A lease ends alone, by the clock. A later keep-alive may renew its entry for ever, so that its place has
     * to be left. But not before its time in the store is over may another have it: until then the program stops, as it
     * does where the session ends.
     */
    lapse(lease) {
        const { session, number } = lease;
        if (session.leases.get(number) !== lease)
            return;
        session.leases.delete(number);
        session.rest.set(number, this.now() + session.valid * (1 - trust));
    }
    /** @internal */
    async leave(session, number) {
        if (!(await this.#left(session, number)))
            this.leaveLater(session, number);
    }
    /** One attempt to give a place up; whether it is confirmed that the session has no such place. */
    async #left(session, number) {
        try {
            answers.nothing(await this.http("DELETE", `/v1/locks/${number}`, { session: session.id }));
        }
        catch (e) {
            if (!(e instanceof Gone))
                return false; // also SessionGone: it was forgotten, and its entries live on until their time is over
        }
        session.leaving.delete(number);
        return true;
    }
    /** @internal */
    leaveLater(session, number) {
        session.leaving.add(number);
        void this.clean(session);
    }
    /** @internal Repeats the releases that are not confirmed: a session that is kept alive keeps all places that it has. */
    async clean(session) {
        if (session.cleaning)
            return;
        session.cleaning = true;
        for (let pause = 100; session.leaving.size > 0; pause = Math.min(2 * pause, 2000)) {
            await this.pause(pause).catch(() => undefined);
            const rest = [...session.leaving].sort(() => Math.random() - 0.5); // one that fails each time must not keep the others
            for (const number of rest)
                if (!this.current(session) || !(await this.#left(session, number)))
                    break;
            if (!this.current(session))
                break;
        }
        session.cleaning = false;
    }
    /**
     * Hears of losses and grants as soon as the store tells them, and of a server that is about to end: by one request
     * for the news of all locks, which is sent again when it is answered.
     */
    async #listen(session) {
        for (let seen = 0, pause = 100; this.current(session); pause = Math.min(2 * pause, 2000)) {
            const began = this.now();
            try {
                const options = { session: session.id, wait: long, signal: session.left.signal };
                const news = answers.news(await this.http("GET", `/v1/session/events?after=${seen}&wait_ms=${long}`, options));
                await this.hear(session, news);
                const fresh = news.version > seen && news.lost.size + news.held.size + news.waiting.length > 0;
                seen = news.version;
                if (news.draining) {
                    await this.recover(session, true); // fails as long as there is no other server
                    // What is held has left the session, and nothing new comes into it: who was granted a lock there gives it back.
                    // The places that are left keep others waiting, and the server from ending.
                    if (!this.current(session))
                        return this.closed ? undefined : await this.free(session);
                }
                else if (fresh || this.now() - began >= 1000) {
                    pause = 50;
                    continue;
                }
                else
                    pause = 1000; // a server that does not wait
            }
            catch (e) {
                if (e instanceof SessionGone)
                    await this.recover(session).catch(() => undefined);
            }
            if (!this.current(session))
                return;
            await this.pause(pause).catch(() => undefined);
        }
    }
    /** @internal */
    async hear(session, news) {
        session.heard = this.now();
        session.draining = news.draining;
        for (const number of news.waiting)
            session.places.get(number)?.hear("ask");
        for (const [number, token] of news.held)
            session.places.get(number)?.hear("held", token);
        if (news.draining)
            session.ring();
        await this.#lose(session, news.lost);
    }
    async #lose(session, lost) {
        if (lost.size === 0)
            return;
        await this.moving; // while a session moves, its server may tell as lost what the next one has adopted
        if (!this.current(session))
            return;
        for (const [number, why] of lost) {
            const lease = session.leases.get(number);
            session.leases.delete(number);
            session.places.get(number)?.hear("gone");
            lease?.end(why);
        }
    }
    /**
     * @internal Goes on at the server that answers: it adopts what is held. Another request may have done it. kept: the server
     * of the session still keeps it, so that it stays where it is if the store cannot hand locks on: elsewhere all would be lost.
     */
    recover(old, kept = false) {
        return this.exclusively(async () => {
            if (!this.current(old))
                return;
            if (old.leases.size === 0)
                return this.replace(undefined);
            if (kept && !old.adoptable)
                return;
            old.moving = true;
            let next;
            try {
                next = await this.open();
            }
            catch (e) {
                old.moving = false;
                throw e;
            }
            // An acquisition that was on its way may add to them meanwhile.
            for (let rest; (rest = [...old.leases.values()].filter((lease) => lease.session === old)).length > 0;) {
                await Promise.all(rest.map((lease) => this.#adopt(lease, old, next, ++next.last)));
            }
            await this.#begin(old, next);
        });
    }
    async #adopt(lease, old, next, number) {
        const { value: _, no_wait: __, asks: ___, ...wanted } = lease.wanted;
        const body = { ...wanted, from: lease.entry, seq: lease.token, from_session: old.id, from_lock: lease.number };
        const lost = (reason) => {
            next.leaving.add(number); // if it was adopted all the same, no lease has it
            old.leases.delete(lease.number);
            lease.end(reason);
        };
        for (;;) {
            try {
                const answer = answers.entered(await this.http("POST", `/v1/locks/${number}/adopt`, { body, session: next.id }));
                if (answer.state !== "held" || answer.token !== lease.token)
                    return lost("its server has ended: no other one has adopted it");
                if (lease.told || this.now() >= lease.deadline())
                    return lost(over); // meanwhile: nothing may keep it
                lease.session = next;
                lease.number = number;
                lease.entry = answer.entry;
                next.leases.set(number, lease);
                return;
            }
            catch (e) {
                if (!(e instanceof Unavailable) || this.now() >= Math.min(lease.deadline(), next.deadline)) {
                    return lost(`its server has ended: ${e instanceof HaspError ? e.message : String(e)}`);
                }
                await this.pause(50).catch(() => undefined); // at the end of the client all are lost
            }
        }
    }
}
