"""Settings of operators that affect only training. ONNX does not have them, so they are stored in a model's metadata.

`save` writes them and `load` reads them; other runtimes ignore them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import onnx

from crossbow.onnx.network import MARK
from crossbow.ops import (
    BatchNorm,
    Constant,
    Conv,
    DataTransform,
    Embedding,
    InnerProduct,
    Kernel,
    LayerNorm,
    PReLU,
    Scale,
    TransposedConv,
)
from crossbow.types import Array

KEY = f"{MARK}.training"
"""Key of the metadata entry: the non-default fields of each operator, by its position in the graph, as JSON."""
_MULTIPLIERS = ("weight_learning_rate_multiplier", "bias_learning_rate_multiplier")
FIELDS: Mapping[type[Kernel], tuple[str, ...]] = {
    BatchNorm: (*_MULTIPLIERS, "statistics"),
    Conv: _MULTIPLIERS,
    DataTransform: ("mirror", "padding"),
    Embedding: ("weight_learning_rate_multiplier",),
    InnerProduct: _MULTIPLIERS,
    LayerNorm: _MULTIPLIERS,
    PReLU: ("weight_learning_rate_multiplier",),
    Scale: _MULTIPLIERS,
    TransposedConv: _MULTIPLIERS,
}

Settings = Mapping[str, Any]


COUNT = "count"
"""Key of the number of batches in the running statistics of a BatchNorm."""


def settings_of(kernel: Kernel, variables: Mapping[str, Array]) -> Settings:
    """The non-default settings of an operator."""
    default = {field.name: field.default for field in dataclasses.fields(kernel)}  # type: ignore[arg-type]
    found = {name: getattr(kernel, name) for name in FIELDS.get(type(kernel), ())}
    settings = {name: value for name, value in found.items() if value != default[name]}
    if isinstance(kernel, BatchNorm) and COUNT in variables:
        settings[COUNT] = float(variables[COUNT].item())
    return settings


def with_settings(kernel: Kernel, settings: Settings) -> Kernel:
    """The operator with these settings. Raises ValueError for unknown settings."""
    fields: dict[str, Any] = dict(settings)
    unknown = settings.keys() - {*FIELDS.get(type(kernel), ())}
    if isinstance(kernel, BatchNorm) and COUNT in settings:
        fields["count_initialiser"] = Constant(fields.pop(COUNT))
        unknown -= {COUNT}
    if unknown:
        names = ", ".join(sorted(unknown))
        wanted = f"settings of a {type(kernel).__name__}"
        raise ValueError(f"expected {wanted} in the metadata {KEY!r}. Received: {names}")
    changed: Kernel = dataclasses.replace(kernel, **fields)  # type: ignore[type-var]
    return changed


def write_settings(model: onnx.ModelProto, settings: Mapping[int, Settings]) -> None:
    """Write the settings of all operators, if there are any."""
    if settings:
        text = json.dumps(settings, sort_keys=True, default=lambda number: number.item())  # also for NumPy scalars
        onnx.helper.set_model_props(model, {KEY: text})


def read_settings(model: onnx.ModelProto) -> Mapping[str, Settings]:
    """The settings by the operator's position in the graph, as stated in the marks of its nodes. Raises ValueError if
    they are damaged."""
    for entry in model.metadata_props:
        if entry.key == KEY:
            try:
                found = json.loads(entry.value)
            except ValueError:
                found = None
            if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
                raise ValueError(
                    f"metadata {KEY!r}: expected settings written by save. Received: {entry.value[:100]!r}"
                )
            return found
    return {}
