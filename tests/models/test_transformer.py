from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from crossbow import (
    SSGD,
    ConfigurationError,
    DataError,
    Dataflow,
    Dataset,
    ExecutionContext,
    ModelConf,
    Predictor,
    SolverConf,
    SystemConf,
    TrainingUnit,
    cli,
)
from crossbow.data import characters, synthetic, topics
from crossbow.data.order import TrainingOrder
from crossbow.data.text import ALPHABET, encode
from crossbow.onnx import save
from models.transformer import SCRIPT, generate, main, transformer
from models.vit import vit
from tests.benchmarks.test_torch_network import load
from tests.models.zoo import help_of, parameters, shapes
from tests.onnx.models import run_onnx

TEXT = "to be, or not to be, that is the question: " * 12
HAS_TORCH = importlib.util.find_spec("torch") is not None or "CROSSBOW_REQUIRE_TORCH" in os.environ


def small(data: Dataset, **system: Any) -> ExecutionContext:
    assert data.number_of_classes is not None
    return ExecutionContext(
        [transformer(data.number_of_classes, layers=1, width=16, heads=2), None],
        data=data,
        model=ModelConf(batch_size=8),
        solver=SolverConf(learning_rate=0.1, momentum=0.9),
        system=SystemConf(**{"learners_per_device": 2, "threads_per_learner": 1, **system}),
    )


def test_number_of_parameters() -> None:
    assert parameters(transformer(), (2, 64)) == 437_856
    assert parameters(transformer(layers=3, width=64), (2, 64)) == 3 * 49_984 + 2 * 96 * 64 + 96 + 2 * 64 * 64 + 128


def test_shapes() -> None:
    found = shapes(transformer(), (2, 64))
    assert found["embedding"] == found["layer1-sum1"] == found["layer2-sum2"] == (2, 64, 128)
    assert found["layer1-qkv"] == (2, 64, 384)
    assert found["softmax"] == (2, 96, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers must be an integer ≥ 1. Received: 0"),
        ({"heads": 1.5}, r"heads must be an integer ≥ 1. Received: 1\.5"),
        ({"width": 20, "heads": 3}, "width must be a multiple of heads. Received: width 20, heads 3"),
    ],
)
def test_wrong_sizes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        transformer(**options)


@pytest.mark.slow
def test_several_learners_learn_a_text_and_continue_it(tmp_path: Path) -> None:
    data = characters(TEXT, 16, alphabet="\n ,:abehinoqrstu")
    assert data.class_names is not None
    alphabet, length = "".join(data.class_names), 16
    with small(data) as context:
        first = context.train(1).loss
        history = context.train_and_test(150)
        assert history.loss < 0.3 * first
        assert history.best is not None
        assert history.best.test is not None
        assert history.best.test.accuracy is not None
        assert history.best.test.accuracy > 0.8
        written = generate(context.predict, "to be, ", 30, length=length, temperature=0.1, alphabet=alphabet)
        assert "or not to be" in written or "that is" in written
        context.save(tmp_path / "model.safetensors")
        expected = generate(context.predict, "question", 20, length=length, seed=3, alphabet=alphabet)
    with Predictor.load(tmp_path / "model.safetensors") as predictor:
        assert generate(predictor, "question", 20, length=length, seed=3, alphabet=alphabet) == expected


def test_what_follows_does_not_matter() -> None:
    data = characters(TEXT, 16)
    with small(data) as context:
        x = np.asarray(data.train.images[:2]).astype(np.int32)
        before = context.predict(x)
        x[:, 9:] = 0
        after = context.predict(x)
    np.testing.assert_allclose(after[:, :, :9], before[:, :, :9], rtol=1e-5, atol=1e-7)
    assert np.abs(after[:, :, 9:] - before[:, :, 9:]).max() > 1e-4


def test_generate_draws_by_the_probabilities() -> None:
    def predict(x: Any) -> Any:
        """Almost certainly the next letter of the alphabet, else the one after it."""
        p = np.zeros((1, 3, x.shape[1]))
        for position, index in enumerate(x[0]):
            p[0, (index + 1) % 3, position], p[0, (index + 2) % 3, position] = 0.75, 0.25
        return p

    assert generate(predict, "a", 5, length=2, temperature=0.01, alphabet="abc") == "bcabc"
    text = generate(predict, "a", 2000, length=2, alphabet="abc")
    steps = np.diff(encode("a" + text, "abc")) % 3
    assert np.mean(steps == 1) == pytest.approx(0.75, abs=0.04)
    assert generate(predict, "a", 9, length=2, seed=1, alphabet="abc") != text[:9]
    for arguments, message in (({"prompt": ""}, "at least one character"), ({"temperature": 0.0}, "number > 0")):
        with pytest.raises(DataError, match=message):
            generate(predict, **{"prompt": "a", "count": 1, "alphabet": "abc", **arguments})


def test_export(tmp_path: Path) -> None:
    data = characters(TEXT, 16)
    with small(data, learners_per_device=1) as context:
        context.train(4, TrainingUnit.TASKS)
        save(context, tmp_path / "network.onnx")
        x = np.asarray(data.train.images[:4])
        expected = context.predict(x)
    received = run_onnx(onnx.load(tmp_path / "network.onnx"), input=x.astype(np.float32))
    np.testing.assert_allclose(received, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--layers 1 --width 16 --heads 2 --training-examples 64 --test-examples 16 --batch-size 16"
    arguments = f"--dataset synthetic {sizes} --epochs 2 --learners 2 --output-directory {tmp_path}"
    assert main(arguments.split()) == 0
    assert "transformer (1 layer, width 16)" in capsys.readouterr().out
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines()[1:]]
    assert records[-1]["test_loss"] < np.log(len(ALPHABET)) + 0.1
    with Predictor.load(tmp_path) as predictor:
        assert predictor(np.zeros((3, 64), np.int32)).shape == (3, 96, 64)


def test_it_trains_on_text_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "book.txt").write_text("It was a bright cold day in April. " * 300, "utf-8")
    sizes = "--layers 1 --width 16 --heads 2 --batch-size 16 --epochs 1 --learners 1"
    command = f"--dataset text --data-directory {tmp_path / 'book.txt'} {sizes} --output-directory {tmp_path / 'run'}"
    assert main(command.split()) == 0
    assert cli.main(["test", str(tmp_path / "run")]) == 0
    assert " 16 examples, loss " in capsys.readouterr().out
    assert main(["--dataset", "text"]) == 2
    assert "--dataset text: expected --data-directory. Received: none" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(SCRIPT, [], capsys)
    for part in (
        "texts of Python's help()",
        "(default: 32)",
        "with adam, adamw and rmsprop)",
        "random sequences of characters",
    ):
        assert part in text
    assert "--dataset {topics,text,synthetic,batch_files}" in text  # and no data sets of image files


def losses(dataflow: Dataflow, data: Dataset, *, batch: int, steps: int, learning_rate: float) -> Any:
    """Our loss and PyTorch's of each step, from the same weights on the same batches."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.torch_network import torch_network

    torch.set_num_threads(1)  # its idle threads would spin on the cores that learners and other tests need
    module = torch_network(dataflow, data.image_shape)
    optimiser = torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=0.9)
    order, indices = TrainingOrder(len(data.train), batch, 0), np.empty(batch, np.intp)
    images, labels = np.asarray(data.train.images), torch.from_numpy(np.asarray(data.train.labels)).long()
    x = torch.from_numpy(images).long() if len(data.image_shape) == 1 else torch.from_numpy(images).float() / 255
    found = []
    with ExecutionContext(
        [dataflow, None],
        data=data,
        model=ModelConf(batch_size=batch, rule=SSGD()),
        solver=SolverConf(learning_rate=learning_rate, momentum=0.9),
        system=SystemConf(learners_per_device=1, threads_per_learner=1, seed=0),
    ) as context:
        load(module, context.variables)
        for step in range(steps):
            order.indices(step, indices)
            (logits,) = module(x[indices])
            loss = cross_entropy(logits, labels[indices])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found.append((context.train(1, TrainingUnit.TASKS).loss, loss.item()))
    return np.array(found).T


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", ["transformer", "vit"])
def test_some_steps_are_pytorchs(name: str) -> None:
    if name == "transformer":
        dataflow, data = transformer(layers=1, width=16, heads=2), characters(TEXT, 16)
    else:
        dataflow, data = vit(8, layers=1, width=16, heads=2), synthetic((3, 8, 8), 10, training=64, check=0)
    ours, theirs = losses(dataflow, data, batch=8, steps=8, learning_rate=0.1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert np.ptp(ours) > 0.01


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", ["transformer", "vit"])
def test_two_hundred_steps_are_pytorchs(name: str) -> None:
    if name == "transformer":
        dataflow, data, batch, learning_rate = transformer(), topics(), 16, 0.1
    else:
        dataflow, data, batch, learning_rate = vit(), synthetic((3, 32, 32), 10, training=1024, check=0), 4, 0.05
    ours, theirs = losses(dataflow, data, batch=batch, steps=200, learning_rate=learning_rate)
    np.testing.assert_allclose(ours, theirs, rtol=0.01)
    assert np.ptp(ours) > 0.05
