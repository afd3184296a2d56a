"""What holds for every operator of the package."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from crossbow import ops
from crossbow.ops import Gradient, Kernel
from crossbow.ops.initialiser import Constant, Gaussian, Xavier
from crossbow.types import ConfigurationError

EXPORTED = {name: getattr(ops, name) for name in ops.__all__}
KERNELS = {name: one for name, one in EXPORTED.items() if issubclass(one, Kernel) and one is not Kernel}
WITHOUT_GRADIENT = {
    "Accuracy",
    "Classify",
    "DataTransform",
    "GradientDescentOptimiser",
    "MatFactPrediction",
    "TotalLoss",
}
REQUIRED = {"number_of_outputs": 3, "rows": 3, "columns": 3, "latents": 3, "shape": (3,)}
REQUIRED |= {"order": (0, 2, 1), "padding": ((1, 1),), "weights": (1.0, 0.3), "number_of_rows": 3, "heads": 2}
"""Fields without a default: sizes and orders, of which no value is usual."""

ONE, ZERO, MULTIPLIERS = (
    Constant(1.0),
    Constant(0.0),
    ("weight_learning_rate_multiplier", "bias_learning_rate_multiplier"),
)
WEIGHTS = {"weight_initialiser": Xavier(), "bias_initialiser": ZERO} | dict.fromkeys(MULTIPLIERS, 1.0)
STATISTICS = {"mean_initialiser": ZERO, "variance_initialiser": ONE, "count_initialiser": ZERO}
FACTORS = {"users_initialiser": Gaussian(std=0.1), "items_initialiser": Gaussian(std=0.1)}
DEFAULTS: dict[str, dict[str, Any]] = {
    "Accuracy": {"top_k": 1, "ignored_label": None},
    "BatchNorm": {
        "epsilon": 1e-5, "moving_average_fraction": 0.9, "statistics": "fixed", "bias": True,
        **WEIGHTS, "weight_initialiser": ONE, **STATISTICS,
    },
    "ChannelShuffle": {"groups": 2},
    "Classify": {"axis": 1, "ties": "first", "keep_axis": False},
    "Concat": {"axis": 1},
    "TransposedConv": {
        "kernel_size": 1, "stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1, "bias": True,
        **WEIGHTS, "weight_initialiser": Xavier(norm="fan_out"),
    },
    "Conv": {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": True, **WEIGHTS},
    "DataTransform": {
        "crop_size": None, "padding": 0, "mirror": False, "mean": None, "mean_image": None, "scale": 1.0
    },
    "Dropout": {"ratio": 0.5},
    "ElementWiseOp": {"type": "sum", "coefficients": None},
    "Embedding": {"weight_initialiser": Gaussian(std=0.02), "weight_learning_rate_multiplier": 1.0},
    "EuclideanLoss": {"weight": 1.0, "auxiliary": False},
    "SigmoidLoss": {"normalisation": "full", "weight": 1.0, "auxiliary": False},
    "Flatten": {"axis": 1},
    "GELU": {"approximate": "none"},
    "InnerProduct": {"axis": 1, "bias": True, **WEIGHTS},
    "LRN": {"size": 5, "alpha": 1.0, "beta": 0.75, "kappa": 1.0, "region": "across_channels", "longer_side": "after"},
    "LayerNorm": {
        "axis": -1, "number_of_axes": 1, "bias": True, "epsilon": 1e-5, **WEIGHTS, "weight_initialiser": ONE,
    },
    "LogSoftMax": {"axis": 1},
    "MatFact": {
        "regularisation": 0.1, "learning_rate": None, **FACTORS,
        "users_learning_rate_multiplier": 1.0, "items_learning_rate_multiplier": 1.0,
    },
    "MatFactPrediction": FACTORS,
    "MatMul": {"transpose_a": False, "transpose_b": False},
    "Pad": {"value": 0.0},
    "Pool": {
        "method": "max", "kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1, "rounding": "ceil",
        "count_padding": True, "global_pooling": False,
    },
    "ReLU": {"mode": "relu", "negative_slope": 0.0, "ceiling": None},
    "PReLU": {"shared": False, "weight_initialiser": Constant(0.25), "weight_learning_rate_multiplier": 1.0},
    "Upsample": {"scale": None, "size": None, "method": "nearest", "align_corners": False},
    "Scale": {"axis": 1, "number_of_axes": 1, "bias": False, **WEIGHTS, "weight_initialiser": ONE},
    "SelfAttention": {"causal": False},
    "Slice": {"axis": 1, "start": 0, "stop": None, "step": 1},
    "SoftMax": {"axis": 1},
    "SoftMaxLoss": {
        "ignored_label": None,
        "normalisation": "batch",
        "weight": 1.0,
        "auxiliary": False,
        "label_smoothing": 0.0,
        "class_weights": None,
    },
}  # fmt: skip
"""What models that leave these fields out are trained with: a change would change them."""
BY_POSITION = {
    "Broadcast": ["shape"],
    "ChannelShuffle": ["groups"],
    "Concat": ["axis"],
    "Conv": ["number_of_outputs", "kernel_size"],
    "Dropout": ["ratio"],
    "ElementWiseOp": ["type"],
    "Embedding": ["number_of_rows", "number_of_outputs"],
    "Flatten": ["axis"],
    "InnerProduct": ["number_of_outputs"],
    "PReLU": ["shared"],
    "Pad": ["padding"],
    "Pool": ["method", "kernel_size"],
    "ReLU": ["mode"],
    "Reshape": ["shape"],
    "SelfAttention": ["heads"],
    "Transpose": ["order"],
    "TransposedConv": ["number_of_outputs", "kernel_size"],
    "Upsample": ["scale"],
}
"""Fields that need no name, in their order."""


NUMBERS = (-1, 0, 1, 2)
REFUSED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("size", "top_k", "groups", "number_of_outputs", "kernel_size", "stride", "dilation"), (-1, 0)),
    **dict.fromkeys(("number_of_rows", "rows", "columns", "latents", "number_of_axes", "heads", "step"), (-1, 0)),
    **dict.fromkeys(("alpha", "beta", "padding", "regularisation", "negative_slope"), (-1,)),
    **dict.fromkeys(("kappa", "epsilon", "weight"), (-1, 0)),
    **dict.fromkeys(("axis", "scale"), (0,)),
    **dict.fromkeys(("ratio", "label_smoothing"), (-1, 1, 2)),
    **dict.fromkeys(("value", "start", "Concat.axis", "Flatten.axis"), ()),
    "moving_average_fraction": (-1, 2),
    "learning_rate_multiplier": (-1,),
    "Scale.bias_learning_rate_multiplier": (-1, 0, 2),  # without a bias
    "Conv.groups": (-1, 0, 2),  # of three outputs
    "TransposedConv.groups": (-1, 0, 2),
    "Pool.padding": (-1, 2),  # as large as the window
    "TransposedConv.output_padding": (-1, 1, 2),  # as large as the stride
}
"""Which of these numbers a field refuses, by its name, in one operator or in all; by the end of its name."""
NO_VALUES: dict[type, tuple[Any, ...]] = {
    bool: (1, None, "yes"),
    float: (float("nan"), float("inf"), None, "1", True, 1j),
    int: (1.5, "1", True, [1.5], float("nan")),
    str: ("", "another", None, 0),
    Constant: (None, 0.5, "zeros", Constant),
    Gaussian: (None, 0.5, "zeros", Gaussian),
    Xavier: (None, 0.5, "zeros", Xavier),
}
"""What no field takes, by the type of its default."""
FIELDS = [(name, field) for name, kernel in KERNELS.items() for field in dataclasses.fields(kernel)]


def make(kernel: Any, **values: Any) -> Kernel:
    required = {field.name for field in dataclasses.fields(kernel) if field.default is dataclasses.MISSING}
    assert required <= REQUIRED.keys(), "everything else has a default"
    made: Kernel = kernel(**{**{name: REQUIRED[name] for name in required}, **values})
    return made


def refuses(name: str, **values: Any) -> bool:
    try:
        make(KERNELS[name], **values)
    except ConfigurationError:
        return True
    return False


@pytest.mark.parametrize("name", KERNELS)
def test_operator(name: str) -> None:
    kernel = make(KERNELS[name])
    assert hash(kernel) == hash(make(KERNELS[name]))
    assert kernel == make(KERNELS[name])
    assert KERNELS[name].__doc__
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.number_of_outputs = 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", KERNELS)
def test_defaults(name: str) -> None:
    fields = dataclasses.fields(KERNELS[name])
    defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    assert defaults == DEFAULTS.get(name, {})


@pytest.mark.parametrize(
    ("name", "field"),
    [
        pytest.param(name, field, id=f"{name}.{field.name}")
        for name, field in FIELDS
        if type(field.default) in NO_VALUES
    ],
)
def test_values_of_another_kind_are_refused(name: str, field: dataclasses.Field[Any]) -> None:
    for value in NO_VALUES[type(field.default)]:
        with pytest.raises(ConfigurationError, match=rf"^{name}: {field.name} must be .*Received: {field.name}="):
            make(KERNELS[name], **{field.name: value})


@pytest.mark.parametrize(
    ("name", "field"),
    [
        pytest.param(name, field, id=f"{name}.{field.name}")
        for name, field in FIELDS
        if type(field.default) in (int, float) or type(REQUIRED.get(field.name)) is int
    ],
)
def test_numbers_that_are_refused(name: str, field: dataclasses.Field[Any]) -> None:
    known = (f"{name}.{field.name}", field.name, field.name.partition("_")[2])
    refused = next(REFUSED[each] for each in known if each in REFUSED)
    assert tuple(number for number in NUMBERS if refuses(name, **{field.name: number})) == refused


@pytest.mark.parametrize("name", KERNELS)
def test_values_by_position(name: str) -> None:
    by_position = [field.name for field in dataclasses.fields(KERNELS[name]) if not field.kw_only]
    assert by_position == BY_POSITION.get(name, [])


@pytest.mark.parametrize("name", KERNELS)
def test_its_gradient_stands_beside_it(name: str) -> None:
    kernel = make(KERNELS[name])
    gradient = kernel.gradient(0)
    assert gradient == kernel.gradient()
    if name in WITHOUT_GRADIENT:
        assert gradient is None
    else:
        assert type(gradient).__name__ == f"{name}Gradient"
        assert type(gradient) is EXPORTED[f"{name}Gradient"]
        assert type(gradient).__module__ == KERNELS[name].__module__


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - WITHOUT_GRADIENT))
def test_a_gradient_knows_its_input(name: str) -> None:
    found = [make(KERNELS[name]).gradient(index) for index in (0, 1, 2)]
    assert [gradient.input for gradient in found if gradient is not None] in ([0], [0, 1, 2])


def test_every_gradient_belongs_to_an_operator() -> None:
    gradients = {name for name, one in EXPORTED.items() if issubclass(one, Gradient) and one is not Gradient}
    assert gradients == {f"{name}Gradient" for name in KERNELS.keys() - WITHOUT_GRADIENT} | {"ArrayGradient"}


@pytest.mark.parametrize(
    "kernel",
    [ops.Conv(4), ops.TransposedConv(4), ops.InnerProduct(4), ops.BatchNorm(), ops.Scale(bias=True), ops.LayerNorm()],
    ids=lambda kernel: type(kernel).__name__,
)
def test_an_operator_is_frozen_if_all_its_variables_are(kernel: Kernel) -> None:
    weights, bias = ({f"{name}_learning_rate_multiplier": 0.0} for name in ("weight", "bias"))
    change: Any = dataclasses.replace
    assert not kernel.is_frozen
    assert not change(kernel, **weights).is_frozen
    assert not change(kernel, **bias).is_frozen
    assert change(kernel, **weights, **bias).is_frozen
    assert change(kernel, **weights, bias=False).is_frozen
    assert not change(kernel, bias=False).is_frozen
