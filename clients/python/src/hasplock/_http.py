"""Requests to the server, by the standard library, over connections that are kept."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import socket
import ssl
import threading
from typing import Any, Callable, Iterator, Optional
from urllib.parse import urlsplit

from ._errors import HaspError, Refused, Unavailable, from_problem

PATIENCE = 15.0  # seconds, for an answer that waits for nothing
KEPT = 8  # connections that no request uses
LARGEST = 64 << 20  # bytes of an answer


class Cancelled(Exception):
    """The request was given up by this client."""


class Cancel:
    """Ends requests of other threads by shutting their connections down, and calls those that wait otherwise."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._used: list[socket.socket] = []
        self._calls: list[Callable[[], None]] = []
        self.set = False

    def __call__(self) -> None:
        with self._mutex:
            self.set = True
            used, calls = list(self._used), list(self._calls)
        for call in calls:
            call()
        for each in used:
            try:
                socket.socket.shutdown(each, socket.SHUT_RDWR)  # that of TLS takes away what the other thread uses
            except OSError:
                pass  # it has just ended

    @contextlib.contextmanager
    def calling(self, call: Callable[[], None]) -> Iterator[None]:
        """Have call called by the thread that cancels."""
        with self._mutex:
            if self.set:
                raise Cancelled
            self._calls.append(call)
        try:
            yield
        finally:
            with self._mutex:
                self._calls.remove(call)

    @contextlib.contextmanager
    def over(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        """Make a request that can be cancelled over a connection, which has its socket before that."""
        if connection.sock is None:
            connection.connect()
        used = connection.sock  # http.client may let go of it before the answer is read
        with self._mutex:
            if self.set:
                raise Cancelled
            self._used.append(used)
        try:
            yield
        finally:
            with self._mutex:
                self._used.remove(used)


class Transport:
    """Makes requests of one server."""

    def __init__(self, url: str, token: Optional[str], tls: Optional[ssl.SSLContext]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query or "@" in parts.netloc:
            raise ValueError("the URL of a server is as http://127.0.0.1:7070 or https://locks.example.com")
        if token and parts.scheme == "http" and not _this_machine(parts.hostname):
            raise ValueError("a token is sent over TLS, or to this machine: use https")
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ValueError("a token has no spaces and no line ends")
        if tls and parts.scheme == "http":
            raise ValueError("with TLS the URL begins with https")
        self.host, self.port, self.secure = parts.hostname, parts.port, parts.scheme == "https"
        self._token = token
        self._tls = tls or (ssl.create_default_context() if self.secure else None)
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False
        self.begin_process()

    def begin_process(self) -> None:
        """In a child that was forked: close the parent's connections here, which says nothing to the server."""
        for connection in self._idle:
            connection.close()
        self._idle = []
        self._mutex = threading.Lock()

    def __str__(self) -> str:
        return "hasp serve at %s%s" % (self.host, ":%d" % self.port if self.port else "")

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self.secure:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def _take(self) -> Optional[http.client.HTTPConnection]:
        with self._mutex:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._mutex:
            if not self._closed and len(self._idle) < KEPT:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the connections: those that no request uses now, and the others after their requests."""
        with self._mutex:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def _headers(self, session: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = "Bearer " + self._token
        if session:
            headers["Hasp-Session"] = session
        return headers

    def request(
        self, method: str, path: str, body: Any = None, session: str = "", wait: float = 0.0, cancel: Optional[Cancel] = None, timeout: Optional[float] = None
    ) -> Any:
        """Make one request. Every request of the API may be repeated, so it is, once, where a kept connection has just ended."""
        limit = (PATIENCE if timeout is None else max(timeout, 0.001)) + wait
        while True:
            kept = self._take()
            connection = kept or self._connect(limit)
            if connection.sock is not None:
                connection.sock.settimeout(limit)
            else:
                connection.timeout = limit
            try:
                with contextlib.nullcontext() if cancel is None else cancel.over(connection):
                    connection.request(method, path, body=None if body is None else json.dumps(body), headers=self._headers(session))
                    response = connection.getresponse()
                    data = _body(response)
                break
            except Cancelled:
                connection.close()
                raise
            except (OSError, http.client.HTTPException, ValueError) as e:  # ValueError: what is no HTTP at all
                connection.close()
                if cancel is not None and cancel.set:
                    raise Cancelled from None
                if kept and not isinstance(e, (socket.timeout, TimeoutError)):
                    continue  # until no kept one is left
                raise Unavailable("%s: %s" % (self, e or type(e).__name__)) from None
            except BaseException:  # Ctrl-C: what comes over the connection next is the answer to this request
                connection.close()
                raise
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        return self._answer(response.status, response.getheader("Content-Type") or "", data)

    def _answer(self, status: int, kind: str, data: bytes) -> Any:
        """What was answered, as JSON; None is an answer without content, which has a status of its own: 204."""
        if status == 204:
            return None
        try:
            value = json.loads(data, parse_constant=_no_number) if data else None
        except (ValueError, RecursionError):
            value = None
        if 200 <= status < 300:
            if value is None:
                raise Unavailable("%s has answered something else than JSON: something is in between" % self)
            return value
        if 300 <= status < 400:
            # What is sent has the session in it, which is the key to its locks, and maybe a token.
            raise Refused("%s answers %d: no redirect is followed, so give the URL of the server itself" % (self, status))
        if kind.split(";")[0] != "application/problem+json" or not isinstance(value, dict):
            error: HaspError = Unavailable("%s answers %d, and is not hasp serve, or something is in between" % (self, status))
            if 400 <= status < 500:
                error = Refused(str(error))
            raise error
        raise from_problem(status, value)

    def stream(self, path: str, line: Callable[[str], bool], silence: float, cancel: Cancel) -> None:
        """Read lines until line returns False, the server ends them, it is silent for so long, or it is cancelled."""
        connection = self._connect(silence)
        try:
            with cancel.over(connection):
                connection.request("GET", path, headers=self._headers(""))
                response = connection.getresponse()
                if response.status != 200:
                    self._answer(response.status, response.getheader("Content-Type") or "", _body(response))
                    raise Unavailable("%s answers %d where lines are sent: something is in between" % (self, response.status))
                while True:
                    text = response.readline(1000)
                    if not text or not line(text.decode("utf-8", "replace").strip()):
                        return
        except (OSError, http.client.HTTPException, ValueError) as e:
            if cancel.set:
                raise Cancelled from None
            raise Unavailable("%s: %s" % (self, e or type(e).__name__)) from None
        finally:
            connection.close()


def _this_machine(host: str) -> bool:
    """By the address, not by how it is written: 127.0.0.1.example.com is a name, and anybody's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _body(response: http.client.HTTPResponse) -> bytes:
    """All of an answer. One that was cut off, or never ends, is none."""
    data = bytearray()
    while len(data) <= LARGEST:
        part = response.read(1 << 16)
        if not part:
            break
        data += part
    if response.length or len(data) > LARGEST:
        raise http.client.IncompleteRead(b"", response.length)
    return bytes(data)


def _no_number(text: str) -> None:
    raise ValueError(text)
