"""Contexts that nobody holds, and contexts in a forked process."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from crossbow import ExecutionContext, ModelConf, SystemConf
from crossbow.synch import AsynchronousSGD
from tests.support import KERNELS, blobs, engine_of, perceptron

ROOT = Path(__file__).parents[1]
SECONDS = 20.0
"""How long a thread may take to end on a busy machine."""


def new_context(learners: int | str = 2, **settings: Any) -> ExecutionContext:
    system = SystemConf(learners_per_device=learners, kernels=settings.pop("kernels", "auto"))
    return ExecutionContext([perceptron(), None], data=blobs(), system=system, **{"monitors": (), **settings})


def wait_for_threads(before: set[threading.Thread]) -> list[str]:
    """The names of threads that there were not before, once there are none, or they have had time enough to end."""
    deadline = time.monotonic() + SECONDS
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [thread.name for thread in left]


# Contexts that nobody holds


@pytest.mark.slow
@KERNELS
def test_nothing_is_left_of_contexts_that_nobody_closes(kernels: str) -> None:
    before = set(threading.enumerate())
    for _ in range(30):
        context = new_context(kernels=kernels)
        context.train(1)
        del context
        gc.collect()
    assert wait_for_threads(before) == []


@pytest.mark.parametrize(
    "settings",
    [{}, {"model": ModelConf(rule=AsynchronousSGD())}, {"learners": "auto"}],
    ids=["barrier", "without a barrier", "tuned"],
)
def test_all_that_a_context_holds_is_given_back(settings: dict[str, Any]) -> None:
    before = set(threading.enumerate())
    context = new_context(**settings)
    context.train_and_test(2)
    context.predict(context.data.train.images)
    engine = engine_of(context)
    parts, streams = engine.parts, engine.backend.streams
    held = [weakref.ref(each) for each in (context, context.engine, parts, streams[0], parts.training.loader)]
    del context, engine, parts, streams
    gc.collect()
    assert [reference() for reference in held] == [None] * len(held)
    assert wait_for_threads(before) == []


def test_memory_is_given_back_without_a_collection() -> None:
    """It is large, and a collection may be long in coming."""
    gc.disable()
    try:
        context = new_context()
        context.train_and_test(1)
        engine = weakref.ref(context.engine)
        del context
        assert engine() is None
    finally:
        gc.enable()


def test_a_traceback_holds_a_context_as_long_as_it_is_there() -> None:
    """As after a cell of a notebook that failed: a traceback has the frames, and these the context."""
    before = set(threading.enumerate())

    def cell() -> None:
        context = new_context()
        context.train(1)
        raise ZeroDivisionError

    try:
        cell()
    except ZeroDivisionError as error:
        last: BaseException | None = error
    assert len(set(threading.enumerate()) - before) == 2
    last = None
    gc.collect()
    assert last is None
    assert wait_for_threads(before) == []


def test_a_context_is_neither_copied_nor_pickled() -> None:
    with new_context() as context:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"^an ExecutionContext owns threads, .* with `save` and `load`$"):
                attempt(context)


# Forked processes

FORKS = """
import multiprocessing, os, sys
from crossbow import CrossbowError, Monitor
from tests.test_lifetime import new_context

def attempt(what, work):
    try:
        work()
        print(what, "done", flush=True)
    except CrossbowError as error:
        assert str(os.getpid()) in str(error) and "Make a context in every process" in str(error), error
        print(what, "refused", flush=True)

def child(context):
    images = context.data.train.images
    for what, work in {
        "train": lambda: context.train(1), "test": context.test, "predict": lambda: context.predict(images),
        "variables": lambda: context.variables, "save": lambda: context.save("model"),
        "load": lambda: context.load("model"), "close": context.close,
    }.items():
        attempt(what, work)
    with new_context() as own:
        attempt("its own", lambda: own.train(1))

class Forking(Monitor):
    interval, process = 0.0, None

    def progress(self, progress):
        self.process = os.fork() if self.process is None else self.process

context = new_context()
context.train(1)
process = os.fork()
if process == 0:
    child(context)
    sys.exit(3)
print("fork", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
started = multiprocessing.get_context("fork").Process(target=child, args=(context,))
started.start()
started.join()
print("multiprocessing", started.exitcode, flush=True)
attempt("the parent", lambda: context.train(1))
context.close()

monitor = Forking()
with new_context(monitors=[monitor]) as context:
    attempt("training", lambda: context.train(3))
if monitor.process == 0:
    sys.exit(4)
print("monitor", os.waitstatus_to_exitcode(os.waitpid(monitor.process, 0)[1]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_is_told_that_it_has_no_threads() -> None:
    """It ends as if nothing were wrong, may have a context of its own, and leaves its parent's alone."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120)
    assert done.stderr == ""
    refused = [f"{what} refused" for what in ("train", "test", "predict", "variables", "save", "load")]
    child = [*refused, "close done", "its own done"]
    lines = done.stdout.splitlines()
    assert lines[:-3] == [*child, "fork 3", *child, "multiprocessing 0", "the parent done"]
    assert sorted(lines[-3:-1]) == ["training done", "training refused"]
    assert lines[-1] == "monitor 4"
