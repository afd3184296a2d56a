"""What training calls print by themselves."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from crossbow import (
    ConfigurationError,
    ConsoleMonitor,
    Dataflow,
    ExecutionContext,
    History,
    ModelConf,
    Monitor,
    Sequential,
    TrainingUnit,
)
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
from tests.support import blobs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def context(**more: Any) -> ExecutionContext:
    network = Dataflow(Sequential(InnerProduct(3), SoftMax(), SoftMaxLoss()))
    return ExecutionContext(network, data=blobs(), model=ModelConf(batch_size=4), **more)


CALLS: dict[str, Callable[..., History]] = {
    "train": lambda running, **more: running.train(2, **more),
    "train_and_test": lambda running, **more: running.train_and_test(2, **more),
    "train_for_duration": lambda running, **more: running.train_for_duration(100, count=2, **more),
    "train_until_condition": lambda running, **more: running.train_until_condition(-1.0, 2, **more),
    "train_until_condition_or_for_duration": lambda running, **more: running.train_until_condition_or_for_duration(
        -1.0, 100, count=2, **more
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_method_that_trains_prints_a_line_for_each_epoch_or_nothing(
    call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with context() as running:
        CALLS[call](running)
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
        assert all(("test accuracy" in line) == (call == "train_and_test") for line in lines)
        CALLS[call](running, verbose=0)
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("monitors", "verbose", "printed"),
    [
        (None, "auto", True),
        ((), "auto", False),
        ([Monitor()], "auto", False),
        (None, 0, False),
        (None, False, False),
        ((), 1, True),
        ([Monitor()], True, True),
    ],
)
def test_only_contexts_without_monitors_print_unless_it_is_asked_for(
    monitors: Any, verbose: Any, printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with context(monitors=monitors) as running:
        running.train(1, verbose=verbose)
    assert capsys.readouterr().out.count("epoch 1/1  ") == printed


@pytest.mark.parametrize("verbose", ["auto", 1])
def test_a_console_of_the_user_stays_the_only_one(verbose: Any) -> None:
    stream = io.StringIO()
    with context(monitors=[ConsoleMonitor(stream=stream)]) as running:
        running.train(1, verbose=verbose)
    assert stream.getvalue().count("epoch 1") == 1


def test_on_a_terminal_a_bar_shows_the_progress_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with context() as running:
        running.train(3, verbose=0)
        assert terminal.getvalue() == ""
        running.train(1)
    shown = terminal.getvalue()
    assert "epoch 4/4" in shown
    assert "  0 %" in shown  # not 75 %, the part of the earlier call
    assert "\x1b[?25h" in shown  # the cursor is back
    assert shown.count("loss ") >= 1


def test_tasks_are_counted_instead_of_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    with context() as running:
        running.train(5, TrainingUnit.TASKS)
    assert re.fullmatch(r"epoch 0\.[56]0  loss .*\n", capsys.readouterr().out)  # whole ticks


def test_the_bar_is_gone_before_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Monitor):
        def record(self, record: object) -> None:
            raise RuntimeError("full")

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with context(monitors=[Failing()]) as running:
        with pytest.raises(Exception, match="full"):
            running.train(1, verbose=1)
        assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back


@pytest.mark.parametrize("wrong", [2, -1, "always", None, 0.5, [1]])
def test_another_verbosity_is_rejected_and_nothing_is_trained(wrong: Any) -> None:
    with context() as running:
        with pytest.raises(ConfigurationError, match=r"verbose must be 'auto', 0 or 1\. Received: verbose="):
            running.train(1, verbose=wrong)
        assert running.summary().tasks == 0
        running.train(1, verbose=0)  # the context is usable
