"""Keeps the client's session alive, hears its news, and moves it to another server."""

from __future__ import annotations

import os
import queue
import random
import threading
from typing import Any, Callable, Optional

from . import _answers, _clock
from ._errors import Closed, Gone, HaspError, SessionGone, Unavailable
from ._http import KEPT, Cancel, Cancelled
from ._lease import OVER, Lease
from ._session import ASK, GONE, HELD, TRUST, Place, Session

LONG = 20.0  # seconds that a request for news waits at the server
LOOK = 1.0  # seconds between looks at the clock: unlike it, a wait stands still while the machine sleeps


class Keeper:
    """The part of a client that its threads in the background run."""

    def __init__(self, http: Any, ttl: float) -> None:
        self._http = http
        self._clock: Callable[[], float] = _clock.now
        self._ttl = ttl
        self._closed = False
        self._forks: dict[int, threading.Lock] = {}  # by process
        self._begin_process()

    def _begin_process(self) -> None:
        self._mutex = threading.RLock()  # guards the session, and what is in it
        self._changed = threading.Condition(self._mutex)
        self._moving = threading.RLock()  # held while a session moves; taken before the mutex
        self._session: Optional[Session] = None
        self._polls = Cancel()
        self._process = os.getpid()  # last: whoever sees it sees the rest

    def _after_fork(self) -> None:
        """In a child that was forked, begin anew: a session, mutexes and connections of its own.

        Whatever may be called by a user does this first. The parent's threads are not here, so that a
        mutex that one of them held at the fork would never open. The process is looked at, in place of
        os.register_at_fork, because that does not see a fork of a library in C.
        """
        process = os.getpid()
        if self._process != process:
            # A mutex that was made in this process, by the first thread that comes: setdefault is one step.
            with self._forks.setdefault(process, threading.Lock()):
                if self._process != process:
                    self._http.begin_process()
                    self._begin_process()

    def _next(self) -> Place:
        """A place for a new lock."""
        while True:
            with self._mutex:
                if self._closed:
                    raise Closed("the client is closed")
                session = self._session
                if session is not None and (session.leases or self._clock() < session.deadline):
                    return session.place(self._mutex)
            with self._moving:
                if self._session is session:
                    self._begin(session, self._open())

    def _open(self) -> Session:
        sent = self._clock()  # before the request: the store counts from later
        try:
            opened = _answers.opened(self._http.request("POST", "/v1/session", {"ttl_ms": int(self._ttl * 1000)}))
        except (Gone, SessionGone) as e:  # of a session that is none yet: something is in between
            raise Unavailable(str(e)) from None
        return Session(opened, min(opened.valid, self._ttl), sent)

    def _begin(self, old: Optional[Session], new: Session) -> None:
        """Put a session in the place of the old one, unless that one's time was over meanwhile, or
        the client was closed: its leases were told as lost, and nothing may keep them."""
        with self._mutex:
            begins = self._session is old and not self._closed
            if begins:
                self._replace(new)
        if begins:
            self._start(new)
        else:
            self._free(new)

    def _replace(self, session: Optional[Session]) -> None:
        """Make another session the client's. Those who wait in the one before queue again.

        The request for news of that one is cut off: its server may live on, and where a store shows no
        waiters it would take free locks for those who have gone.
        """
        with self._mutex:
            old, self._session = self._session, session
            self._changed.notify_all()
            self._ring(old)
            if old is not None:
                old.polls()

    def _ring(self, session: Optional[Session]) -> None:
        """Have all who wait in a session look."""
        with self._mutex:
            for place in session.places.values() if session else ():
                place.bell.notify_all()

    def _free(self, session: Session) -> None:
        """Have the server free all that is in a session."""
        try:
            self._http.request("DELETE", "/v1/session", session=session.id)
        except HaspError:
            pass  # the store frees it when its time is over

    def _start(self, session: Session) -> None:
        for work in (self._keep, self._watch, self._listen, self._clean):
            threading.Thread(target=work, args=(session,), name="hasplock", daemon=True).start()

    def _current(self, session: Session) -> bool:
        return self._session is session and not self._closed

    def _pause(self, seconds: float, cancel: Optional[Cancel] = None) -> None:
        with self._changed:
            self._changed.wait(seconds)
            if self._closed:
                raise Closed("the client is closed")
        if cancel is not None and cancel.set:
            raise Cancelled

    def _keep(self, session: Session) -> None:
        """Keep the session alive every third of its time."""
        pause = session.valid / 3
        while True:
            with self._changed:
                self._changed.wait(pause)
                if not self._current(session):
                    return
            pause = self._keep_once(session)

    def _keep_once(self, session: Session) -> float:
        """One keep-alive; in how many seconds the next one is due."""
        sent, soon = self._clock(), min(session.valid / 20, 1.0)
        try:
            left = max(session.deadline - sent, session.valid / 10)
            alive = _answers.alive(self._http.request("POST", "/v1/session/keepalive", session=session.id, timeout=min(left, 15.0)))
        except SessionGone:
            return 0.0 if self._try_to_recover(session) else soon
        except HaspError:
            return soon
        late = {number: sent + min(valid, session.valid) * TRUST for number, valid in alive.late.items()}
        with self._mutex:
            moving = session.moving
            if self._current(session) and not moving:
                # What the store has not renewed keeps its own time, also if it waits now and is granted
                # later: a grant may extend nothing. One that is not late any more was renewed by this
                # keep-alive.
                session.late = late
                session.deadline = max(session.deadline, sent + min(alive.valid, self._ttl) * TRUST)
                self._changed.notify_all()
        self._lose(session, alive.lost)
        # One that did not count is repeated: the move may fail, and then this server is the one that
        # keeps the locks.
        return soon if late or moving else session.valid / 3

    def _watch(self, session: Session) -> None:
        """End the leases when their time is over, also while a request hangs."""
        while True:
            with self._changed:
                if not self._current(session):
                    return
                now = self._clock()
                for number in [n for n, time in session.rest.items() if time <= now]:
                    del session.rest[number]
                    self._leave_later(session, number)
                over = now >= session.deadline
                ended = [x for x in session.leases.values() if over or x._session is session and now >= x._deadline()]
                for lease in ended:
                    self._lapse(lease)
                if over:
                    session.leases.clear()
                    self._replace(None)  # the next acquisition begins another
                elif not ended:
                    soonest = min([session.deadline, *session.rest.values(), *(time for time in session.late.values() if time > now)])
                    self._changed.wait(min(soonest - now, LOOK))
                    continue
            for lease in ended:
                lease._end(OVER)

    def _lapse(self, lease: Lease) -> None:
        """A lease ends alone, by the clock, with the mutex held.

        A later keep-alive may renew its entry for ever, so that its place has to be left. But not
        before its time in the store is over may another have it: until then the program stops, as it
        does where the session ends.
        """
        session, number = lease._session, lease._number
        if session.leases.get(number) is lease:
            del session.leases[number]
            session.rest[number] = self._clock() + session.valid * (1 - TRUST)
            self._changed.notify_all()

    def _clean(self, session: Session) -> None:
        """Repeat the releases that are not confirmed: a session that is kept alive keeps all places that it has."""
        pause = 0.1
        while True:
            with self._changed:
                while self._current(session) and not session.leaving:
                    self._changed.wait()
                if self._current(session):
                    self._changed.wait(pause)  # an attempt has just failed
                if not self._current(session):
                    return
            pause = 0.1 if self._clean_once(session) else min(2 * pause, 2.0)

    def _clean_once(self, session: Session) -> bool:
        """One attempt for each until one fails; whether all are confirmed."""
        with self._mutex:
            numbers = list(session.leaving)
        random.shuffle(numbers)  # one that fails each time must not keep the others
        return all(self._left(session, number) for number in numbers if self._current(session))

    def _leave(self, session: Session, number: int) -> None:
        """Give a place up. _clean repeats it if it is not confirmed."""
        confirmed = False
        try:
            confirmed = self._left(session, number)
        finally:
            if not confirmed:
                self._leave_later(session, number)

    def _left(self, session: Session, number: int) -> bool:
        """One attempt to give a place up; whether it is confirmed that the session has no such place."""
        try:
            _answers.nothing(self._http.request("DELETE", "/v1/locks/%d" % number, session=session.id))
        except Gone:
            pass
        except HaspError:  # also SessionGone: it was forgotten, and its entries live on until their time is over
            return False
        with self._mutex:
            session.leaving.discard(number)
        return True

    def _leave_later(self, session: Session, number: int) -> None:
        with self._changed:
            session.leaving.add(number)
            self._changed.notify_all()

    def _listen(self, session: Session) -> None:
        """Hear of losses and grants as soon as the store tells them, and of a server that is about to
        end: by one request for the news of all locks, which is sent again when it is answered."""
        seen, pause = 0, 0.1
        while self._current(session):
            sent = self._clock()
            try:
                path = "/v1/session/events?after=%d&wait_ms=%d" % (seen, LONG * 1000)
                news = _answers.news(self._http.request("GET", path, session=session.id, wait=LONG, cancel=session.polls))
                self._hear(session, news)
                fresh = news.version > seen and bool(news.lost or news.held or news.waiting)
                seen = news.version
                if news.draining:
                    self._recover(session, kept=True)  # fails as long as there is no other server
                    if not self._current(session):
                        # What is held has left the session, and nothing new comes into it: who was granted a
                        # lock there gives it back. The places that are left keep others waiting, and the
                        # server from ending.
                        if not self._closed:
                            self._free(session)
                        return
                elif fresh or self._clock() - sent >= 1:
                    pause = 0.1
                    continue
                else:
                    pause = 1.0  # a server that does not wait
            except Cancelled:
                return
            except HaspError as e:
                if isinstance(e, SessionGone):
                    self._try_to_recover(session)
            try:
                self._pause(pause)
            except Closed:
                return
            pause = min(2 * pause, 2.0)

    def _hear(self, session: Session, news: _answers.News) -> None:
        self._lose(session, news.lost)
        with self._mutex:
            session.heard = self._clock()
            session.draining = news.draining
            for number in news.waiting:
                if number in session.places:
                    session.places[number].hear(ASK)
            for number, token in news.held.items():
                if number in session.places:
                    session.places[number].hear(HELD, token)
            if news.draining:
                self._ring(session)

    def _lose(self, session: Session, lost: dict[int, str]) -> None:
        if not lost:
            return
        # While a session moves, its server may tell as lost what the next one has adopted.
        with self._moving:
            if not self._current(session):
                return
            for number, why in lost.items():
                with self._mutex:
                    lease = session.leases.pop(number, None)
                    if number in session.places:
                        session.places[number].hear(GONE)
                if lease is not None:
                    lease._end(why)

    def _recover(self, old: Session, kept: bool = False) -> None:
        """Go on at the server that answers: it adopts what is held. Another thread may have done it.

        kept: the server of the session still keeps it, so that it stays where it is if the store
        cannot hand locks on: elsewhere all would be lost.
        """
        with self._moving:
            if self._session is not old or self._closed:
                return
            with self._mutex:
                held = list(old.leases.values())
                if not held:
                    self._replace(None)
                    return
                if kept and not old.adoptable:
                    return
                old.moving = True
            try:
                new = self._open()
            except BaseException:
                old.moving = False
                raise
            self._adopt_all(held, old, new)
            self._begin(old, new)

    def _try_to_recover(self, old: Session) -> bool:
        try:
            self._recover(old)
        except HaspError:
            return False
        return True

    def _adopt_all(self, held: list[Lease], old: Session, new: Session) -> None:
        """Adopt several at once: of many, one after the other, the last ones would be lost at a distant server.

        What is lost is told by this thread, which may use the client while the session moves.
        """
        rest: "queue.SimpleQueue[tuple[Lease, int]]" = queue.SimpleQueue()
        done: "queue.SimpleQueue[tuple[Lease, str]]" = queue.SimpleQueue()
        for lease in held:
            new.last += 1
            rest.put((lease, new.last))

        def adopts() -> None:
            while True:
                try:
                    lease, number = rest.get_nowait()
                except queue.Empty:
                    return
                try:
                    reason = self._adopt(lease, old, new, number)
                except Exception as e:  # Closed: the client is
                    reason = str(e)
                done.put((lease, reason))

        for _ in range(min(KEPT, len(held))):
            threading.Thread(target=adopts, name="hasplock", daemon=True).start()
        for _ in held:
            lease, reason = done.get()
            if reason:
                lease._end(reason)

    def _adopt(self, lease: Lease, old: Session, new: Session, number: int) -> str:
        """Have a lease adopted under a number. Why it is lost; "" if it is not."""
        body = {k: v for k, v in lease._request.items() if k in ("name", "kind", "capacity", "units", "note")}
        body.update({"from": lease._entry, "seq": lease.token, "from_session": old.id, "from_lock": lease._number})
        while True:
            try:
                answer = _answers.entered(self._http.request("POST", "/v1/locks/%d/adopt" % number, body, session=new.id))
                break
            except Unavailable as e:
                if self._clock() >= min(lease._deadline(), new.deadline):
                    return self._not_adopted(new, number, e)
                self._pause(0.05)
            except HaspError as e:  # gone, or the store cannot hand a lock on
                return self._not_adopted(new, number, e)  # or a proxy has refused to repeat what was done
        if answer.state != "held" or answer.token != lease.token:
            return self._not_adopted(new, number, None)
        with self._mutex:
            if old.leases.get(lease._number) is lease and self._clock() < lease._deadline():
                lease._session, lease._number, lease._entry = new, number, answer.entry
                new.leases[number] = lease
                return ""
            self._lapse(lease)
        self._leave_later(new, number)  # its time was over meanwhile: nothing may keep it
        return OVER

    def _not_adopted(self, new: Session, number: int, why: Optional[HaspError]) -> str:
        self._leave_later(new, number)  # if it was adopted, no lease has it
        return "its server has ended: %s" % (why or "no other one has adopted it")
