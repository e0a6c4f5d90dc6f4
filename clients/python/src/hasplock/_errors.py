"""The errors. Each has the server's words, which say what to do."""

from __future__ import annotations

from typing import Any, Mapping


class HaspError(Exception):
    """The base of all errors. type is the server's, such as "refused"; "" if the error is not the server's."""

    type = ""


class LockLost(HaspError):
    """The lock is not held any more, or may be another's at any moment."""


class Busy(HaspError):
    """The lock is held by others, and the time to wait is over."""


class Quarantine(HaspError):
    """No holder of the lock is known, but the store may have forgotten locks: it grants none for another seconds.

    It is not Busy: do not take it for another that does the work.
    """

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(
            "no holder of the lock %r is known, but the store may have forgotten locks, and grants none for another %.1f s: try again then, or wait" % (name, seconds)
        )
        self.seconds = max(seconds, 0.0)


class Refused(HaspError):
    """The server or the store refuses: a missing right, a limit, a name that is used by another kind of lock."""


class Unavailable(HaspError):
    """There is no answer, or the store does not answer the server. The outcome is unknown."""


class Closed(HaspError):
    """The client is closed."""


class SessionGone(HaspError):
    """The server does not know the session (any more). The client deals with it by itself."""


class Gone(HaspError):
    """The lock is gone from the store. The client turns it into LockLost, or asks again."""


# What may pass: the request is repeated.
PASSING = {"unknown", "overtaken", "draining", "limit"}


def from_problem(status: int, problem: Mapping[str, Any]) -> HaspError:
    """The error of an answer of application/problem+json."""
    kind = str(problem.get("type", "")).replace("urn:hasp:", "", 1)
    text = str(problem.get("detail") or problem.get("title") or "HTTP status %d" % status)
    cls: type[HaspError] = Refused
    if kind == "session-gone":
        cls = SessionGone
    elif kind in ("gone", "forgotten"):
        cls = Gone
    elif kind in PASSING or (kind == "refused" and not problem.get("final")) or status >= 500 and not kind:
        cls = Unavailable
    error = cls(text)
    error.type = kind
    return error
