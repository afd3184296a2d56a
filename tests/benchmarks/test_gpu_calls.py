"""The number of calls of a task, which limits the speed of small batches on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.gpu_calls import count_calls, main
from benchmarks.networks import NETWORKS


def test_calls_of_a_resnet_by_group() -> None:
    calls = count_calls(NETWORKS["resnet-32"], 64)
    assert calls.groups["convolution"] == 33 + 33 + 32  # the images need no gradient
    assert calls.groups["batch normalisation"] == 33 * 6
    assert calls.task.total() == 354
    assert calls.step == 1


def test_the_command_prints_a_row_for_each_network(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--networks", "lenet-caffe", "--batch", "8"])
    *_, row = capsys.readouterr().out.splitlines()
    assert row.startswith("| lenet-caffe | 8 | ")
    assert "5 convolution" in row
