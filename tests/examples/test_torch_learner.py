"""The example of PyTorch's LeNet as learners."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from crossbow.data import digits
from tests.cluster.test_mpi import NEEDS_MPI, mpirun

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
from examples.torch_learner import RULES, main, train


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_it_learns_under_every_rule(rule: str) -> None:
    data = digits().shard(fraction=(0.0, 0.4))
    history = train(RULES[rule], data, epochs=2, batch_size=8)
    tests: list[Any] = [record.test for record in history.records]
    assert tests[-1].accuracy > 0.6  # of ten classes
    assert tests[-1].loss < tests[0].loss


def test_a_directory_without_mnist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mnist", str(tmp_path), "--rule", "sma"]) == 2
    assert "torch_learner: error: " in capsys.readouterr().err


@NEEDS_MPI
@pytest.mark.slow
def test_two_ranks_compute_what_one_process_with_two_learners_computes() -> None:
    losses = []
    for ranks, learners in ((1, 2), (2, 1)):
        command = ["-m", "examples.torch_learner", "--rule", "sma", "--epochs", "1", "--learners", str(learners)]
        done = mpirun(ranks, *command)
        assert done.returncode == 0, done.stderr
        losses.append(re.findall(r"epoch 1/1 +loss (\S+)  test loss (\S+)", done.stdout)[-1])
    assert losses[0] == losses[1]
