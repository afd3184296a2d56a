from __future__ import annotations

import numpy as np
import pytest

from crossbow import Dataflow, SubGraph
from crossbow.kernels import why_not_compiled
from crossbow.ops import Flatten, FlattenGradient, InnerProduct, Kernel, Noop, Site, SoftMax, SoftMaxLoss
from crossbow.testing.arguments import library_of
from crossbow.types import ConfigurationError, GraphError, Phase, Shape, Tensor
from tests.support import blobs, chain, context

fast = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled kernels: {why_not_compiled()}")


@pytest.mark.parametrize(
    ("axis", "expected"),
    [(1, (2, 60)), (0, (1, 120)), (2, (6, 20)), (4, (120, 1)), (-1, (24, 5)), (-3, (2, 60)), (-4, (1, 120))],
)
def test_shapes(axis: int, expected: Shape) -> None:
    assert Flatten(axis=axis).output_shape((2, 3, 4, 5)) == expected


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"an input that can be split at axis=3\. Received: \(4, 5\)"):
        Flatten(axis=3).output_shape((4, 5))
    with pytest.raises(ValueError, match="axis=-3"):
        Flatten(axis=-3).output_shape((4, 5))
    with pytest.raises(ConfigurationError, match=r"Flatten: axis must be an integer\. Received: axis=1.5"):
        Flatten(axis=1.5)  # type: ignore[arg-type]


def test_a_prediction_has_a_row_for_every_image() -> None:
    scores = chain(InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())[0]
    mixed = scores.shallow_copy()
    mixed.connect_to(*chain(Flatten(axis=0)))
    check = Dataflow(SubGraph(mixed)).set_phase(Phase.CHECK)
    expected = r"'Flatten0': expected a prediction of shape \(N, …\) for N=16 images\. Received: \(1, 48\)"
    with (
        context(Dataflow(SubGraph(scores)), check=check, data=blobs()) as run,
        pytest.raises(GraphError, match=expected),
    ):
        run.predict(blobs().train.images)


def test_its_gradient() -> None:
    assert Flatten().gradient() == FlattenGradient()


def aliases(kernel: Kernel, shape: Shape, device: str) -> list[bool]:
    """Whether output and input, and their gradients, may be one memory."""
    library, dtype = library_of(device, np.dtype(np.float32)), np.dtype(np.float32)
    x, y = (Tensor(size, dtype, library.layout(size)) for size in (shape, kernel.output_shape(shape)))
    site = Site(library, Phase.TRAIN, (x,), y, None, {}, seed=0, key=0)
    gradient = kernel.gradient()
    assert gradient is not None
    return [one.alias is not None for one in (*kernel.prepare(site), *gradient.prepare(kernel, site))]


@pytest.mark.parametrize(
    ("device", "shape", "expected"),
    [
        ("reference", (2, 3, 4, 5), True),
        pytest.param("cpu", (2, 3, 4, 5), False, marks=fast),
        pytest.param("cpu", (2, 1, 4, 5), True, marks=fast),  # one channel: its place does not matter
        pytest.param("cpu", (2, 3, 1, 1), True, marks=fast),
        pytest.param("cpu", (2, 3, 4), True, marks=fast),
    ],
)
def test_nothing_is_copied_where_the_order_in_memory_is_the_same(device: str, shape: Shape, expected: bool) -> None:
    assert aliases(Flatten(), shape, device) == [expected, expected]
    assert aliases(Noop(), shape, device) == [True, True]
