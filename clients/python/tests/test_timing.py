"""What the client believes, against a server and a clock that the test makes."""

import asyncio
import ssl
import sys
import threading
import unittest
from unittest import mock

import hasplock
import hasplock.aio
from hasplock._answers import News, Opened
from hasplock._session import Session
from hasplock._errors import Closed, Refused, SessionGone, Unavailable
from hasplock._http import Cancelled, Transport


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
        self.can = ["adopt"]
        self.tokens = 0
        self.late = []  # what the next keep-alive does not renew
        self.waits = []  # what is called while the next PUT is under way, which is answered that it waits
        self.bodies = []

    def close(self):
        pass

    def request(self, method, path, body=None, session="", **_):
        self.asked.append((method, path.split("?")[0]))
        self.bodies.append(body)
        self.clock.time += self.there
        if self.fail:
            raise self.fail
        self.clock.time += self.back
        if path == "/v1/session":
            return {"session": "s%d" % len(self.asked), "valid_ms": 60000, "can": self.can}
        if path == "/v1/session/keepalive":
            return {"valid_ms": 60000, "late": self.late}
        if path.endswith("/adopt"):
            return {"state": "held", "token": body["seq"], "entry": "new"}
        if method == "PUT" and self.waits:
            self.waits.pop(0)()
            return {"state": "waiting", "entry": "e"}
        if method == "PUT":
            self.tokens += 1
            return {"state": "held", "token": self.tokens, "entry": "e"}
        return None


def slow_acquisition():
    """One that has begun, is granted when the test says so, and then tells when its lease is released."""
    begun, granted, released = threading.Event(), threading.Event(), threading.Event()
    lease = mock.Mock(release=released.set)

    def acquire(*_):
        begun.set()
        granted.wait()
        return lease

    return begun, granted, released, acquire


class Timing(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.server = Server(self.clock)
        self.client = hasplock.Client(ttl=60)
        self.client._clock, self.client._http = self.clock, self.server
        # The threads of the background are the test's: each step is called by hand.
        mock.patch.object(self.client, "_start").start()
        self.addCleanup(mock.patch.stopall)

    def granted(self, number, token=7):
        """News by which a lock that waits is held, as the listening thread hears them."""
        self.client._hear(self.client._session, News(1, {}, {number: token}, [], False))

    def expired(self, session):
        """What the watching thread does at the deadline."""
        self.client._watch(session)

    def test_trust_is_counted_from_before_the_request(self):
        self.server.there, self.server.back = 10.0, 10.0
        lease = self.client.lock("a").acquire()
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
        wrong = Session(Opened(session.id, 60.0, []), 60.0, self.clock())
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

    def watch(self, session, until):
        """What the watching thread does until then; when it has looked, and which numbers were to be left by then."""
        looks = []

        class Enough(Exception):
            pass

        def wait(seconds):
            looks.append((self.clock.time, set(session.leaving)))
            if self.clock.time + seconds > until:
                raise Enough
            self.clock.time += seconds

        with mock.patch.object(self.client._changed, "wait", wait), self.assertRaises(Enough):
            self.client._watch(session)
        return looks

    def test_loss_is_told_soon_after_a_suspension(self):
        lease = self.client.lock("a").acquire()
        waits = []

        def suspended(seconds):
            waits.append(seconds)  # by a clock that stands still while the machine sleeps
            self.clock.time += 3600

        with mock.patch.object(self.client._changed, "wait", suspended):
            self.client._watch(lease._session)
        self.assertTrue(lease.lost.is_set())
        self.assertEqual(waits, [1.0])

    def late_and_granted(self):
        """A lease that the last keep-alive has renewed, and one that was late by then, has waited, and was granted afterwards."""
        renewed = self.client.lock("a").acquire()

        def keep():
            self.clock.time += 20
            self.server.late = [{"lock": 2, "valid_ms": 40000}]
            self.assertLessEqual(self.client._keep_once(renewed._session), 1)  # it asks again soon
            self.granted(2)

        self.server.waits = [keep]
        return renewed, self.client.lock("b").acquire()

    def test_what_was_late_is_trusted_for_its_own_time(self):
        renewed, late = self.late_and_granted()
        # Not renewed at 1020, when the store kept it for 40 more, of which a tenth is not used.
        self.clock.time = 1020 + 35.9
        self.assertTrue(late.held())
        self.assertLess(late.remaining(), 0.2)
        self.clock.time = 1020 + 36
        self.assertFalse(late.held())
        self.assertTrue(renewed.held())

    def test_what_was_late_is_lost_alone(self):
        renewed, late = self.late_and_granted()
        session = renewed._session
        told = []
        late.on_lost(lambda _: told.append(self.clock.time))
        looks = self.watch(session, 1020 + 43)
        self.assertEqual(told, [1020 + 36])
        self.assertFalse(renewed.lost.is_set())
        # Its place is given up when its time in the store is over, not before.
        self.assertEqual(session.leaving, {2})
        self.assertGreaterEqual(min(time for time, leaving in looks if leaving), 1020 + 40)
        self.clock.time = session.deadline
        self.expired(session)
        self.assertTrue(renewed.lost.is_set())

    def test_what_was_late_and_is_renewed(self):
        renewed, late = self.late_and_granted()
        self.clock.time += 1
        self.server.late = []
        self.client._keep_once(renewed._session)
        self.clock.time = 1021 + 53.9
        self.assertTrue(late.held())

    def test_what_is_late_and_held(self):
        renewed, late = self.client.lock("a").acquire(), self.client.lock("b").acquire()
        self.server.late = [{"lock": 2, "valid_ms": 10000}]
        self.client._keep_once(renewed._session)
        self.assertTrue(late.held())
        self.clock.time += 9
        self.assertFalse(late.held())
        self.assertTrue(renewed.held())

    def test_what_is_late_and_lost_during_a_move(self):
        renewed, late = self.late_and_granted()
        old = renewed._session
        request = self.server.request

        def slow(method, path, body=None, session="", **more):
            if path.endswith("/adopt") and body["name"] == "b":
                self.clock.time = 1020 + 36
                self.watch(old, self.clock.time)  # another thread tells the loss
            return request(method, path, body, session, **more)

        with mock.patch.object(self.server, "request", side_effect=slow):
            self.client._recover(old)
        self.assertTrue(late.lost.is_set())
        self.assertTrue(renewed.held())
        # The new session does not keep what was told as lost.
        self.assertEqual((list(self.client._session.leases), self.client._session.leaving), ([1], {2}))

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
        adopted, lease = self.client.lock("a").acquire(), self.client.lock("b").acquire()
        old = lease._session
        request = self.server.request

        def slow(method, path, body=None, session="", **more):
            if path.endswith("/adopt") and body["name"] == "b":
                self.clock.time = old.deadline
                self.expired(old)  # another thread tells the loss
            return request(method, path, body, session, **more)

        with mock.patch.object(self.server, "request", side_effect=slow):
            self.client._recover(old)
            self.assertTrue(lease.lost.is_set() and adopted.lost.is_set())
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

    def listens(self, session, answer, pauses=5):
        """The pauses of the listening thread at a server that answers it so, and opens no sessions, until the client is closed."""
        request, paused = self.server.request, []

        def answers(method, path, *args, **more):
            if not path.startswith("/v1/session"):
                return request(method, path, *args, **more)
            self.server.asked.append((method, path.split("?")[0]))
            self.assertLess(len(self.server.asked), 100)
            if method == "POST":
                raise Unavailable("it is about to end")
            if isinstance(answer, Exception):
                raise answer
            return answer

        def pause(seconds, *_):
            paused.append(seconds)
            if len(paused) == pauses:
                raise Closed("the client is closed")

        with mock.patch.object(self.server, "request", side_effect=answers), mock.patch.object(self.client, "_pause", pause):
            self.client._listen(session)
        return paused

    def test_server_that_is_about_to_end_and_no_other_one(self):
        lease = self.client.lock("a").acquire()
        opened = self.server.asked.count(("POST", "/v1/session"))
        self.assertEqual(self.listens(lease._session, {"version": 0, "lost": [], "draining": True}), [0.1, 0.2, 0.4, 0.8, 1.6])
        self.assertEqual(self.server.asked.count(("POST", "/v1/session")), opened + 5)
        self.assertTrue(lease.held())

    def test_server_that_is_about_to_end_and_a_store_that_cannot_hand_locks_on(self):
        self.server.can = []
        lease = self.client.lock("a").acquire()
        opened = self.server.asked.count(("POST", "/v1/session"))
        self.assertEqual(self.listens(lease._session, {"version": 0, "lost": [], "draining": True}), [0.1, 0.2, 0.4, 0.8, 1.6])
        self.assertEqual(self.server.asked.count(("POST", "/v1/session")), opened)
        self.assertTrue(lease.held())
        lease.release()
        self.recorded()
        self.client._listen(lease._session)  # nothing is held there any more
        self.assertIsNone(self.client._session)

    def recorded(self):
        """A list of all requests to come, each with its session."""
        request, all = self.server.request, []

        def asked(method, path, body=None, session="", **more):
            all.append((method, path, session))
            if path.startswith("/v1/session/events"):
                return {"version": 0, "lost": [], "draining": True}
            return request(method, path, body, session, **more)

        patched = mock.patch.object(self.server, "request", side_effect=asked)
        patched.start()
        self.addCleanup(patched.stop)
        return all

    def test_server_that_is_about_to_end_has_nothing_left(self):
        lease = self.client.lock("a").acquire()
        old, asked = lease._session, self.recorded()
        self.client._listen(old)
        self.assertEqual([path for _, path, _ in asked[1:3]], ["/v1/session", "/v1/locks/1/adopt"])
        self.assertEqual(asked[3:], [("DELETE", "/v1/session", old.id)])
        self.assertTrue(lease.held())

    def test_waiter_whose_session_was_left(self):
        asked = self.recorded()
        self.server.waits = [lambda: self.client._recover(self.client._session)]  # another thread
        lease = self.client.lock("a").acquire()
        old, new = asked[1][2], lease._session.id
        self.assertNotEqual(old, new)
        self.assertEqual(
            asked[1:], [("PUT", "/v1/locks/1", old), ("POST", "/v1/session", ""), ("POST", "/v1/evict", new), ("PUT", "/v1/locks/1", new)]
        )

    def test_waiter_at_a_server_that_waits_for_nothing_any_more(self):
        self.client.lock("b").acquire()
        self.client._session.draining = True
        self.server.waits = [lambda: None] * 3
        with mock.patch.object(self.client, "_pause") as pause, mock.patch("random.uniform", return_value=1.0):
            self.client.lock("a").acquire()
        self.assertEqual([call.args[0] for call in pause.call_args_list], [0.05, 0.1, 0.2])

    def waiter(self, **options):
        """An acquisition in a thread, which waits for news; what it is granted, and the error that ends it."""
        granted, waits = [], threading.Event()
        wait = self.client._await

        def acquire():
            try:
                granted.append(self.client.lock("a", **options).acquire())
            except hasplock.HaspError as e:
                granted.append(e)

        self.server.waits = [lambda: None]
        patched = mock.patch.object(self.client, "_await", side_effect=lambda *args: (waits.set(), wait(*args)))
        patched.start()
        self.addCleanup(patched.stop)
        thread = threading.Thread(target=acquire, daemon=True)
        thread.start()
        self.assertTrue(waits.wait(60))
        return thread, granted

    def test_grant_comes_as_news(self):
        thread, granted = self.waiter()
        asked = list(self.server.asked)
        self.granted(1, token=41)
        thread.join(60)
        self.assertEqual((granted[0].token, granted[0]._entry, granted[0].held()), (41, "e", True))
        self.assertEqual(self.server.asked, asked)  # without another request
        self.assertEqual(self.client._session.places, {})

    def test_grant_overtakes_the_answer_that_it_waits(self):
        self.server.waits = [lambda: self.granted(1, token=41)]
        self.assertEqual(self.client.lock("a").acquire().token, 41)

    def test_loss_overtakes_the_answer_that_it_is_held(self):
        request = self.server.request

        def lost(method, path, *args, **more):
            answer = request(method, path, *args, **more)
            if path == "/v1/locks/1":
                self.client._lose(self.client._session, {1: "evicted"})
            return answer

        with mock.patch.object(self.server, "request", side_effect=lost):
            lease = self.client.lock("a").acquire()
        self.assertEqual((lease._number, lease.held()), (2, True))  # it has queued again

    def test_place_that_is_lost_queues_again(self):
        thread, granted = self.waiter()
        self.client._lose(self.client._session, {1: "evicted"})
        thread.join(60)
        self.assertEqual(granted[0]._number, 2)

    def test_server_that_waits_no_longer_is_asked_again(self):
        thread, granted = self.waiter()
        self.client._hear(self.client._session, News(1, {}, {}, [1], False))
        thread.join(60)
        self.assertEqual((granted[0]._number, self.server.asked[-2:]), (1, [("PUT", "/v1/locks/1")] * 2))

    def test_waiter_without_news_for_long_asks_again(self):
        thread, granted = self.waiter()
        with self.client._mutex:
            self.clock.time += 41  # no answer to a request for news in that time: they may not come through
            self.client._session.deadline += 41
            self.client._ring(self.client._session)
        thread.join(60)
        self.assertEqual((granted[0]._number, self.server.asked[-2:]), (1, [("PUT", "/v1/locks/1")] * 2))

    def test_wait_ends_with_its_time(self):
        thread, granted = self.waiter(timeout=5)
        self.clock.time += 5
        self.client._ring(self.client._session)
        thread.join(60)
        self.assertIsInstance(granted[0], hasplock.Busy)
        self.assertEqual(self.server.asked[-1], ("DELETE", "/v1/locks/1"))

    def test_wait_ends_with_the_client(self):
        thread, granted = self.waiter()
        self.client.close()
        thread.join(60)
        self.assertIsInstance(granted[0], Closed)

    def test_wait_that_is_cancelled(self):
        cancel = hasplock._http.Cancel()
        self.server.waits = [lambda: threading.Timer(0, cancel).start()]
        with self.assertRaises(Cancelled):
            self.client._acquire(self.client._wants("a", "", {}), None, cancel)
        self.assertEqual(self.client._session.leaving, {1})

    def test_first_acquisition_waits_for_a_server_that_is_away(self):
        for acquire, attempts in ((lambda: self.client.lock("a", timeout=30).acquire(), 3), (lambda: self.client.lock("a", timeout=5).acquire(), 1)):
            self.server.asked.clear()
            away = [Unavailable("connection refused")] * 2
            request = self.server.request

            def comes(method, path, *args, **more):
                if path == "/v1/session" and away:
                    self.server.asked.append((method, path))
                    self.clock.time += 6
                    raise away.pop()
                return request(method, path, *args, **more)

            self.client._session = None
            with self.subTest(attempts), mock.patch.object(self.server, "request", side_effect=comes), mock.patch.object(self.client, "_pause"):
                if attempts == 3:
                    self.assertTrue(acquire().held())
                else:
                    with self.assertRaises(Unavailable):
                        acquire()
                self.assertEqual(self.server.asked.count(("POST", "/v1/session")), attempts)

    def test_default_ttl_is_that_of_all_clients(self):
        default = hasplock.Client()
        self.addCleanup(default.close)
        default._http, default._clock = self.server, self.clock
        with mock.patch.object(default, "_start"):
            default.lock("a").acquire()
        self.assertEqual(self.server.bodies[0], {"ttl_ms": 10000})
        asynchronous = hasplock.aio.Client()
        self.assertEqual(asynchronous._sync._ttl, 10.0)
        asyncio.run(asynchronous.close())

    def test_time_is_over_before_any_thread_has_run(self):
        lease, told = self.client.lock("a").acquire(), []
        lease.on_lost(told.append)
        session = lease._session
        self.clock.time = 1054  # the process stood still
        with self.assertRaisesRegex(hasplock.LockLost, "its time was over"):
            lease.check()
        self.assertTrue(lease.lost.is_set())
        self.assertEqual((len(told), lease.reason), (1, told[0]))
        # A keep-alive may come through all the same. What was told as lost stays lost, and is left.
        self.client._keep_once(session)
        self.assertFalse(lease.held())
        self.assertEqual(len(told), 1)
        self.watch(session, 1054 + 7)
        self.assertEqual(session.leaving, {1})

    def test_lost_and_reason_are_looks_at_the_clock(self):
        for look in (lambda lease: lease.lost.is_set(), lambda lease: lease.reason != "", lambda lease: not lease.remaining()):
            lease = self.client.lock("a").acquire()
            self.assertFalse(look(lease))
            self.clock.time = lease._session.deadline
            self.assertTrue(look(lease))
            self.client._session = None

    def test_loss_that_is_told_to_what_fails(self):
        lease, told = self.client.lock("a").acquire(), []
        lease.on_lost(lambda _: 1 / 0)
        lease.on_lost(told.append)
        with self.assertLogs("hasplock", "ERROR"):
            self.client._lose(lease._session, {1: "evicted"})
        self.assertEqual(told, ["evicted"])

    def test_no_time_beyond_the_ttl_is_trusted(self):
        self.client._ttl = 10
        lease = self.client.lock("a").acquire()  # the answers say 60
        self.client._keep_once(lease._session)
        self.assertEqual(lease.remaining(), 9)

    def test_server_that_has_forgotten_the_session_and_no_other_one(self):
        lease = self.client.lock("a").acquire()
        self.assertEqual(self.listens(lease._session, SessionGone("no such session")), [0.1, 0.2, 0.4, 0.8, 1.6])

    def test_server_that_does_not_wait(self):
        lease = self.client.lock("a").acquire()
        self.assertEqual(self.listens(lease._session, {"version": 0, "lost": []}), [1.0] * 5)

    def test_keep_alive_that_a_move_has_kept_from_counting_is_repeated_soon(self):
        lease = self.client.lock("a").acquire()
        session, due = lease._session, []
        request = self.server.request

        def refuses(method, path, *args, **more):
            if (method, path) == ("POST", "/v1/session"):
                self.clock.time += 20
                due.append(self.client._keep_once(session))  # another thread
                raise Unavailable("it is about to end")
            return request(method, path, *args, **more)

        with mock.patch.object(self.server, "request", side_effect=refuses), self.assertRaises(Unavailable):
            self.client._recover(session)
        self.assertEqual((due, session.deadline), ([1.0], 1000 + 54))
        self.client._keep_once(session)
        self.assertEqual(session.deadline, 1020 + 54)

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

    def failing(self, failures):
        """The first requests of each method fail so, after the server has noted them."""
        request = self.server.request

        def fails(method, path, *args, **more):
            answer = request(method, path, *args, **more)
            if failures.get(method):
                raise failures[method].pop(0)
            return answer

        return mock.patch.object(self.server, "request", side_effect=fails)

    def deletes(self, number):
        return self.server.asked.count(("DELETE", "/v1/locks/%d" % number))

    def test_place_is_given_up_until_that_is_confirmed(self):
        for error in (Unavailable("no answer"), Refused("a proxy answers 403")):
            with self.subTest(error), self.failing({"PUT": [error], "DELETE": [Unavailable("no answer"), Refused("a proxy answers 403")]}):
                with self.assertRaises(type(error)):
                    self.client.try_lock("a")
                session = self.client._session
                number = session.last
                at_once = 0 if isinstance(error, Unavailable) else 1  # a server that is silent keeps nothing but the cleaner
                self.assertEqual(self.deletes(number), at_once)
                for attempts in range(at_once, 2):
                    self.assertFalse(self.client._clean_once(session))
                    self.assertEqual(self.deletes(number), attempts + 1)
                for _ in range(2):
                    self.assertTrue(self.client._clean_once(session))
                    self.assertEqual(self.deletes(number), 3)

    def test_silent_server_is_given_as_long_as_it_was_to_wait(self):
        waits, request = [], self.server.request

        def silent(method, path, *args, wait=0.0, **more):
            if method != "PUT":
                return request(method, path, *args, **more)
            waits.append(wait)
            self.clock.time += 15 + wait
            raise Unavailable("no answer")

        acquisitions = (self.client.try_lock, ("a",)), (self.client.lock("a", timeout=1).acquire, ()), (self.client.lock("a", timeout=30).acquire, ())
        with mock.patch.object(self.server, "request", side_effect=silent):
            for acquire, args in acquisitions:
                with self.assertRaises(Unavailable):
                    acquire(*args)
        self.assertEqual(waits, [0, 0, 0, 0])  # the last one is asked again: its time is not over

    def test_place_of_who_does_not_wait_any_more(self):
        # A silent server does not keep the thread, but Ctrl-C may be the end of the program: then there is no cleaner.
        for error, at_once in ((Cancelled(), 0), (KeyboardInterrupt(), 1)):
            with self.subTest(error), self.failing({"PUT": [error]}), self.assertRaises(type(error)):
                self.client.lock("a").acquire()
            session = self.client._session
            self.assertEqual((self.deletes(session.last), session.last in session.leaving), (at_once, not at_once))

    def test_what_is_left_is_cleaned_while_the_session_lives(self):
        self.client.lock("a").acquire().release()
        session = self.client._session
        cleaner = threading.Thread(target=self.client._clean, args=(session,), daemon=True)
        cleaner.start()
        cleaned = threading.Event()
        left = self.client._left
        with mock.patch.object(self.client, "_left", side_effect=lambda *args: left(*args) and not cleaned.set()):
            self.client._leave_later(session, 7)
            self.assertTrue(cleaned.wait(60))
        self.assertEqual(self.deletes(7), 1)
        self.clock.time = session.deadline
        self.expired(session)
        cleaner.join(60)
        self.assertFalse(cleaner.is_alive())

    def test_release_that_is_not_confirmed(self):
        for error in (Refused("a proxy answers 403"), KeyboardInterrupt()):
            with self.subTest(error), self.failing({"DELETE": [error, Refused("a proxy answers 403")]}):
                lease = self.client.lock("a").acquire()
                with self.assertRaises(type(error)):
                    lease.release()
                self.assertFalse(lease.held())
                self.assertIn(lease._number, lease._session.leaving)
                with self.assertRaises(Refused):
                    lease.release()  # it does not say that it has succeeded
                lease.release()
                self.assertEqual(self.deletes(lease._number), 3)
                self.assertEqual(lease._session.leaving, set())
                lease.release()  # again: nothing happens
                self.assertEqual(self.deletes(lease._number), 3)

    def test_release_that_is_not_confirmed_while_the_session_moves(self):
        lease = self.client.lock("a").acquire()
        old = lease._session
        request = self.server.request

        def moves_meanwhile(method, path, body=None, session="", **more):
            if method == "DELETE":
                self.client._recover(old)  # another thread
                raise Refused("a proxy answers 403")
            return request(method, path, body, session, **more)

        with mock.patch.object(self.server, "request", side_effect=moves_meanwhile), self.assertRaises(Refused):
            lease.release()
        new = self.client._session
        self.assertIsNot(new, old)
        self.assertEqual((new.leases, new.leaving), ({}, {1}))

    def test_what_is_adopted_and_lost_all_the_same_is_left(self):
        for answer in ({"state": "held", "token": 99, "entry": "new"}, Refused("a proxy answers 403")):
            with self.subTest(answer):
                lease = self.client.lock("a").acquire()
                request = self.server.request

                def adopts(method, path, *args, **more):
                    if not path.endswith("/adopt"):
                        return request(method, path, *args, **more)
                    if isinstance(answer, Exception):
                        raise answer
                    return answer

                with mock.patch.object(self.server, "request", side_effect=adopts):
                    self.client._recover(lease._session)
                self.assertTrue(lease.lost.is_set())
                self.assertEqual(self.client._session.leaving, {1})
                self.assertTrue(self.client._clean_once(self.client._session))
                self.assertEqual(self.server.asked[-1], ("DELETE", "/v1/locks/1"))

    def test_several_are_adopted_at_once(self):
        leases = [self.client.lock(str(i)).acquire() for i in range(8)]
        request, together = self.server.request, threading.Barrier(4, timeout=10)

        def waits_for_others(method, path, *args, **more):
            if path.endswith("/adopt"):
                together.wait()
            return request(method, path, *args, **more)

        with mock.patch.object(self.server, "request", side_effect=waits_for_others):
            self.client._recover(leases[0]._session)
        self.assertTrue(all(lease.held() for lease in leases))
        self.assertEqual(len({lease._number for lease in leases}), 8)
        self.assertEqual(self.client._session.leases, {lease._number: lease for lease in leases})

    def test_loss_in_a_move_is_told_to_what_uses_the_client(self):
        leases, released = [self.client.lock(str(i)).acquire() for i in range(3)], []

        def release(_):
            try:
                leases[2].release()
            except hasplock.LockLost:
                pass
            released.append(True)

        leases[0].on_lost(release)
        request = self.server.request

        def loses_one(method, path, body=None, session="", **more):
            if path.endswith("/adopt") and body["name"] == "0":
                raise Refused("a proxy answers 403")
            return request(method, path, body, session, **more)

        with mock.patch.object(self.server, "request", side_effect=loses_one):
            moves = threading.Thread(target=self.client._recover, args=(leases[0]._session,), daemon=True)
            moves.start()
            moves.join(60)
        self.assertFalse(moves.is_alive())
        self.assertEqual((released, leases[0].held(), leases[1].held(), leases[2].held()), ([True], False, True, False))

    def test_client_that_is_closed_while_its_session_moves(self):
        leases = [self.client.lock(str(i)).acquire() for i in range(20)]

        def away(method, path, *args, **more):
            if path.endswith("/adopt"):
                self.client._closed = True
                raise Unavailable("away")

        with mock.patch.object(self.server, "request", side_effect=lambda *args, **more: away(*args, **more) or Server.request(self.server, *args, **more)):
            self.client._recover(leases[0]._session)
        self.assertFalse(any(lease.held() for lease in leases))

    def test_block_that_another_thread_leaves(self):
        lock = self.client.lock("a")
        lease = lock.__enter__()
        leaves = threading.Thread(target=lock.__exit__, args=(None, None, None))
        leaves.start()
        leaves.join()
        self.assertFalse(lease.held())
        self.assertEqual(self.server.asked[-1][0], "DELETE")

    def test_each_thread_leaves_what_it_has_entered(self):
        lock, inside, leave = self.client.read_lock("a"), threading.Barrier(3), threading.Event()

        def stays():
            with lock as lease:
                inside.wait()
                leave.wait()
                self.still.append(lease.held())

        self.still = []
        threads = [threading.Thread(target=stays) for _ in range(2)]
        for t in threads:
            t.start()
        with lock:
            inside.wait()
        leave.set()
        for t in threads:
            t.join()
        self.assertEqual(self.still, [True, True])

    def test_asyncio_block_that_another_task_leaves(self):
        async def in_two_tasks():
            client = hasplock.aio.Client()
            client._sync = self.client
            lock = client.lock("a")
            lease = await asyncio.ensure_future(lock.__aenter__())
            self.assertTrue(lease.held())
            await asyncio.ensure_future(lock.__aexit__(None, None, None))
            self.assertFalse(lease.held())
            lost = await asyncio.ensure_future(lock.__aenter__())
            lost._end("test")
            with self.assertRaises(hasplock.LockLost):
                await asyncio.ensure_future(lock.__aexit__(None, None, None))
            self.assertFalse(lock._entered._all)

        asyncio.run(in_two_tasks())
        self.assertIn(("DELETE", "/v1/locks/1"), self.server.asked)

    def test_quarantine_is_not_busy(self):
        request = self.server.request

        def quarantined(method, path, body=None, session="", **more):
            if method != "PUT":
                return request(method, path, body, session, **more)
            return {"state": "busy" if body.get("no_wait") else "waiting", "entry": "e", "quarantine_ms": 7312}

        with mock.patch.object(self.server, "request", side_effect=quarantined):
            with self.assertRaises(hasplock.Quarantine) as raised:
                self.client.try_lock("a")
            self.assertAlmostEqual(raised.exception.seconds, 7.312)
            self.assertNotIsInstance(raised.exception, hasplock.Busy)
            with self.assertRaisesRegex(hasplock.Quarantine, "no holder of the lock 'a' is known.* another 7.3 s"):
                self.client.lock("a", timeout=0).acquire()
        self.assertEqual(self.server.asked[-1][0], "DELETE")  # the place is given up

        def passes(*args, **more):  # the quarantine is over meanwhile: somebody else has it
            answer = quarantined(*args, **more)
            self.clock.time += 10
            return answer

        with mock.patch.object(self.server, "request", side_effect=passes), self.assertRaises(hasplock.Busy):
            self.client.lock("a", timeout=0).acquire()

    def test_program_without_arguments(self):
        for argv in ([], [""], ["/usr/bin/job"]):
            with self.subTest(argv), mock.patch("sys.argv", argv):
                self.client.lock("a").acquire()
                self.assertIn("job" if argv and argv[0] else "python", self.server.bodies[-1]["note"])
        with mock.patch.object(sys, "argv", []):
            del sys.argv
            self.client.lock("a").acquire()

    def test_lock_without_a_token_is_adopted(self):
        request = self.server.request

        def without(*args, **more):
            answer = request(*args, **more)
            if answer:
                answer.pop("token", None)
            return answer

        with mock.patch.object(self.server, "request", side_effect=without):
            lease = self.client.lock("a").acquire()
            self.client._recover(lease._session)
        self.assertTrue(lease.held())

    def test_connection_of_a_request_that_outlasts_the_client(self):
        transport, connection = Transport("http://127.0.0.1", None, None), mock.Mock()
        transport._keep(connection)
        connection.close.assert_not_called()
        transport.close()
        connection.close.assert_called_once_with()
        transport._keep(connection)
        self.assertEqual(connection.close.call_count, 2)

    def test_asyncio_acquisition_that_is_cancelled_twice(self):
        begun, granted, released, acquire = slow_acquisition()

        async def cancelled():
            client = hasplock.aio.Client()
            with mock.patch.object(client._sync, "_acquire", acquire):
                task = asyncio.ensure_future(client.lock("a").acquire())
                await asyncio.get_running_loop().run_in_executor(None, begun.wait)
                for _ in range(2):
                    task.cancel()
                    for _ in range(5):
                        await asyncio.sleep(0)
                granted.set()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await asyncio.get_running_loop().run_in_executor(None, released.wait, 60)
            await client.close()

        asyncio.run(cancelled())
        self.assertTrue(released.is_set())

    def test_asyncio_acquisition_that_is_cancelled_at_a_silent_server(self):
        begun, answered, released, acquire = slow_acquisition()

        async def cancelled():
            client = hasplock.aio.Client()
            with mock.patch.object(client._sync, "_acquire", acquire):
                task = asyncio.ensure_future(client.lock("a").acquire())
                await asyncio.get_running_loop().run_in_executor(None, begun.wait)
                task.cancel()
                ended, _ = await asyncio.wait([task], timeout=60)
                answered.set()
                self.assertTrue(ended and task.cancelled())
                await asyncio.get_running_loop().run_in_executor(None, released.wait, 60)
            await client.close()

        asyncio.run(cancelled())
        self.assertTrue(released.is_set())

    def test_asyncio_release_of_a_task_that_is_cancelled(self):
        busy, released = threading.Event(), threading.Event()

        async def cancelled():
            client = hasplock.aio.Client(threads=1)
            other = client._run(busy.wait)  # so that the release has to wait for a thread
            task = asyncio.ensure_future(client.release(mock.Mock(release=released.set)))
            for _ in range(5):
                await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            busy.set()
            await other
            await asyncio.get_running_loop().run_in_executor(None, released.wait, 60)
            await client.close()

        asyncio.run(cancelled())
        self.assertTrue(released.is_set())

    def test_bad_input(self):
        for url in ("127.0.0.1:7070", "ftp://x", "http://x/path", "http://u@x", "http://:p@x"):
            with self.subTest(url), self.assertRaises(ValueError):
                hasplock.Client(url)
        for url in ("http://192.0.2.1", "http://127.0.0.1.evil.example", "http://localhost.evil.example", "http://127.evil.example"):
            with self.subTest(url), self.assertRaises(ValueError):
                hasplock.Client(url, token="secret")
        for url in ("http://127.0.0.1:7070", "http://127.9.9.9", "http://[::1]:7070", "http://localhost", "https://locks.example.com"):
            hasplock.Client(url, token="secret").close()
        for token in ("two words", "a line\n", "\u00e9"):
            with self.subTest(token), self.assertRaises(ValueError):
                hasplock.Client(token=token)
        with self.assertRaises(ValueError):
            hasplock.Client("http://127.0.0.1", tls=ssl.create_default_context())
        with self.assertRaises(ValueError):
            hasplock.Client(ttl=0)
        with self.assertRaises(ValueError):
            self.client.lock("")


if __name__ == "__main__":
    unittest.main()
