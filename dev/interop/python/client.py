"""Python's side of the protocol that protocol.go describes."""

import os
import sys
import time
import zlib


class Lost(Exception):
    """The library says that the lock was lost."""


class Kazoo:
    """kazoo's Lock, ReadLock and WriteLock, as its documentation has them used: a listener
    is what tells of a lost session."""

    def __init__(self, kind, address, ttl):
        import kazoo.client
        import kazoo.version

        self.version = "kazoo " + kazoo.version.__version__
        self.client = kazoo.client.KazooClient(hosts=address, timeout=ttl)
        self.kind, self.held, self.told = kind, None, None
        self.client.add_listener(self.listen)
        self.client.start(timeout=60)

    def listen(self, state):
        if state != "CONNECTED":
            self.told = state

    def take(self, name, wait):
        self.told = None
        lock = getattr(self.client, self.kind)("/locks/" + name)
        if not lock.acquire(blocking=wait):
            return False
        self.held = lock
        return True

    def unlock(self):
        held, self.held = self.held, None
        if not held.release():
            raise Lost("release() is False")

    def check(self):
        if self.told:
            raise Lost("connection listener: " + self.told)
        return self.held.is_acquired


class RedisPy:
    """redis-py's Lock: SET NX PX, looked at every sleep seconds, never renewed."""

    def __init__(self, kind, address, ttl):
        import redis

        self.version = "redis-py " + redis.__version__
        host, port = address.split(":")
        # Its 5 seconds for a request are too short for a machine that is busy.
        self.client = redis.Redis(host=host, port=int(port), socket_timeout=60, socket_connect_timeout=60)
        self.ttl, self.held = ttl, None
        self.client.ping()

    def take(self, name, wait):
        lock = self.client.lock(name, timeout=self.ttl, sleep=0.01, thread_local=False)
        if not lock.acquire(blocking=wait):
            return False
        self.held = lock
        return True

    def unlock(self):
        from redis.exceptions import LockError

        held, self.held = self.held, None
        try:
            held.release()
        except LockError as e:
            raise Lost(str(e))

    def check(self):
        return self.held.owned()


class Postgres:
    """A session that takes an advisory lock as Rails' migrations do, by their rule."""

    def __init__(self, kind, address, ttl):
        import psycopg

        self.version = "psycopg " + psycopg.__version__
        self.connection, self.number = psycopg.connect(address, autocommit=True), None

    def ask(self, function, number):
        return self.connection.execute("SELECT " + function + "(%s)", (number,)).fetchone()[0]

    def take(self, name, wait):
        # ActiveRecord::Migrator: MIGRATOR_SALT times the CRC-32 of the database's name.
        number = 2053462845 * zlib.crc32(name.encode())
        function = "pg_advisory_lock" if wait else "pg_try_advisory_lock"
        if self.ask(function, number) is False:
            return False
        self.number = number
        return True

    def unlock(self):
        if not self.ask("pg_advisory_unlock", self.number):
            raise Lost("pg_advisory_unlock is false")

    def check(self):
        self.connection.execute("SELECT 1")  # the session has it for as long as it lives
        return True


class Hasp:
    """hasp's own client for hasp serve, which is not installed: it is of this repository."""

    def __init__(self, kind, address, ttl):
        sys.path.insert(0, os.environ["HASP_CLIENTS"] + "/python/src")
        import hasplock

        self.version = "hasplock"
        self.lost, self.busy = hasplock.LockLost, hasplock.Busy
        self.client = hasplock.Client("http://" + address, ttl=ttl)
        self.held = None

    def take(self, name, wait):
        self.held = self.client.lock(name).acquire() if wait else self.client.try_lock(name)
        return self.held is not None

    def unlock(self):
        try:
            self.held.release()
        except self.lost as e:
            raise Lost(str(e))

    def check(self):
        return self.held.held()

    def token(self):
        return self.held.token


def micros():
    return "ok %d" % (time.time() * 1e6)


def increment(path):
    with open(path) as f:
        text = f.read()
    time.sleep(0.001)
    with open(path, "w") as f:
        f.write(str(int(text or 0) + 1))


def answer(client, words):
    if words[0] == "lock":
        client.take(words[1], True)
        if hasattr(client, "token"):
            return "%s %d" % (micros(), client.token())
    elif words[0] == "try":
        if not client.take(words[1], False):
            return "busy"
    elif words[0] == "unlock":
        before = micros()
        client.unlock()
        return before
    elif words[0] == "check":
        return "held" if client.check() else "lost"
    elif words[0] == "count":
        for _ in range(int(words[1])):
            client.take(words[4], True)
            increment(words[3])
            client.unlock()
            time.sleep(int(words[2]) / 1000)
    else:
        return "error: no such command"
    return micros()


def main():
    library, kind = sys.argv[1:]
    address = os.environ["HASP_STORE" if library == "psycopg" else "HASP_ADDRESS"]
    client = {"kazoo": Kazoo, "redis-py": RedisPy, "psycopg": Postgres, "hasplock": Hasp}[library](kind, address, int(os.environ["HASP_TTL_MS"]) / 1000)
    print("ready", client.version, flush=True)
    for line in sys.stdin:
        try:
            text = answer(client, line.split())
        except Lost as e:
            text = "lost " + str(e)
        except Exception as e:
            text = "error: %s: %s" % (type(e).__name__, e)
        print(text.replace("\n", " "), flush=True)
    sys.stdout.flush()


main()
