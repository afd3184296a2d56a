"""What holds for every operator of the package."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from crossbow import ops
from crossbow.ops import Gradient, Kernel

EXPORTED = {name: getattr(ops, name) for name in ops.__all__}
KERNELS = {name: one for name, one in EXPORTED.items() if issubclass(one, Kernel) and one is not Kernel}
WITHOUT_GRADIENT = {"Accuracy", "Classify", "DataTransform", "GradientDescentOptimiser"}
REQUIRED = {"number_of_outputs": 3, "rows": 3, "columns": 3, "latents": 3, "shape": (3,)}
REQUIRED |= {"order": (0, 2, 1), "padding": ((1, 1),)}
"""Fields without a default: sizes and orders, of which no value is usual."""


def make(kernel: Any, **values: Any) -> Kernel:
    required = {field.name for field in dataclasses.fields(kernel) if field.default is dataclasses.MISSING}
    assert required <= REQUIRED.keys(), "everything else has a default"
    made: Kernel = kernel(**{name: REQUIRED[name] for name in required}, **values)
    return made


@pytest.mark.parametrize("name", KERNELS)
def test_operator(name: str) -> None:
    kernel = make(KERNELS[name])
    assert hash(kernel) == hash(make(KERNELS[name]))
    assert kernel == make(KERNELS[name])
    assert KERNELS[name].__doc__
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.number_of_outputs = 4  # type: ignore[attr-defined]


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


def test_every_gradient_belongs_to_an_operator() -> None:
    gradients = {name for name, one in EXPORTED.items() if issubclass(one, Gradient) and one is not Gradient}
    assert gradients == {f"{name}Gradient" for name in KERNELS.keys() - WITHOUT_GRADIENT} | {"ArrayGradient"}
