"""Model scripts, end to end, through the real engine."""

from __future__ import annotations

import contextlib
import importlib
import json
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crossbow import Dataflow, History, JsonLinesMonitor, SolverConf, cli
from crossbow.data import digits
from crossbow.data.examples import ArrayExamples, BadExample, Selection
from crossbow.runtime.device import available_cores
from crossbow.scripts import model_script
from crossbow.scripts.model_script import ModelScript
from crossbow.scripts.parser import Defaults
from models.lenet import main
from tests.combinations import one_in
from tests.scripts.runs import (
    ROOT,
    Outcome,
    peak_megabytes,
    run,
    run_and_interrupt,
    run_on_a_terminal,
    without_control_sequences,
)
from tests.support import WHY_NOT_FAST, Probe, Trap, perceptron, raising

MNIST = ROOT.parent / "shared" / "data" / "mnist"
NEEDS_MNIST = pytest.mark.skipif(not MNIST.is_dir(), reason=f"MNIST's files are not in {MNIST}")
NEEDS_FAST = pytest.mark.skipif(WHY_NOT_FAST is not None, reason=f"no fast kernels: {WHY_NOT_FAST}")
FULL = Path("/dev/full")
NEEDS_FULL = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
FIELDS = {"epoch", "tasks", "time", "loss", "test_loss", "test_accuracy", "images_per_second", "learning_rate"}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Three epochs of LeNet on digits."""
    directory = tmp_path_factory.mktemp("short") / "deep" / "output"
    return run("lenet", directory, "--epochs", 3, "--learners", 2, "--batch-size", 32)


def test_a_short_run(short: Outcome) -> None:
    assert short.status == 0
    assert short.stderr == ""
    assert short.log[-1]["test_accuracy"] > 0.85


def test_it_prints_its_configuration(short: Outcome) -> None:
    head = short.stdout.split("\n\n")[0]
    for part in (
        "lenet (original), 1,111,946 parameters",
        "digits, 1,501 training and 296 test images 1×28×28",
        "cpu (core",
        "2 learners × ",
        "float32",
        "sma, alpha 0.5, tau 1, base momentum 0, an average every 2 tasks",
        "32 images a learner; 46.91 tasks an epoch",
        "momentum 0.9",
        "3 epochs; seed 0",
        str(short.directory),
    ):
        assert part in head


def test_one_line_an_epoch_on_a_pipe(short: Outcome) -> None:
    assert "\x1b" not in short.stdout
    assert "\r" not in short.stdout
    lines = short.epoch_lines
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    for line in lines:
        assert re.search(r"loss \d+\.\d{4}  test loss \d+\.\d{4}  test accuracy \d+\.\d\d%  [\d,]+ images/s", line)


def test_the_log(short: Outcome) -> None:
    log = short.log
    assert [row["epoch"] for row in log] == [1, 2, 3]
    for row in log:
        assert row.keys() >= FIELDS
        assert 0 <= row["test_accuracy"] <= 1
        assert row["test_examples"] == 296
        assert row["images_per_second"] > 0
    assert [row["time"] for row in log] == sorted(row["time"] for row in log)


def test_the_log_begins_with_what_the_weights_depend_on(short: Outcome) -> None:
    first = json.loads((short.directory / "log.jsonl").read_text("utf-8").splitlines()[0])["run"]
    assert {name: first[name] for name in ("model", "dataset", "batch_size", "seed", "winograd")} == {
        "model": "lenet", "dataset": "digits", "batch_size": 32, "seed": 0, "winograd": True
    }  # fmt: skip
    threads = max(1, len(available_cores()) // 2)
    assert first["devices"] == [{"device": "cpu", "learners": 2, "threads_per_learner": threads}]
    assert f"2 learners × {threads} thread" in short.stdout


def test_the_picture(short: Outcome) -> None:
    short.check_picture()


def test_the_summary(short: Outcome) -> None:
    summary = short.stdout.splitlines()[-3:]
    assert re.match(
        r"trained 3 epochs \(\d+ tasks\) in [\d.]+ s; [\d,]+ images/s with 2 learners; peak memory", summary[0]
    )
    best = max(row["test_accuracy"] for row in short.log)
    assert summary[1].startswith(f"best test accuracy {best:.2%}, reached in ")
    assert "log.jsonl" in summary[2]
    assert "learning_curves.png" in summary[2]


@NEEDS_FAST
def test_memory_stays_below_400_megabytes(short: Outcome, tmp_path: Path) -> None:
    """Original variant, batch 32, two learners, digits; imports included, and the compiler excluded."""
    peak = peak_megabytes(short.stdout)
    if peak >= 400:  # that run may have compiled kernels, and this one finds them
        again = run("lenet", tmp_path, "--epochs", 1, "--learners", 2, "--batch-size", 32)
        peak = peak_megabytes(again.stdout)
    assert peak < 400


PEAKS = """
from crossbow.host_memory import peak_memory
before = peak_memory()
ballast = b"1" * (before + (64 << 20))  # more than there ever was
full = peak_memory()
del ballast
print(before, full, peak_memory())
"""


@pytest.mark.slow
def test_peak_memory_is_measured() -> None:
    """In a process of its own: twice of what this one has ever had takes long to fill."""
    done = subprocess.run([sys.executable, "-c", PEAKS], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    before, full, after = map(int, done.stdout.split())
    assert full > before + (32 << 20)
    assert after > before + (32 << 20), "it is the peak, not the present"


@pytest.mark.slow
def test_a_system_that_does_not_know_the_peak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Windows, which has no module `resource`."""
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setitem(sys.modules, "resource", None)
    script = broken(perceptron(classes=10))
    assert script.main(["--output-directory", str(tmp_path), "--learners", "1"]) == 0
    trained = capsys.readouterr().out.splitlines()[-3]
    assert re.fullmatch(
        r"trained 2 epochs \(\d+ tasks\) in [\d.]+ s; [\d,]+ images/s with 1 learner; "
        r"learners waited for data \d+% of the time",
        trained,
    )


@pytest.mark.slow
def test_a_progress_bar_on_a_terminal(tmp_path: Path) -> None:
    # An epoch takes about as long as passes between two looks at the bar.
    outcome = run_on_a_terminal("lenet", tmp_path, "--epochs", 10, "--learners", 2, "--variant", "caffe")
    assert outcome.status == 0
    shown = without_control_sequences(outcome.stdout)
    bars = [part for part in re.split(r"[\r\n]", shown) if "━" in part]
    assert any(re.search(r"epoch [ \d]\d/10 .*\d+ % [\d,]+ images/s loss \d\.\d{4}", bar) for bar in bars)
    lines = [part for part in re.split(r"[\r\n]+", shown) if "test accuracy" in part and part.startswith("epoch")]
    assert [line[: len("epoch 20/10")] for line in lines] == [f"epoch {number:2}/10" for number in range(1, 11)]
    assert shown.rstrip().endswith("learning_curves.png")
    assert outcome.stdout.rfind("\x1b[?25h") > outcome.stdout.rfind("\x1b[?25l") >= 0, "the cursor is back"


@pytest.mark.slow
def test_control_c(tmp_path: Path) -> None:
    outcome = run_and_interrupt("lenet", tmp_path, "--epochs", 500, "--learners", 2, after=2)
    assert outcome.status == 130
    assert outcome.stderr == "python -m models.lenet: interrupted\n"
    assert "Traceback" not in outcome.stdout
    assert re.search(r"^interrupted: trained [\d.]+ epochs? ", outcome.stdout, re.MULTILINE)
    epochs = [row["epoch"] for row in outcome.log]
    assert epochs[:2] == [1, 2]
    assert len(epochs) == len(outcome.epoch_lines)
    outcome.check_picture()


@pytest.mark.slow
def test_nobody_reads_the_output(tmp_path: Path) -> None:
    command = f"{sys.executable} -m models.logistic_regression --epochs 40 --output-directory {tmp_path} | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120)
    assert done.stderr == ""
    assert done.stdout.startswith("model")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--target-accuracy", "0.5"], "target accuracy reached: "),
        (["--time-limit", "0.2"], "time limit reached: "),
    ],
)
def test_it_ends_sooner(options: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from models.logistic_regression import main

    assert main(["--output-directory", str(tmp_path), "--epochs", "1000", "--learners", "1", *options]) == 0
    assert reason in capsys.readouterr().out


@one_in(3)
@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("original", ["--devices", "cpu:0/2,cpu:1/2", "--learners", "1"]),
        pytest.param("caffe", ["--rule", "ssgd", "--learners", "2"], marks=pytest.mark.slow),
        ("caffe", ["--tau", "2", "--alpha", "0.3", "--learners", "3"]),
        (
            "caffe",
            ["--learning-rate-policy", "step", "--step-size", "20", "--learners", "1", "--threads-per-learner", "1"],
        ),
    ],
    ids=["two devices", "ssgd", "tau", "step"],
)
def test_variants_and_rules(
    variant: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--variant", variant, "--epochs", "1", "--batch-size", "64", "--output-directory", str(tmp_path)]
    assert main([*arguments, *options]) == 0
    out = capsys.readouterr().out
    assert out.count("epoch 1/1") == 1
    Outcome(0, out, "", tmp_path).check_picture()


@one_in(4)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("ssp --bound 1 --weight 1/2", "ssp, bound 1, weight 0.5"),
        ("asynchronous-sgd --tau 2", "async, weight 1, sends delta, tau 2"),
        pytest.param("hogwild", "hogwild", marks=pytest.mark.slow),
        pytest.param("gossip --probability 0.5", "gossip, probability 0.5, tau 1", marks=pytest.mark.slow),
        ("grouping --groups 0,2/1", "grouping, groups 0,2/1"),
        pytest.param("grouping", "grouping, groups by speed", marks=pytest.mark.slow),
        ("model-averaging --tau 3", "model-averaging, tau 3, an average every 9 tasks"),
        ("async:30,ssgd:10", "async, weight 1, sends delta, tau 1 for 30 merges; ssgd for 10 merges; and again"),
    ],
)
def test_any_rule(options: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from models.logistic_regression import main

    arguments = ["--epochs", "2", "--learners", "3", "--output-directory", str(tmp_path), "--rule", *options.split()]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    timing = "" if "average" in text else "; what comes of it depends on timing"
    assert f"rule     {text}{timing}\n" in out
    assert out.count("\nepoch ") == 2


@pytest.mark.slow
def test_the_reference_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from models.logistic_regression import main

    arguments = ["--kernels", "reference", "--precision", "float64", "--epochs", "2"]
    assert main([*arguments, "--output-directory", str(tmp_path)]) == 0
    assert "reference, float64" in capsys.readouterr().out


@pytest.mark.slow
def test_logistic_regression(tmp_path: Path) -> None:
    outcome = run("logistic_regression", tmp_path)
    assert outcome.status == 0
    assert "logistic_regression, 7,850 parameters" in outcome.stdout
    assert max(row["test_accuracy"] for row in outcome.log) > 0.92
    outcome.check_picture()


# Trouble


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alpha", "1.5"], "SMA: alpha must be a finite number > 0 and ≤ 1 or None. Received: alpha=1.5"),
        (["--batch-size", "5000"], "batch_size must be at most the number of training examples, 1501"),
        (["--devices", "tpu"], "Received: 'tpu'"),
        (["--devices", "tpu", "--dataset", "mnist", "--data-directory", "/nowhere/mnist"], "Received: 'tpu'"),
        (["--devices", "cpu,cpu"], "devices"),
        (["--dataset", "mnist", "--data-directory", "/nowhere/mnist"], "/nowhere/mnist: expected a directory"),
        (["--rule", "ssgd", "--alpha", "0.5"], "--alpha does nothing with --rule ssgd"),
    ],
)
def test_wrong_is_one_sentence(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("an older log")
    assert main(["--output-directory", str(tmp_path), "--overwrite", *options]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert "Traceback" not in printed.err
    assert log.read_text() == "an older log"


def test_a_truncated_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (tmp_path / name).write_bytes(b"\0\0\x08\x03\0\0\0\x05")
    output = ["--output-directory", str(tmp_path / "output")]
    assert main(["--dataset", "mnist", "--data-directory", str(tmp_path), *output]) == 2
    error = capsys.readouterr().err
    assert "train-images-idx3-ubyte" in error
    assert len(error.splitlines()) == 1


def test_mnist_without_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["crossbow.data.mnist"], "MIRRORS", ("http://127.0.0.1:9/",))  # nobody is there
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["--dataset", "mnist", "--output-directory", str(tmp_path / "output")]) == 2
    error = capsys.readouterr().err
    assert "MNIST could not be downloaded" in error
    assert "--dataset digits" in error
    assert "--data-directory" in error
    assert len(error.splitlines()) == 1


def test_an_output_directory_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    assert main(["--output-directory", str(file / "below"), "--epochs", "1"]) == 2
    assert "expected a directory to write to" in capsys.readouterr().err


def test_a_loss_that_is_not_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--learning-rate", "10", "--epochs", "3", "--learners", "2"]
    assert main(["--output-directory", str(tmp_path), *options]) == 1
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    assert "nan" in printed.err
    assert "failed: " in printed.out


def test_the_operator_whose_numbers_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--learning-rate", "1e30", "--epochs", "3", "--learners", "2", "--check-numerics"]
    assert main(["--output-directory", str(tmp_path), *options]) == 1
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    assert re.search(r"task \d+ failed in operator '\w+' on learner [01]: NonFiniteError: expected finite", printed.err)
    assert "failed: " in printed.out


def broken(dataflow: Dataflow, **options: object) -> ModelScript:
    return ModelScript(
        "broken", "Breaks.", lambda _: dataflow, Defaults({"digits": 2}, 50, SolverConf(learning_rate=0.1))
    )


@pytest.mark.slow
def test_a_broken_operator_shows_its_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trap = Trap(raising(ZeroDivisionError("by my own code")), call=40)
    script = broken(perceptron(Probe(action=trap), classes=10))
    assert script.main(["--output-directory", str(tmp_path), "--learners", "1"]) == 1
    printed = capsys.readouterr()
    assert "ZeroDivisionError: by my own code" in printed.err
    assert "in act" in printed.err, "the traceback of the operator's own line"
    assert re.search(r"TaskError: task \d+ failed in operator", printed.err)
    assert "failed: trained 1 epoch" in printed.out
    Outcome(1, printed.out, printed.err, tmp_path).check_picture()


def test_without_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """matplotlib is not there: training is not in vain."""
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    script = broken(perceptron(classes=10))
    assert script.main(["--output-directory", str(tmp_path), "--learners", "1"]) == 0
    assert "no picture: the picture needs matplotlib" in capsys.readouterr().out
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: JsonLinesMonitor, record: object) -> None:
        raise self._unwritable(OSError(28, "No space left on device"))

    monkeypatch.setattr(JsonLinesMonitor, "record", full)
    script = broken(perceptron(classes=10))
    assert script.main(["--output-directory", str(tmp_path), "--learners", "1"]) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert "log.jsonl" in error
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_a_monitor_that_breaks_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: JsonLinesMonitor, record: object) -> None:
        raise ZeroDivisionError("by its own code")

    monkeypatch.setattr(JsonLinesMonitor, "record", fail)
    assert broken(perceptron(classes=10)).main(["--output-directory", str(tmp_path), "--learners", "1"]) == 1
    error = capsys.readouterr().err
    assert "the monitor JsonLinesMonitor failed in `record`: ZeroDivisionError: by its own code" in error
    assert "in fail" in error, "the traceback of the monitor's own line"


@pytest.mark.slow
def test_logs_in_other_formats_and_patience(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a learning rate that hardly changes the model, the first test is the best."""
    solver = SolverConf(learning_rate=1e-9)
    script = ModelScript("patient", "Waits.", lambda _: perceptron(classes=10), Defaults({"digits": 9}, 50, solver))
    options = ["--output-directory", str(tmp_path), "--learners", "1", "--log", "csv,tensorboard", "--patience", "2"]
    assert script.main([*options, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + 3
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    assert script.main([*options, "--overwrite"]) == 0
    assert "EarlyStopping: test accuracy not better than" in capsys.readouterr().out
    status = json.loads((tmp_path / "progress.json").read_text())
    assert (status["running"], status["epochs"]) == (False, 9)


@pytest.mark.slow
def test_without_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "summary.json").mkdir()
    assert broken(perceptron(classes=10)).main(["--output-directory", str(tmp_path), "--learners", "1"]) == 0
    printed = capsys.readouterr().out
    assert "no summary: " in printed
    assert "best test accuracy" in printed


@pytest.mark.slow
@NEEDS_FULL
def test_an_output_that_is_full(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "models.logistic_regression", "--epochs", "1", "--output-directory", str(tmp_path)]
    with FULL.open("w") as output:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, encoding="utf-8", timeout=120)
    assert done.stderr == ("python -m models.logistic_regression: error: standard output: No space left on device\n")
    assert done.returncode == 2


@pytest.mark.parametrize("name", ["log.jsonl", "learning_curves.png"])
def test_a_directory_where_a_file_should_be(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said before training begins."""
    (tmp_path / name).mkdir()
    assert main(["--output-directory", str(tmp_path), "--epochs", "1"]) == 2
    printed = capsys.readouterr()
    assert f"{name}: expected the name of a file to write. Received: a directory\n" in printed.err
    assert "epoch 1/1" not in printed.out


@pytest.mark.slow
def test_a_picture_that_fails_leaves_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "learning_curves.png"
    script = broken(perceptron(Probe(action=Trap(picture.mkdir, call=40)), classes=10))
    assert script.main(["--output-directory", str(tmp_path), "--learners", "1"]) == 0
    *_, trained, best, end = capsys.readouterr().out.splitlines()
    assert trained.startswith("trained 2 epochs ")
    assert best.startswith("best test accuracy ")
    refused = "expected the name of a file to write. Received: a directory"
    assert end == f"log {tmp_path}/log.jsonl; no picture: {picture}: {refused}"


def test_a_picture_that_is_interrupted_leaves_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crossbow.scripts.model_script.write_learning_curves", interrupt)
    script = broken(perceptron(classes=10))
    assert script.main(["--output-directory", str(tmp_path), "--learners", "1"]) == 130
    *_, trained, best = capsys.readouterr().out.splitlines()
    assert trained.startswith("trained 2 epochs ")
    assert best.startswith("best test accuracy ")


# MNIST, and what is promised


@pytest.mark.slow
@NEEDS_MNIST
def test_mnist_from_files(tmp_path: Path) -> None:
    options = ["--dataset", "mnist", "--data-directory", MNIST, "--time-limit", "0.5", "--learners", 2]
    outcome = run("lenet", tmp_path, *options)
    assert outcome.status == 0
    assert "mnist, 60,000 training and 10,000 test images 1×28×28" in outcome.stdout
    assert outcome.log[-1]["test_examples"] == 10_000
    assert "time limit reached" in outcome.stdout


@pytest.mark.slow
@NEEDS_FAST
def test_digits_98_percent_within_30_seconds(tmp_path: Path) -> None:
    """The defaults, with two learners; deterministic but for the time. That of two cores: others may want them, too."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = run("lenet", tmp_path, "--learners", 2, "--target-accuracy", 0.98, seconds=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert outcome.status == 0
    assert outcome.log[-1]["test_accuracy"] >= 0.98
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 2 * 30


@pytest.mark.slow
@NEEDS_FAST
@NEEDS_MNIST
def test_mnist_99_percent(tmp_path: Path) -> None:
    """The defaults, with two learners: batch 16."""
    options = ["--dataset", "mnist", "--data-directory", MNIST, "--learners", 2, "--target-accuracy", 0.99]
    outcome = run("lenet", tmp_path, *options, seconds=900)
    assert outcome.status == 0
    assert "16 images a learner" in outcome.stdout
    assert outcome.log[-1]["test_accuracy"] >= 0.99


@pytest.mark.slow
def test_synthetic_images_of_a_shape_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model is built for their classes, and learns them."""
    from models.logistic_regression import main

    options = "--dataset synthetic --image-shape 3,8,9 --classes 4 --training-examples 600 --test-examples 100"
    status = main([*options.split(), "--epochs", "2", "--learners", "2", "--output-directory", str(tmp_path)])
    outcome = Outcome(status, *capsys.readouterr(), tmp_path)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert f"{4 * (3 * 8 * 9 + 1):,} parameters" in outcome.stdout
    assert "synthetic, 600 training and 100 test images 3×8×9" in outcome.stdout
    assert outcome.log[-1]["test_accuracy"] > 0.9


def test_digits_are_what_the_script_says() -> None:
    data = digits()
    assert data.check is not None
    assert (len(data.train), len(data.check)) == (1501, 296)


@pytest.mark.parametrize(
    ("script", "paper"),
    [("lenet", "LeCun et al."), ("resnet", "arXiv:1512.03385"), ("vgg", "arXiv:1409.1556"), ("convnet", "Krizhevsky")],
)
def test_the_help_names_the_paper(script: str, paper: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(f"models.{script}").main
    with pytest.raises(SystemExit):
        main(["--help"])
    assert paper in " ".join(capsys.readouterr().out.split())


# Loading


@pytest.mark.slow
def test_bad_records_are_skipped_listed_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ArrayExamples.write_images

    def write_images(self: ArrayExamples, selection: Selection, images: np.ndarray) -> None:
        if 11 in selection.indices:
            raise BadExample(11, f"{len(self)} digits, record 11", "expected an image. Received: nothing")
        good(self, selection, images)

    monkeypatch.setattr(ArrayExamples, "write_images", write_images)
    script, listed = broken(perceptron(classes=10)), tmp_path / "bad_records.jsonl"
    options = ["--output-directory", str(tmp_path), "--learners", "2", "--epochs", "2"]
    assert script.main(options) == 2
    printed = capsys.readouterr()
    assert "digits, record 11: expected an image. Received: nothing" in printed.err
    assert not listed.exists()

    assert script.main([*options, "--overwrite", "--on-bad-record", "skip", "--loader-threads", "2"]) == 0
    printed = capsys.readouterr()
    assert f"left out 1 training and 1 test examples that cannot be decoded: {listed}" in printed.out.splitlines()
    lines = [json.loads(line) for line in listed.read_text("utf-8").splitlines()]
    assert [(line["phase"], line["index"]) for line in lines] == [("train", 11), ("check", 11)]
    head, *rows = (json.loads(line) for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines())
    assert (head["run"]["on_bad_record"], head["run"]["order"]) == ("skip", "examples")
    assert all(0 <= row["data_wait"] <= 1 for row in rows)
    assert {row["test_examples"] for row in rows} == {295}

    assert cli.main(["test", str(tmp_path), "--confusion"]) == 0  # as training does
    assert ": 295 examples (1 bad left out), loss " in capsys.readouterr().out
    assert cli.main(["test", str(tmp_path), "--on-bad-record", "error"]) == 2
    assert capsys.readouterr().err.endswith("record 11: expected an image. Received: nothing\n")


@pytest.mark.slow
@pytest.mark.parametrize(("share", "hints"), [(0.5, True), (0.1, False)])
def test_a_hint_for_slow_data(
    share: float, hints: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The share itself depends on what else the machine does; tests/runtime/test_loading.py has it.
    monkeypatch.setattr(History, "data_wait", share)
    monkeypatch.setattr(model_script, "LONG_WAIT", (0.1, 0.0))
    assert broken(perceptron(classes=10)).main(["--output-directory", str(tmp_path), "--learners", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    waited = next(number for number, line in enumerate(lines) if line.startswith("trained 2 epochs"))
    assert lines[waited].endswith(f"; learners waited for data {share:.0%} of the time")
    hint = "hint: more than --loader-threads 1 may be faster, if there are cores for them"
    assert (lines[waited + 1] == hint) == hints


def test_no_threads_and_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = broken(perceptron(classes=10))
    for options, message in (
        (["--loader-threads", "0"], "expected an integer ≥ 1 and ≤ 256. Received: '0'"),
        (["--order", "files"], "order must be 'examples' with a data set that is not stored in files"),
        (["--files-together", "3"], "files_together must be None, except with order='files'"),
    ):
        with contextlib.suppress(SystemExit):
            assert script.main(["--output-directory", str(tmp_path), *options]) == 2
        assert message in capsys.readouterr().err
