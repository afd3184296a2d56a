"""Values of options: what is accepted, and what is said of the others."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from crossbow.scripts.values import expanded_path, file_to_write, integer, number


def test_integers() -> None:
    assert integer(0)("0") == 0
    assert integer(2)("17") == 17
    for text in ("1", "-3", "2.5", "many", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=rf"^expected an integer ≥ 2\. Received: '{text}'$"):
            integer(2)(text)


@pytest.mark.parametrize(
    ("bounds", "above", "below", "good", "bad", "expected"),
    [
        ((), False, False, ["-1e9", "0"], ["nan", "inf", "-inf", "much"], "a number"),
        ((0,), False, False, ["0", "0.5"], ["-0.1", "nan"], "a number ≥ 0"),
        ((0,), True, False, ["1e-9"], ["0", "-1"], "a number > 0"),
        ((0, 1), False, False, ["0", "1"], ["1.1", "-1"], "a number ≥ 0 and ≤ 1"),
        ((0, 1), False, True, ["0", "0.99"], ["1", "-1"], "a number ≥ 0 and < 1"),
    ],
)
def test_numbers(
    bounds: tuple[float, ...], above: bool, below: bool, good: list[str], bad: list[str], expected: str
) -> None:
    convert = number(*bounds, above=above, below=below)
    assert [convert(text) for text in good] == [float(text) for text in good]
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError) as caught:
            convert(text)
        assert str(caught.value) == f"expected {expected}. Received: {text!r}"


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded_path("~/name") == tmp_path / "name"
    assert file_to_write("~/new") == tmp_path / "new"
    for text in (str(tmp_path), "/dev/null", "a\0b"):
        with pytest.raises(argparse.ArgumentTypeError):
            file_to_write(text)
