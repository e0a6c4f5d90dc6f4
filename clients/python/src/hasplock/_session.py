"""A session at the server, as its client knows it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ._answers import Opened
from ._http import Cancel

if TYPE_CHECKING:
    from ._lease import Lease

# Trust ends a tenth before the store's time does: for clocks that differ, and for what is on its way.
TRUST = 0.9

# What a place has heard.
HELD = "held"
ASK = "ask"  # the server waits for it no longer
GONE = "gone"


class Session:
    """Guarded by the client's mutex."""

    def __init__(self, opened: Opened, valid: float, sent: float) -> None:
        self.id = opened.session
        self.valid = valid
        self.deadline = sent + valid * TRUST
        self.adoptable = "adopt" in opened.can  # by another server
        self.late: dict[int, float] = {}  # numbers that the last keep-alive did not renew, and their own deadlines
        self.moving = False  # to another server: its keep-alives say nothing about what that one has adopted
        self.last = 0
        self.leases: dict[int, "Lease"] = {}
        self.places: dict[int, Place] = {}  # of acquisitions that are under way
        self.rest: dict[int, float] = {}  # numbers of leases that ended alone, and when their places are given up
        self.leaving: set[int] = set()  # numbers whose release is not confirmed
        self.heard = sent  # when the server has last answered with news, or that there are none
        self.draining = False  # the server is about to end, and tells no news any more
        self.polls = Cancel()  # ends the request for news

    def place(self, mutex: threading.RLock) -> "Place":
        """A place for another lock."""
        self.last += 1
        made = self.places[self.last] = Place(self, self.last, mutex)
        return made


class Place:
    """Of an acquisition. It is there before its request is sent, so that news that overtake the answer find it."""

    def __init__(self, session: Session, number: int, mutex: threading.RLock) -> None:
        self.session, self.number = session, number
        self.bell = threading.Condition(mutex)  # rung when there are news, or the session is left
        self.news = ""
        self.left = False  # the server has forgotten the session
        self.token = 0
        self.entry = ""
        self.opens = 0.0  # when a store that may have forgotten locks grants again

    def hear(self, news: str, token: int = 0) -> None:
        """Note news. What is held may be lost afterwards, and nothing else comes after these two."""
        if self.news == GONE or self.news == HELD and news == ASK:
            return
        self.news = news
        self.token = token
        self.bell.notify_all()
