from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crossbow.kernels import why_not_compiled
from crossbow.ops import Accuracy
from crossbow.testing import run_operator
from crossbow.types import ConfigurationError, LabelRange

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")

P = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.4, 0.4, 0.2], [-3.0, -2.0, -1.0]])
LABELS = np.array([1, 2, 1, 2], np.int32)


def accuracy(p: NDArray[Any], labels: NDArray[Any], examples: int | None = None, **values: Any) -> float:
    return float(run_operator(Accuracy(**values), [p, labels], examples=examples).outputs[0].item())


def test_what_it_is() -> None:
    assert Accuracy.is_measure
    assert Accuracy.takes_labels
    assert Accuracy().gradient() is None
    assert Accuracy().output_shape((8, 10)) == (1,)


def test_numbers_by_hand() -> None:
    assert accuracy(P, LABELS) == 0.5  # right, wrong, wrong (class 0 has the same value and comes first), right
    assert accuracy(P, LABELS, top_k=2) == 1
    assert accuracy(P, np.array([0, 1, 2, 0], np.int32), top_k=2) == 0
    assert accuracy(P, np.array([0, 1, 2, 0], np.int32), top_k=3) == 1


def test_padding_and_ignored_examples_do_not_count() -> None:
    assert accuracy(P, LABELS, examples=1) == 1
    assert accuracy(P, LABELS, examples=3) == pytest.approx(1 / 3)
    assert accuracy(P, LABELS, ignored_label=2) == 0.5
    assert accuracy(P, np.full(4, -1, np.int32), ignored_label=-1) == 0


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match=r"expected an input of shape \(N, classes\) or \(N, classes, …\)"):
        Accuracy().output_shape((8,))
    assert Accuracy().output_shape((8, 10, 4, 5)) == (1,)


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=fast)])
@pytest.mark.parametrize("shape", [(2, 3, 2), (2, 3, 1, 2), (2, 3, 2, 1), (2, 3, 1, 2, 1)])
def test_maps_of_labels(shape: tuple[int, ...], device: str) -> None:
    # classes of the four places, the largest first: 0 1 2, 2 1 0; 1 0 2, 0 2 1
    p = np.array([[[0.6, 0.1], [0.3, 0.2], [0.1, 0.7]], [[0.4, 0.5], [0.5, 0.1], [0.1, 0.4]]]).reshape(shape)
    labels = np.array([[0, 1], [2, 9]], np.int32).reshape(shape[:1] + shape[2:])
    for top_k, examples, expected in ((1, 2, 1 / 3), (2, 2, 2 / 3), (3, 2, 1), (1, 1, 1 / 2), (2, 1, 1)):
        kernel = Accuracy(top_k=top_k, ignored_label=9)
        run = run_operator(kernel, [p, labels], examples=examples, device=device)
        assert run.outputs[0].item() == pytest.approx(expected), (top_k, examples)
    assert Accuracy(ignored_label=9).counts(labels) == 3
    assert Accuracy().counts(labels) == 4


def test_too_few_classes() -> None:
    with pytest.raises(ValueError, match=r"expected at least top_k=5 classes\. Received: 3"):
        Accuracy(top_k=5).output_shape((8, 3))


def test_labels() -> None:
    Accuracy().check_labels(LabelRange((8,), True, 0, 9), (8, 10))
    with pytest.raises(ValueError, match=r"expected class labels of shape \(8,\), from 0 to 9. Received: values"):
        Accuracy().check_labels(LabelRange((8,), False, 0, 9), (8, 10))


@pytest.mark.parametrize("top_k", [0, 1.5, True])
def test_bad_configurations(top_k: Any) -> None:
    with pytest.raises(ConfigurationError, match="top_k must be an integer ≥ 1"):
        Accuracy(top_k=top_k)
