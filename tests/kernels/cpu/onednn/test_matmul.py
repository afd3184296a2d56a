"""oneDNN's matrix products and their gradients: transposes, stacks that are broadcast, and tensors to be reordered."""

from __future__ import annotations

import pytest

from crossbow.kernels.requests import MatmulBackward, MatmulForward, MatrixProductGeometry
from crossbow.types import Layout, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.running import FLOAT32, ONEDNN, Numbers, both, close, draw, tensor

SHAPES: list[tuple[Shape, Shape]] = [
    ((3, 4), (4, 5)),
    ((1, 1), (1, 1)),
    ((17, 33), (33, 16)),
    ((2, 3, 4), (1, 4, 5)),  # one tall matrix
    ((1, 3, 4), (6, 4, 5)),  # sums over a stack
    ((2, 1, 3, 4), (1, 5, 4, 6)),
    ((3, 40), (40, 1)),  # rows, whose products are added up by a pass
    ((1, 40), (40, 3)),
    ((2, 1, 40), (2, 40, 1)),
]


@pairwise
@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_it_agrees_with_the_reference(a: Shape, b: Shape, first: bool, second: bool) -> None:
    inputs = [(*shape[:-2], *shape[:-3:-1]) if turned else shape for shape, turned in ((a, first), (b, second))]
    compare([tensor(shape) for shape in inputs], MatrixProductGeometry((inputs[0], inputs[1]), (first, second)))


@pytest.mark.parametrize("layouts", [("last", "plain"), ("plain", "last"), ("last", "last")])
def test_images_are_reordered(layouts: tuple[str, str]) -> None:
    """Two stacks of matrices, of which some lie channels last."""
    shapes: tuple[Shape, Shape] = ((2, 3, 4, 5), (2, 3, 5, 6))
    kinds = {"last": Layout.CHANNELS_LAST, "plain": Layout.PLAIN}
    tensors = [Tensor(shape, FLOAT32, kinds[name]) for shape, name in zip(shapes, layouts, strict=True)]
    compare(tensors, MatrixProductGeometry(shapes))


def compare(inputs: list[Tensor], geometry: MatrixProductGeometry) -> None:
    a, b = inputs
    y = tensor(geometry.y)
    values: dict[str, Numbers] = {f"input{number}": draw(x.shape, number) for number, x in enumerate(inputs)}
    values["output_gradient"] = draw(geometry.y, 2)
    tensors = {"input0": a, "input1": b, "output_gradient": y}
    terms = geometry.factor(0)[-1]
    forward = {role: values[role] for role in ("input0", "input1")}
    actual, expected = both(
        ONEDNN, MatmulForward(a, b, y, geometry), {**tensors, "output": y}, forward, by="matmul_forward"
    )
    close(actual["output"], expected["output"], terms)
    for number, dx in enumerate(inputs):
        request = MatmulBackward(y, a, b, number, geometry)
        assert not ONEDNN.prepare(request).name.endswith("reference")
        actual, expected = both(ONEDNN, request, {**tensors, "input_gradient": dx}, values, by="matmul_backward")
        close(actual["input_gradient"], expected["input_gradient"], y.elements)


def test_stacks_of_more_dimensions_than_onednn_has_are_left_to_the_reference() -> None:
    shape = (*[1] * 11, 2, 2)
    geometry, t = MatrixProductGeometry((shape, shape)), tensor(shape)
    for request in (MatmulForward(t, t, t, geometry), MatmulBackward(t, t, t, 0, geometry)):
        assert ONEDNN.prepare(request).name.endswith("reference")
    assert ":" in ONEDNN.prepare(MatmulForward(*[tensor((2, 2))] * 3, MatrixProductGeometry(((2, 2), (2, 2))))).name
