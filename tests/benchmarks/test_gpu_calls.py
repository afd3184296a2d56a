"""The number of calls of a task, which limits the speed of small batches on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.gpu_calls import DEFAULT, GOALS, count_calls, count_host_calls, main
from benchmarks.networks import NETWORKS


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "resnet-50" else ()) for n in GOALS])
def test_no_task_makes_more_calls_than_its_goal(name: str) -> None:
    assert count_calls(NETWORKS[name], DEFAULT[name]).task.total() <= GOALS[name]


@pytest.mark.parametrize(
    ("precision", "batch", "each"), [("float32", 64, 2), ("float32", 128, 4), ("float64", 64, 2), ("bfloat16", 2, 2)]
)
def test_calls_of_a_resnet_by_group(precision: str, batch: int, each: int) -> None:
    """Batch normalisation has one kernel each way while a block can take all values of a channel, otherwise two: here
    in the first 11 layers, whose images are 32×32."""
    calls = count_calls(NETWORKS["resnet-32"], batch, precision=precision)
    assert calls.groups["convolution"] == 33 + 33 + 32  # the images need no gradient
    assert calls.groups["batch normalisation"] == 2 * 33 + (each - 2) * 11
    assert not {"sum", "activation"} & calls.groups.keys()
    assert calls.step == 1


def test_calls_of_the_host() -> None:
    """The batch, the task and the results each have a copy or a launch, and events between the streams."""
    counts = count_host_calls(NETWORKS["lenet-caffe"], 2, tasks=10)
    assert counts["graphLaunch"] == counts["memcpyAsync"] == 1
    assert counts["launchKernel"] == 2  # the merge and the step
    assert sum(counts.values()) <= 12


@pytest.mark.slow
def test_the_command_prints_a_row_for_each_network(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--networks", "lenet-caffe", "--batch", "8"])
    *_, row, _, host = capsys.readouterr().out.splitlines()
    assert row.startswith("| lenet-caffe | 8 | ")
    assert "5 convolution" in row
    assert "1 graphLaunch" in host
