"""The first hour on a GPU comes to its end on one that is none, whatever goes wrong, and keeps what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_check, gpu_first_hour
from benchmarks.gpu_check import NO_GPU, PARTS
from benchmarks.gpu_first_hour import CALLS, FIRST_PARTS, TESTED, Step, main
from benchmarks.gpu_learners import parse
from tests.support import until

ROOT = Path(__file__).parent.parent.parent


def python(name: str, code: str, seconds: float = 60.0) -> Step:
    return Step(name, ("-c", f"import os, subprocess, sys, time\n{code}"), seconds)


def run(
    steps: list[Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> tuple[int, list[dict[str, Any]]]:
    """The exit status of a call of these steps, and what its JSON has of them."""
    monkeypatch.setattr(gpu_first_hour, "CALLS", {1: steps})
    status = main(["1", "--output", str(tmp_path), *options])
    return status, json.loads((tmp_path / "call-1.json").read_text())["steps"]


@pytest.mark.slow
def test_what_fails_or_hangs_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        python("good", "print('begun', flush=True); print(os.environ['OPENBLAS_NUM_THREADS'])"),
        python("bad", "print('no luck'); sys.exit(3)"),
        python("crash", "print('still here', flush=True); os.abort()"),
        python("hang", "print('waiting', flush=True); time.sleep(600)", 4.0),
        python("last", "print('done')"),
    ]
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setattr(gpu_first_hour, "LEAST_SECONDS", 1.0)
    status, done = run(steps, tmp_path, monkeypatch)
    assert status == 1
    assert [(step["name"], step["result"], step["tail"]) for step in done] == [
        ("good", "passed", ["begun", "1"]),
        ("bad", "ended with status 3", ["no luck"]),
        ("crash", "ended with status -6", ["still here"]),
        ("hang", "was ended after 4 s", ["waiting"]),
        ("last", "passed", ["done"]),
    ]
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "call-1.log").read_text()
    assert [line.split("|")[1].strip() for line in printed.splitlines()[-5:]] == [step.name for step in steps]


@pytest.mark.slow
def test_processes_of_a_step_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that do not listen, and hold its output open."""
    child = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    code = f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
    code += "child.stdout.readline(); print(child.pid, flush=True)"
    _, (step,) = run([python("parent", code)], tmp_path, monkeypatch)
    assert step["result"] == "passed"
    until(lambda: not _alive(int(step["tail"][0])))


def _alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_what_does_not_fit_into_the_call_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_first_hour, "LEAST_SECONDS", 8.0)
    steps = [python("long", "time.sleep(600)", 1.0), python("late", "")]
    status, done = run(steps, tmp_path, monkeypatch, "--seconds", "2")
    assert status == 1
    assert [step["result"] for step in done] == ["was ended after 1 s", "left out for want of time"]


@pytest.mark.slow
def test_the_json_says_what_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "call-1.json"
    code = f"print(open({str(path)!r}).read().count('is running'))"
    _, (first, second) = run([python("first", code), python("second", code)], tmp_path, monkeypatch)
    assert (first["tail"], second["tail"]) == (["1"], ["1"])


def test_a_step_that_cannot_be_started_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Step("bad", ("-c", "\0"), 30.0)
    status, done = run([bad, python("good", "")], tmp_path, monkeypatch)
    assert status == 1
    assert [step["result"] for step in done] == ["could not be run: ValueError: embedded null byte", "passed"]


def test_a_step_is_told_its_time_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step("told", ("-c", "import sys; print(sys.argv[1:])", "{budget}", "{output}", "cuda:{device}"), 40.0)
    _, (done,) = run([step], tmp_path, monkeypatch, "--device", "2")
    assert done["tail"] == [str(["28", str(tmp_path), "cuda:2"])]


@pytest.mark.slow
def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run([python("check", f"sys.exit({NO_GPU})")], tmp_path, monkeypatch)[0] == NO_GPU
    assert run([python("tests", f"sys.exit({NO_GPU})")], tmp_path, monkeypatch)[0] == 1


def test_data_sets_are_for_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Step("check", ("-c", "import sys; print(sys.argv[1:])", "benchmarks.gpu_check"), 30.0)
    _, (first, second) = run(
        [check, python("other", "print(sys.argv[1:])")], tmp_path, monkeypatch, "--mnist", "a{b}", "--cifar10", "c"
    )
    assert first["tail"] == ["['benchmarks.gpu_check', '--mnist', 'a{b}', '--cifar10', 'c']"]
    assert second["tail"] == ["[]"]


def test_a_step_has_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Step("other", ("-c", "import os; print(os.environ.get('HERE', 'nothing'))"), 60.0, {"HERE": "it is"})
    _, done = run([other, replace(other, name="after", environment={})], tmp_path, monkeypatch)
    assert [step["tail"] for step in done] == [["it is"], ["nothing"]]


def test_the_calls_have_everything_and_fit() -> None:
    places = {"output": "out", "device": "0", "budget": "100"}
    names = [step.name for steps in CALLS.values() for step in steps]
    assert len(names) == len(set(names))
    parts: list[str] = []
    for steps in CALLS.values():
        *before, last = steps
        assert sum(step.seconds for step in before) < gpu_first_hour.SECONDS - 60 <= last.seconds
        for step in steps:
            module, *options = [argument.format_map(places) for argument in step.arguments[1:]]
            if module == "benchmarks.gpu_check":
                known = gpu_check._parser().parse_args(options)
                parts += known.only
            elif module == "benchmarks.gpu_learners":
                assert parse(options).budget == 100
    assert sorted(parts) == sorted(PARTS)
    assert sum(PARTS[name].seconds for name in FIRST_PARTS) <= 250
    assert all((ROOT / path).exists() for path in TESTED)


ABSENT = ("hatchling", "matplotlib", "onnx", "onnxruntime", "pooch", "simplejpeg", "sklearn", "torch", "cupy", "cuda")
"""What a machine with a GPU may lack (of CuPy and PyTorch, that importing must not need them)."""
IMPORTED = """
import importlib, sys
for name in %r:
    sys.modules[name] = None
for name in %r:
    importlib.import_module(name)
"""


@pytest.mark.slow
def test_importing_needs_nothing_that_is_optional() -> None:
    modules = [f"benchmarks.{path.stem}" for path in sorted((ROOT / "benchmarks").glob("gpu_*.py"))]
    tests = [f"tests.operators.{name}" for name in ("table", "narrow", "test_table", "test_narrow")]
    code = IMPORTED % (ABSENT, [*modules, *tests, "tests.runtime.cuda.test_gpu", "crossbow.cli"])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_first_call_on_the_fake(tmp_path: Path) -> None:
    """As a user runs it, with a part that hangs, one that crashes, and one whose time is over."""
    trouble = "operators-float32 hangs, weights crashes, graphs runs_out"
    folders = os.pathsep.join([str(ROOT / "tests/benchmarks/on_fake"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": folders, "CROSSBOW_TEST_TROUBLE": trouble}
    command = [sys.executable, "-m", "benchmarks.gpu_first_hour", "1", "--output", str(tmp_path), "--seconds", "300"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 1, done.stdout + done.stderr
    steps = {step["name"]: step for step in json.loads((tmp_path / "call-1.json").read_text())["steps"]}
    assert {name: step["result"] for name, step in steps.items()} == {
        "info": "passed",
        "check-1": "ended with status 1",
        "learners-float32": "passed",
    }
    parts = {part["name"]: part for part in json.loads((tmp_path / "check-1.json").read_text())["parts"]}
    assert {name for name, part in parts.items() if part["passed"]} == {"nccl", "determinism", "operators-timed"}
    assert parts["operators-float32"]["details"]["rows"] == {"before it hangs": 0.25}
    assert "was ended after" in parts["operators-float32"]["faults"][-1]
    assert parts["weights"]["details"]["rows"] == {"before it crashes": 0.5}
    assert "ended with status -6" in parts["weights"]["faults"][-1]
    assert len(parts["graphs"]["details"]["rows"]) > 1
    assert "OutOfTimeError: the time was over after" in parts["graphs"]["faults"][-1]
    assert parts["operators-timed"]["details"]["convolutions"]
    learners = json.loads((tmp_path / "learners-float32.json").read_text())
    assert [(case["batch"], len(case["rates"])) for case in learners["outcomes"] if not case["others"]] == [
        (16, 3),
        (32, 2),
    ]
    assert "| check-1 " in done.stdout
    assert len(list(tmp_path.iterdir())) == 5  # and nothing else
