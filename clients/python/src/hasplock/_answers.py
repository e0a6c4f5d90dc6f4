"""What the server answers, with its shape checked. An answer of another shape is none: a proxy's, or one that was cut
off. The request is repeated then, as after silence."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from ._errors import Unavailable


@dataclass
class Opened:
    session: str
    valid: float  # seconds
    can: list[str]


@dataclass
class Alive:
    valid: float
    late: dict[int, float]  # what the store has not renewed, and for how long it is valid
    lost: dict[int, str]  # and why


@dataclass
class Entered:
    """state is held, waiting or busy."""

    state: str
    token: int
    entry: str
    quarantine: float = 0.0  # seconds: the store grants nothing for so long, and no holder is known


@dataclass
class News:
    version: int
    lost: dict[int, str]
    held: dict[int, int]  # numbers of locks that waited, and their tokens
    waiting: list[int]  # those that the server waits for no longer
    draining: bool


def opened(answer: Any) -> Opened:
    a = _object(answer)
    return Opened(_text(a, "session"), _seconds(a, "valid_ms", 0.001), [x for x in _array(a, "can") if isinstance(x, str)])


def alive(answer: Any) -> Alive:
    a = _object(answer)
    late = {_whole(x, "lock", 1): _seconds(x, "valid_ms") for x in map(_object, _array(a, "late", True))}
    return Alive(_seconds(a, "valid_ms"), late, _lost(a, True))


def entered(answer: Any) -> Entered:
    a = _object(answer)
    state = _text(a, "state")
    quarantine = _seconds(a, "quarantine_ms") if "quarantine_ms" in a else 0.0
    if state == "busy":
        return Entered(state, 0, "", quarantine)
    if state not in ("held", "waiting"):
        raise _odd("the state %r" % state)
    return Entered(state, _whole(a, "token", 0, True), _text(a, "entry"), quarantine)


def news(answer: Any) -> News:
    a = _object(answer)
    made = News(_whole(a, "version", 0), _lost(a), {}, [], a.get("draining") is True)
    for each in map(_object, _array(a, "changed", True)):
        number = _whole(each, "lock", 1)
        if each.get("state") == "held":
            made.held[number] = _whole(each, "token", 0, True)
        else:
            made.waiting.append(number)
    return made


def published(answer: Any) -> Optional[bytes]:
    """What the holder in a queue has published, or None if nothing in it holds."""
    for entry in map(_object, _array(_object(answer), "entries")):
        if not entry.get("waits"):
            try:
                return base64.b64decode(str(entry.get("value", "")), validate=True)
            except ValueError:
                raise _odd("a value") from None
    return None


def nothing(answer: Any) -> None:
    """Of what is only done. Somebody else's 200 does not say that it was."""
    if answer is not None:
        raise _odd("something where nothing is said")


def _odd(what: str) -> Unavailable:
    return Unavailable("the answer is not that of hasp serve (%s): something is in between" % what)


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _odd("no object")
    return value


def _array(a: Mapping[str, Any], key: str, absent: bool = False) -> list[Any]:
    value = a.get(key)
    if absent and key not in a:
        return []
    if not isinstance(value, list):
        raise _odd(key)
    return value


def _text(a: Mapping[str, Any], key: str) -> str:
    value = a.get(key)
    if not isinstance(value, str) or not value:
        raise _odd(key)
    return value


def _whole(a: Mapping[str, Any], key: str, least: int, absent: bool = False) -> int:
    value = a.get(key)
    if absent and key not in a:
        return 0
    if type(value) is not int or value < least:  # True is an int, too
        raise _odd(key)
    return value


def _seconds(a: Mapping[str, Any], key: str, least: float = 0.0) -> float:
    value: Any = a.get(key)
    if type(value) not in (int, float) or not least * 1000 <= value < math.inf:
        raise _odd(key)
    return float(min(value, 1e9)) / 1000


def _lost(a: Mapping[str, Any], absent: bool = False) -> dict[int, str]:
    return {_whole(x, "lock", 1): str(x.get("detail", "the store has it no more")) for x in map(_object, _array(a, "lost", absent))}
