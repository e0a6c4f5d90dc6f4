"""Does what it is told on its standard input, line by line, and says what has come of it. For tests of the clients.

lock NAME: "NAME held TOKEN" when it is. try NAME: the same, or "NAME busy", at once. held NAME: "NAME true" or "NAME false". release NAME: "NAME released".
An error instead: "NAME error KIND: TEXT". What ends a thread of the client ends the program, with status 3.
"""

import os
import sys
import threading

import hasplock


def ended(args):
    print(args.exc_type, args.exc_value, file=sys.stderr, flush=True)
    os._exit(3)


threading.excepthook = ended
client = hasplock.Client(sys.argv[1], ttl=float(sys.argv[2]))
leases, mutex = {}, threading.Lock()


def say(name, text):
    with mutex:
        print(name, text, flush=True)


def run(what, name):
    try:
        if what == "lock":
            leases[name] = client.lock(name, timeout=30).acquire()
            say(name, "held %d" % leases[name].token)
        elif what == "try":
            lease = client.try_lock(name)
            if lease:
                leases[name] = lease
            say(name, "held %d" % lease.token if lease else "busy")
        elif what == "held":
            say(name, "true" if leases[name].held() else "false")
        else:
            leases.pop(name).release()
            say(name, "released")
    except hasplock.HaspError as e:
        say(name, "error %s: %s" % (type(e).__name__, e))


for line in sys.stdin:
    threading.Thread(target=run, args=line.split()).start()
client.close()
