"""Settings for training are kept in the metadata of a model that Crossbow writes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import onnx
import pytest

from crossbow import (
    GraphError,
)
from crossbow.onnx.loading import read
from crossbow.onnx.training_settings import FIELDS, settings_of
from crossbow.ops import (
    BatchNorm,
    Conv,
    DataTransform,
    InnerProduct,
    Kernel,
    PReLU,
    Scale,
    TransposedConv,
)
from tests.onnx.models import draw, run_onnx
from tests.onnx.writing.test_operators import ROWS
from tests.onnx.written_models import PICTURE, written

MULTIPLIERS = {"weight_learning_rate_multiplier": 0.5, "bias_learning_rate_multiplier": 2.0}


SETTINGS = {
    BatchNorm(statistics="cma"): {"statistics": "cma"},
    BatchNorm(weight_learning_rate_multiplier=0): {"weight_learning_rate_multiplier": 0},
    Conv(number_of_outputs=2, kernel_size=3, **MULTIPLIERS): MULTIPLIERS,
    InnerProduct(number_of_outputs=2, **MULTIPLIERS): MULTIPLIERS,
    PReLU(weight_learning_rate_multiplier=0): {"weight_learning_rate_multiplier": 0},
    TransposedConv(2, 3, **MULTIPLIERS): MULTIPLIERS,
    InnerProduct(number_of_outputs=2, axis=2, **MULTIPLIERS): MULTIPLIERS,
    Scale(bias=True, **MULTIPLIERS): MULTIPLIERS,
    DataTransform(mirror=True, padding=np.int64(3)): {"mirror": True, "padding": 3},
}


@pytest.mark.parametrize("kernel", SETTINGS, ids=repr)
def test_what_an_operator_does_in_training_only_is_metadata(kernel: Kernel) -> None:
    specs = [*kernel.variables(PICTURE), *kernel.running_statistics(PICTURE)]
    values = {spec.name: np.abs(draw(*spec.shape)) for spec in specs}
    proto = written(kernel, (PICTURE,), values)
    ((key, text),) = ((entry.key, entry.value) for entry in proto.metadata_props)
    count = {"count": float(values["count"][0])} if "count" in values else {}
    assert (key, json.loads(text)) == ("crossbow.training", {"0": {**SETTINGS[kernel], **count}})
    assert run_onnx(proto, x0=draw(*PICTURE)).shape == kernel.output_shape(PICTURE)
    (step,) = read(proto).outputs.values()
    assert step.kernel is not None
    assert settings_of(step.kernel, {}) == SETTINGS[kernel]


def cumulative() -> onnx.ModelProto:
    kernel = BatchNorm(statistics="cma")
    specs = [*kernel.variables(PICTURE), *kernel.running_statistics(PICTURE)]
    return written(kernel, (PICTURE,), {spec.name: np.abs(draw(*spec.shape)) for spec in specs})


def test_metadata_of_others_is_not_read() -> None:
    proto = cumulative()
    proto.producer_name = "another"
    (step,) = read(proto).outputs.values()
    assert isinstance(step.kernel, BatchNorm)
    assert step.kernel.statistics == "fixed"


def test_settings_name_fields_of_the_operators() -> None:
    assert all({*names} <= {field.name for field in dataclasses.fields(kind)} for kind, names in FIELDS.items())  # type: ignore[arg-type]
    multiplied = {type(case.kernel) for case in ROWS if hasattr(case.kernel, "weight_learning_rate_multiplier")}
    assert multiplied <= FIELDS.keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", r"^metadata 'crossbow.training': expected settings written by save. Received: '\{'$"),
        ("[]", r"^metadata 'crossbow.training': expected settings written by save"),
        ('{"0": {"epsilon": 1}}', r"^node 'operator' \(BatchNorm.*\): expected settings of a BatchNorm .*: epsilon$"),
        ('{"0": {"statistics": "none"}}', r"^node 'operator' \(BatchNorm.*\): BatchNorm: statistics"),
    ],
)
def test_metadata_that_save_has_not_written(text: str, expected: str) -> None:
    proto = cumulative()
    proto.metadata_props[0].value = text
    with pytest.raises(GraphError, match=expected):
        read(proto)
