"""What the client believes, against a server and a clock that the test makes."""

import threading
import unittest
from unittest import mock

import hasplock
from hasplock._client import Lease, _Session
from hasplock._errors import SessionGone, Unavailable


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


class Server:
    """Answers what it is told to; each request may take time, before and after the server has acted."""

    def __init__(self, clock):
        self.clock, self.asked = clock, []
        self.there = self.back = 0.0
        self.fail = None
        self.tokens = 0

    def request(self, method, path, body=None, session="", **_):
        self.asked.append((method, path.split("?")[0]))
        self.clock.time += self.there
        if self.fail:
            raise self.fail
        self.clock.time += self.back
        if path == "/v1/session":
            return {"session": "s%d" % len(self.asked), "valid_ms": 60000}
        if path == "/v1/session/keepalive":
            return {"valid_ms": 60000}
        if path.endswith("/adopt"):
            return {"state": "held", "token": body["seq"], "entry": "new"}
        if method == "PUT":
            self.tokens += 1
            return {"state": "held", "token": self.tokens, "entry": "e"}
        return None


class Timing(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.server = Server(self.clock)
        self.client = hasplock.Client(ttl=60)
        self.client._clock, self.client._http = self.clock, self.server
        # The threads of the background are the test's: each step is called by hand.
        mock.patch.object(self.client, "_start").start()
        self.addCleanup(mock.patch.stopall)

    def expired(self, session):
        """What the watching thread does at the deadline."""
        self.client._watch(session)

    def test_trust_is_counted_from_before_the_request(self):
        self.server.there, self.server.back = 10.0, 10.0
        with self.client.lock("a") as lease:
            # Opened at 1000, before the way there and back, granted for 60, of which a tenth is not used.
            self.assertEqual(lease._session.deadline, 1000 + 54)
            self.clock.time = 1053.9
            self.assertTrue(lease.held())
            self.clock.time = 1054
            self.assertFalse(lease.held())

    def test_a_client_that_counts_from_the_answer_trusts_for_too_long(self):
        # The control: what the check above is for. The store granted at 1010, so until 1070.
        self.server.there, self.server.back = 10.0, 50.0
        session = self.client._open()
        self.assertLess(session.deadline, 1070)
        wrong = _Session(session.id, 60.0, self.clock())
        self.assertGreater(wrong.deadline, 1070)

    def test_keep_alive_extends(self):
        with self.client.lock("a") as lease:
            session = lease._session
            self.clock.time += 20
            self.server.back = 5.0
            self.client._keep_once(session)
            self.assertEqual(session.deadline, 1020 + 54)

    def test_loss_is_told_at_the_deadline(self):
        told = []
        lease = self.client.lock("a").acquire()
        lease.on_lost(told.append)
        self.server.fail = Unavailable("no answer")
        self.clock.time += 20
        self.client._keep_once(lease._session)
        self.assertTrue(lease.held())
        self.clock.time = 1054
        self.expired(lease._session)
        self.assertTrue(lease.lost.is_set())
        self.assertEqual(len(told), 1)
        with self.assertRaises(hasplock.LockLost):
            lease.release()

    def test_with_raises_if_lost(self):
        with self.assertRaises(hasplock.LockLost):
            with self.client.lock("a") as lease:
                lease._end("test")
        with self.assertRaises(ZeroDivisionError):
            with self.client.lock("a") as lease:
                lease._end("test")
                1 / 0

    def test_session_moves(self):
        lease = self.client.lock("a").acquire()
        old = lease._session
        with mock.patch.object(self.server, "request", side_effect=self.forgets(old.id, self.server.request)):
            self.client._keep_once(old)
            self.assertIsNot(lease._session, old)
            self.assertTrue(lease.held())
            self.assertIn(("POST", "/v1/locks/1/adopt"), self.server.asked)
            lease.release()
        self.assertEqual(self.server.asked[-1][0], "DELETE")

    def forgets(self, id, request):
        def asked(method, path, body=None, session="", **more):
            if session == id:
                raise SessionGone("no such session")
            return request(method, path, body, session, **more)

        return asked

    def test_release_that_the_old_session_confirms_is_repeated(self):
        lease = self.client.lock("a").acquire()
        old = lease._session
        request = self.server.request

        def moves_meanwhile(method, path, body=None, session="", **more):
            if method == "DELETE" and session == old.id:
                self.client._recover(old)  # another thread
                return None
            return request(method, path, body, session, **more)

        with mock.patch.object(self.server, "request", side_effect=moves_meanwhile):
            lease.release()
        self.assertEqual(self.server.asked[-1], ("DELETE", "/v1/locks/1"))
        self.assertIsNot(lease._session, old)

    def test_time_is_over_during_a_move(self):
        lease = self.client.lock("a").acquire()
        old = lease._session
        request = self.server.request

        def slow(method, path, body=None, session="", **more):
            if path.endswith("/adopt"):
                self.clock.time = old.deadline
                self.expired(old)  # another thread tells the loss
            return request(method, path, body, session, **more)

        with mock.patch.object(self.server, "request", side_effect=slow):
            self.client._recover(old)
            self.assertTrue(lease.lost.is_set())
            # Nothing may keep the lock alive: the session that has adopted it is closed, and is no client's.
            self.assertEqual(self.server.asked[-1], ("DELETE", "/v1/session"))
            self.assertIsNone(self.client._session)

    def test_no_keep_alive_counts_during_a_move(self):
        lease = self.client.lock("a").acquire()
        old = lease._session
        request, believed = self.server.request, []

        def stuck(method, path, body=None, session="", **more):
            if path.endswith("/adopt"):
                self.clock.time += 20
                if self.clock.time < old.deadline:
                    self.client._keep_once(old)  # another thread; a server that is about to end still answers
                believed.append(old.deadline)
                raise Unavailable("the answer is lost")
            return request(method, path, body, session, **more)

        with mock.patch.object(self.server, "request", side_effect=stuck), mock.patch.object(self.client, "_pause"):
            self.client._recover(old)
        self.assertEqual(set(believed), {1000 + 54})
        self.assertTrue(lease.lost.is_set())

    def test_release_outlasts_a_server_that_is_away_for_a_moment(self):
        lease = self.client.lock("a").acquire()
        old, away = lease._session, [True]
        forgets = self.forgets(old.id, self.server.request)

        def restarts(method, path, body=None, session="", **more):
            if path == "/v1/session" and away:
                away.pop()
                raise Unavailable("it is about to start")
            return forgets(method, path, body, session, **more)

        with mock.patch.object(self.server, "request", side_effect=restarts), mock.patch.object(self.client, "_pause"):
            lease.release()
        self.assertEqual(self.server.asked[-2:], [("POST", "/v1/locks/1/adopt"), ("DELETE", "/v1/locks/1")])

    def test_bad_input(self):
        for url in ("127.0.0.1:7070", "ftp://x", "http://x/path", "http://u@x"):
            with self.assertRaises(ValueError):
                hasplock.Client(url)
        with self.assertRaises(ValueError):
            hasplock.Client("http://192.0.2.1", token="secret")
        with self.assertRaises(ValueError):
            hasplock.Client(ttl=0)
        with self.assertRaises(ValueError):
            self.client.lock("")


if __name__ == "__main__":
    unittest.main()
