"""Progress bars on standard error."""

from __future__ import annotations

import pytest

from crossbow.data.progress import ProgressBars

pytest.importorskip("rich")


@pytest.mark.parametrize(("unit", "shown"), [("images", ["30/40", "images"]), (None, ["30/40 bytes"])])
def test_a_bar_shows_what_is_done(unit: str | None, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBars(unit) as progress:
        update = progress.begin("name")
        update(10, 0)
        update(30, 40)
    printed = capsys.readouterr()
    assert printed.out == ""
    for text in ("name", *shown):
        assert text in printed.err


def test_nothing_is_drawn_before_something_begins(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBars():
        pass
    assert capsys.readouterr().err == ""
