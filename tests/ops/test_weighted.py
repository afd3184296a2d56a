"""Multipliers of the learning rate, of every operator that has weights and a bias."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from crossbow import ops
from crossbow.ops import Kernel, VariableSpec
from crossbow.ops.initialiser import Constant
from crossbow.types import ConfigurationError

NAMES = ("weight_learning_rate_multiplier", "bias_learning_rate_multiplier")
REQUIRED: dict[str, Any] = {"number_of_outputs": 3, "bias": True}
WITH = [
    kind
    for kind in vars(ops).values()
    if isinstance(kind, type)
    and issubclass(kind, Kernel)
    and dataclasses.is_dataclass(kind)
    and set(NAMES) <= {field.name for field in dataclasses.fields(kind)}
]
every = pytest.mark.parametrize("kind", WITH, ids=[kind.__name__ for kind in WITH])


def made(kind: type[Kernel], **values: object) -> Kernel:
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in REQUIRED.items() if name in fields}, **values)


def test_who_has_them() -> None:
    assert {"Conv", "InnerProduct", "Scale"} <= {kind.__name__ for kind in WITH}


@every
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), None, "1", True])
def test_a_bad_value(kind: type[Kernel], name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}: {name} must be a finite number ≥ 0\. Received"):
        made(kind, **{name: value})


@pytest.mark.parametrize("value", [-0.5, float("nan"), None, "1"])
def test_a_bad_multiplier_of_an_operator_from_outside(value: Any) -> None:
    with pytest.raises(ValueError, match="learning_rate_multiplier of 'weights' that is a finite number ≥ 0"):
        VariableSpec("weights", (2,), Constant(0.0), learning_rate_multiplier=value)


@every
def test_variables_have_them(kind: type[Kernel]) -> None:
    shape = (2, 4, 5, 5)
    assert [spec.learning_rate_multiplier for spec in made(kind).variables(shape)] == [1.0, 1.0]
    operator = made(kind, weight_learning_rate_multiplier=0, bias_learning_rate_multiplier=2.5)
    found = {spec.name: spec.learning_rate_multiplier for spec in operator.variables(shape)}
    assert found == {"weights": 0, "bias": 2.5}
