"""What every test is held to."""

from __future__ import annotations

import os

# Before NumPy is imported. Learners are threads, and would share the cores with as many BLAS threads each, which wait
# for each other by spinning: five times slower where the machine has other work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("crossbow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("crossbow")

SECONDS_TO_END = 3.0


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, the threads of its contexts and loaders end with it."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + SECONDS_TO_END
    while left := [thread.name for thread in threading.enumerate() if thread not in before and _ours(thread)]:
        assert time.monotonic() < deadline, f"threads left behind: {', '.join(left)}"
        time.sleep(0.01)


def _ours(thread: threading.Thread) -> bool:
    return thread.name.startswith(("learner-", "synchroniser", "crossbow-"))
