"""`crossbow test`: the numbers are those of the training."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import ExecutionContext, ModelConf, Predictor, cli
from crossbow.data import image_folder
from crossbow.scripts import test_command as command
from models import matrix_factorisation
from models.logistic_regression import SCRIPT
from tests.scripts.saved_models import NAMES, TRAINED_ON, data, run
from tests.support import KERNELS, perceptron


@KERNELS
@pytest.mark.parametrize(("batch", "threads"), [(None, 1), (7, 1), (None, 2)])
def test_the_logged_numbers(
    batch: int | None, threads: int, kernels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the last digit, with the data set of the run."""
    if threads > 1 and kernels == "reference":
        pytest.skip("it has one thread")
    learners = 1 if threads == 2 else 2
    result = run(
        tmp_path, record=TRAINED_ON, check_batch_size=batch, threads=threads, learners=learners, kernels=kernels
    )
    assert cli.main(["test", str(tmp_path), "--json"]) == 0
    received = json.loads(capsys.readouterr().out)
    assert (received["examples"], received["loss"], received["accuracy"]) == (30, result.loss, result.accuracy)
    assert cli.main(["test", str(tmp_path / "model.safetensors")]) == 0
    path, accuracy = tmp_path / "model.safetensors", result.accuracy
    text = f"{path}: 30 examples, loss {result.loss!r}, accuracy {accuracy!r} ({accuracy:.2%})\n"
    assert capsys.readouterr().out == text


def test_the_confusion_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path, record=TRAINED_ON)
    assert cli.main(["test", str(tmp_path), "--json", "--confusion"]) == 0
    received = json.loads(capsys.readouterr().out)
    check = data().check
    assert check is not None
    with Predictor.load(tmp_path) as predictor:
        predicted = predictor(np.asarray(check.images)).argmax(axis=1)  # type: ignore[attr-defined]
    expected = np.zeros((3, 3), int)
    for label, other in zip(check.labels, predicted, strict=True):
        expected[label, other] += 1
    assert received["confusion"] == expected.tolist()
    assert received["classes"] == list(NAMES)
    assert np.trace(expected) == pytest.approx(30 * result.accuracy)
    assert cli.main(["test", str(tmp_path), "--confusion"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == command.confusion_text(expected, list(NAMES)).splitlines()


def test_the_most_frequent_confusions_of_many_classes() -> None:
    counts = np.diag(np.full(30, 9))
    counts[3, 4], counts[5, 1], counts[29, 0] = 2, 7, 1
    lines = command.confusion_text(counts, [f"c{number}" for number in range(30)]).splitlines()
    assert lines == ["     7  c5 taken for c1", "     2  c3 taken for c4", "     1  c29 taken for c0"]


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(command).failed == 0


def test_another_data_set_than_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, record={"name": "cifar10"})
    arguments = ["test", str(tmp_path), "--dataset", "synthetic", "--test-examples", "20", "--json"]
    assert cli.main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 20


@pytest.mark.parametrize(
    ("record", "arguments", "expected"),
    [
        (None, [], "expected --dataset, because no run.json tells the data set. Received: none"),
        ({"name": "night"}, [], "run.json: expected a data set that is one of digits, mnist"),
        ([], [], "run.json: expected a data set that is one of"),
        (
            TRAINED_ON,
            ["--dataset", "digits"],
            "expected a data set with images of shape (3, 8, 8). Received: (1, 28, 28)",
        ),
        (TRAINED_ON, ["--data-directory", "x"], "--data-directory does nothing with synthetic"),
        (
            {**TRAINED_ON, "check_digest": "0"},
            [],
            "expected the test set of the run, of digest 0; to test with another",
        ),
        ({"name": "image_folder"}, [], "--dataset image_folder: expected --data-directory"),
        ({"name": "image_folder", "directory": "/none"}, [], "/none: expected a directory"),
    ],
)
def test_bad_input(
    record: Any, arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn: pip install 'crossbow[zoo]'")
    run(tmp_path, record=record)
    assert cli.main(["test", str(tmp_path), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert printed.err.count("\n") == 1


def test_a_damaged_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path)
    for text in ("{", "[]", "{}"):
        (tmp_path / "run.json").write_text(text)
        assert cli.main(["test", str(tmp_path)]) == 2
        assert "run.json: expected the record of a run, with its data set. Received: " in capsys.readouterr().err


def test_other_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with another number of classes than the model's."""
    from tests.data.picture_files import picture, write_folder

    run(tmp_path)
    names = [f"{phase}/{kind}/{number}.jpg" for phase in ("train", "val") for kind in "ab" for number in range(4)]
    write_folder(tmp_path / "photos", {name: picture(number) for number, name in enumerate(names)})
    assert (
        cli.main(["test", str(tmp_path), "--dataset", "image_folder", "--data-directory", str(tmp_path / "photos")])
        == 2
    )
    assert "expected a data set with 3 classes. Received: 2" in capsys.readouterr().err


def test_classes_of_other_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of classes is the model's, but its class 0 is another one."""
    from tests.data.picture_files import picture, write_folder

    for place, classes in (("abc", "abc"), ("bcd", "bcd")):
        names = [f"{phase}/{kind}/{n}.jpg" for phase in ("train", "val") for kind in classes for n in range(4)]
        write_folder(tmp_path / place, {name: picture(number) for number, name in enumerate(names)})
    data = image_folder(tmp_path / "abc", image_size=8)
    with ExecutionContext([perceptron(classes=3), None], data=data, model=ModelConf(batch_size=4)) as context:
        context.save(tmp_path / "run" / "model.safetensors")
    arguments = ["test", str(tmp_path / "run" / "model.safetensors"), "--dataset", "image_folder", "--data-directory"]
    assert cli.main([*arguments, str(tmp_path / "abc")]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main([*arguments, str(tmp_path / "bcd")]) == 2
    assert "expected a data set whose class 0 is 'a', as in training. Received: 'b'" in capsys.readouterr().err


def log_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "log.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_the_run_of_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its best model on its own data set, as the log has it."""
    options = ["--dataset", "synthetic", "--training-examples", "40", "--test-examples", "25", "--epochs", "2"]
    run_options = ["--image-shape", "1,8,8", "--kernels", "reference", "--output-directory", str(tmp_path / "out")]
    assert SCRIPT.main([*options, *run_options]) == 0
    capsys.readouterr()
    assert cli.main(["test", str(tmp_path / "out"), "--json"]) == 0
    received = json.loads(capsys.readouterr().out)
    tested = [row for row in log_of(tmp_path / "out") if row.get("test_accuracy") is not None]
    best = max(tested, key=lambda row: row["test_accuracy"])
    names = ("test_examples", "test_loss", "test_accuracy")
    assert [received[name.removeprefix("test_")] for name in names] == [best[name] for name in names]


def test_the_run_of_a_script_with_its_own_synthetic_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--training-examples", "40", "--test-examples", "25", "--epochs", "1", "--users", "7", "--items", "9"]
    run_options = ["--kernels", "reference", "--learners", "1", "--output-directory", str(tmp_path / "out")]
    assert matrix_factorisation.SCRIPT.main([*options, *run_options, "--batch-size", "8"]) == 0
    capsys.readouterr()
    assert cli.main(["test", str(tmp_path / "out"), "--json"]) == 0
    received = json.loads(capsys.readouterr().out)
    (record,) = [row for row in log_of(tmp_path / "out") if "epoch" in row]
    assert (received["examples"], received["loss"]) == (25, record["test_loss"])
    assert cli.main(["test", str(tmp_path / "out"), "--json", "--test-examples", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 5
