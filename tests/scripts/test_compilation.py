"""The line that the first run on a machine prints."""

from __future__ import annotations

import pytest

from crossbow.kernels.compiled import LOGGER
from crossbow.scripts import compilation


@pytest.mark.parametrize("terminal", [True, False])
def test_it_is_printed_once_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compilation, "draws_bars", lambda stream: terminal)
    LOGGER.info("compiled nothing")
    with compilation.announced():
        LOGGER.info("compiled %s", "add")
        LOGGER.info("compiled %s", "clip")
    LOGGER.info("compiled %s", "tile")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == err.count("compiling kernels for this machine") == terminal
    assert LOGGER.handlers == []
