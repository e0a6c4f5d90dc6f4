"""A held lock, and a lock that can be asked for."""

from __future__ import annotations

import base64
import logging
import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._errors import LockLost, Unavailable
from ._http import Cancel

if TYPE_CHECKING:
    from ._client import Client
    from ._session import Session

OVER = "its time was over: the server, or its store, was not reached, or this program stood still"


class Lease:
    """A held lock. Its methods may be called from any thread.

    token grows from one holder to the next: hand it to what is written to, which refuses a smaller
    one than it has seen. held() is a look at the clock: call it before anything that must not happen
    without the lock.
    """

    def __init__(self, client: "Client", session: "Session", number: int, request: dict[str, Any], token: int, entry: str) -> None:
        self.name: str = request["name"]
        self.token = token
        self._client, self._session, self._number = client, session, number
        self._process = os.getpid()
        self._request, self._entry = request, entry
        self._values = 0
        self._mutex = threading.Lock()  # nothing else is taken while it is held
        self._lost = threading.Event()
        self._reason = ""
        self._over = False  # not held any more: a release has begun
        self._done = False  # the release is confirmed, or found the lock lost
        self._told: list[Callable[[str], None]] = []

    def __repr__(self) -> str:
        return "<hasplock.Lease %r token %d%s>" % (self.name, self.token, "" if self.held() else " not held")

    def held(self) -> bool:
        """Whether the lock is held for sure at this moment."""
        return self._look() > 0

    def remaining(self) -> float:
        """Seconds for which it is held for sure if no keep-alive succeeds from now on."""
        return self._look()

    def check(self) -> None:
        """Raise LockLost unless the lock is held."""
        if not self.held():
            raise LockLost("the lock %r is not held: %s" % (self.name, self.reason or "it was released"))

    @property
    def lost(self) -> threading.Event:
        """Set when the lock is lost, before the store may grant it to another."""
        self._look()
        return self._lost

    @property
    def reason(self) -> str:
        """Why it was lost; "" while it is not."""
        self._look()
        return self._reason

    def on_lost(self, tell: Callable[[str], None]) -> None:
        """Have tell(reason) called when the lock is lost, by the thread that notices: it must return at once."""
        self._after_fork()
        with self._mutex:
            if not self._lost.is_set():
                self._told.append(tell)
                return
        tell(self._reason)

    def publish(self, value: bytes) -> None:
        """Replace the value that others see with the lock (at most 1 KB)."""
        self.check()
        self._values += 1
        body = {"value": base64.b64encode(value).decode(), "number": self._values}
        self._client._of(self, "PUT", "/value", body)

    def release(self) -> None:
        """Give the lock back. LockLost if it was lost before.

        Any other error says that it is not confirmed. The client repeats the release then, for as
        long as its session lives; a second call of release asks again.
        """
        self._after_fork()
        self._client._release(self)

    def _after_fork(self) -> None:
        """In a child that was forked, let go of what its parent holds: held() is false, and release does nothing.

        Before any mutex, as in the client. Two threads may be here at once: each leaves the same.
        """
        self._client._after_fork()
        process = os.getpid()
        if self._process != process:
            if not self._over and not self._lost.is_set():
                self._reason = "process %d holds it, of which this one was forked" % self._process
            lost = threading.Event()
            lost.set()
            self._mutex, self._lost, self._told = threading.Lock(), lost, []
            self._over = self._done = True
            self._process = process

    def _look(self) -> float:
        """How long it is held for sure, by the clock: 0 if it is not.

        What is over is lost from this moment on. After a pause the program may come here before any
        thread of the client has run, and a keep-alive that succeeds a moment later must not make
        held what was told as lost.
        """
        self._after_fork()
        client = self._client
        with client._mutex:
            if self._over or self._lost.is_set():
                return 0.0
            left = self._deadline() - client._clock()
            if left > 0:
                return left
            client._lapse(self)
        self._end(OVER)
        return 0.0

    def _deadline(self) -> float:
        """Until when it is held for sure. What the last keep-alive did not renew has its own time, and not the session's."""
        with self._client._mutex:  # session, number and times belong together: a move and a keep-alive change them in one step
            session = self._session
            return min(session.deadline, session.late.get(self._number, session.deadline))

    def _end(self, reason: str) -> None:
        with self._mutex:
            if self._over or self._lost.is_set():
                return
            self._reason = reason
            self._lost.set()
            told, self._told = self._told, []
        for tell in told:
            try:
                tell(reason)
            except Exception:  # it would end the thread that keeps the other locks
                logging.getLogger("hasplock").exception("what was to be told of the loss of %r has failed", self.name)


class Entered:
    """What with statements have entered, by the thread or task that has. Each step is one of a list:
    a mutex might be held by another thread at a fork."""

    def __init__(self) -> None:
        self._all: list[tuple[object, Any]] = []

    def push(self, who: object, what: Any) -> None:
        self._all.append((who, what))

    def pop(self, who: object) -> Any:
        """What who has entered last; what was entered last by any, if another one leaves the block than has
        entered it, as frameworks have it that enter and leave in threads or tasks of their choice."""
        while True:
            everything = self._all.copy()
            entry = next((each for each in reversed(everything) if each[0] == who), None) or everything[-1]
            try:
                self._all.remove(entry)
            except ValueError:
                continue  # another thread was quicker
            return entry[1]


class Lock:
    """A lock of a name. Use it in a with statement, as often as you like, from any thread."""

    def __init__(self, client: "Client", request: dict[str, Any], timeout: Optional[float]) -> None:
        self._client, self._request, self._timeout = client, request, timeout
        self._entered = Entered()

    def acquire(self, timeout: Optional[float] = None) -> Lease:
        """Wait for the lock, first come, first served.

        Busy after timeout seconds. Unavailable instead, if the server cannot be reached then; of one
        that is silent, some 15 seconds later.
        """
        lease = self._client._acquire(self._request, self._timeout if timeout is None else timeout, Cancel())
        assert lease is not None
        return lease

    def __enter__(self) -> Lease:
        lease = self.acquire()
        self._entered.push(threading.get_ident(), lease)
        return lease

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        """Release. If the lock was lost meanwhile, and the block has not failed, this raises LockLost."""
        lease: Lease = self._entered.pop(threading.get_ident())
        try:
            lease.release()
        except LockLost:
            if kind is None:
                raise
        except Unavailable:
            pass  # nothing more is done under it: the store frees it when its time is over
