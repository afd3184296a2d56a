from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbow.host_memory import aligned_zeros
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.ops.pool import Pool
from crossbow.types import Phase, Shape
from tests.kernels.cpu.running import ONEDNN, REFERENCE, Numbers, close, draw, execute, memory, tensor


def compare(x: Numbers, y_shape: Shape, g: PoolingGeometry) -> None:
    tx, ty = tensor(x.shape), tensor(y_shape)
    dy = draw(y_shape, 1)
    results = []
    for library, kind in ((REFERENCE, np.float64), (ONEDNN, np.float32)):
        reference = library is REFERENCE
        forward = library.prepare(PoolingForward(tx, ty, g, Phase.TRAIN))
        check = library.prepare(PoolingForward(tx, ty, g, Phase.CHECK))
        backward = library.prepare(PoolingBackward(ty, tx, g))
        assert ("kept" in forward.writes) == ("kept" in backward.reads) == (g.method == "max")
        buffers = {"kept": aligned_zeros(forward.kept)}
        if reference:
            buffers |= {"input0": x.astype(kind), "output_gradient": dy.astype(kind)}
            buffers |= {"output": np.full(y_shape, np.nan), "input_gradient": np.full(x.shape, np.nan)}
        else:
            buffers |= {"input0": memory(tx, x), "output_gradient": memory(ty, dy)}
            buffers |= {"output": memory(ty), "input_gradient": memory(tx)}
        execute(forward, buffers, native=not reference)
        execute(backward, buffers, native=not reference)
        trained = buffers["output"].copy()
        buffers["output"][...] = np.nan
        execute(check, buffers, native=not reference)
        np.testing.assert_array_equal(buffers["output"], trained)
        results.append((trained, buffers["input_gradient"]))
    (y, dx), (actual_y, actual_dx) = results
    close(actual_y, y, g.kernel[0] * g.kernel[1])
    close(actual_dx, dx, g.kernel[0] * g.kernel[1])


Windows = st.SearchStrategy[tuple[int, int]]
FEW: Windows = st.sampled_from([(2, 2), (3, 2), (4, 4)])
ANY: Windows = st.tuples(st.integers(1, 4), st.integers(1, 4))
windows = pytest.mark.parametrize(
    "windows", [pytest.param(FEW, id="few windows"), pytest.param(ANY, id="any window", marks=pytest.mark.slow)]
)
"""Max pooling is compiled for each small window: by default few are drawn, of each kind."""


def drawn_pool(data: st.DataObject, windows: Windows) -> tuple[Pool, Shape]:
    kernel = data.draw(windows, "kernel")
    dilation = data.draw(st.one_of(st.just((1, 1)), st.tuples(st.integers(1, 3), st.integers(1, 3))), "dilation")
    reaches = [st.integers(0, d * (k - 1)) for k, d in zip(kernel, dilation, strict=True)]
    method = data.draw(st.sampled_from(["max", "average"]))
    pool = Pool(
        method=method,
        kernel_size=kernel,
        stride=data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)), "stride"),
        padding=tuple((data.draw(reach), data.draw(reach)) for reach in reaches),
        dilation=dilation,
        rounding=data.draw(st.sampled_from(["ceil", "floor"])),
        count_padding=method == "max" or data.draw(st.booleans()),
    )
    batch, channels = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 3, 16, 17, 20, 32]))
    # Where the input is no shorter than the distance between elements, none of its windows steps over it.
    height, width = (data.draw(st.integers(d * k, d * k + 7)) for k, d in zip(kernel, dilation, strict=True))
    return pool, (batch, channels, height, width)


@pytest.mark.slow
@windows
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_shapes(windows: Windows, data: st.DataObject) -> None:
    pool, shape = drawn_pool(data, windows)
    compare(draw(shape), pool.output_shape(shape), pool.geometry(shape))


@pytest.mark.slow
@windows
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_first_of_equal_maxima_gets_the_gradient(windows: Windows, data: st.DataObject) -> None:
    pool, shape = drawn_pool(data, windows)
    few_values = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 2, shape).astype(np.float32)
    g = pool.geometry(shape)
    compare(few_values, pool.output_shape(shape), replace(g, method="max"))


@pytest.mark.parametrize("batch", [1, 4, 8, 32])
@pytest.mark.parametrize("shape", [(32, 24, 24), (64, 8, 8), (20, 24, 24), (50, 8, 8)])
def test_lenet_takes_the_fast_implementation(shape: Shape, batch: int) -> None:
    x, y = tensor((batch, *shape)), tensor((batch, shape[0], shape[1] // 2, shape[2] // 2))
    g = PoolingGeometry((2, 2), (2, 2))
    for kernel in (ONEDNN.prepare(PoolingForward(x, y, g, Phase.TRAIN)), ONEDNN.prepare(PoolingBackward(y, x, g))):
        assert "ref:" not in kernel.name


@pytest.mark.parametrize("method", ["max", "average", "stochastic"])
@pytest.mark.parametrize("axes", [1, 3])
def test_other_numbers_of_axes_run_in_numpy(axes: int, method: str) -> None:
    x, y = tensor((2, 3, *[6] * axes)), tensor((2, 3, *[3] * axes))
    g = PoolingGeometry((2,) * axes, (2,) * axes, method=method)
    for kernel in (ONEDNN.prepare(PoolingForward(x, y, g, Phase.TRAIN)), ONEDNN.prepare(PoolingBackward(y, x, g))):
        assert kernel.name.endswith("reference")
