"""Choices on command lines: the nearest one is offered."""

from __future__ import annotations

import pytest

from crossbow.cli import main
from crossbow.scripts.command_parser import CommandParser
from models.lenet import main as lenet


def error(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--rule", "smaa"], "sma"),
        (["--dataset", "digts"], "digits"),
        (["--variant", "cafe"], "caffe"),
        (["--learning-rate-policy", "invv"], "inv"),
    ],
)
def test_options_of_scripts(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        lenet(arguments)
    assert ended.value.code == 2
    assert error(capsys).endswith(f"Did you mean {meant}?")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["grph", "models.lenet"], "graph"),
        (["plot", "out", "--x", "epoch"], "epochs"),
        (["models", "--jsn"], "--json"),
        (["data", "encode", "digits", "--output=x", "--batch-size=8", "--partition-sise=9"], "--partition-size"),
    ],
)
def test_commands_and_their_options(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert error(capsys).endswith(f"Did you mean {meant}?")


def test_all_options_that_begin_with_a_received_one_are_offered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lenet(["--test-interval=3", "--image", "x"])
    assert "unrecognized arguments: --image x. Did you mean --image-size or --image-shape? Options of sma: " in error(
        capsys
    )
    with pytest.raises(SystemExit):
        lenet(["--check", "3", "--lr", "2"])
    meant = "--check-fraction, --checkpoint-interval, --check-batch-size or --learning-rate"
    assert f"unrecognized arguments: --check 3 --lr 2. Did you mean {meant}? Options of sma: " in error(capsys)


def test_options_of_launch_after_the_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CROSSBOW_RANK", "0")
    monkeypatch.setenv("CROSSBOW_SIZE", "1")
    with pytest.raises(SystemExit):
        lenet(["-n", "2", "--engine=mpi"])
    message = "Options of crossbow launch precede -m or the script. Received after it: -n, --engine"
    assert error(capsys).endswith(f"unrecognized arguments: -n 2 --engine=mpi. {message}")
    with pytest.raises(SystemExit):
        lenet(["--epoch", "2"])
    assert "unrecognized arguments: --epoch 2. Did you mean --epochs? Options of sma: " in error(capsys)


def test_nothing_is_offered_if_nothing_is_similar(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser()
    parser.add_argument("--depth", type=int, choices=(18, 50))
    assert parser.parse_args(["--depth", "50"]).depth == 50
    with pytest.raises(SystemExit):
        parser.parse_args(["--depth", "7"])
    message = error(capsys)
    assert "invalid choice: 7" in message
    assert "Did you mean" not in message
