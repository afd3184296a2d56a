"""What a script says of a run: device, rule, loader, losses and length, each once."""

from __future__ import annotations

import argparse
import json

import pytest

from crossbow import Dataset
from crossbow.scripts.run_texts import count, header, print_configuration, weights_of_losses
from crossbow.synch import EASGD, SMA
from tests.support import blobs, context, perceptron
from tests.test_several_losses import network

OPTIONS = argparse.Namespace(
    dataset="digits", epochs=3, time_limit=2.5, target_accuracy=0.9, output_directory="output/example"
)


def printed(capsys: pytest.CaptureFixture[str], data: Dataset, rule: SMA | EASGD, **weights: float) -> dict[str, str]:
    with context(perceptron(), data=data, rule=rule, learners=2) as running:
        print_configuration("lenet", "caffe", OPTIONS, running, data, weights, ["initial  2 of 2 variables from x"])
    lines = capsys.readouterr().out.splitlines()
    return {line[:8].strip(): line[8:].strip() for line in lines if line}


def test_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, blobs(examples=40, check=13), SMA(tau=3), main=1.0, side=0.3)
    assert rows["model"] == f"lenet (caffe), {6 * 8 + 8 + 8 * 3 + 3} parameters"
    assert rows["data"] == "digits, 40 training and 13 test examples of shape 6"
    assert rows["device"].endswith("2 learners × 1 thread")
    assert rows["rule"].endswith("an average every 6 tasks")
    assert rows["loss"] == "main + 0.3 × side; in tests main"
    assert rows["length"] == "3 epochs, at most 2.5 s, or test accuracy 90.00%; seed 0"
    assert rows["initial"] == "2 of 2 variables from x"


def test_a_rule_without_a_barrier_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, blobs(), EASGD())["rule"].endswith("; what comes of it depends on timing")


def test_the_first_line_of_the_log_is_json() -> None:
    with context(perceptron(), data=blobs(), learners=3, seed=5) as running:
        head = header("lenet", "", "digits", running, {"loss": 1.0, "other": 0.3})
    assert json.loads(json.dumps(head)) == head
    assert (head["seed"], head["losses"], head["devices"][0]["learners"]) == (5, {"loss": 1.0, "other": 0.3}, 3)


def test_the_weights_of_losses() -> None:
    assert weights_of_losses(perceptron()) == {}
    weights = weights_of_losses(network())
    assert list(weights.values()) == [1.0, 0.3]


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1 task"), (0, "0 tasks"), (2.5, "2.50 tasks"), (1234, "1,234 tasks")]
)
def test_numbers_with_units(number: float, text: str) -> None:
    assert count(number, "task") == text
