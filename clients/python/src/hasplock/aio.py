"""The same client for asyncio.

    async with hasplock.aio.Client() as client:
        async with client.lock("nightly-report") as lease:
            await write_report(fencing_token=lease.token)

The loss of the lock cancels the block, as asyncio.timeout does, and LockLost is raised.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import ssl
from types import TracebackType
from typing import Any, AsyncIterator, Optional

from . import _client, _lease
from ._errors import LockLost, Unavailable
from ._http import Cancel

__all__ = ["Client", "Lock"]


class Lock:
    """A lock of a name, for async with."""

    def __init__(self, client: "Client", lock: _lease.Lock) -> None:
        self._client, self._lock = client, lock
        self._entered = _lease.Entered()

    async def acquire(self, timeout: Optional[float] = None) -> _lease.Lease:
        """Wait for the lock. Cancelling gives the place in the queue up."""
        wait = self._lock._timeout if timeout is None else timeout
        lease = await self._client._acquire(self._client._threads.waits, self._lock._request, wait)
        assert lease is not None
        return lease

    async def __aenter__(self) -> _lease.Lease:
        lease = await self.acquire()
        self._entered.push(asyncio.current_task(), (lease, _Block(lease)))
        return lease

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        lease, block = self._entered.pop(asyncio.current_task())
        lost = block.end()
        try:
            await self._client.release(lease)
        except LockLost:
            if kind is None or lost and kind is asyncio.CancelledError:
                raise
        except Unavailable:
            pass  # nothing more is done under it: the store frees it when its time is over


class _Block:
    """Cancels the task of a block when its lease is lost."""

    def __init__(self, lease: _lease.Lease) -> None:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._cancelled = False
        lease.on_lost(self._lost)

    def _lost(self, _: str) -> None:
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            pass  # the loop is closed

    def _cancel(self) -> None:
        if not self._ended and self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def end(self) -> bool:
        """Whether the loss has cancelled the block; if so the task is not cancelled any more.

        A block may be left in another task, which was not cancelled.
        """
        self._ended = True
        here = self._cancelled and self._task is asyncio.current_task()
        if here and self._task is not None and hasattr(self._task, "uncancel"):
            self._task.uncancel()
        return here


class Client:
    """hasplock.Client for asyncio: each wait for a lock, and each observer, takes a thread, of threads at most at once."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:7070",
        *,
        token: Optional[str] = None,
        ttl: float = 10.0,
        tls: Optional[ssl.SSLContext] = None,
        note: str = "",
        threads: int = 64,
    ) -> None:
        self._sync = _client.Client(url, token=token, ttl=ttl, tls=tls, note=note)
        self._count = threads
        self._processes: dict[int, _Threads] = {}  # a child that was forked has none of its parent's threads

    @property
    def _threads(self) -> "_Threads":
        return self._processes.get(os.getpid()) or self._processes.setdefault(os.getpid(), _Threads(self._count))

    def _run(self, call: Any, *args: Any) -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().run_in_executor(self._threads.short, call, *args)

    async def _acquire(self, threads: concurrent.futures.Executor, request: dict[str, Any], wait: Optional[float]) -> Optional[_lease.Lease]:
        """Acquire in a thread. What is granted to a task that is cancelled is given back."""
        cancel = Cancel()
        work = threads.submit(self._sync._acquire, request, wait, cancel)
        try:
            lease = await _to_its_end(asyncio.wrap_future(work))
            assert lease is None or isinstance(lease, _lease.Lease)
            return lease
        except asyncio.CancelledError:
            cancel()
            if not work.cancel():  # it has begun, and a server that is silent would keep the task here
                work.add_done_callback(self._give_back)
            raise

    def _give_back(self, work: "concurrent.futures.Future[Optional[_lease.Lease]]") -> None:
        """Release what an acquisition that was cancelled may have been granted just before."""
        lease = None if work.exception() else work.result()
        if lease is not None:
            try:
                self._threads.short.submit(lease.release)  # this may be the loop's thread
            except RuntimeError:
                pass  # the client is closed: that gives everything back

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def lock(self, name: str, *, timeout: Optional[float] = None, note: str = "", ask: str = "") -> Lock:
        """As Client.lock."""
        return Lock(self, self._sync.lock(name, timeout=timeout, note=note, ask=ask))

    def read_lock(self, name: str, *, timeout: Optional[float] = None, note: str = "", ask: str = "") -> Lock:
        """As Client.read_lock."""
        return Lock(self, self._sync.read_lock(name, timeout=timeout, note=note, ask=ask))

    def semaphore(self, name: str, capacity: int, units: int = 1, *, timeout: Optional[float] = None, note: str = "", ask: str = "") -> Lock:
        """As Client.semaphore."""
        return Lock(self, self._sync.semaphore(name, capacity, units, timeout=timeout, note=note, ask=ask))

    def election(self, name: str, value: bytes, *, timeout: Optional[float] = None, note: str = "", ask: str = "") -> Lock:
        """As Client.election."""
        return Lock(self, self._sync.election(name, value, timeout=timeout, note=note, ask=ask))

    async def try_lock(self, name: str, *, note: str = "") -> Optional[_lease.Lease]:
        """As Client.try_lock; release it with await client.release(lease)."""
        return await self._acquire(self._threads.short, self._sync._tries(name, note=note), 0.0)

    async def release(self, lease: _lease.Lease) -> None:
        """Release without blocking the loop. A task that is cancelled meanwhile does not stop the release."""
        await _to_its_end(self._run(lease.release))

    async def leader(self, name: str) -> Optional[bytes]:
        """As Client.leader."""
        value = await self._run(self._sync.leader, name)
        assert value is None or isinstance(value, bytes)
        return value

    async def observe(self, name: str) -> AsyncIterator[Optional[bytes]]:
        """As Client.observe."""
        cancel, end, threads = Cancel(), object(), self._threads
        values = self._sync._observe(name, cancel)
        threads.observers.add(cancel)
        try:
            while not self._sync._closed:
                value: Any = await asyncio.get_running_loop().run_in_executor(threads.waits, next, values, end)
                if value is end:
                    return
                yield value
        finally:
            cancel()  # a task that is cancelled leaves its thread in a request
            threads.observers.discard(cancel)

    async def close(self) -> None:
        """As Client.close."""
        for cancel in self._threads.observers:
            cancel()
        await self._run(self._sync.close)
        self._threads.waits.shutdown(wait=False)
        self._threads.short.shutdown(wait=False)


class _Threads:
    """Of a process."""

    def __init__(self, count: int) -> None:
        self.waits = concurrent.futures.ThreadPoolExecutor(count, "hasplock-wait")
        # For what ends by itself. Waits take no thread from it: a release is what they wait for.
        self.short = concurrent.futures.ThreadPoolExecutor(count, "hasplock-short")
        self.observers: set[Cancel] = set()


async def _to_its_end(work: "asyncio.Future[Any]") -> Any:
    """Wait for work, which goes on if the task is cancelled. Its error is of no interest then."""
    work.add_done_callback(lambda _: work.cancelled() or work.exception())
    return await asyncio.shield(work)
