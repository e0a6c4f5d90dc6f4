"""The client: one session at the server, kept alive in the background, for all locks of the program."""

from __future__ import annotations

import base64
import getpass
import os
import random
import socket
import ssl
import sys
from typing import Any, Iterator, Optional
from urllib.parse import quote

from . import _answers
from ._errors import Busy, Closed, Gone, HaspError, LockLost, Quarantine, SessionGone, Unavailable
from ._http import Cancel, Cancelled, Transport
from ._keeper import LONG, Keeper
from ._lease import Lease, Lock
from ._session import ASK, GONE, HELD, Place, Session

FIRST = 0.05  # seconds before a request is repeated; then longer and longer


class Client(Keeper):
    """Locks at a server of hasp serve. Its methods may be called from any thread.

    ttl is after how many seconds others get the locks of a client that has died. Use one for all
    programs of a store. One session, which threads in the background keep alive, serves all locks. A
    child that was forked may use it, too, with a session of its own: what the parent holds is not the
    child's.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:7070", *, token: Optional[str] = None, ttl: float = 10.0, tls: Optional[ssl.SSLContext] = None, note: str = ""
    ) -> None:
        if not 0.001 <= ttl <= 86400:
            raise ValueError("ttl is a number of seconds from 0.001 to 86400")
        super().__init__(Transport(url, token, tls), ttl)
        self._note = note

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lock(self, name: str, *, timeout: Optional[float] = None, note: str = "", ask: str = "") -> Lock:
        """The mutex of a name. timeout: seconds to wait before Busy is raised; None waits for ever.

        ask is a reason to give the lock up, for its holder: one that listens is told while this client waits, and decides.
        """
        return Lock(self, self._wants(name, note, {}, ask), timeout)

    def read_lock(self, name: str, *, timeout: Optional[float] = None, note: str = "", ask: str = "") -> Lock:
        """The same lock for one of many readers."""
        return Lock(self, self._wants(name, note, {"kind": "read"}, ask), timeout)

    def semaphore(self, name: str, capacity: int, units: int = 1, *, timeout: Optional[float] = None, note: str = "", ask: str = "") -> Lock:
        """units of capacity permits. All users of the name say the same capacity."""
        return Lock(self, self._wants(name, note, {"kind": "semaphore", "capacity": capacity, "units": units}, ask), timeout)

    def election(self, name: str, value: bytes, *, timeout: Optional[float] = None, note: str = "", ask: str = "") -> Lock:
        """The lock of a leader, which publishes value: who has it leads. See leader and observe."""
        return Lock(self, self._wants(name, note, {"value": base64.b64encode(value).decode()}, ask), timeout)

    def try_lock(self, name: str, *, note: str = "") -> Optional[Lease]:
        """The mutex if it is free at this moment, else None. Quarantine if no holder is known, and the store grants nothing yet."""
        return self._acquire(self._tries(name, note=note), 0.0, Cancel())

    def leader(self, name: str) -> Optional[bytes]:
        """What the holder of a lock has published, or None if there is no holder."""
        return self._leader(name, None)

    def _leader(self, name: str, cancel: Optional[Cancel]) -> Optional[bytes]:
        self._after_fork()
        return _answers.published(self._http.request("GET", "/v1/queue?limit=1&name=" + quote(name, safe=""), cancel=cancel))

    def observe(self, name: str) -> Iterator[Optional[bytes]]:
        """What leader returns, at once and whenever it changes, until the client is closed.

        When the server cannot be reached later on, it goes on when it can.
        """
        return self._observe(name, None)

    def _observe(self, name: str, given: Optional[Cancel]) -> Iterator[Optional[bytes]]:
        """observe, until given is called."""
        last: tuple[Any, ...] = ()
        while not self._closed:
            self._after_fork()
            cancel = given or self._polls
            try:
                now = self._leader(name, cancel)
                if (now,) != last:
                    last = (now,)
                    yield now
                    continue
                # The server says every five seconds that a watch stands.
                path = "/v1/watch?name=" + quote(name, safe="")
                self._http.stream(path, lambda line: line != "changed" or self._leader(name, cancel) == now, 15.0, cancel)
            except Cancelled:
                return
            except HaspError as e:
                if not last or not isinstance(e, Unavailable) and e.type != "unsupported":
                    raise
                try:
                    self._pause(1.0, cancel)  # a store that cannot tell of changes is looked at
                except (Cancelled, Closed):
                    return

    def close(self) -> None:
        """Release everything. What is still held counts as lost."""
        self._after_fork()
        with self._mutex:
            session, self._closed = self._session, True
            self._replace(None)
        self._polls()
        if session is None:
            self._http.close()
            return
        for lease in list(session.leases.values()):
            lease._end("the client was closed")
        self._free(session)
        self._http.close()

    def _wants(self, name: str, note: str, more: dict[str, Any], ask: str = "") -> dict[str, Any]:
        if not name:
            raise ValueError("a lock has a name")
        if ask:
            more = {**more, "asks": ask}
        return {"name": name, "note": note or self._note, **more}

    def _tries(self, name: str, *, note: str = "") -> dict[str, Any]:
        return {**self._wants(name, note, {}), "no_wait": True}

    # Acquisition.

    def _acquire(self, request: dict[str, Any], timeout: Optional[float], cancel: Cancel) -> Optional[Lease]:
        """Ask until there is a lease, or the time to wait is over: one loop, also for a server that is
        away, and for the session that is opened first."""
        self._after_fork()
        request = {**request, "note": request["note"] or _whoami()}
        end = self._clock() + (float("inf") if timeout is None else timeout)
        place: Optional[Place] = None
        pause = FIRST
        try:
            while True:
                try:
                    place = self._placed(place, request["name"])
                    state = self._ask(place, request, cancel)
                except Unavailable:
                    if self._clock() >= end:
                        raise
                    pause = self._less_often(pause, end, cancel)
                    continue
                except (Gone, SessionGone) as e:
                    assert place is not None
                    place.left = place.left or isinstance(e, SessionGone)
                    place.news = GONE  # also where its place was taken from it: it queues again
                    if pause > FIRST:
                        self._less_often(pause, end, cancel)
                    pause = min(2 * pause, 2.0)
                    continue
                if state == "busy":
                    if place.opens:
                        raise Quarantine(request["name"], place.opens - self._clock())
                    return None
                if state == "waiting":
                    self._await(place, end, cancel)
                if place.news == HELD:
                    lease = self._grant(place, request)
                    if lease is not None:
                        return lease
                elif self._clock() >= end:
                    self._leave(place.session, place.number)
                    if place.opens > self._clock():
                        raise Quarantine(request["name"], place.opens - self._clock())
                    raise Busy("the lock %r is held by others, and %g seconds are over" % (request["name"], timeout or 0))
                elif place.news != GONE and self._current(place.session):
                    pause = self._less_often(pause, end, cancel)  # its server does not wait for it any more
                    continue
                pause = FIRST
        except (Busy, Closed, Quarantine):
            raise
        except (Unavailable, Cancelled):  # a server that is silent would keep the caller here
            if place is not None:
                self._leave_later(place.session, place.number)
            raise
        except BaseException:  # also Refused: it may be a proxy's, and the place be there from a request before
            if place is not None:
                self._leave(place.session, place.number)
            raise
        finally:
            self._forget(place)

    def _less_often(self, pause: float, end: float, cancel: Cancel) -> float:
        """Pause, and return the next pause."""
        self._pause(min(pause * random.uniform(0.5, 1.0), end - self._clock()), cancel)
        return min(2 * pause, 2.0)

    def _placed(self, place: Optional[Place], name: str) -> Place:
        """The place that is asked for: another one, if it is gone or its session was left."""
        if place is None:
            return self._next()
        if self._current(place.session) and not place.left:
            if place.news != GONE:
                return place
            self._forget(place)
            return self._next()
        # It has moved, or was left: a place stays behind, and what is granted there is given back.
        self._recover(place.session)
        new = self._next()
        self._forget(place)
        self._abandon(new.session, name, place)
        return new

    def _forget(self, place: Optional[Place]) -> None:
        if place is not None:
            with self._mutex:
                place.session.places.pop(place.number, None)

    def _ask(self, place: Place, request: dict[str, Any], cancel: Cancel) -> str:
        """Ask the server once. It does not wait: a grant comes as news."""
        with self._mutex:
            if place.news == ASK:
                place.news = ""
        answer = _answers.entered(self._http.request("PUT", "/v1/locks/%d" % place.number, request, session=place.session.id, cancel=cancel))
        with self._mutex:
            if place.news == GONE:  # it has overtaken the answer
                raise Gone("the place was lost")
            place.entry = answer.entry
            place.opens = answer.quarantine and self._clock() + answer.quarantine
            if answer.state == "held":
                place.hear(HELD, answer.token)
            return "held" if place.news == HELD else answer.state

    def _await(self, place: Place, end: float, cancel: Cancel) -> None:
        """Wait until there are news of a place, its session is left, or its time is over. Also until a
        server is about to end, which tells no news, and while none have come for long."""
        asked = self._clock()

        def ring() -> None:
            with self._mutex:
                place.bell.notify_all()

        with cancel.calling(ring), self._mutex:
            while not place.news and self._current(place.session) and not place.session.draining:
                now = self._clock()
                if now >= end or now - max(asked, place.session.heard) >= 2 * LONG:
                    return
                place.bell.wait(min(end - now, LONG))
                if cancel.set:
                    raise Cancelled

    def _grant(self, place: Place, request: dict[str, Any]) -> Optional[Lease]:
        session, number = place.session, place.number
        with self._moving, self._mutex:
            lease = Lease(self, session, number, request, place.token, place.entry)
            if session is self._session and place.news == HELD and lease._deadline() > self._clock():
                session.leases[number] = lease
                return lease
        place.news = GONE  # it is too old to be trusted
        self._leave(session, number)
        return None

    def _abandon(self, session: Session, name: str, old: Place) -> None:
        """Remove our place of a session that has moved, so that the lock is not granted to it."""
        body = {"name": name, "from_session": old.session.id, "from_lock": old.number}
        try:
            self._http.request("POST", "/v1/evict", body, session=session.id)
        except HaspError:
            pass  # its time will be over

    # Release, and other requests of a lease.

    def _of(self, lease: Lease, method: str, more: str, body: Any = None) -> None:
        """A request of a held lock. It follows the lock to another server: what a session says of a lock that
        another one has adopted meanwhile, gone or released, does not count."""
        pause = 0.05
        while True:
            with self._mutex:
                session, number = lease._session, lease._number
            if lease.lost.is_set():
                raise LockLost("the lock %r was lost: %s" % (lease.name, lease._reason))
            try:
                try:
                    _answers.nothing(self._http.request(method, "/v1/locks/%d%s" % (number, more), body, session=session.id))
                    if not self._moved(lease, session):
                        return
                except SessionGone:
                    self._recover(session)
                    if not self._moved(lease, session) and not lease._lost.is_set():
                        raise LockLost("the lock %r was lost with its server" % lease.name) from None
            except Gone as e:
                if not self._moved(lease, session):
                    self._drop(lease)
                    lease._end(str(e))
                    raise LockLost("the lock %r was lost: %s" % (lease.name, e)) from None
            except Unavailable:
                if self._clock() >= session.deadline:
                    raise
                self._pause(pause)
                pause = min(2 * pause, 1.0)

    def _moved(self, lease: Lease, session: Session) -> bool:
        with self._moving:  # after a move that is under way
            return lease._session is not session

    def _release(self, lease: Lease) -> None:
        with lease._mutex:
            if lease._done:
                return
        try:
            with lease._mutex:
                if not lease._lost.is_set():
                    lease._over = True  # from here on nothing is told as lost
            self._of(lease, "DELETE", "")
            lease._done = True
        except LockLost:
            lease._done = True
            raise
        finally:
            self._end_release(lease)

    def _end_release(self, lease: Lease) -> None:
        if lease._done:
            self._drop(lease)
            with self._mutex:
                lease._session.leaving.discard(lease._number)
        else:
            with self._moving:  # a move that is under way would take the lease along
                self._drop(lease)
                self._leave_later(lease._session, lease._number)
        with lease._mutex:
            lease._over = True

    def _drop(self, lease: Lease) -> None:
        with self._mutex:
            if lease._session.leases.get(lease._number) is lease:
                del lease._session.leases[lease._number]


def _whoami() -> str:
    program = os.path.basename((getattr(sys, "argv", None) or [""])[0]) or "python"  # an interpreter in another program has none
    return "%s (%s@%s pid %d)" % (program, _user(), socket.gethostname(), os.getpid())


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "uid %d" % os.getuid() if hasattr(os, "getuid") else "somebody"
