"""Handwritten digits without a download: the 1,797 images bundled with scikit-learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossbow.data import class_names
from crossbow.data.dataset import Dataset
from crossbow.types import DataError

SIZE = 28
"""Height and width to which the 8×8 images are enlarged, as in MNIST."""

CHECK_EVERY = 6
"""In each class, every sixth image is for checks."""


def digits() -> Dataset:
    """Handwritten digits: uint8 (N, 1, 28, 28), pixels in [0, 1] when batched; 1,501 for training, 296 for checks.

    The split is fixed: in each class, in file order, every sixth image is for checks. So both parts have the classes in
    equal proportions, and the same writers (the file is ordered by writer). One image of 296 is 0.34 %.

    The images are from E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (UCI, 1998), test set: 8×8
    counts from 0 to 16, enlarged to 28×28 (`enlarge`), so that a model for MNIST accepts them.

    Raises DataError if scikit-learn is not installed.
    """
    counts, labels = _bundled()
    # Only one rounding occurs, and ties are exact, too, so pixels are the same on every machine.
    pixels = np.rint(enlarge(counts.astype(np.float64), SIZE) * 255 / 16).astype(np.uint8)[:, None]
    check = np.zeros(len(labels), np.bool_)
    for digit in range(10):
        check[np.flatnonzero(labels == digit)[CHECK_EVERY - 1 :: CHECK_EVERY]] = True
    data = Dataset((pixels[~check], labels[~check]), (pixels[check], labels[check]), number_of_classes=10)
    data.class_names = class_names.DIGITS
    return data


def enlarge(images: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Bilinear interpolation of (N, h, w) to (N, size, size): y = A x Bᵀ, where values at the border are repeated.

    Pixels are areas: centre i of the large image is at (i + ½) · h / size − ½ in the small one. If the images consist
    of integers, only the last division rounds.
    """
    rows, columns = (_weights(length, size) for length in images.shape[1:])
    enlarged: NDArray[np.float64] = rows @ images @ columns.T / (2 * size) ** 2
    return enlarged


def _weights(length: int, size: int) -> NDArray[np.float64]:
    """The matrix (size, length) that interpolates linearly between neighbours, times 2 · size: all elements are
    integers."""
    centres = np.clip((2 * np.arange(size) + 1) * length - size, 0, 2 * size * (length - 1))
    weights = np.maximum(2 * size - np.abs(centres[:, None] - 2 * size * np.arange(length)), 0)
    matrix: NDArray[np.float64] = weights.astype(np.float64)
    return matrix


def _bundled() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Counts (N, 8, 8) from 0 to 16 and labels (N,)."""
    # Importing scikit-learn takes a second and some 100 MB (SciPy), which training does not need. So only its directory
    # is located, and the table in it read; load_digits is the fallback if the table has moved.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("the handwritten digits come with scikit-learn: pip install 'crossbow[zoo]'")
    table = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if table.is_file():
        rows = np.loadtxt(table, delimiter=",", dtype=np.uint8)
    else:
        from sklearn.datasets import load_digits

        data, labels = load_digits(return_X_y=True)
        rows = np.column_stack([data, labels]).astype(np.uint8)
    return rows[:, :64].reshape(-1, 8, 8), rows[:, 64]
