"""The number of calls of a task, which limits the speed of small batches on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.gpu_calls import DEFAULT, GOALS, MOST_HOST_CALLS, count_calls, count_host_calls, main
from benchmarks.networks import NETWORKS


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "resnet-50" else ()) for n in GOALS])
def test_no_task_makes_more_calls_than_its_goal(name: str) -> None:
    assert count_calls(NETWORKS[name], DEFAULT[name]).task.total() <= GOALS[name]


@pytest.mark.slow
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


@pytest.mark.slow
def test_calls_of_the_host() -> None:
    """One copy, one graph with the merge and the step, and an event that the host waits for."""
    counts = count_host_calls(NETWORKS["lenet-caffe"], 2, tasks=10)
    calls = ("memcpyAsync", "graphLaunch", "eventRecord", "eventSynchronize")
    assert {name: count for name, count in counts.items() if count} == dict.fromkeys(calls, 1)
    assert sum(counts.values()) <= MOST_HOST_CALLS


@pytest.mark.slow
def test_calls_of_the_host_for_several_learners() -> None:
    """In addition, the learner's share of the end of the tick: a wait for its last task, the merge, and an event."""
    counts = count_host_calls(NETWORKS["lenet-caffe"], 2, tasks=5, learners=2)
    assert counts["graphLaunch"] == counts["memcpyAsync"] == counts["eventSynchronize"] == 1
    assert counts["launchKernel"] == 1 / 2
    assert counts["eventRecord"] == 1 + 1 / 2
    assert counts["streamWaitEvent"] == 1
    assert sum(counts.values()) <= MOST_HOST_CALLS


@pytest.mark.slow
def test_the_command_prints_a_row_for_each_network(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--networks", "lenet-caffe", "--batch", "8"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| lenet", "| 1", "| 2", "| 4"))]
    row, *hosts = rows
    assert row.startswith("| lenet-caffe | 8 | ")
    assert "5 convolution" in row
    assert all("1 graphLaunch" in host for host in hosts)
    assert len(hosts) == 3
