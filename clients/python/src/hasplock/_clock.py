"""The client's clock: it never goes back, and counts the time in which the machine was suspended."""

from __future__ import annotations

import sys
import time

if hasattr(time, "CLOCK_BOOTTIME"):  # Linux: unlike CLOCK_MONOTONIC it goes on while the machine sleeps

    def now() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":  # time.monotonic stands still while the machine sleeps; this clock does not

    def now() -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC)

else:  # on Windows, suspended time counts

    def now() -> float:
        return time.monotonic()
