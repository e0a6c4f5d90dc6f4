"""Against a real hasp serve, of the program HASPLOCK_BIN over the store HASP_STORE."""

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import hasplock
import hasplock.aio

PATIENCE = 60.0
BIN, STORE = os.environ.get("HASPLOCK_BIN", ""), os.environ.get("HASP_STORE", "")


class Server:
    """A process of hasp serve, which can be killed and started again at its address."""

    def __init__(self):
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [BIN, "serve", "--store", STORE, "--listen", self.address, "--log", "off"], stderr=subprocess.PIPE, text=True
        )
        for line in self.process.stderr:
            found = re.search(r" at http://(\S+)", line)
            if found:
                self.address = found.group(1)
                return  # it says no more: the log is off
        raise AssertionError("hasp serve has ended")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    @property
    def url(self):
        return "http://" + self.address


def until(what, check):
    end = time.monotonic() + PATIENCE
    while not check():
        if time.monotonic() > end:
            raise AssertionError("waited for nothing:  " + what)
        time.sleep(0.01)


@unittest.skipUnless(BIN and STORE, "HASPLOCK_BIN and HASP_STORE are not set")
class WithServer(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.kill)
        self.name = "python/%s/%d" % (self.id(), time.time_ns())

    def client(self, **options):
        c = hasplock.Client(self.server.url, **{"ttl": 30, **options})
        self.addCleanup(c.close)
        return c

    def queue(self, client):
        from urllib.parse import quote

        return client._http.request("GET", "/v1/queue?name=" + quote(self.name, safe=""))["entries"]

    def test_one_at_a_time(self):
        clients = [self.client() for _ in range(4)]
        inside, most, tokens = [], [], []

        def work(c):
            for _ in range(10):
                with c.lock(self.name) as lease:
                    inside.append(1)
                    most.append(len(inside))
                    tokens.append(lease.token)
                    time.sleep(0.001)
                    inside.pop()

        threads = [threading.Thread(target=work, args=(c,)) for c in clients]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(max(most), 1)
        self.assertEqual(len(tokens), 40)
        self.assertEqual(tokens, sorted(set(tokens)))
        self.assertEqual(self.queue(clients[0]), [])

    def test_busy(self):
        one, two = self.client(), self.client()
        lease = one.lock(self.name).acquire()
        self.assertIsNone(two.try_lock(self.name))
        with self.assertRaises(hasplock.Busy):
            two.lock(self.name, timeout=0.1).acquire()
        self.assertEqual(len(self.queue(one)), 1)
        lease.release()
        self.assertFalse(lease.held())
        lease.release()  # again: nothing happens
        two.try_lock(self.name).release()

    def test_hundred_waiting_locks_have_one_open_request(self):
        c, other = self.client(), self.client()
        names = ["%s/%d" % (self.name, i) for i in range(100)]
        held = [other.lock(name).acquire() for name in names]
        c.lock(self.name).acquire().release()  # its session
        request, mutex, open_requests, granted = c._http.request, threading.Lock(), [], []

        def counts(method, path, *args, **more):
            with mutex:
                open_requests.append(path.split("?")[0])
            try:
                return request(method, path, *args, **more)
            finally:
                with mutex:
                    open_requests.remove(path.split("?")[0])

        def work(name):
            with c.lock(name) as lease:
                granted.append(lease.token)

        with mock.patch.object(c._http, "request", side_effect=counts):
            threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in names]
            for t in threads:
                t.start()
            until("all to wait", lambda: len(c._session.places) == 100 and all(p.entry for p in list(c._session.places.values())))
            # The request that was open before the patch ends with the first grant.
            with mutex:
                self.assertEqual([path for path in open_requests if path not in ("/v1/session/events", "/v1/session/keepalive")], [])
                self.assertLessEqual(open_requests.count("/v1/session/events"), 1)
            for lease in held:
                lease.release()
            for t in threads:
                t.join(PATIENCE)
        self.assertEqual((len(granted), len(set(granted))), (100, 100))

    def test_tls_with_a_certificate_of_the_client(self):
        ca, certificate, key = (os.environ.get(name) for name in ("TLS_CA", "TLS_CERT", "TLS_KEY"))
        url = os.environ.get("TLS_URL")
        if not url:
            self.skipTest("TLS_URL is not set")
        tls = ssl.create_default_context(cafile=ca)
        with hasplock.Client(url, tls=tls) as c, self.assertRaises(hasplock.Unavailable):
            c.try_lock(self.name)  # without a certificate
        tls.load_cert_chain(certificate, key)
        with hasplock.Client(url, tls=tls) as c:
            c.try_lock(self.name).release()

    def test_ask(self):
        with subprocess.Popen([BIN, "run", "--store", STORE, self.name, "--", "sleep", "60"], stderr=subprocess.PIPE, text=True) as holder:
            self.addCleanup(holder.kill)
            c = self.client()
            until("the holder", lambda: len(self.queue(c)) == 1)
            waits = threading.Thread(target=c.lock(self.name, ask="the disk is full").acquire)
            waits.start()
            until("the question", lambda: "the disk is full" in holder.stderr.readline())
            holder.terminate()
            waits.join()

    def test_kinds(self):
        c = self.client()
        with c.read_lock(self.name), c.read_lock(self.name):
            self.assertEqual(len(self.queue(c)), 2)
        with c.semaphore(self.name, 3, 2), c.semaphore(self.name, 3):
            with self.assertRaises(hasplock.Busy):
                c.semaphore(self.name, 3, timeout=0.1).acquire()
        with c.lock(self.name):
            with self.assertRaises(hasplock.Refused):
                c.semaphore(self.name, 3).acquire()

    def test_election(self):
        c, other = self.client(), self.client()
        seen = other.observe(self.name)
        self.assertIsNone(next(seen))
        with c.election(self.name, b"http://one:1") as lease:
            self.assertEqual(next(seen), b"http://one:1")
            lease.publish(b"http://one:2")
            self.assertEqual(next(seen), b"http://one:2")
        self.assertIsNone(next(seen))

    def test_observe_outlasts_server(self):
        c, other = self.client(), self.client()
        seen = other.observe(self.name)
        self.assertIsNone(next(seen))
        values = []
        observer = threading.Thread(target=lambda: values.append(next(seen)))
        observer.start()
        self.server.kill()
        self.server.start()
        with c.election(self.name, b"http://one:1"):
            observer.join(PATIENCE)
            self.assertEqual(values, [b"http://one:1"])

    def test_server_started_anew(self):
        c, other = self.client(), self.client()
        lease = c.lock(self.name).acquire()
        waiting = []
        waiter = threading.Thread(target=lambda: waiting.append(other.lock(self.name).acquire()))
        waiter.start()
        until("a waiter", lambda: len(self.queue(c)) == 2)
        self.server.kill()
        self.server.start()
        old = lease._session
        until("the session to move", lambda: lease._session is not old)
        self.assertTrue(lease.held(), lease.reason)
        self.assertEqual(self.queue(c)[0]["seq"], lease.token)
        lease.release()
        waiter.join(PATIENCE)
        self.assertGreater(waiting[0].token, lease.token)
        waiting[0].release()
        self.assertEqual(self.queue(c), [])

    def test_loss_is_told_before_the_next_grant(self):
        c = self.client(ttl=3)
        lease = c.lock(self.name).acquire()
        told = []
        lease.on_lost(lambda reason: told.append(time.monotonic()))
        self.server.kill()  # and nothing takes its place
        other = subprocess.run([BIN, "run", "--store", STORE, self.name, "--", "true"], timeout=PATIENCE)
        granted = time.monotonic()
        self.assertEqual(other.returncode, 0)
        until("the loss", lambda: told)
        self.assertLess(told[0], granted)
        with self.assertRaises(hasplock.LockLost):
            lease.release()

    def test_evicted(self):
        c = self.client()
        lease = c.lock(self.name).acquire()
        entry = self.queue(c)[0]["entry"]
        c._http.request("POST", "/v1/evict", {"name": self.name, "entry": entry})
        self.assertTrue(lease.lost.wait(PATIENCE))

    def test_paused(self):
        child = subprocess.Popen([sys.executable, "-c", PAUSED, self.server.url, self.name], stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), "True\n")
        child.send_signal(signal.SIGSTOP)
        other = subprocess.run([BIN, "run", "--store", STORE, self.name, "--", "true"], timeout=PATIENCE)
        self.assertEqual(other.returncode, 0)
        child.send_signal(signal.SIGCONT)
        # The first thing that it does then is to ask.
        answers = [child.stdout.readline() for _ in range(2)]
        self.assertIn("stopped, False\n", answers)

    def outage(self, client, *lost):
        """Lose an answer or a request for each of lost, (method, whether it reaches the server), in their order."""
        request, lost = client._http.request, list(lost)

        def loses(method, *args, **more):
            if not lost or lost[0][0] != method:
                return request(method, *args, **more)
            _, arrives = lost.pop(0)
            if arrives:
                request(method, *args, **more)
            raise hasplock.Unavailable("the network is away")

        return mock.patch.object(client._http, "request", side_effect=loses)

    def test_place_that_is_given_up_in_an_outage(self):
        c, other = self.client(), self.client()
        with other.lock(self.name), self.outage(c, ("PUT", True), ("DELETE", False), ("DELETE", False)):
            with self.assertRaises(hasplock.Unavailable):
                c.lock(self.name, timeout=0).acquire()
            until("the place to be left", lambda: len(self.queue(other)) == 1)

    def test_lock_that_is_granted_in_an_outage(self):
        c, other = self.client(), self.client()
        with self.outage(c, ("PUT", True), ("DELETE", False), ("DELETE", False)):
            with self.assertRaises(hasplock.Unavailable):
                c.try_lock(self.name)
            other.lock(self.name, timeout=PATIENCE).acquire().release()

    def program(self, text):
        """Run a program of Python to its end. It may hang for ever: then it fails."""
        subprocess.run([sys.executable, "-W", "error", "-c", text, self.server.url, self.name], timeout=PATIENCE, check=True)

    def test_observe_ends_with_the_client(self):
        c, watches = self.client(), threading.Event()
        stream = c._http.stream
        with mock.patch.object(c._http, "stream", side_effect=lambda *args: (watches.set(), stream(*args))):
            values = []
            observer = threading.Thread(target=lambda: values.extend(c.observe(self.name)), daemon=True)
            observer.start()
            self.assertTrue(watches.wait(PATIENCE))
            c.close()
            observer.join(PATIENCE)
        self.assertFalse(observer.is_alive())
        self.assertEqual(values, [None])

    def test_asyncio_observe_ends(self):
        self.program(OBSERVES % "task.cancel(); await asyncio.wait([task]); await c.close()")
        self.program(OBSERVES % "await c.close()")

    def test_asyncio_more_tasks_than_threads(self):
        self.program(MANY)

    def test_asyncio_cancelled_before_it_has_a_thread(self):
        with self.client().lock(self.name):
            self.program(QUEUED)

    def test_asyncio(self):
        asyncio.run(self.many())
        asyncio.run(self.loss_cancels())
        asyncio.run(self.cancelled_while_waiting())

    async def many(self):
        async with hasplock.aio.Client(self.server.url) as c:
            lock, inside, most = c.lock(self.name), [], []

            async def work():
                async with lock:
                    inside.append(1)
                    most.append(len(inside))
                    await asyncio.sleep(0.001)
                    inside.pop()

            await asyncio.gather(*(work() for _ in range(10)))
            self.assertEqual(max(most), 1)

    async def loss_cancels(self):
        async with hasplock.aio.Client(self.server.url) as c:
            with self.assertRaises(hasplock.LockLost):
                async with c.lock(self.name):
                    entry = self.queue(c._sync)[0]["entry"]
                    c._sync._http.request("POST", "/v1/evict", {"name": self.name, "entry": entry})
                    await asyncio.sleep(PATIENCE)
            await asyncio.sleep(0)  # the task is not cancelled any more

    async def cancelled_while_waiting(self):
        async with hasplock.aio.Client(self.server.url) as c:
            async with c.lock(self.name):
                waiter = asyncio.ensure_future(c.lock(self.name).acquire())
                while len(self.queue(c._sync)) < 2:
                    await asyncio.sleep(0.01)
                waiter.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await waiter
                while len(self.queue(c._sync)) > 1:
                    await asyncio.sleep(0.01)


# Works under a lock of three seconds, and asks before each step whether it holds.
PAUSED = """
import sys, time, hasplock
lease = hasplock.Client(sys.argv[1], ttl=3).lock(sys.argv[2]).acquire()
last = time.monotonic()
print(lease.held(), flush=True)
while True:
    held, now = lease.held(), time.monotonic()
    if now - last > 1.5:
        print("stopped, %s" % held, flush=True)
    if not held:
        break
    last = now
    time.sleep(0.001)
print("ended", flush=True)
"""

# Observes until it is told to end, while its request stands.
OBSERVES = """
import asyncio, sys, hasplock.aio
async def main():
    c, watches, loop = hasplock.aio.Client(sys.argv[1]), asyncio.Event(), asyncio.get_running_loop()
    stream = c._sync._http.stream
    def watch(*args):
        loop.call_soon_threadsafe(watches.set)
        stream(*args)
    c._sync._http.stream = watch
    async def observe():
        async for value in c.observe(sys.argv[2]):
            assert value is None, value
    task = asyncio.ensure_future(observe())
    await watches.wait()
    %s
    try:
        await task
    except asyncio.CancelledError:
        pass
asyncio.run(main())
"""

MANY = """
import asyncio, sys, hasplock.aio
async def main():
    async with hasplock.aio.Client(sys.argv[1], threads=1) as c:
        lock = c.lock(sys.argv[2])
        async def work():
            async with lock:
                await asyncio.sleep(0)
        await asyncio.gather(*(work() for _ in range(3)))
asyncio.run(main())
"""

# Two acquisitions of a held lock have one thread: the second one is cancelled before the first.
QUEUED = """
import asyncio, sys, hasplock.aio
async def main():
    async with hasplock.aio.Client(sys.argv[1], threads=1) as c:
        tasks = [asyncio.ensure_future(c.lock(sys.argv[2]).acquire()) for _ in range(2)]
        for _ in range(5):
            await asyncio.sleep(0)
        for task in reversed(tasks):
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
asyncio.run(main())
"""


if __name__ == "__main__":
    unittest.main()
