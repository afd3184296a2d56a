"""The formats of `--log`, and what each writes to the output directory."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from crossbow import ConfigurationError, CsvMonitor, TensorBoardMonitor
from crossbow.scripts.logs import add_log, log_monitors
from tests.monitors.records import progress, record


def parse(text: str) -> list[str]:
    parser = argparse.ArgumentParser()
    add_log(parser.add_argument_group("output"))
    return list(parser.parse_args(["--log", text]).log)


def test_formats_are_separated_by_commas(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    formats = parse("jsonl,csv,tensorboard")
    table, events = log_monitors(formats, tmp_path, "lenet")
    assert isinstance(table, CsvMonitor)
    assert table.path == tmp_path / "log.csv"
    assert isinstance(events, TensorBoardMonitor)
    assert events.directory == tmp_path / "tensorboard"
    assert log_monitors(["jsonl"], tmp_path, "lenet") == []
    assert not list(tmp_path.iterdir())


def test_a_resumed_table_goes_on(tmp_path: Path) -> None:
    for resume, tasks in ((False, 0), (True, 100), (False, 0)):
        (table,) = log_monitors(["csv"], tmp_path, "lenet", resume=resume)
        table.progress(progress(tasks))
        table.record(record(2 if resume else 1))
        assert len((tmp_path / "log.csv").read_text().splitlines()) == (3 if resume else 2)


def test_the_nearest_format_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse("csv,tensorbord")
    assert "Received: 'tensorbord'. Did you mean tensorboard?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_missing_package_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (name, f"{name}.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"needs the package {name}: pip install 'crossbow\[{name}\]'"):
        log_monitors([name], tmp_path, "lenet")
