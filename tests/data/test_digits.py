"""The bundled digits: real images, a fixed split, and nothing imported for them."""

from __future__ import annotations

import builtins
import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.data import Dataset, digits
from crossbow.data.digits import enlarge
from crossbow.types import DataError

pytest.importorskip("sklearn", reason="the digits come with scikit-learn: pip install 'crossbow[zoo]'")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return digits()


def test_shapes_types_and_scale(data: Dataset) -> None:
    assert data.check is not None
    assert data.train.images.shape == (1501, 1, 28, 28)
    assert data.check.images.shape == (296, 1, 28, 28)
    assert data.train.images.dtype == np.uint8
    assert data.scale == 1 / 255
    assert data.number_of_classes == 10
    assert data.train.images.min() == 0
    assert data.train.images.max() == 255


def test_the_split_is_fixed_complete_and_has_the_classes_in_equal_shares(data: Dataset) -> None:
    from sklearn.datasets import load_digits

    assert data.check is not None
    labels = load_digits().target
    train, check = np.bincount(data.train.labels), np.bincount(data.check.labels)
    np.testing.assert_array_equal(train + check, np.bincount(labels))
    np.testing.assert_array_equal(check, np.bincount(labels) // 6)
    again = digits()
    np.testing.assert_array_equal(again.train.images, data.train.images)
    everything = data.check.images.tobytes() + data.check.labels.astype("<i4").tobytes()
    assert hashlib.sha256(everything).hexdigest()[:16] == "67e6efa8c70cbbaa"


def test_images_are_those_of_scikit_learn(data: Dataset) -> None:
    from sklearn.datasets import load_digits

    source = load_digits()
    first = source.images[source.target == data.train.labels[0]][0]
    # The mean of a 28×28 image is nearly that of the 8×8 one, and the brightest region is where it was.
    image = data.train.images[0, 0] / 255
    assert image.mean() == pytest.approx(first.mean() / 16, abs=0.01)
    assert np.corrcoef(image[1::7, 1::7].ravel(), first[::2, ::2].ravel())[0, 1] > 0.9


def test_enlarging_keeps_constants_ramps_and_symmetry() -> None:
    np.testing.assert_allclose(enlarge(np.full((2, 8, 8), 0.25), 28), 0.25, rtol=1e-6)
    ramp = np.broadcast_to(np.arange(8.0), (1, 8, 8))
    enlarged = enlarge(ramp, 28)[0, 0]
    inside = slice(2, -2)
    np.testing.assert_allclose(enlarged[inside], ((np.arange(28) + 0.5) * 8 / 28 - 0.5)[inside], rtol=1e-5)
    assert enlarged[0] == 0
    assert enlarged[-1] == 7
    image = np.random.default_rng(0).random((1, 8, 8))
    np.testing.assert_allclose(enlarge(image[:, ::-1], 28), enlarge(image, 28)[:, ::-1], rtol=1e-5)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 30), st.integers(0, 100))
def test_enlarging_stays_within_the_values(height: int, width: int, size: int, seed: int) -> None:
    image = np.random.default_rng(seed).random((1, height, width))
    enlarged = enlarge(image, size)
    assert enlarged.shape == (1, size, size)
    assert enlarged.min() >= image.min() - 1e-6
    assert enlarged.max() <= image.max() + 1e-6


def test_enlarging_is_pytorch_s_bilinear_interpolation() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is for comparisons only")
    image = np.random.default_rng(0).random((3, 8, 8)).astype(np.float32)
    theirs = torch.nn.functional.interpolate(torch.from_numpy(image)[:, None], size=28, mode="bilinear")
    np.testing.assert_allclose(enlarge(image.astype(np.float64), 28), theirs[:, 0].numpy(), atol=1e-6)


@pytest.mark.slow
def test_scikit_learn_is_not_imported() -> None:
    program = "import sys; from crossbow.data import digits; digits(); print({'sklearn', 'scipy'} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "set()"


def test_where_the_table_has_moved_scikit_learn_is_asked(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moved = SimpleNamespace(origin=str(tmp_path / "sklearn" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: moved)
    np.testing.assert_array_equal(digits().train.images, data.train.images)


def test_without_scikit_learn_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_import(name: str, *rest: Any, **options: Any) -> Any:
        assert not name.startswith("sklearn")
        return real(name, *rest, **options)

    real = builtins.__import__
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(builtins, "__import__", no_import)
    with pytest.raises(DataError, match=r"scikit-learn: pip install 'crossbow\[zoo\]'"):
        digits()
