"""`crossbow lr-find`, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossbow import RangeTest, cli
from crossbow.scripts.lr_find_command import conclusion

MODEL = ["-m", "models.mlp", "--hidden", "16", "--dataset", "digits", "--batch-size", "16", "--momentum", "0.9"]
MODEL += ["--learners", "2", "--threads-per-learner", "1"]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_and_a_rate(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, numbers = tmp_path / f"rates.{ending}", tmp_path / "rates.json"
    options = ["--tasks", "120", "--from", "1e-4", "-o", str(picture), "--json", str(numbers)]
    assert cli.main(["lr-find", *options, *MODEL]) == 0
    first, second = capsys.readouterr().out.splitlines()
    found = json.loads(numbers.read_text("utf-8"))
    assert len(found["rates"]) == len(found["losses"])
    assert found["rates"][0] == 1e-4
    assert f"learning rate {found['suggestion']:.2g}; the loss was smallest at {found['least']:.2g}" in first
    assert second == f"picture {picture}"
    assert picture.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rates.json", f"rates.{ending}"]


def test_conclusions() -> None:
    rates = tuple(10.0**number for number in range(-8, 2))
    assert conclusion(RangeTest(rates, (1.0,) * 10, diverged=True)) == (
        "the loss did not decrease with any learning rate; training diverged at 10"
    )
    assert conclusion(RangeTest((), (), diverged=True)).endswith("training did not diverge")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "expected a model, as -m models.resnet. Received: none"),
        ("-m models.resnt", "Received: 'models.resnt'. Did you mean models.resnet?"),
        ("--from 2 --to 1 -m models.logistic_regression", "lowest must be less than highest. Received: 2 and 1"),
        ("-o rates.jpg -m models.logistic_regression", "expected a file name that ends with .png or .svg"),
        ("--tasks 1 -m models.lenet", "expected an integer ≥ 2"),
        ("-m models.lenet --learners none", "--learners"),
        (
            "-m models.lenet --tasks 50 --from=1",
            "unrecognized arguments: --tasks 50 --from=1. Options of crossbow lr-find precede -m. Received after it: "
            "--tasks, --from\n",
        ),
    ],
)
def test_wrong_arguments(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(["lr-find", *arguments.split()])
    except SystemExit as end:
        status = end.code  # type: ignore[assignment]
    assert status == 2
    assert message in capsys.readouterr().err
