"""What may differ when a run is resumed, and what must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, Checkpoints, DataError, Dataflow, ModelConf, SolverConf, SubGraph, TrainingUnit
from crossbow.ops import Dropout, InnerProduct, ReLU, SoftMax, SoftMaxLoss
from crossbow.runtime.recorded import recorded
from crossbow.runtime.resumption import changes, check_same_run, describe_network
from crossbow.synch import EASGD
from tests.support import Probe, blobs, chain, context, perceptron, training

DATA = blobs(examples=40)


def begin(directory: Path, tasks: int = 12, **options: Any) -> dict[str, np.ndarray]:
    """Train, and leave a checkpoint. Returns the weights."""
    with context(perceptron(), data=DATA, checkpoints=Checkpoints(directory), **options) as running:
        running.train(tasks, TrainingUnit.TASKS)
        return running.variables


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"learners": 3}, "learners_per_device: 2 → 3"),
        ({"learners": 1, "devices": "cpu:0/2,cpu:1/2", "threads": None}, "devices: ['cpu'] → ['cpu:0/2', 'cpu:1/2']"),
        ({"rule": SSGD()}, "rule: None → ssgd(tau=1)"),
        ({"rule": EASGD(), "learners": 2}, "rule: None → easgd"),
        ({"rule": SMA(tau=3)}, "rule: None → sma(alpha=None, tau=3"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_other_learners_and_rules(options: dict[str, Any], change: str, tmp_path: Path) -> None:
    """They begin at the base model, and no example of the epoch is left out, or taken twice."""
    weights = begin(tmp_path)
    seen: list[np.ndarray] = []
    with context(perceptron(), data=DATA, resume=tmp_path, **options) as resumed:
        assert resumed.resumed is not None
        assert any(change in each for each in resumed.resumed.changes)
        for name, value in resumed.variables.items():
            assert value.tobytes() == weights[name].tobytes()
        loader = resumed.engine.loader  # type: ignore[attr-defined]
        write = loader._source
        loader._source = lambda selection, *arrays: (seen.append(selection.indices.copy()), write(selection, *arrays))[
            1
        ]
        assert resumed.summary().tasks == 12
        expected = np.concatenate([indices_of(resumed, task) for task in range(12, 20)])
        resumed.train(8, TrainingUnit.TASKS)
    found = np.concatenate(seen)[: len(expected)]
    assert sorted(found.tolist()) == sorted(expected.tolist())


def indices_of(running: Any, task: int) -> np.ndarray:
    out = np.empty(4, np.intp)
    running.engine.order.indices(task, out)
    return out


def test_the_same_settings_are_exact(tmp_path: Path) -> None:
    begin(tmp_path)
    with context(perceptron(), data=DATA, resume=tmp_path) as resumed:
        assert resumed.resumed is not None
        assert resumed.resumed.exact
        assert resumed.resumed.changes == ()
        assert "base model" not in str(resumed.resumed)


def test_files_are_compared_if_both_records_have_them() -> None:
    def record(**files: str) -> dict[str, Any]:
        return {"network": [], "data": {"training_examples": 4, **files}, "model": {}, "solver": {}, "system": {}}

    for before in (record(), record(training_files="a"), record(training_files="a", check_files="b")):
        check_same_run(before, record(training_files="a", check_files="b"), "run")
        check_same_run(record(training_files="a", check_files="b"), before, "run")
    for name, phase in (("training_files", "training"), ("check_files", "check")):
        message = (
            f"^run cannot be resumed with another data set: names or sizes of the files of {phase} examples differ$"
        )
        with pytest.raises(DataError, match=message):
            check_same_run(record(**{name: "a"}), record(**{name: "b"}), "run")


def test_another_rate_keeps_the_learners(tmp_path: Path) -> None:
    begin(tmp_path)
    with context(perceptron(), data=DATA, resume=tmp_path, solver=SolverConf(learning_rate=0.01)) as resumed:
        assert resumed.resumed is not None
        assert resumed.resumed.exact
        assert resumed.resumed.changes == ("learning_rate: 0.1 → 0.01",)
        assert resumed.engine.learning_rate == 0.01


def test_a_part_is_dropped_and_said_so(tmp_path: Path) -> None:
    begin(tmp_path)
    with context(perceptron(), data=DATA, resume=tmp_path, learners=3) as resumed:
        assert resumed.resumed is not None
        assert not resumed.resumed.exact
        assert "all learners begin at the base model" in str(resumed.resumed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataflow": perceptron(hidden=9)}, "another network: expected .*=8.* Received: .*=9"),
        ({"dataflow": perceptron(Dropout())}, "another network"),
        ({"data": blobs(examples=41)}, "another data set: training_examples: 40 → 41"),
        ({"data": blobs(examples=40, seed=1)}, "another data set: images or labels of the training examples differ"),
        ({"batch_size": 5}, "another batch_size: expected 4. Received: 5"),
        ({"seed": 1}, "another seed: expected 0. Received: 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_must_stay(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    begin(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    given: dict[str, Any] = {"dataflow": perceptron(), "data": DATA, **options}
    with pytest.raises(DataError, match=message):
        context(resume=tmp_path, **given)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == before


def test_fields_that_an_older_version_did_not_have() -> None:
    """Its network is the same, and its settings are those of today's defaults."""
    (line,) = [line for line in describe_network(perceptron().graph) if "SoftMaxLoss(" in line]
    assert "SoftMaxLoss(ignored_label=None, normalisation='batch', weight=1.0, auxiliary=False)" in line
    loss = SoftMaxLoss(label_smoothing=0.5, class_weights=(1, 2))
    head, *_ = chain(InnerProduct(number_of_outputs=2), SoftMax(), loss)
    (line,) = [line for line in describe_network(Dataflow(SubGraph(head)).graph) if "SoftMaxLoss(" in line]
    assert "label_smoothing=0.5, class_weights=(1.0, 2.0)" in line
    now = {"model": recorded(ModelConf()), "solver": recorded(SolverConf(epsilon=0.5, method="adam")), "system": {}}
    before = {**now, "solver": {"learning_rate": 0.01, "momentum": 0.5}}
    assert [*changes(before, now)] == [
        "method: sgd → adam",
        "learning_rate: 0.01 → 0.001",
        "momentum: 0.5 → 0.0",
        "epsilon: 1e-08 → 0.5",
    ]


def test_operators_of_ones_own_are_described_without_addresses() -> None:
    network = training(InnerProduct(number_of_outputs=3), Probe(action=lambda: None), ReLU())
    lines = describe_network(network.graph)
    assert not any("0x" in line for line in lines)
    assert "InnerProduct(number_of_outputs=3, " in lines[0]
    assert lines[0].endswith(" of batch")
