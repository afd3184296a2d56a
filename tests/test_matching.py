"""Variables of another model: what is taken, and what is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from crossbow import ConfigurationError, DataError
from crossbow.matching import Untaken
from crossbow.ops import BatchNorm
from tests.support import blobs, context, perceptron, same_weights


def saved(path: Path, **model: Any) -> Path:
    with context(perceptron(**model), data=blobs(classes=model.get("classes", 3)), seed=1) as running:
        running.train(1)
        running.save(path)
    return path


def test_what_fits_is_taken(tmp_path: Path) -> None:
    """The last layer has another number of classes."""
    path = saved(tmp_path / "m.safetensors", classes=4)
    other = safetensors.numpy.load_file(path)
    with context() as running:
        before = running.variables
        matching = running.load(path, strict=False)
        assert matching.taken == ("InnerProduct0.weights", "InnerProduct0.bias")
        assert matching.untaken == (
            Untaken("InnerProduct2.weights", (3, 8), (4, 8)),
            Untaken("InnerProduct2.bias", (3,), (4,)),
        )
        assert str(matching.untaken[0]) == "InnerProduct2.weights: the model (3, 8), the file (4, 8)"
        names = dict.fromkeys(matching.taken)
        assert same_weights(running.variables, before | {name: other[name] for name in names})
        running.train(1)  # all learners begin there, and move
        assert not same_weights(running.variables, before | {name: other[name] for name in names})


def test_what_is_excluded(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    with context() as running:
        before = running.variables
        matching = running.load(str(path), strict=False, exclude=["*2.*", "*.bias"])
        assert matching.taken == ("InnerProduct0.weights",)
        assert [each.excluded for each in matching.untaken] == ["*.bias", "*2.*", "*2.*"]
        assert str(matching.untaken[0]) == "InnerProduct0.bias: the model (8,), the file (8,) (excluded by '*.bias')"
        after = running.variables
        assert {name for name in before if not np.array_equal(before[name], after[name])} == set(matching.taken)


def test_statistics_and_variables_of_one_side_only(tmp_path: Path) -> None:
    with context(perceptron(BatchNorm())) as running:
        running.train(1)
        running.save(tmp_path / "m")
        statistics = running.variables
    with context(perceptron(BatchNorm()), seed=5) as running:
        assert running.load(tmp_path / "m", strict=False).untaken == ()
        assert same_weights(running.variables, statistics)
    with context() as running:  # whose second inner product has another name
        untaken = {each.name: each for each in running.load(tmp_path / "m", strict=False).untaken}
    assert untaken["BatchNorm1.running_mean"] == Untaken("BatchNorm1.running_mean", None, (8,))
    assert untaken["InnerProduct2.weights"] == Untaken("InnerProduct2.weights", (3, 8), None)
    assert str(untaken["BatchNorm1.bias"]) == "BatchNorm1.bias: the model has none, the file (8,)"


def test_the_directory_of_a_run(tmp_path: Path) -> None:
    saved(tmp_path / "model.safetensors")
    with context() as running:
        assert running.load(tmp_path, strict=False).untaken == ()


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    foreign, damaged = tmp_path / "foreign", tmp_path / "damaged"
    foreign.write_bytes(safetensors.numpy.save({"layer.weight": np.zeros((2, 2), np.float32)}))
    tensors = safetensors.numpy.load_file(path)
    tensors["InnerProduct0.bias"][0] = np.nan
    damaged.write_bytes(safetensors.numpy.save(tensors))
    with context() as running:
        before = running.variables
        for arguments, kind, expected in (
            (
                (foreign,),
                DataError,
                "the model has. Received: none that fits; first InnerProduct0.weights",
            ),
            ((damaged,), DataError, "InnerProduct0.bias: expected finite numbers"),
            ((tmp_path / "none",), DataError, "expected a saved model. Received: no such file"),
            ((path, ["conv*"]), ConfigurationError, "Received: 'conv*', which matches none"),
            ((path, "ip*"), ConfigurationError, "exclude must be a list of patterns"),
        ):
            file, *exclude = arguments
            with pytest.raises(kind) as error:
                running.load(file, strict=False, **({"exclude": exclude[0]} if exclude else {}))  # type: ignore[arg-type]
            assert expected in str(error.value)
            assert same_weights(running.variables, before)


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors", classes=4)
    with context() as running:
        before = running.variables
        with pytest.raises(DataError, match=r"does not fit the model: InnerProduct2\.bias: expected \(3,\)"):
            running.load(path)
        matching = running.load(path, only=["InnerProduct0.*"])  # all of which fit
        assert matching.taken == ("InnerProduct0.weights", "InnerProduct0.bias")
        assert str(matching) == (
            "2 variables taken\n"
            "not InnerProduct2.weights: the model (3, 8), the file (4, 8) (not asked for)\n"
            "not InnerProduct2.bias: the model (3,), the file (4,) (not asked for)"
        )
        after = running.variables
        assert {name for name in before if not np.array_equal(before[name], after[name])} == set(matching.taken)
        matching = running.load(path, strict=False, only=["*.bias"], exclude=["InnerProduct2*"])
        assert matching.taken == ("InnerProduct0.bias",)
        with pytest.raises(DataError, match=r"InnerProduct2\.weights: expected \(3, 8\)\. Received: \(4, 8\)$"):
            running.load(path, only=["*.weights"])
        for strict in (True, False):
            with pytest.raises(ConfigurationError, match=r"only: expected .*, which matches none"):
                running.load(path, strict=strict, only=["conv*"])
        with pytest.raises(ConfigurationError, match=r"only must be a list of patterns, .*Received: "):
            running.load(path, only="*")


def test_a_whole_model_is_taken_as_a_whole(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    with context() as running:
        matching = running.load(path)
        assert (len(matching.taken), matching.untaken) == (4, ())
        assert same_weights(running.variables, safetensors.numpy.load_file(path))
