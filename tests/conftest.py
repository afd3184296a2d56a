"""What every test is held to."""

from __future__ import annotations

import gc
import importlib.util
import os

# Before NumPy is imported. Learners are threads, and would share the cores with as many BLAS threads each, which wait
# for each other by spinning: five times slower where the machine has other work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from crossbow.testing.arguments import gpu_number, is_gpu
from crossbow.types import ConfigurationError
from tests.combinations import sample_long_lists
from tests.onnx.counts import pytest_terminal_summary  # noqa: F401 - a hook

# How long an example takes says more about the machine than about the code.
settings.register_profile("crossbow", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("crossbow")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell's script. Programs that tests start would ignore Ctrl-C too, and not end.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SECONDS_TO_END = 60.0
MOST_WORKERS = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", metavar="cuda:i", help="run the tests marked `gpu` too, on this GPU")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in several processes, where pytest-xdist is installed and nothing says otherwise.

    A file, a folder or a single test runs in this process: collecting in each of several takes longer. So does what
    needs a GPU: processes would share it.
    """
    if hasattr(config, "workerinput"):
        return
    if not config.pluginmanager.hasplugin("xdist") or config.option.numprocesses is not None:
        return
    apart = config.option.usepdb or config.option.collectonly or config.option.device is not None
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not apart:
        workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2, MOST_WORKERS)
        config.option.numprocesses = workers if workers > 1 else 0
        # Each process takes one half of the files, so that what a file's tests share is made once.
        config.option.dist = "worksteal"


def is_whole(config: pytest.Config) -> bool:
    """Whether all tests are run, or all slow ones: no path, no name (`-k`) and no earlier failure (`--lf`) is given."""
    if hasattr(config, "workerinput"):
        return bool(config.workerinput["whole"])
    selected = (config.getoption(name, default=False) for name in ("keyword", "lf", "failedfirst"))
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(selected)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist calls this before it starts a worker."""
    node.workerinput["whole"] = is_whole(node.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a run of the whole suite, leave most combinations of tests with many of them to the run of slow tests."""
    if is_whole(config):
        sample_long_lists(items)


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


def pytest_report_header(config: pytest.Config) -> str:
    device = config.getoption("--device")
    return f"GPU: {device or 'none; tests that need one are not collected (--device cuda:0 runs them)'}"


# In a whole run, what is not run is not even collected: to deselect tens of thousands of items takes its time, too.


def _left_out(config: pytest.Config) -> set[str]:
    """Marks of tests that are not collected: `gpu` without --device, and `slow` in a whole run, unless -m asks for it.
    A slow test that is named is deselected, because pytest says of one that is not collected that it does not exist."""
    left_out = {"gpu"} if config.getoption("--device") is None else set()
    return left_out | ({"slow"} if is_whole(config) and config.option.markexpr == "not slow" else set())


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: Any) -> list[pytest.Item] | None:
    """Leave out tests that are marked, as a whole or in all of their parameters."""
    left_out, own = _left_out(collector.config), getattr(obj, "pytestmark", [])
    if any(mark.name in left_out for mark in (*collector.iter_markers(), *own)):
        return []
    lists = [mark.args[1] for mark in own if mark.name == "parametrize" and isinstance(mark.args[1], Sequence)]
    return [] if any(values and not _kept(values, left_out) for values in lists) else None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leave out parameters."""
    left_out, marks = _left_out(metafunc.config), metafunc.definition.own_markers
    for place, mark in enumerate(marks):
        if mark.name == "parametrize":
            names, values, *rest = mark.args
            values = list(values)
            kept = _kept(values, left_out)
            if isinstance(mark.kwargs.get("ids"), Sequence) and len(kept) < len(values):
                raise pytest.UsageError(f"{metafunc.definition.nodeid}: give marked parameters an `id` each, not `ids`")
            marks[place] = pytest.mark.parametrize(names, kept, *rest, **mark.kwargs).mark


def _kept(values: Iterable[Any], left_out: set[str]) -> list[Any]:
    return [value for value in values if all(each.name not in left_out for each in getattr(value, "marks", ()))]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Several processes have to collect the same names."""
    if " at 0x" in item.nodeid:
        raise pytest.UsageError(f"{item.nodeid}: an address is in its name, another in every process. Give it `ids`.")


@pytest.fixture
def target(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where an operator runs, as options of `run_operator`. The device of rows marked `gpu` is that of --device."""
    options: dict[str, Any] = dict(getattr(request, "param", {}))
    if request.node.get_closest_marker("gpu") is not None:
        options["device"] = request.config.getoption("--device")
    return options


@pytest.fixture(scope="session", autouse=True)
def passes_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of several workers that need a pass at the same time, one compiles it; the others find it on disk afterwards."""
    if "PYTEST_XDIST_WORKER" not in os.environ or importlib.util.find_spec("numba") is None or sys.platform == "win32":
        yield
        return
    import fcntl

    from crossbow.kernels.compiled import NativeFunction

    folder, compile_pass = tmp_path_factory.getbasetemp().parent, NativeFunction._compile

    def compile_alone(function: NativeFunction) -> Any:
        with (folder / f"{function.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            return compile_pass(function)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeFunction, "_compile", compile_alone)
        yield


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
