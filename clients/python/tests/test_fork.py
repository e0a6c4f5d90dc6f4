"""A client on both sides of a fork, against a real hasp serve, of the program HASPLOCK_BIN over the store HASP_STORE."""

import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import unittest
import warnings

import hasplock
import hasplock.aio
import test_server

PATIENCE = 30
CLIENT = None  # of the processes of multiprocessing, which have it by their fork alone


def plain_fork():
    """A child that hangs is ended, and fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that this process has threads is what is tested
        child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
    return child


def fork(work):
    """Run work in a child that is forked, and return its process id."""
    child = plain_fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


@unittest.skipUnless(test_server.BIN and test_server.STORE, "HASPLOCK_BIN and HASP_STORE are not set")
@unittest.skipUnless(hasattr(os, "fork"), "nothing forks here")
class Fork(unittest.TestCase):
    def setUp(self):
        self.server = test_server.Server()
        self.addCleanup(self.server.kill)
        self.name = "python/%s/%d" % (self.id(), time.time_ns())
        self.client = hasplock.Client(self.server.url)
        self.addCleanup(self.client.close)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def wait(self, *children):
        for child in children:
            self.assertEqual(os.waitpid(child, 0)[1], 0, "a child has failed, or was ended because it hung")

    def entries(self, name=None):
        from urllib.parse import quote

        with hasplock.Client(self.server.url) as other:
            return other._http.request("GET", "/v1/queue?name=" + quote(name or self.name, safe=""))["entries"]

    def inside(self, grants):
        """Take the lock again and again. Where two are inside at once, the second finds the first one's file."""
        file = os.path.join(self.directory, "inside")
        for _ in range(grants):
            with self.client.lock(self.name, timeout=PATIENCE) as lease, open(file, "x"):
                time.sleep(0.005)
                lease.check()
                with open(file + "-tokens", "a") as tokens:
                    tokens.write("%d\n" % lease.token)
                os.unlink(file)

    def check_tokens(self, count):
        with open(os.path.join(self.directory, "inside-tokens")) as lines:
            tokens = [int(line) for line in lines]
        self.assertEqual(len(tokens), count)
        self.assertEqual(tokens, sorted(set(tokens)), "a token was granted twice, or they do not grow")

    def test_workers_of_a_client_that_was_used_before(self):
        self.client.lock(self.name).acquire().release()  # its session, threads and connections
        children = [fork(lambda: self.inside(10)) for _ in range(6)]
        self.inside(10)
        self.wait(*children)
        self.check_tokens(70)
        self.assertEqual(self.entries(), [])

    def test_workers_of_workers(self):
        self.client.lock(self.name).acquire().release()

        def worker():
            self.inside(5)
            own = fork(lambda: self.inside(5))
            self.inside(5)
            self.wait(own)

        self.wait(*[fork(worker) for _ in range(2)])
        self.check_tokens(30)

    def test_multiprocessing(self):
        global CLIENT
        CLIENT = self.client
        self.client.lock(self.name).acquire().release()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with multiprocessing.get_context("fork").Pool(4) as pool:
                tokens = pool.map(a_token, [self.name] * 40, chunksize=1)
        self.assertEqual(len(set(tokens)), 40)

    def test_child_that_leaves_a_block_of_its_parent(self):
        for ends in (lambda: None, sys.exit):
            with self.subTest(ends):
                child = self.forked_in_a_block(ends)
                if child == 0:
                    os._exit(0)
                self.assertEqual(self.entries(), [])

    def forked_in_a_block(self, ends):
        """Fork in a with; the child leaves it by ends. Both return, as from os.fork."""
        try:
            with self.client.lock(self.name) as lease:
                before = self.entries()
                child = plain_fork()
                if child == 0:
                    ends()
                else:
                    self.wait(child)
                    self.assertTrue(lease.held())
                    self.assertEqual([x["entry"] for x in self.entries()], [x["entry"] for x in before])
        except SystemExit:
            pass
        except BaseException:
            if child == 0:
                os._exit(1)
            raise
        return child

    def test_what_the_parent_holds_is_not_the_childs(self):
        lock = self.client.lock(self.name, timeout=0.1)
        with lock as lease:

            def child():
                assert not lease.held() and lease.remaining() == 0 and lease.lost.is_set()
                assert "process %d" % os.getppid() in lease.reason, lease.reason
                assert "not held" in repr(lease)
                told = []
                lease.on_lost(told.append)
                assert told == [lease.reason]
                lease.release()
                for call in (lease.check, lambda: lease.publish(b"")):
                    try:
                        call()
                    except hasplock.LockLost:
                        continue
                    raise AssertionError("it is no error")
                try:
                    lock.acquire()
                except hasplock.Busy:
                    pass
                with self.client.lock(self.name + "/other"):
                    assert "pid %d" % os.getpid() in self.entries(self.name + "/other")[0]["owner"]
                self.client.close()
                try:
                    lock.acquire()
                except hasplock.Closed:
                    pass

            self.wait(fork(child))
            self.assertTrue(lease.held())
            self.assertEqual(len(self.entries()), 1)
            self.client.lock(self.name + "/other").acquire().release()  # the client is not closed here

    def test_client_that_its_child_closes(self):
        with self.client.lock(self.name) as lease:

            def child():
                for kept in self.client._http._idle:
                    kept.close()  # it then asks by another, of which the parent takes no answer
                self.client.close()

            self.wait(fork(child))
            self.assertEqual(len(self.entries()), 1)
            self.client._keep_once(lease._session)
            self.assertTrue(lease.held())

    def test_everything_was_locked_by_another_thread(self):
        lease = self.client.lock(self.name).acquire()
        client, http = self.client, self.client._http
        mutexes = [client._mutex, client._moving, client._polls._mutex, http._mutex, lease._mutex, lease.lost._cond]
        ready, done = threading.Event(), threading.Event()

        def locks():
            for mutex in mutexes:
                mutex.acquire()
            ready.set()
            done.wait()
            for mutex in mutexes:
                mutex.release()

        def child():
            assert not lease.held() and lease.reason and lease.lost.is_set()
            lease.on_lost(lambda _: None)
            lease.release()
            assert client.leader(self.name + "/other") is None
            with client.lock(self.name + "/other", timeout=PATIENCE):
                assert next(client.observe(self.name + "/other")) == b""
            client.close()

        thread = threading.Thread(target=locks)
        thread.start()
        ready.wait()
        try:
            children = [fork(child), fork(client.close)]
        finally:
            done.set()
        thread.join()
        self.wait(*children)
        self.assertTrue(lease.held())
        lease.release()

    def test_threads_that_are_the_first_in_a_child(self):
        self.client.lock(self.name).acquire().release()

        def child():
            start, leases = threading.Barrier(8), []

            def work(i):
                start.wait()
                leases.append(self.client.lock("%s/%d" % (self.name, i)).acquire())

            threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert len({lease._session.id for lease in leases}) == 1 and all(lease.held() for lease in leases)

        self.wait(fork(child))

    def test_observer_goes_on_in_a_child(self):
        seen = self.client.observe(self.name)
        self.assertIsNone(next(seen))

        def child():
            with self.client.election(self.name, b"child"):
                assert next(seen) == b"child"

        self.wait(fork(child))
        with self.client.election(self.name, b"parent"):
            self.assertEqual(next(seen), b"parent")

    def test_asyncio(self):
        client = hasplock.aio.Client(self.server.url)
        tokens = []

        async def work():
            async def one():
                async with client.lock(self.name) as lease:
                    tokens.append(lease.token)

            await asyncio.gather(*(one() for _ in range(5)))
            lease = await client.try_lock(self.name + "/other")
            await client.release(lease)
            assert await client.leader(self.name) is None

        def child():
            asyncio.run(work())
            assert len(set(tokens)) == 10, tokens

        asyncio.run(work())
        self.wait(fork(child))
        asyncio.run(work())
        asyncio.run(client.close())
        self.assertEqual(self.entries(), [])

    def test_connections_are_not_shared(self):
        with self.client.lock(self.name) as lease:
            kept = list(self.client._http._idle)
            self.assertTrue(kept)

            def child():
                self.client.lock(self.name + "/other").acquire().release()
                assert not set(kept) & set(self.client._http._idle)
                assert all(connection.sock is None for connection in kept)  # closed here

            self.wait(fork(child))
            self.client._keep_once(lease._session)
            self.assertTrue(lease.held())


def a_token(name):
    signal.alarm(PATIENCE)
    with CLIENT.lock(name) as lease:
        time.sleep(0.002)
        return lease.token


if __name__ == "__main__":
    unittest.main()
