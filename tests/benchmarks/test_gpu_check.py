"""The check of a GPU comes to its end on one that is none, and says what went wrong."""

from __future__ import annotations

import ctypes
import json
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_check, gpu_parts
from benchmarks.gpu_check import FAILED, NO_GPU, PARTS, Outcome, Part, main
from benchmarks.gpu_parts import Settings
from benchmarks.gpu_rows import Clock, Journal, Rows
from crossbow import Dataflow
from crossbow.kernels.cuda import cudnn
from crossbow.ops import Conv, InnerProduct, ReLU
from crossbow.types import ConfigurationError
from tests.kernels.cuda.fake import FakeCuda, fake_cuda
from tests.kernels.cuda.fake_cudnn import FakeCudnn
from tests.support import pictures, training

ROOT = Path(__file__).parent.parent.parent
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet", "resnet"])
def test_a_network_that_does_not_learn_in_time_is_a_fault(name: str, fake: FakeCuda) -> None:
    outcome = gpu_check.run_part(name, TINY, 0.01)
    assert outcome.error is None
    assert not outcome.passed
    assert "expected an accuracy of" in outcome.faults[0]


def compares(_: Settings, clock: Clock, rows: Rows) -> None:
    """A part with a good row and a bad one, for which there may be no time."""
    rows.title("2 rows, runs")
    rows.measure("good", lambda: 0.25, 1.0, "Conv")
    clock.check(1, 2)
    rows.measure("bad", lambda: 2.0, 1.0, "Conv")
    rows.note("free bytes", [1, 2])


def fails(settings: Settings, clock: Clock, rows: Rows) -> None:
    compares(settings, clock, rows)
    raise RuntimeError("no luck")


def test_a_part_that_fails_leaves_the_others_alone(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parts = {"first": Part(fails, 60), "second": Part(lambda _, __, rows: rows.title("all of it"), 60)}
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    path = tmp_path / "checked.json"
    assert main(["--in-process", "--json", str(path)], TINY) == FAILED
    printed = capsys.readouterr()
    assert "first: RuntimeError: no luck" in printed.err
    assert [line.split("|")[2].strip() for line in printed.out.splitlines()[-2:]] == ["FAILED", "passed"]
    first, second = json.loads(path.read_text())["parts"]
    assert "Traceback" in first["error"]
    assert second["passed"]


def test_rows_before_a_failure_are_kept(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "PARTS", {"first": Part(fails, 60)})
    outcome = gpu_check.run_part("first", TINY)
    assert outcome.faults == ["bad: error 2, tolerance 1", "RuntimeError: no luck"]
    assert outcome.number == "2 rows, runs: 2; nearest to its tolerance: Conv, 2 (200.0%)"
    assert outcome.details["rows"] == {"good": 0.25, "bad": "error 2, tolerance 1"}
    assert outcome.details["largest errors"] == {"Conv": 2.0}
    assert outcome.details["free bytes"] == [1, 2]


def test_rows_before_the_time_is_over_are_kept(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "PARTS", {"first": Part(compares, 60)})
    outcome = gpu_check.run_part("first", TINY, 0.0)
    assert outcome.faults == ["OutOfTimeError: the time was over after 1 of 2"]
    assert outcome.details["rows"] == {"good": 0.25}


def test_a_lost_gpu_ends_a_part_and_what_was_found_is_kept(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise OSError("cudaErrorIllegalAddress")

    def part(settings: Settings, clock: Clock, rows: Rows) -> None:
        rows.measure("good", lambda: 0.25, 1.0, "Conv")
        rows.measure("wrong", lambda: 1 / 0, 1.0, "Conv")
        monkeypatch.setattr(fake.runtime, "deviceSynchronize", lost)
        rows.measure("fatal", lambda: 1 / 0, 1.0, "Conv")
        rows.measure("never", lambda: 0.0, 1.0, "Conv")

    monkeypatch.setattr(gpu_check, "PARTS", {"first": Part(part, 60)})
    outcome = gpu_check.run_part("first", TINY)
    assert list(outcome.details["rows"]) == ["good", "wrong", "fatal"]
    assert outcome.faults == [
        *(f"{name}: ZeroDivisionError: division by zero" for name in ("wrong", "fatal")),
        "RuntimeError: the GPU cannot be used after fatal: OSError: cudaErrorIllegalAddress",
    ]


def test_every_row_is_written_before_the_next(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    journal = tmp_path / "checked.rows.jsonl"
    seen: list[list[str]] = []

    def part(settings: Settings, clock: Clock, rows: Rows) -> None:
        for name in ("one", "two", "three"):
            rows.measure(name, lambda: 0.5, 1.0, "Conv")
            seen.append([row.name for row in Journal.read(journal, "first").rows])

    monkeypatch.setattr(gpu_check, "PARTS", {"first": Part(part, 60)})
    assert main(["--in-process", "--json", str(tmp_path / "checked.json")], TINY) == 0
    assert seen == [["one"], ["one", "two"], ["one", "two", "three"]]


def test_a_journal_whose_last_line_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for part, error in (("first", 0.5), ("second", float("nan"))):
        Rows(Journal(path, part)).measure("a", lambda error=error: error, 1.0, "Conv")
    path.write_bytes(path.read_bytes() + b'{"part": "second", "row": {"na')
    assert Journal.read(path, "first").details["rows"] == {"a": 0.5}
    assert Journal.read(path, "second").faults == ["a: error nan, tolerance 1"]
    start = len(path.read_bytes().split(b"\n")[0]) + 1
    assert Journal.read(path, "first", start).rows == []


@pytest.mark.slow
def test_the_algorithms_of_convolutions_are_kept(fake: FakeCuda, tmp_path: Path) -> None:
    """Of every part, as soon as they are chosen, whether by timing or not."""
    kept: list[dict[str, Any]] = []
    outcome = gpu_check.run_part("operators-timed", replace(TINY, every=40), None, lambda entry: kept.append({**entry}))
    assert outcome.passed, outcome.faults
    found = outcome.details["convolutions"]
    assert found == [one for entry in kept for one in entry.get("convolutions", ())]
    assert {one["request"] for one in found} == {"Forward", "BackwardData", "BackwardFilter"}
    assert {one["deterministic"] for one in found} == {False}
    assert {one["type"] for one in found} == {"float32", "bfloat16", "float16"}
    assert {one["math type"] for one in found} == {"fma", "default", "tensor op"}
    assert all(one["algorithm"] and one["workspace"] > 0 and len(one["input"]) >= 4 for one in found)


def test_work_that_runs_without_a_graph_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(settings: Settings, clock: Clock, rows: Rows) -> None:
        warnings.warn("a task's work runs without a CUDA graph: no luck", RuntimeWarning, stacklevel=2)
        warnings.warn("of another kind", RuntimeWarning, stacklevel=2)

    monkeypatch.setattr(gpu_check, "PARTS", {"first": Part(warns, 60)})
    with fake_cuda():
        outcome = gpu_check.run_part("first", TINY)
    assert not outcome.passed
    assert outcome.faults == ["RuntimeWarning: a task's work runs without a CUDA graph: no luck"]
    assert len(outcome.details["warnings"]) == 2


# Processes


@pytest.mark.slow
def test_a_process_that_leaves_no_result_is_a_fault(tmp_path: Path) -> None:
    outcome = gpu_check.run_apart("leak", ["--device", "cpu"], tmp_path / "rows.jsonl", 15.0, 60.0)
    assert outcome.faults == ["the process ended with status 2, after 0 rows"]


PART = """
import json, os, pathlib, sys, time
from benchmarks.gpu_rows import Journal, Rows
values = dict(zip(sys.argv[1:], sys.argv[2:]))
rows = Rows(Journal(pathlib.Path(values["--rows"]), "leak"))
rows.title("1 row, runs")
rows.measure("good", lambda: 0.25, 1.0, "LeNet")
print(os.environ["OPENBLAS_NUM_THREADS"], file=open(values["--rows"] + ".threads", "w"))
if END == "hangs":
    time.sleep(600)
if END == "crashes":
    os.kill(os.getpid(), 9)
part = {"name": "leak", "passed": True, "number": "", "seconds": 1.0}
pathlib.Path(values["--json"]).write_text(json.dumps({"parts": [part]}))
os._exit(int(END))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "fault"),
    [
        ("hangs", "the process was ended after 60 s, after 1 rows"),
        ("crashes", "the process ended with status -9, after 1 rows"),
        ("139", "the process ended with status 139, after its result"),
        ("0", None),
    ],
)
def test_the_rows_of_a_process_are_kept_whatever_its_end(
    end: str, fault: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, journal = tmp_path / "script", tmp_path / "rows.jsonl"
    source = PART.replace("END", repr(end))
    script.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n{source}")
    script.chmod(0o755)
    monkeypatch.setattr(gpu_check.sys, "executable", str(script))
    monkeypatch.setattr(gpu_check, "LOOK_SECONDS", 0.2)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    seen: list[Outcome] = []

    def now() -> float:
        """A minute passes while the process hangs, once it has been seen to run."""
        return time.monotonic() + (60 if end == "hangs" and seen and seen[-1].details["rows"] else 0)

    monkeypatch.setattr(gpu_check, "time", SimpleNamespace(monotonic=now))
    outcome = gpu_check.run_apart("leak", [], journal, 15.0, 60.0, seen.append)
    assert outcome.faults == ([] if fault is None else [fault])
    assert outcome.passed is (fault is None)
    if end in ("hangs", "crashes"):
        assert outcome.details["rows"] == {"good": 0.25}
        assert outcome.number == "1 row, runs: 1; nearest to its tolerance: LeNet, 0.25 (25.0%)"
    if end == "hangs":
        assert seen[-1].faults == ["the process is still running, after 1 rows"]
    assert Path(f"{journal}.threads").read_text() == "1\n"


def test_parts_for_which_no_time_is_left_are_named(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_check, "PARTS", {"first": Part(compares, 60), "second": Part(compares, 60)})
    path = tmp_path / "checked.json"
    assert main(["--in-process", "--budget", "1", "--skip", "first", "--json", str(path)], TINY) == FAILED
    (part,) = json.loads(path.read_text())["parts"]
    assert (part["name"], part["faults"]) == ("second", ["left out for want of time (--budget)"])


# Faults


@pytest.mark.slow
def test_an_operator_that_is_wrong_is_named(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_parts, "tolerance_of", lambda case, precision: -1.0)
    outcome = gpu_check.run_part("operators-tf32", replace(TINY, every=31))
    assert not outcome.passed
    assert "Conv(" in outcome.faults[0]
    assert "tolerance -1" in outcome.faults[0]


@pytest.mark.slow
def test_a_timed_algorithm_that_is_wrong_is_found(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake times others than those that are always deterministic."""
    original = FakeCudnn._convolve

    def convolve(library: FakeCudnn, *arguments: Any, kind: str) -> None:
        original(library, *arguments, kind=kind)
        if kind == "Forward" and arguments[7] == cudnn.CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED:
            ctypes.memset(arguments[12], 0, 4)

    monkeypatch.setattr(FakeCudnn, "_convolve", convolve)
    assert gpu_check.run_part("operators-float32", replace(TINY, every=97)).passed
    outcome = gpu_check.run_part("operators-timed", replace(TINY, every=40))
    assert outcome.faults
    assert all("Conv(" in fault for fault in outcome.faults)


def test_a_part_ends_when_its_time_is_over(fake: FakeCuda) -> None:
    (fault,) = gpu_check.run_part("gradients", TINY, 0.0).faults
    assert fault.startswith("OutOfTimeError: the time was over after 0 of ")


@pytest.mark.slow
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
    assert sum(part.seconds for part in PARTS.values()) < 8 * 60
