"""The base class of operators: variables, what classes inherit, and what they must define."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from crossbow.conf import configuration
from crossbow.ops import Constant, Conv, Gaussian, Initialiser, Kernel, ReLU, SoftMaxLoss, Values, VariableSpec
from crossbow.ops.kernel import ArrayGradient, Gradient, Precision

# Variables


def test_a_variable_has_plain_values() -> None:
    spec = VariableSpec("w", [np.int64(2), 3], Constant(1), np.float32(0.5), np.float64(0))  # type: ignore[arg-type]
    assert spec == VariableSpec("w", (2, 3), Constant(1), 0.5, 0.0)
    assert [type(size) for size in spec.shape] == [int, int]
    assert VariableSpec("w", (), Constant()).learning_rate_multiplier == 1
    assert VariableSpec("w", (0, 3), Constant()).minimum == -math.inf


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, r"a variable's name, a str that is not empty\. Received: ''"),
        ({"name": 3}, r"a variable's name, a str that is not empty\. Received: 3"),
        ({"shape": (2, -1)}, r"a shape of 'w', a tuple of integers ≥ 0\. Received: \(2, -1\)"),
        ({"shape": (2.5,)}, r"a shape of 'w'.*Received: \(2\.5,\)"),
        ({"shape": (True,)}, r"a shape of 'w'"),
        ({"shape": 4}, r"a shape of 'w'.*Received: 4"),
        ({"initialiser": 0.5}, r"an initialiser of 'w', as Gaussian\(std=0\.1\)\. Received: 0\.5"),
        ({"learning_rate_multiplier": -1}, r"a learning_rate_multiplier of 'w' that is a finite number ≥ 0"),
        ({"learning_rate_multiplier": math.nan}, r"a learning_rate_multiplier of 'w'"),
        ({"initialiser": Values(np.ones(5))}, r"\(5,\)"),
    ],
)
def test_a_variable_that_is_none(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VariableSpec(**{"name": "w", "shape": (2, 3), "initialiser": Constant(), **fields})


def test_initial_values_are_the_initialisers() -> None:
    drawn = VariableSpec("w", (2, 3), Gaussian(std=0.1)).initial_values(np.random.default_rng(5))
    np.testing.assert_array_equal(drawn, Gaussian(std=0.1).fill((2, 3), np.random.default_rng(5)))


class Own(Initialiser):
    """An initialiser of a user, which returns what it is given."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def fill(self, shape: tuple[int, ...], generator: np.random.Generator) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_integers_become_floating_point() -> None:
    drawn = VariableSpec("w", (2,), Own([1, 2])).initial_values(np.random.default_rng())
    np.testing.assert_array_equal(drawn, np.array([1.0, 2.0]), strict=True)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (KeyError("k"), "its initialiser Own raised KeyError: 'k'"),
        (
            np.ones(3),
            r"expected initial values of shape \(2,\) that are real numbers\. Received: values of Own",
        ),
        (np.array([1j, 2]), "and type complex128"),
        (["a", "b"], "and type <U1"),
    ],
    ids=["an exception", "another shape", "complex numbers", "text"],
)
def test_initial_values_that_do_not_fit(result: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VariableSpec("w", (2,), Own(result)).initial_values(np.random.default_rng())


# Classes


@configuration
class Derived(ReLU):
    """Another function than its base, for all that the compiler knows."""


@configuration
class Declared(ReLU):
    """Says itself what it is."""

    precision = Precision.NARROW

    @property
    def is_relu(self) -> bool:
        return True


def test_what_the_compiler_may_do_is_not_inherited() -> None:
    assert (ReLU().is_relu, ReLU.precision, ReLU.derivative_from_output) == (True, Precision.FOLLOWING, True)
    assert (Derived().is_relu, Derived.precision) == (False, Precision.WIDE)
    assert not Derived.derivative_from_output
    assert (Declared().is_relu, Declared.precision) == (True, Precision.NARROW)
    assert not Declared.derivative_from_output


@configuration
class SameVariables(Conv):
    """A convolution with the variables of its base."""


@configuration
class MoreVariables(SameVariables):
    """A convolution with another variable, which its base does not know."""

    def variables(self, *inputs: Any) -> tuple[VariableSpec, ...]:
        return (*super().variables(*inputs), VariableSpec("scale", (1,), Constant(1)))


class AlsoMoreVariables(MoreVariables):
    """A convolution with the variables of its base."""


def test_whether_variables_are_frozen_is_inherited_with_the_variables() -> None:
    frozen = {"weight_learning_rate_multiplier": 0.0, "bias_learning_rate_multiplier": 0.0}
    assert [kind(4, **frozen).is_frozen for kind in (Conv, SameVariables)] == [True, True]
    assert [kind(4, **frozen).is_frozen for kind in (MoreVariables, AlsoMoreVariables)] == [False, False]
    assert not SameVariables(4).is_frozen


@configuration
class Loss(SoftMaxLoss):
    """A loss with another name."""


def test_what_an_operator_is_is_inherited() -> None:
    assert (Loss.is_loss, Loss.takes_labels, Loss.gradient_past) == (True, True, SoftMaxLoss.gradient_past)


@configuration
class Empty(Kernel):
    """Defines nothing."""


@configuration
class Forward(Kernel):
    """Has no gradient."""

    def forward(self, xp: ModuleType, inputs: Any, variables: Any) -> Any:
        return inputs[0]


@configuration
class Both(Forward):
    """Has a gradient."""

    def backward(self, xp: ModuleType, inputs: Any, output: Any, variables: Any, output_gradient: Any) -> Any:
        return [output_gradient], {}


def test_an_operator_without_anything() -> None:
    kernel, site = Empty(), None
    for call, message in (
        (lambda: kernel.output_shape((2, 3)), "Empty has no output_shape"),
        (lambda: kernel.prepare(site), "Empty has neither `prepare` nor `forward`"),  # type: ignore[arg-type]
        (lambda: kernel.forward(np, [], {}), "Empty has neither `prepare` nor `forward`"),
        (lambda: kernel.backward(np, [], np.ones(1), {}, np.ones(1)), "Empty has no `backward`"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            call()
    with pytest.raises(NotImplementedError):
        Gradient().prepare(kernel, site)  # type: ignore[arg-type]
    assert (kernel.variables((2, 3)), kernel.running_statistics((2, 3)), kernel.own_solver()) == ((), (), None)
    assert (kernel.loss_weight, kernel.is_auxiliary, kernel.takes_relu) == (1.0, False, None)


def test_gradients_of_array_module_code() -> None:
    assert Empty().gradient() is None
    assert Forward().gradient() is None
    assert Both().gradient(input=2) == ArrayGradient(input=2)


def test_a_batch_counts_its_examples() -> None:
    assert Conv(number_of_outputs=1, kernel_size=1).counts(np.zeros((5, 7))) == 5.0
