"""The client: one session at the server, kept alive in the background, for all locks of the program."""

from __future__ import annotations

import base64
import getpass
import os
import random
import socket
import ssl
import sys
import threading
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Optional
from urllib.parse import quote

from . import _clock
from ._errors import Busy, Closed, Gone, HaspError, LockLost, Refused, SessionGone, Unavailable
from ._http import Cancel, Cancelled, Transport

# Trust ends a tenth before the store's time does: for clocks that differ, and for what is on its way.
TRUST = 0.9
LONG = 20.0  # seconds that one request waits at the server
LOOK = 1.0  # seconds between looks at the clock: unlike it, a wait stands still while the machine sleeps


class Lease:
    """A held lock. Its methods may be called from any thread.

    token grows from one holder to the next: hand it to what is written to, which refuses a smaller one than it has
    seen. held() is a look at the clock: call it before anything that must not happen without the lock.
    """

    def __init__(self, client: "Client", session: "_Session", number: int, request: dict[str, Any], answer: dict[str, Any]) -> None:
        self.name: str = request["name"]
        self.token: int = int(answer.get("token", 0))
        #: Set when the lock is lost, before the store may grant it to another.
        self.lost = threading.Event()
        #: Why it was lost; "" while it is not.
        self.reason = ""
        self._client, self._session, self._number = client, session, number
        self._request, self._entry = request, str(answer.get("entry", ""))
        self._values = 0
        self._mutex = threading.Lock()
        self._over = False  # not held any more: a release has begun
        self._done = False  # the release is confirmed, or found the lock lost
        self._told: list[Callable[[str], None]] = []

    def __repr__(self) -> str:
        return "<hasplock.Lease %r token %d%s>" % (self.name, self.token, "" if self.held() else " not held")

    def held(self) -> bool:
        """Whether the lock is held for sure at this moment."""
        return not self._over and not self.lost.is_set() and self._client._clock() < self._deadline()

    def remaining(self) -> float:
        """Seconds for which it is held for sure if no keep-alive succeeds from now on."""
        return max(0.0, self._deadline() - self._client._clock()) if self.held() else 0.0

    def check(self) -> None:
        """Raise LockLost unless the lock is held."""
        if not self.held():
            raise LockLost("the lock %r is not held: %s" % (self.name, self.reason or "it was released, or its time is over"))

    def on_lost(self, tell: Callable[[str], None]) -> None:
        """Have tell(reason) called when the lock is lost, by a thread of the client: it must return at once."""
        with self._mutex:
            if not self.lost.is_set():
                self._told.append(tell)
                return
        tell(self.reason)

    def publish(self, value: bytes) -> None:
        """Replace the value that others see with the lock (at most 1 KB)."""
        self.check()
        self._values += 1
        body = {"value": base64.b64encode(value).decode(), "number": self._values}
        self._client._of(self, "PUT", "/value", body)

    def release(self) -> None:
        """Give the lock back. LockLost if it was lost before.

        Any other error says that it is not confirmed. The client repeats the release then, for as long as its
        session lives; a second call of release asks again.
        """
        self._client._release(self)

    def _deadline(self) -> float:
        """Until when it is held for sure. What the last keep-alive did not renew has its own time, and not the session's."""
        with self._client._mutex:  # session, number and times belong together: a move and a keep-alive change them in one step
            session = self._session
            return min(session.deadline, session.late.get(self._number, session.deadline))

    def _end(self, reason: str) -> None:
        with self._mutex:
            if self._over or self.lost.is_set():
                return
            self.reason = reason
            self.lost.set()
            told, self._told = self._told, []
        for tell in told:
            tell(reason)


class _Session:
    def __init__(self, id: str, valid: float, sent: float, can: Iterable[str] = ()) -> None:
        self.id = id
        self.valid = valid
        self.deadline = sent + valid * TRUST
        self.adoptable = "adopt" in can  # by another server
        self.late: dict[int, float] = {}  # numbers that the last keep-alive did not renew, and their own deadlines
        self.moving = False  # to another server: its keep-alives say nothing about what that one has adopted
        self.last = 0
        self.leases: dict[int, Lease] = {}
        self.leaving: set[int] = set()  # numbers whose release is not confirmed


class Lock:
    """A lock of a name. Use it in a with statement, as often as you like, from any thread."""

    def __init__(self, client: "Client", request: dict[str, Any], timeout: Optional[float]) -> None:
        self._client, self._request, self._timeout = client, request, timeout
        self._local = threading.local()

    def acquire(self, timeout: Optional[float] = None) -> Lease:
        """Wait for the lock, first come, first served. Busy after timeout seconds; Unavailable if the server is silent, some 15 later."""
        lease = self._client._acquire(self._request, self._timeout if timeout is None else timeout, Cancel())
        assert lease is not None
        return lease

    def __enter__(self) -> Lease:
        held = self._local.__dict__.setdefault("held", [])
        lease = self.acquire()
        held.append(lease)
        return lease

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        """Release. If the lock was lost meanwhile, and the block has not failed, this raises LockLost."""
        lease: Lease = self._local.held.pop()
        try:
            lease.release()
        except LockLost:
            if kind is None:
                raise
        except Unavailable:
            pass  # nothing more is done under it: the store frees it when its time is over


class Client:
    """Locks at a server of hasp serve. Its methods may be called from any thread.

    ttl is after how many seconds others get the locks of a client that has died. One session, which threads in the
    background keep alive, serves all locks. A child that was forked must make a client of its own.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:7070", *, token: Optional[str] = None, ttl: float = 60.0, tls: Optional[ssl.SSLContext] = None, note: str = ""
    ) -> None:
        if not 0.001 <= ttl <= 86400:
            raise ValueError("ttl is a number of seconds from 0.001 to 86400")
        self._http: Any = Transport(url, token, tls)
        self._clock: Callable[[], float] = _clock.now
        self._ttl, self._note = ttl, note
        self._mutex = threading.RLock()  # guards the session, and what is in it
        self._changed = threading.Condition(self._mutex)
        self._moving = threading.RLock()  # held while a session moves
        self._session: Optional[_Session] = None
        self._closed = False
        self._polls = Cancel()

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
        """The mutex if it is free at this moment, else None."""
        return self._acquire(self._tries(name, note=note), 0.0, Cancel())

    def leader(self, name: str) -> Optional[bytes]:
        """What the holder of a lock has published, or None if there is no holder."""
        return self._leader(name, None)

    def _leader(self, name: str, cancel: Optional[Cancel]) -> Optional[bytes]:
        answer = self._http.request("GET", "/v1/queue?limit=1&name=" + quote(name, safe=""), cancel=cancel)
        for entry in answer["entries"]:
            if not entry.get("waits"):
                return base64.b64decode(entry.get("value", ""))
        return None

    def observe(self, name: str) -> Iterator[Optional[bytes]]:
        """What leader returns, at once and whenever it changes, until the client is closed.

        When the server cannot be reached later on, it goes on when it can.
        """
        return self._observe(name, self._polls)

    def _observe(self, name: str, cancel: Cancel) -> Iterator[Optional[bytes]]:
        """observe, until cancel is called."""
        last: tuple[Any, ...] = ()
        while not self._closed:
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
        with self._mutex:
            session, self._session, self._closed = self._session, None, True
            self._changed.notify_all()
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
        owner = "%s@%s pid %d" % (_user(), socket.gethostname(), os.getpid())
        return {"name": name, "note": note or self._note or "%s (%s)" % (os.path.basename(sys.argv[0] or "python"), owner), **more}

    def _tries(self, name: str, *, note: str = "") -> dict[str, Any]:
        return {**self._wants(name, note, {}), "no_wait": True}

    # Acquisition.

    def _acquire(self, request: dict[str, Any], timeout: Optional[float], cancel: Cancel) -> Optional[Lease]:
        end = self._clock() + (float("inf") if timeout is None else timeout)
        session, number = self._next()
        gone = False  # the server does not know the session
        pause = 0.05
        try:
            while True:
                sent = self._clock()
                left = max(0.0, min(end - sent, LONG))
                body = dict(request) if request.get("no_wait") else {**request, "wait_ms": int(left * 1000)}
                try:
                    if gone:
                        self._recover(session)
                        old, place = session, number
                        session, number = self._next()
                        self._abandon(session, request["name"], old, place)
                        gone = False
                    answer = self._http.request("PUT", "/v1/locks/%d" % number, body, session=session.id, wait=left, cancel=cancel)
                except SessionGone:
                    gone = True
                    continue
                except Gone:  # its place was taken from it: it queues again
                    session, number = self._next()
                    continue
                except Unavailable:
                    if self._clock() >= end:
                        raise
                    self._pause(min(pause * random.uniform(0.5, 1.0), end - self._clock()), cancel)
                    pause = min(2 * pause, 2.0)
                    gone = gone or not self._current(session)  # a server that drains refuses, and was left meanwhile
                    continue
                if answer["state"] == "held":
                    lease = self._grant(session, number, request, answer)
                    if lease is not None:
                        return lease
                    session, number = self._next()  # it is too old to be trusted
                elif answer["state"] == "busy":
                    return None
                elif self._clock() >= end:
                    self._leave(session, number)
                    raise Busy("the lock %r is held by others, and %g seconds are over" % (request["name"], timeout or 0))
                elif not self._current(session):
                    gone = True  # it has moved, or was left: a place stays behind, and what is granted there is given back
                elif self._clock() - sent < left / 2:  # its server does not wait any more: it is about to end
                    self._pause(min(pause * random.uniform(0.5, 1.0), end - self._clock()), cancel)
                    pause = min(2 * pause, 2.0)
                    continue
                pause = 0.05
        except (Busy, Closed):
            raise
        except (Unavailable, Cancelled):  # a server that is silent would keep the caller here
            self._leave_later(session, number)
            raise
        except BaseException:  # also Refused: it may be a proxy's, and the place be there from a request before
            self._leave(session, number)
            raise

    def _grant(self, session: _Session, number: int, request: dict[str, Any], answer: dict[str, Any]) -> Optional[Lease]:
        lease = Lease(self, session, number, request, answer)
        with self._moving, self._mutex:
            if session is self._session and lease.held():
                session.leases[number] = lease
                return lease
        self._leave(session, number)
        return None

    def _leave(self, session: _Session, number: int) -> None:
        """Give a place up. _clean repeats it if it is not confirmed."""
        confirmed = False
        try:
            confirmed = self._left(session, number)
        finally:
            if not confirmed:
                self._leave_later(session, number)

    def _left(self, session: _Session, number: int) -> bool:
        """One attempt to give a place up; whether it is confirmed that the session has no such place."""
        try:
            self._http.request("DELETE", "/v1/locks/%d" % number, session=session.id)
        except Gone:
            pass
        except HaspError:  # also SessionGone: a server says so as well when it cannot reach the one that has the session
            return False
        with self._mutex:
            session.leaving.discard(number)
        return True

    def _leave_later(self, session: _Session, number: int) -> None:
        with self._changed:
            session.leaving.add(number)
            self._changed.notify_all()

    def _abandon(self, session: _Session, name: str, old: _Session, number: int) -> None:
        """Remove our place of a session that has moved, so that the lock is not granted to it."""
        body = {"name": name, "from_session": old.id, "from_lock": number}
        try:
            self._http.request("POST", "/v1/evict", body, session=session.id)
        except HaspError:
            pass  # its time will be over

    def _pause(self, seconds: float, cancel: Optional[Cancel] = None) -> None:
        with self._changed:
            self._changed.wait(seconds)
            if self._closed:
                raise Closed("the client is closed")
        if cancel is not None and cancel.set:
            raise Cancelled

    # Release, and other requests of a lease.

    def _of(self, lease: Lease, method: str, more: str, body: Any = None) -> None:
        """A request of a held lock. It follows the lock to another server: what a session says of a lock that
        another one has adopted meanwhile, gone or released, does not count."""
        pause = 0.05
        while True:
            with self._mutex:
                session, number = lease._session, lease._number
            if lease.lost.is_set():
                raise LockLost("the lock %r was lost: %s" % (lease.name, lease.reason))
            try:
                try:
                    self._http.request(method, "/v1/locks/%d%s" % (number, more), body, session=session.id)
                    if not self._moved(lease, session):
                        return
                except SessionGone:
                    self._recover(session)
                    if not self._moved(lease, session) and not lease.lost.is_set():
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

    def _moved(self, lease: Lease, session: _Session) -> bool:
        with self._moving:  # after a move that is under way
            return lease._session is not session

    def _release(self, lease: Lease) -> None:
        with lease._mutex:
            if lease._done:
                return
        try:
            with lease._mutex:
                if not lease.lost.is_set():
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

    # The session.

    def _next(self) -> tuple[_Session, int]:
        """The session, and a number for a new lock."""
        while True:
            with self._mutex:
                if self._closed:
                    raise Closed("the client is closed")
                session = self._session
                if session is not None and (session.leases or self._clock() < session.deadline):
                    session.last += 1
                    return session, session.last
            with self._moving:
                if self._session is session:
                    self._begin(session, self._open())

    def _open(self) -> _Session:
        sent = self._clock()  # before the request: the store counts from later
        answer = self._http.request("POST", "/v1/session", {"ttl_ms": int(self._ttl * 1000)})
        return _Session(answer["session"], float(answer["valid_ms"]) / 1000, sent, answer["can"])

    def _begin(self, old: Optional[_Session], new: _Session) -> None:
        """Put a session in the place of the old one, unless that one's time was over meanwhile, or the client was
        closed: its leases were told as lost, and nothing may keep them."""
        with self._mutex:
            begins = self._session is old and not self._closed
            if begins:
                self._session = new
                self._changed.notify_all()
        if begins:
            self._start(new)
        else:
            self._free(new)

    def _free(self, session: _Session) -> None:
        """Have the server free all that is in a session."""
        try:
            self._http.request("DELETE", "/v1/session", session=session.id)
        except HaspError:
            pass  # the store frees it when its time is over

    def _start(self, session: _Session) -> None:
        for work in (self._keep, self._watch, self._listen, self._clean):
            threading.Thread(target=work, args=(session,), name="hasplock", daemon=True).start()

    def _current(self, session: _Session) -> bool:
        return self._session is session and not self._closed

    def _keep(self, session: _Session) -> None:
        """Keep the session alive every third of its time."""
        pause = session.valid / 3
        while True:
            with self._changed:
                self._changed.wait(pause)
                if not self._current(session):
                    return
            pause = self._keep_once(session)

    def _keep_once(self, session: _Session) -> float:
        """One keep-alive; in how many seconds the next one is due."""
        sent, soon = self._clock(), min(session.valid / 20, 1.0)
        try:
            left = max(session.deadline - sent, session.valid / 10)
            answer = self._http.request("POST", "/v1/session/keepalive", session=session.id, timeout=min(left, 15.0))
        except SessionGone:
            return 0.0 if self._try_to_recover(session) else soon
        except HaspError:
            return soon
        late = {int(x["lock"]): sent + float(x["valid_ms"]) / 1000 * TRUST for x in answer.get("late") or []}
        with self._mutex:
            moving = session.moving
            if self._current(session) and not moving:
                # What the store has not renewed keeps its own time, also if it waits now and is granted later: a grant
                # may extend nothing. One that is not late any more was renewed by this keep-alive.
                session.late = late
                session.deadline = max(session.deadline, sent + float(answer["valid_ms"]) / 1000 * TRUST)
                self._changed.notify_all()
        self._lose(session, answer.get("lost") or [])
        # One that did not count is repeated: the move may fail, and then this server is the one that keeps the locks.
        return soon if late or moving else session.valid / 3

    def _watch(self, session: _Session) -> None:
        """End the leases when their time is over, also while a request hangs."""
        rest: dict[int, float] = {}  # numbers of leases that ended alone, and when their places are given up
        while True:
            with self._changed:
                if not self._current(session):
                    return
                now = self._clock()
                for number in [n for n, time in rest.items() if time <= now]:
                    del rest[number]
                    self._leave_later(session, number)
                over = now >= session.deadline
                ended = {n: lease for n, lease in session.leases.items() if over or lease._session is session and now >= lease._deadline()}
                for number in ended:
                    del session.leases[number]
                    # A later keep-alive may renew its entry for ever. But not before its time in the store is over may
                    # another have it: until then the program stops, as it does where the session ends.
                    rest[number] = now + session.valid * (1 - TRUST)
                if over:
                    self._session = None  # the next acquisition begins another
                    self._changed.notify_all()
                elif not ended:
                    soonest = min([session.deadline, *rest.values(), *(time for time in session.late.values() if time > now)])
                    self._changed.wait(min(soonest - now, LOOK))
                    continue
            for lease in ended.values():
                lease._end("its time was over: the server, or its store, was not reached")

    def _clean(self, session: _Session) -> None:
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

    def _clean_once(self, session: _Session) -> bool:
        """One attempt for each until one fails; whether all are confirmed."""
        with self._mutex:
            numbers = list(session.leaving)
        random.shuffle(numbers)  # one that fails each time must not keep the others
        return all(self._left(session, number) for number in numbers if self._current(session))

    def _listen(self, session: _Session) -> None:
        """Hear of losses as soon as the store tells them, and of a server that is about to end."""
        seen, pause = 0, 0.1
        while self._current(session):
            sent = self._clock()
            try:
                path = "/v1/session/events?after=%d&wait_ms=%d" % (seen, LONG * 1000)
                answer = self._http.request("GET", path, session=session.id, wait=LONG, cancel=self._polls)
                self._lose(session, answer["lost"])
                seen = answer["version"]
                if answer.get("draining"):
                    self._recover(session, kept=True)  # fails as long as there is no other server
                    if not self._current(session):
                        # What is held has left the session, and nothing new comes into it: who was granted a lock there
                        # gives it back. The places that are left keep others waiting, and the server from ending.
                        if not self._closed:
                            self._free(session)
                        return
                elif answer["lost"] or self._clock() - sent >= 1:
                    pause = 0.1
                    continue
                else:
                    pause = 1.0  # a server that does not wait
            except Cancelled:
                return
            except (HaspError, OSError) as e:
                if isinstance(e, SessionGone):
                    self._try_to_recover(session)
            try:
                self._pause(pause)
            except Closed:
                return
            pause = min(2 * pause, 2.0)

    def _lose(self, session: _Session, lost: list[dict[str, Any]]) -> None:
        # While a session moves, its server may tell as lost what the next one has adopted.
        with self._moving:
            if not self._current(session):
                return
            for each in lost:
                with self._mutex:
                    lease = session.leases.pop(int(each["lock"]), None)
                if lease is not None:
                    lease._end(str(each.get("detail", "the store has it no more")))

    def _recover(self, old: _Session, kept: bool = False) -> None:
        """Go on at the server that answers: it adopts what is held. Another thread may have done it. kept: the server of the
        session still keeps it, so that it stays where it is if the store cannot hand locks on: elsewhere all would be lost."""
        with self._moving:
            if self._session is not old or self._closed:
                return
            with self._mutex:
                held = list(old.leases.values())
                if not held:
                    self._session = None
                    self._changed.notify_all()
                    return
                if kept and not old.adoptable:
                    return
                old.moving = True
            try:
                new = self._open()
            except HaspError:
                old.moving = False
                raise
            for lease in held:
                new.last += 1
                self._adopt(lease, old, new)
            self._begin(old, new)

    def _try_to_recover(self, old: _Session) -> bool:
        try:
            self._recover(old)
        except HaspError:
            return False
        return True

    def _adopt(self, lease: Lease, old: _Session, new: _Session) -> None:
        body = {k: v for k, v in lease._request.items() if k in ("name", "kind", "capacity", "units", "note")}
        body.update({"from": lease._entry, "seq": lease.token, "from_session": old.id, "from_lock": lease._number})
        number = new.last
        while True:
            try:
                answer = self._http.request("POST", "/v1/locks/%d/adopt" % number, body, session=new.id)
            except Unavailable:
                if self._clock() < min(lease._deadline(), new.deadline):
                    self._pause(0.05)
                    continue
                answer = {}
            except HaspError as e:  # gone, or the store cannot hand a lock on
                self._leave_later(new, number)  # or a proxy has refused to repeat what was done
                lease._end("its server has ended: %s" % e)
                return
            if answer.get("state") != "held" or int(answer.get("token", 0)) != lease.token:
                self._leave_later(new, number)  # if it was adopted, no lease has it
                lease._end("its server has ended, and no other one has adopted it")
                return
            with self._mutex:
                if old.leases.get(lease._number) is lease:
                    lease._session, lease._number, lease._entry = new, number, str(answer["entry"])
                    new.leases[number] = lease
                    return
            self._leave_later(new, number)  # its time was over meanwhile: it was told as lost, and nothing may keep it
            return


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "uid %d" % os.getuid() if hasattr(os, "getuid") else "somebody"
