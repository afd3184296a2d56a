"""What every test is held to."""

from __future__ import annotations

import gc
import os

# Before NumPy is imported. Learners are threads, and would share the cores with as many BLAS threads each, which wait
# for each other by spinning: five times slower where the machine has other work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from crossbow.testing.arguments import gpu_number, is_gpu
from crossbow.types import ConfigurationError

# How long an example takes says more about the machine than about the code.
settings.register_profile("crossbow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("crossbow")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell's script. Programs that tests start would ignore Ctrl-C too, and not end.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SECONDS_TO_END = 3.0
NO_GPU_NAMED = "needs a GPU: run with --device cuda:0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", metavar="cuda:i", help="run the tests marked `gpu` too, on this GPU")


def pytest_configure(config: pytest.Config) -> None:
    """A GPU that is asked for and cannot be used is an error: nothing must look as if it had run there."""
    device = config.getoption("--device")
    if device is None:
        return
    try:
        if not is_gpu(device):
            raise ConfigurationError(f"expected a GPU, as cuda:0. Received: {device!r}")
        gpu_number(device)
    except ConfigurationError as error:
        raise pytest.UsageError(f"--device: {error}") from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") is None:
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(pytest.mark.skip(reason=NO_GPU_NAMED))


@pytest.fixture
def target(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where an operator runs, as options of `run_operator`. The device of rows marked `gpu` is that of --device."""
    options: dict[str, Any] = dict(getattr(request, "param", {}))
    if request.node.get_closest_marker("gpu") is not None:
        options["device"] = request.config.getoption("--device")
    return options


@pytest.fixture(scope="module", autouse=True)
def what_stays_is_no_garbage() -> None:
    """Take what is there, nearly a million objects towards the end, out of what later looks for garbage go through:
    some tests ask for many such looks, which took up to half a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, the threads of its contexts and loaders end with it."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + SECONDS_TO_END
    while left := [thread.name for thread in threading.enumerate() if thread not in before and _ours(thread)]:
        assert time.monotonic() < deadline, f"threads left behind: {', '.join(left)}"
        time.sleep(0.01)


@pytest.fixture
def default_handler() -> Iterator[None]:
    """As in a program: pytest may have set its own."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals go to the main thread")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler  # training has put it back


def _ours(thread: threading.Thread) -> bool:
    return thread.name.startswith(("learner-", "watcher-", "synchroniser", "crossbow-"))
