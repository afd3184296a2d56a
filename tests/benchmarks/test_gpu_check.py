"""The check of a GPU comes to its end on one that is none, and says what went wrong."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_check, gpu_parts
from benchmarks.gpu_check import FAILED, NO_GPU, PARTS, Part, main
from benchmarks.gpu_parts import Clock, Finding, Settings
from crossbow import Dataflow
from crossbow.ops import Conv, InnerProduct, ReLU
from crossbow.types import ConfigurationError
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.support import pictures, training

TINY = Settings(every=97, tasks=4, leak_tasks=8, learners=2, batch_size=2, lenet_epochs=1, resnet_epochs=1)


def network(*_: Any, **__: Any) -> Dataflow:
    return training(Conv(number_of_outputs=2, kernel_size=3), ReLU(), InnerProduct(number_of_outputs=3))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """With a small network and small images for the large ones."""
    for name in ("lenet", "resnet"):
        monkeypatch.setattr(gpu_parts, name, network)
    for name in ("digits", "synthetic"):
        monkeypatch.setattr(gpu_parts, name, lambda *_, **__: pictures())
    with fake_cuda() as cuda:
        yield cuda


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PARTS if name not in ("lenet", "resnet")])
def test_a_part_passes(name: str, fake: FakeCuda, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "checked.json"
    assert main(["--only", name, "--in-process", "--json", str(path)], TINY) == 0, capsys.readouterr().err
    written = json.loads(path.read_text())
    assert {"GPU", "driver", "CUDA", "cuDNN", "cuBLAS", "NCCL", "CuPy", "commit", "date"} <= written["machine"].keys()
    (part,) = written["parts"]
    assert (part["name"], part["passed"], part["faults"], part["error"]) == (name, True, [], None)
    assert f"| {name} " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lenet", "resnet"])
def test_a_network_that_does_not_learn_in_time_is_a_fault(name: str, fake: FakeCuda) -> None:
    outcome = gpu_check.run_part(name, TINY, 0.01)
    assert outcome.error is None
    assert not outcome.passed
    assert "expected an accuracy of" in outcome.faults[0]


def test_a_part_that_fails_leaves_the_others_alone(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails(settings: Settings, clock: Clock) -> Finding:
        raise RuntimeError("no luck")

    parts = {"first": Part(fails, 1), "second": Part(lambda *_: Finding("all of it"), 1)}
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    path = tmp_path / "checked.json"
    assert main(["--in-process", "--json", str(path)], TINY) == FAILED
    printed = capsys.readouterr()
    assert "first: RuntimeError: no luck" in printed.err
    assert [line.split("|")[2].strip() for line in printed.out.splitlines()[-2:]] == ["FAILED", "passed"]
    first, second = json.loads(path.read_text())["parts"]
    assert "Traceback" in first["error"]
    assert second["passed"]


def test_work_that_runs_without_a_graph_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(settings: Settings, clock: Clock) -> Finding:
        warnings.warn("a task's work runs without a CUDA graph: no luck", RuntimeWarning, stacklevel=2)
        warnings.warn("of another kind", RuntimeWarning, stacklevel=2)
        return Finding("all of it")

    monkeypatch.setattr(gpu_check, "PARTS", {"first": Part(warns, 1)})
    outcome = gpu_check.run_part("first", TINY)
    assert not outcome.passed
    assert outcome.faults == ["RuntimeWarning: a task's work runs without a CUDA graph: no luck"]
    assert len(outcome.details["warnings"]) == 2


def test_a_process_that_leaves_no_result_is_a_fault() -> None:
    outcome = gpu_check.run_apart("leak", ["--device", "cpu"])
    assert outcome.faults == ["the process ended with status 2, and left no result"]


def test_an_operator_that_is_wrong_is_named(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_parts, "tolerance_of", lambda case, precision: -1.0)
    outcome = gpu_check.run_part("operators-tf32", replace(TINY, every=31))
    assert not outcome.passed
    assert "Conv(" in outcome.faults[0]
    assert "tolerance -1" in outcome.faults[0]


def test_a_part_ends_when_its_time_is_over(fake: FakeCuda) -> None:
    outcome = gpu_check.run_part("gradients", TINY, 0.0)
    assert outcome.faults == ["OutOfTimeError: the time was over after 0 of 5"]


def test_memory_that_is_lost_is_a_leak(fake: FakeCuda) -> None:
    free = iter(range(80 << 30, 0, -(3 << 20)))
    fake.runtime.memGetInfo = lambda: (next(free), 96 << 30)
    outcome = gpu_check.run_part("leak", TINY)
    assert "fewer are free than after the first" in outcome.faults[0]


def test_numbers_that_are_not_finite_are_never_near() -> None:
    expected = {"y": np.ones(3)}
    assert gpu_parts.largest_error({"y": np.array([1, np.nan, 1])}, expected) == np.inf
    assert gpu_parts.largest_error({"y": np.array([1, 1, 1.5])}, expected) == 0.5
    with pytest.raises(AssertionError, match=r"expected y\. Received: x"):
        gpu_parts.largest_error({"x": np.ones(3)}, expected)


def test_without_a_gpu_it_says_so(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> list[str]:
        raise ConfigurationError("expected an NVIDIA GPU. Received: no driver")

    monkeypatch.setattr("crossbow.kernels.cuda.api.gpus", none)
    assert main([]) == NO_GPU
    assert "nothing was checked: expected an NVIDIA GPU. Received: no driver" in capsys.readouterr().err
    assert main(["--device", "cpu"]) == NO_GPU
    assert "expected a GPU, as 'cuda:0'. Received: 'cpu'" in capsys.readouterr().err


def test_all_parts_together_take_less_than_eight_minutes() -> None:
    assert sum(part.seconds for part in PARTS.values()) < 7 * 60
