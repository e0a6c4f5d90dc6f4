"""Workers of a process that has used its client before it forks, as gunicorn --preload does: forkers.py URL TTL NAMES.

Each prints "NAME TOKEN FROM UNTIL": from when until when it has believed that it holds the lock, by the wall clock in
nanoseconds. "error KIND: TEXT" else. It ends with its standard input."""

import os
import random
import sys
import threading
import time

import hasplock

client = hasplock.Client(sys.argv[1], ttl=float(sys.argv[2]))
names = sys.argv[3].split(",")


def now():
    return time.time_ns()


def say(text):
    os.write(1, (text + "\n").encode())


def once():
    name = random.choice(names)
    with client.lock(name, timeout=30) as lease:
        begun = until = now()
        for _ in range(random.randrange(3)):
            time.sleep(random.random() / 10)
            asked = now()
            if lease.held():
                until = asked
        say("%s %d %d %d" % (name, lease.token, begun, until))
    time.sleep(random.random() / 2)


def work():
    while True:
        try:
            once()
        except hasplock.HaspError as e:
            say("error %s: %s" % (type(e).__name__, str(e).replace("\n", " ")))
            time.sleep(0.1)


once()  # before the fork: the client has a session, a thread and sockets
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        work()
    children.append(child)
threading.Thread(target=work, daemon=True).start()
sys.stdin.read()
for child in children:
    os.kill(child, 9)
os._exit(0)
