"""Kernels of primitives: their operands in buffers and workspace, and the scratchpad that all of them use."""

from __future__ import annotations

import numpy as np

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.requests import CopyForward, MatmulForward, MatrixProductGeometry, SoftmaxForward
from crossbow.types import Layout, Tensor, address
from tests.kernels.cpu.running import FLOAT32, ONEDNN, draw, execute, memory, tensor

from crossbow.kernels.cpu.onednn import binding as dnnl  # isort: skip - after the module that skips
from crossbow.kernels.cpu.onednn.memory import activation, attributes, engine, plain
from crossbow.kernels.cpu.onednn.primitive import PrimitiveSteps, chosen, implementation

IMAGE = Tensor((2, 3, 4, 5), FLOAT32, Layout.CHANNELS_LAST)
FLAT = Tensor((2, 60), FLOAT32)


def there_and_back() -> PrimitiveSteps:
    """Channels last to plain, in the workspace, and back."""
    steps = PrimitiveSteps(CopyForward(IMAGE, IMAGE))
    steps.reserve(64)
    middle = steps.reserve(IMAGE.nbytes)
    steps.reorder(activation(IMAGE), "input0", plain(IMAGE.shape), middle)
    steps.reorder(plain(IMAGE.shape), middle, activation(IMAGE), "output")
    return steps


def test_primitives_run_in_order_on_places() -> None:
    kernel, x = there_and_back().prepared(), draw(IMAGE.shape)
    given = {"input0": memory(IMAGE, x), "output": memory(IMAGE)}
    given["workspace"] = memory(Tensor((kernel.workspace,), np.dtype(np.uint8)))
    first, second = kernel.bind(given)
    first()
    part = given["workspace"][64 : 64 + IMAGE.nbytes].view(np.float32).reshape(IMAGE.shape)
    np.testing.assert_array_equal(part, x)
    second()
    np.testing.assert_array_equal(given["output"], x)


def test_the_scratchpad_follows_the_reserved_memory() -> None:
    """All primitives of a kernel share one of the largest size. Memory before and after it stays as it is. Which of
    the two primitives needs one depends on the processor."""
    geometry = MatrixProductGeometry(((50, 40), (30, 50)), (True, True))
    left, right = dnnl.strided_memory_desc((40, 50), (1, 40)), dnnl.strided_memory_desc((50, 30), (1, 50))
    y = tensor((40, 30))
    steps = PrimitiveSteps(MatmulForward(tensor((50, 40)), tensor((30, 50)), y, geometry))
    assert steps.reserve(100) == 0
    assert steps.scratchpad_offset == steps.workspace == 128  # rounded to cache lines
    product = dnnl.primitive_desc("matmul", engine(), left, right, None, plain((40, 30)), attributes())
    operands = {dnnl.ARG_SRC: (left, "input0"), dnnl.ARG_WEIGHTS: (right, "input1")}
    steps.add("matmul", product, {**operands, dnnl.ARG_DST: (plain((40, 30)), "output")})
    form = plain((40, 30))
    kind, way = dnnl.FORWARD_TRAINING, dnnl.SOFTMAX_ACCURATE
    columns = dnnl.primitive_desc("softmax_forward", engine(), kind, way, form, form, 0, attributes())
    steps.add("softmax", columns, {dnnl.ARG_SRC: (form, "output"), dnnl.ARG_DST: (form, "output")})
    needed = [dnnl.query_memory_desc(each, dnnl.QUERY_SCRATCHPAD_MD) for each in (product, columns)]
    assert steps.workspace - steps.scratchpad_offset == max(dnnl.size(each) for each in needed if each) > 0
    room = aligned_zeros(steps.workspace + 64)
    room[:] = 0xFF
    a, b, c = draw((50, 40)), draw((30, 50), 1), memory(y)
    for call in steps.bind({"input0": a, "input1": b, "output": c, "workspace": room[: steps.workspace]}):
        call()
    powers = np.exp(a.T.astype(np.float64) @ b.T)
    np.testing.assert_allclose(c, powers / powers.sum(axis=0), rtol=1e-4)
    assert (room[:128] == 0xFF).all()
    assert (room[steps.workspace :] == 0xFF).all()


def test_names_are_those_of_the_implementations() -> None:
    kernel = there_and_back().prepared()
    label, first, second = kernel.name.split(" ", 2)
    assert label == "copy_forward"
    assert ":" in first
    assert ":" in second


def test_the_layout_that_a_primitive_asks_for() -> None:
    any_ = dnnl.memory_desc((64, 64), dnnl.TAG_ANY)
    product = dnnl.primitive_desc("matmul", engine(), plain((64, 64)), any_, None, plain((64, 64)), attributes())
    assert dnnl.size(chosen(product, dnnl.QUERY_WEIGHTS_MD)) >= 4 * 64 * 64
    assert ":" in implementation(product)


def test_a_kernel_may_be_bound_again() -> None:
    """Each call has a stream and memories of its own; all calls share the primitive."""
    t = tensor((3, 10))
    kernel = ONEDNN.prepare(SoftmaxForward(t, t, 1))
    pairs = [{"input0": memory(t, draw(t.shape, seed)), "output": memory(t)} for seed in range(2)]
    for pair in pairs:
        execute(kernel, pair)
    assert address(pairs[0]["output"]) != address(pairs[1]["output"])
    for pair in pairs:
        np.testing.assert_allclose(pair["output"].sum(axis=1), 1, rtol=1e-6)
    assert not np.array_equal(pairs[0]["output"], pairs[1]["output"])
