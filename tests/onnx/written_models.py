"""An operator on its own, written as an ONNX model and read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crossbow.onnx.loading import read
from crossbow.onnx.training_settings import settings_of
from crossbow.onnx.writing.model import Writer, make_model
from crossbow.onnx.writing.table import write_operator
from crossbow.ops import (
    LRN,
    Kernel,
    LayerNorm,
    Pool,
)
from crossbow.types import Shape
from tests.onnx.adapter import evaluate
from tests.onnx.models import run_onnx
from tests.operators.table import Case

Array = NDArray[Any]


PICTURE = (2, 3, 6, 7)


def written(kernel: Kernel, shapes: tuple[Shape, ...], variables: Mapping[str, Array]) -> onnx.ModelProto:
    """A model of one operator, with as many inputs as it has."""
    writer = Writer()
    names = tuple(f"x{number}" for number in range(len(shapes)))
    write_operator(writer, 0, kernel, "operator", names, shapes, "y", variables)
    assert not writer.faults
    inputs = dict(zip(names, shapes, strict=True))
    return make_model(writer, inputs, {"y": kernel.output_shape(*shapes)})


def check(kernel: Kernel, case: Case, inputs: list[Array], values: Mapping[str, Array], expected: Array) -> None:
    """By onnxruntime, and by us when it is read again."""
    proto = written(kernel, case.shapes, values)
    named = {f"x{number}": x.astype(np.float32) for number, x in enumerate(inputs)}
    if onnxruntime_has(case):
        assert_close(run_onnx(proto, **named), expected)
    network = read(proto)
    (step,) = network.outputs.values()
    assert len(network.steps) == 1
    assert type(step.kernel) is type(kernel)
    assert step.name == "operator"
    assert settings_of(step.kernel, {}) == settings_of(kernel, {})
    again = evaluate(network, named, "reference")[step]
    np.testing.assert_allclose(again.outputs[0], expected, rtol=1e-6, atol=1e-6)  # type: ignore[union-attr]


def onnxruntime_has(case: Case) -> bool:
    """It has no response normalisation of even width or of other than four dimensions, and no padding as wide as the
    kernel, and loses digits in a layer normalisation far from 0."""
    kernel, rank = case.kernel, len(case.shapes[0])
    if isinstance(kernel, LRN):
        return kernel.size % 2 == 1 and min(kernel.alpha, kernel.beta) > 0 and rank == 4
    if isinstance(kernel, LayerNorm):
        return abs(case.offset) < 1000
    if isinstance(kernel, Pool) and not kernel.global_pooling:
        g = kernel.geometry(case.shapes[0])
        return all(max(padding) < k for padding, k in zip(g.padding, g.kernel, strict=True))
    return True


def assert_close(received: Array, expected: Array) -> None:
    assert received.shape == expected.shape
    largest = max(float(np.abs(expected).max(initial=0.0)), 1e-30)
    assert float(np.abs(received - expected).max(initial=0.0)) <= 1e-5 * largest
