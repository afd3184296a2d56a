"""Inner products of one or two rows with large weights, against float64, and the calls that are independent."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cpu.onednn.shared_library import why_unusable
from crossbow.kernels.interface import Variable
from crossbow.kernels.native import NativeCall
from crossbow.kernels.requests import InnerProductForward
from crossbow.types import Tensor
from tests.kernels.cpu.buffers import COMPILED, FLOAT32, close, draw, execute, stored, with_storage
from tests.kernels.cpu.own_convolutions import use_threads


def request(rows: int, features: int, outputs: int, bias: bool = True, relu: bool = False) -> InnerProductForward:
    """With weights in the layout that a program of more rows chooses."""

    def forward(rows: int, weights: Variable) -> InnerProductForward:
        x, y = Tensor((rows, features), FLOAT32), Tensor((rows, outputs), FLOAT32)
        return InnerProductForward(x, weights, Variable((outputs,), FLOAT32) if bias else None, y, relu=relu)

    weights = Variable((outputs, features), FLOAT32)
    return forward(rows, with_storage(weights, COMPILED.prepare(forward(16, weights))))


@pytest.mark.parametrize(("bias", "relu"), [(True, False), (False, True)])
@pytest.mark.parametrize(("rows", "features", "outputs"), [(1, 512, 512), (2, 515, 1001)])
def test_it_agrees_with_float64(
    rows: int, features: int, outputs: int, bias: bool, relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_threads(monkeypatch, 1)
    wanted = request(rows, features, outputs, bias, relu)
    x, w, b = draw((rows, features)), draw((outputs, features), 1), draw((outputs,), 2)
    kernel = COMPILED.prepare(wanted)
    assert " rows " in kernel.name
    output = np.full((rows, outputs), np.nan, np.float32)
    execute(kernel, {"input0": x, "weights": stored(w, wanted.weights.storage), "bias": b, "output": output})
    expected = x.astype(np.float64) @ w.T.astype(np.float64) + (b if bias else 0)
    close(output, np.maximum(expected, 0) if relu else expected, features)


def test_its_calls_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order they give the same bits, and only the first does not belong to a call before it."""
    use_threads(monkeypatch, 1)
    wanted = request(1, 512, 515)
    results = []
    for turn in (1, -1):
        buffers = {"input0": draw((1, 512)), "weights": stored(draw((515, 512), 1), wanted.weights.storage)}
        buffers |= {"bias": draw((515,), 2), "output": np.full((1, 515), np.nan, np.float32)}
        calls = COMPILED.prepare(wanted).bind(buffers)
        assert [isinstance(call, NativeCall) and call.together for call in calls] == [False, True]
        for call in calls[::turn]:
            call()
        results.append(buffers["output"])
    np.testing.assert_array_equal(*results)


def test_numbers_that_are_not_finite_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    use_threads(monkeypatch, 1)
    wanted = request(1, 512, 512, relu=True)
    x = draw((1, 512))
    x[0, 3] = np.nan
    buffers = {"input0": x, "weights": stored(draw((512, 512), 1), wanted.weights.storage)}
    buffers |= {"bias": draw((512,), 2), "output": np.zeros((1, 512), np.float32)}
    execute(COMPILED.prepare(wanted), buffers)
    assert np.isnan(buffers["output"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "features", "outputs"), [(3, 512, 512), (1, 512, 511)])
def test_what_other_kernels_compute(rows: int, features: int, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows, and weights that fit into the cache."""
    use_threads(monkeypatch, 1)
    assert " rows " not in COMPILED.prepare(request(rows, features, outputs)).name


@pytest.mark.skipif(why_unusable() is not None, reason="without oneDNN, a learner has one thread")
def test_several_threads_use_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    use_threads(monkeypatch, 1)
    wanted = request(1, 512, 512)
    use_threads(monkeypatch, 2)
    assert " rows " not in COMPILED.prepare(wanted).name
