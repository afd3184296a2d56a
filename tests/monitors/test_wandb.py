"""Weights & Biases: what is sent to a fake of the package, and a file of the real one without network."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossbow import ConfigurationError, WandbMonitor
from tests.monitors.records import progress, record
from tests.support import until


class Fake:
    """Replaces the package, and stores the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def init(self, **arguments: Any) -> Fake:
        self.calls.append(("init", arguments))
        return self

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.calls.append(("log", (step, numbers)))

    def finish(self) -> None:
        self.calls.append(("finish", None))

    Settings = SimpleNamespace


def test_what_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = Fake()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monitor = WandbMonitor("digits", name="first", directory=tmp_path, mode="offline", settings={"rule": "sma"})
    monitor.close()
    assert fake.calls == [], "nothing began"
    monitor.progress(progress())
    monitor.progress(progress(50))
    monitor.record(record(1, accuracy=None))
    monitor.close()
    monitor.close()
    (begin, arguments), (log, (step, numbers)), (end, _) = fake.calls
    assert (begin, log, end) == ("init", "log", "finish")
    assert {name: arguments[name] for name in ("project", "name", "mode", "dir", "config")} == {
        "project": "digits",
        "name": "first",
        "mode": "offline",
        "dir": str(tmp_path),
        "config": {"rule": "sma"},
    }
    assert step == 100
    assert numbers == {name: value for name, value in record(1, accuracy=None).numbers().items() if value is not None}


def test_bad_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"mode must be one of online, offline\. Received: mode='later'"):
        WandbMonitor(mode="later")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'crossbow\[wandb\]'"):
        WandbMonitor()


def test_a_run_that_cannot_begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Error(Exception):
        pass

    def init(**arguments: Any) -> None:
        raise Error("No API key configured.")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Error=Error, Settings=SimpleNamespace))
    with pytest.raises(
        ConfigurationError, match=r"Received: No API key configured\. Without an account, set WANDB_MODE"
    ):
        WandbMonitor(directory=tmp_path).progress(progress())


@pytest.mark.slow
def test_a_run_without_network(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    monitor = WandbMonitor(directory=tmp_path, mode="offline")
    monitor.progress(progress())
    monitor.record(record(1))
    monitor.close()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    until(lambda: b"test_accuracy" in file.read_bytes())
