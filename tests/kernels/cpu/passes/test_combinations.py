"""Products, maxima, concatenation, factors and local responses: native, and as the reference library has them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.interface import Variable
from crossbow.kernels.reference import Reference
from crossbow.kernels.requests import (
    ConcatBackward,
    ConcatForward,
    LRNBackward,
    LRNForward,
    MaximumBackward,
    MaximumForward,
    ProductBackward,
    ProductForward,
    Request,
    ResponseGeometry,
    ScalingBackward,
    ScalingForward,
    WeightedSum,
)
from crossbow.types import Layout, Phase, Shape, Tensor
from tests.combinations import pairwise
from tests.kernels.cpu.running import FLOAT32, ONEDNN, Numbers, close, draw, execute, memory, tensor

SINGLE = Reference(np.float32)
SHAPES: list[Shape] = [(3, 10), (1, 1), (2, 20, 3, 5), (1, 1, 4, 4), (2, 16, 2, 2), (3, 2, 5), (7,), (5, 1023)]


def both(request: Request, tensors: Mapping[str, Tensor], values: Mapping[str, Numbers]) -> list[dict[str, Numbers]]:
    """What the two libraries' kernels write, the fast one without Python; what they keep is theirs alone."""
    results = []
    for library in (ONEDNN, SINGLE):
        kernel = library.prepare(request)
        buffers = {role: memory(t, values.get(role)) for role, t in tensors.items()}
        execute(kernel, buffers, native=library is ONEDNN)
        results.append({role: buffers[role] for role in kernel.writes})
    return results


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_weighted_sums(count: int, relu: bool) -> None:
    """With whole vectors and a remainder; a sum of two has its own code for the fused ReLU."""
    t, inputs = tensor((3, 37)), [f"input{number}" for number in range(count)]
    values = {role: draw((3, 37), seed) for seed, role in enumerate(inputs)}
    values["input0"][1, 5:9] = np.nan
    request = WeightedSum((t,) * count, t, (1.0, -0.5, 2.0, 0.25, -1.0, 3.0)[:count], relu)
    fast, plain = both(request, dict.fromkeys([*inputs, "output"], t), values)
    np.testing.assert_allclose(fast["output"], plain["output"], rtol=1e-6, atol=1e-6)
    assert np.isnan(fast["output"]).sum() == 4
    assert (np.nanmin(fast["output"]) == 0) == relu


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_products_are_bit_identical(shape: Shape, count: int) -> None:
    t, inputs = tensor(shape), [f"input{number}" for number in range(count)]
    values = {role: draw(shape, seed) for seed, role in enumerate(inputs)}
    fast, plain = both(ProductForward([t] * count, t), dict.fromkeys([*inputs, "output"], t), values)
    np.testing.assert_array_equal(fast["output"], plain["output"])
    values["output_gradient"] = draw(shape, 99)
    roles = [*inputs, "output_gradient", "input_gradient"]
    for index in range(count):
        fast, plain = both(ProductBackward([t] * count, t, index), dict.fromkeys(roles, t), values)
        np.testing.assert_array_equal(fast["input_gradient"], plain["input_gradient"])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_maxima_and_their_gradients_are_the_same_with_ties(shape: Shape, count: int) -> None:
    t, inputs = tensor(shape), [f"input{number}" for number in range(count)]
    values = {role: np.round(draw(shape, seed)) for seed, role in enumerate(inputs)}
    gradients: dict[str, list[Numbers]] = {}
    for library in (ONEDNN, SINGLE):
        buffers = {role: memory(t, value) for role, value in values.items()}
        buffers |= {"output": memory(t), "output_gradient": memory(t, draw(shape, 99))}
        forward = library.prepare(MaximumForward([t] * count, t, Phase.TRAIN))
        buffers["kept"] = aligned_zeros(forward.kept)
        execute(forward, buffers, native=library is ONEDNN)
        gradients[library.name] = [buffers["output"]]
        for index in range(count):
            buffers["input_gradient"] = memory(t)
            execute(library.prepare(MaximumBackward([t] * count, t, index)), buffers, native=library is ONEDNN)
            gradients[library.name].append(buffers["input_gradient"])
    for fast, plain in zip(gradients[ONEDNN.name], gradients[SINGLE.name], strict=True):
        np.testing.assert_array_equal(fast, plain)


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(2, 3, 4, 5), (2, 7, 4, 5), (2, 1, 4, 5)], 1),
        ([(2, 3, 4, 5), (2, 3, 1, 5)], 2),
        ([(2, 3, 4, 5), (2, 3, 4, 2)], 3),
        ([(2, 3, 4, 5), (1, 3, 4, 5)], 0),
        ([(2, 3), (2, 40)], 1),
        ([(2, 3, 1), (2, 3, 4), (2, 3, 2)], 2),
        ([(3,), (4,)], 0),
    ],
)
def test_concatenation(shapes: list[Shape], axis: int) -> None:
    xs, whole = [tensor(shape) for shape in shapes], np.concatenate([draw(shape) for shape in shapes], axis=axis)
    y = tensor(whole.shape)
    tensors = {"output": y, **{f"input{number}": x for number, x in enumerate(xs)}}
    fast, _ = both(ConcatForward(xs, y, axis), tensors, {f"input{i}": draw(s) for i, s in enumerate(shapes)})
    np.testing.assert_array_equal(fast["output"], whole)
    start = 0
    for x, shape in zip(xs, shapes, strict=True):
        tensors = {"output_gradient": y, "input_gradient": x}
        fast, _ = both(ConcatBackward(y, x, axis, start), tensors, {"output_gradient": whole})
        np.testing.assert_array_equal(fast["input_gradient"], draw(shape))
        start += shape[axis]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "axes"),
    [((2, 20, 3, 5), axis, axes) for axis in (1, 2, 3) for axes in range(1, 5 - axis)] + [((4, 33), 1, 1)],
)
def test_factors(shape: Shape, axis: int, axes: int, bias: bool) -> None:
    x, variable = tensor(shape), Variable(shape[axis : axis + axes], FLOAT32)
    own = Tensor(variable.shape, FLOAT32)
    values = {"input0": draw(shape), "output_gradient": draw(shape, 1)}
    values |= {"weights": draw(variable.shape, 2), "bias": draw(variable.shape, 3)}
    tensors = {"input0": x, "weights": own, "bias": own, "output": x}
    second = variable if bias else None
    fast, plain = both(ScalingForward(x, variable, second, x, axis), tensors, values)
    np.testing.assert_array_equal(fast["output"], plain["output"])
    for dx in (None, x):
        tensors |= {"output_gradient": x, "input_gradient": x, "weights_gradient": own, "bias_gradient": own}
        fast, plain = both(ScalingBackward(x, x, variable, second, dx, axis), tensors, values)
        assert fast.keys() == plain.keys()
        assert ("input_gradient" in fast, "bias_gradient" in fast) == (dx is not None, bias)
        for role, gradient in plain.items():
            close(fast[role], gradient, terms=x.elements)


def test_sums_of_a_channel_are_exact_to_float32() -> None:
    """A million elements of which each is far smaller than the sum."""
    x, variable = tensor((1, 1, 1024, 1024)), Variable((1,), FLOAT32)
    tensors = {"input0": x, "output_gradient": x, "weights": Tensor((1,), FLOAT32)}
    tensors |= {role: Tensor((1,), FLOAT32) for role in ("weights_gradient", "bias_gradient")}
    values = {"input0": np.ones(x.shape), "output_gradient": np.full(x.shape, 0.1), "weights": np.ones(1)}
    fast, _ = both(ScalingBackward(x, x, variable, variable, None, 1), tensors, values)
    assert fast["weights_gradient"] == np.float32(0.1) * 2**20
    assert fast["bias_gradient"] == np.float32(0.1) * 2**20


@pairwise
@pytest.mark.parametrize("shape", [(2, 20, 6, 5), (2, 32, 8, 8), (1, 1, 1, 1)])
@pytest.mark.parametrize("axes", [(1,), (2, 3)])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 11])
@pytest.mark.parametrize("beta", [0.75, 0.6])
@pytest.mark.parametrize("layout", Layout)
def test_local_responses(shape: Shape, axes: tuple[int, ...], size: int, beta: float, layout: Layout) -> None:
    """Plain images too, which no network has, but the kernels accept."""
    x, geometry = Tensor(shape, FLOAT32, layout), ResponseGeometry(axes, size, 0.3, beta, 2.0)
    values = {"input0": draw(shape), "output_gradient": draw(shape, 1)}
    results = []
    for library in (ONEDNN, SINGLE):
        buffers = {role: memory(x, value) for role, value in values.items()}
        buffers |= {"output": memory(x), "input_gradient": memory(x)}
        forward = library.prepare(LRNForward(x, x, geometry, Phase.TRAIN))
        buffers["kept"] = aligned_zeros(forward.kept)
        execute(forward, buffers, native=library is ONEDNN)
        execute(library.prepare(LRNBackward(x, x, x, geometry)), buffers, native=library is ONEDNN)
        results.append(buffers)
    for role in ("output", "input_gradient"):
        close(results[0][role], results[1][role])


def test_tensors_that_lie_differently_are_left_to_the_reference_library() -> None:
    last, plain = (Tensor((2, 3, 4, 5), FLOAT32, layout) for layout in (Layout.CHANNELS_LAST, Layout.PLAIN))
    variable, geometry = Variable((3,), FLOAT32), ResponseGeometry((1,), 3, 0.3, 0.75, 1.0)
    kernels = [
        ONEDNN.prepare(ProductForward((last, plain), last)),
        ONEDNN.prepare(ProductBackward((last, plain), last, 0)),
        ONEDNN.prepare(MaximumForward((last, plain), last, Phase.TRAIN)),
        ONEDNN.prepare(MaximumBackward((last, plain), last, 0)),
        ONEDNN.prepare(ConcatForward((last, plain), Tensor((2, 6, 4, 5), FLOAT32, Layout.CHANNELS_LAST), 1)),
        ONEDNN.prepare(ConcatBackward(Tensor((2, 6, 4, 5), FLOAT32, Layout.CHANNELS_LAST), plain, 1, 3)),
        ONEDNN.prepare(ScalingForward(last, variable, None, plain, 1)),
        ONEDNN.prepare(ScalingBackward(last, last, variable, None, plain, 1)),
        ONEDNN.prepare(LRNForward(last, plain, geometry, Phase.TRAIN)),
        ONEDNN.prepare(LRNBackward(last, plain, last, geometry)),
    ]
    assert [kernel.name.split()[-1] for kernel in kernels] == ["reference"] * len(kernels)
