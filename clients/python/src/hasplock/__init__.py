"""Distributed locks through hasp serve.

    import hasplock

    client = hasplock.Client("http://127.0.0.1:7070")
    with client.lock("nightly-report") as lease:
        write_report(fencing_token=lease.token)

See README.md, and docs/SERVE.md of hasp for what is promised.
"""

from ._client import Client
from ._errors import Busy, Closed, HaspError, LockLost, Quarantine, Refused, Unavailable
from ._lease import Lease, Lock

__all__ = ["Busy", "Client", "Closed", "HaspError", "Lease", "Lock", "LockLost", "Quarantine", "Refused", "Unavailable"]
