"""Operators from outside the package, in array-module code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from crossbow.conf import configuration
from crossbow.kernels.interface import Variable
from crossbow.kernels.reference import Reference
from crossbow.ops import Constant, Kernel, Site, VariableSpec
from crossbow.testing import check_gradients, run_operator
from crossbow.types import Phase, Shape, Tensor


@configuration
class Affine(Kernel):
    """y = factor · x + shift, with one factor for everything and one shift for every feature."""

    start: float = 2.0

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return VariableSpec("factor", (1,), Constant(self.start)), VariableSpec("shift", inputs[0][1:], Constant(1))

    def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        return variables["factor"] * inputs[0] + variables["shift"]

    def backward(
        self, xp: ModuleType, inputs: Sequence[Any], output: Any, variables: Mapping[str, Any], output_gradient: Any
    ) -> Any:
        gradients = {"factor": xp.sum(inputs[0] * output_gradient).reshape(1), "shift": xp.sum(output_gradient, axis=0)}
        return [variables["factor"] * output_gradient], gradients


@configuration
class Product(Kernel):
    """y = a · b."""

    number_of_inputs: ClassVar[int | None] = 2

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        return inputs[0] * inputs[1]

    def backward(
        self, xp: ModuleType, inputs: Sequence[Any], output: Any, variables: Mapping[str, Any], output_gradient: Any
    ) -> Any:
        return (inputs[1] * output_gradient, inputs[0] * output_gradient), {}


@configuration
class AbsoluteLoss(Kernel):
    """Σ |x − labels| / examples."""

    takes_labels: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True

    def output_shape(self, *inputs: Shape) -> Shape:
        return (1,)

    def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        x, labels = inputs
        return xp.abs(x - labels).sum() / len(x)

    def backward(
        self, xp: ModuleType, inputs: Sequence[Any], output: Any, variables: Mapping[str, Any], output_gradient: Any
    ) -> Any:
        x, labels = inputs
        return [output_gradient * xp.sign(x - labels) / len(x)], {}


@configuration
class Broken(Affine):
    """Returns what a test tells it to."""

    forward_result: Any = None
    backward_result: Any = None

    def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        return super().forward(xp, inputs, variables) if self.forward_result is None else self.forward_result(inputs[0])

    def backward(
        self, xp: ModuleType, inputs: Sequence[Any], output: Any, variables: Mapping[str, Any], output_gradient: Any
    ) -> Any:
        right = super().backward(xp, inputs, output, variables, output_gradient)
        return right if self.backward_result is None else self.backward_result(*right)


X = np.array([[1.0, 2.0], [3.0, 4.0]])


def test_numbers_by_hand() -> None:
    run = run_operator(Affine(), [X], output_gradient=np.array([[1.0, 0.0], [0.0, 10.0]]))
    np.testing.assert_array_equal(run.outputs[0], [[3, 5], [7, 9]])
    np.testing.assert_array_equal(run.input_gradients[0], [[2, 0], [0, 20]])
    np.testing.assert_array_equal(run.variable_gradients["factor"], [41])
    np.testing.assert_array_equal(run.variable_gradients["shift"], [1, 10])


def test_several_inputs() -> None:
    run = run_operator(Product(), [X, X + 1])
    np.testing.assert_array_equal(run.outputs[0], X * (X + 1))
    np.testing.assert_array_equal(run.input_gradients[0], X + 1)
    np.testing.assert_array_equal(run.input_gradients[1], X)


def test_gradients() -> None:
    check_gradients(Affine(), [(3, 4)])
    check_gradients(Product(), [(3, 4), (3, 4)])
    check_gradients(AbsoluteLoss(), [(3, 4), (3, 4)])


def test_a_loss_sees_real_examples_only_and_may_return_a_number() -> None:
    labels = np.array([[0.0, 0.0], [5.0, 5.0]])
    run = run_operator(AbsoluteLoss(), [X, labels], examples=1, dtype=np.float64)
    np.testing.assert_array_equal(run.outputs[0], [3])
    np.testing.assert_array_equal(run.input_gradients[0], [[1, 1], [0, 0]])


def test_a_loss_that_reads_labels_without_taking_them() -> None:
    class Unpacks(AbsoluteLoss):
        takes_labels = False

    class Indexes(Unpacks):
        def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
            return xp.abs(inputs[0] - inputs[1]).sum()

    class Wrong(Unpacks):
        def forward(self, xp: ModuleType, inputs: Sequence[Any], variables: Mapping[str, Any]) -> Any:
            raise ValueError("another reason")

    for kernel, kind in ((Unpacks(), ValueError), (Indexes(), IndexError)):
        expected = rf"^{type(kernel).__name__}\.forward: expected takes_labels = True for an operator that reads the"
        with pytest.raises(kind, match=expected):
            run_operator(kernel, [X])
    with pytest.raises(ValueError, match=r"^another reason$"):
        run_operator(Wrong(), [X])


def test_it_computes_in_the_type_of_the_run() -> None:
    assert run_operator(Affine(), [X], dtype=np.float64).outputs[0].dtype == np.float64
    assert run_operator(Affine(), [X], dtype=np.float32).outputs[0].dtype == np.float32


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x[:1], r"Broken.forward: expected an output of shape \(2, 2\). Received: \(1, 2\)"),
        (lambda x: 1.0, r"expected an output of shape \(2, 2\). Received: \(\)"),
        (lambda x: x + 1j, "expected an output of type float32. Received: complex64"),
        (lambda x: x.__setitem__(0, 0), "read-only"),
    ],
)
def test_wrong_outputs(result: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_operator(Broken(forward_result=result), [X])


def test_no_output() -> None:
    with pytest.raises(ValueError, match=r"Broken.forward: expected an output of shape \(2, 2\). Received: None"):
        run_operator(Broken(forward_result=lambda x: None), [X])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda inputs, variables: inputs[0], r"Broken.backward: expected \(a sequence .* Received: ndarray"),
        (lambda inputs, variables: (inputs[0], variables), r"expected \(a sequence .* Received: \(ndarray, dict\)"),
        (lambda inputs, variables: (inputs, [1.0]), r"expected \(a sequence .* Received: \(\w+, list\)"),
        (
            lambda inputs, variables: ([], variables),
            "Broken.backward: expected a gradient of input 0, because .* Received: None",
        ),
        (lambda inputs, variables: ([None], variables), "expected a gradient of input 0, because .* Received: None"),
        (lambda inputs, variables: ([inputs[0][:1]], variables), r"a gradient of input 0 of shape \(2, 2\). Received"),
        (lambda inputs, variables: (inputs, {}), "gradients of the variables factor, shift. Received: none"),
        (
            lambda inputs, variables: (inputs, {"factor": variables["factor"]}),
            "gradients of the variables factor, shift. Received: factor",
        ),
        (
            lambda inputs, variables: (inputs, {**variables, "factor": np.ones(3)}),
            r"a gradient of 'factor' of shape \(1,\). Received: \(3,\)",
        ),
    ],
)
def test_wrong_gradients(result: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_operator(Broken(backward_result=result), [X])


def test_an_operator_without_code_is_refused_when_prepared() -> None:
    class Nothing(Kernel):
        def output_shape(self, *inputs: Shape) -> Shape:
            return inputs[0]

    tensor = Tensor((2, 2), np.dtype(np.float32))
    site = Site(Reference(), Phase.TRAIN, (tensor,), tensor, None, {}, seed=0, key=0)
    assert Nothing().gradient() is None
    with pytest.raises(NotImplementedError, match="Nothing has neither `prepare` nor `forward`"):
        Nothing().prepare(site)
    with pytest.raises(NotImplementedError, match="Nothing has neither `prepare` nor `forward`"):
        Nothing().forward(np, (), {})


def test_only_what_is_needed_is_computed() -> None:
    tensor = Tensor((2, 2), np.dtype(np.float32))
    variables = {name: Variable(shape, tensor.dtype) for name, shape in (("factor", (1,)), ("shift", (2,)))}
    site = Site(Reference(), Phase.TRAIN, (tensor,), tensor, None, variables, seed=0, key=0, needs_input_gradient=False)
    gradient = Affine().gradient()
    assert gradient is not None
    (prepared,) = gradient.prepare(Affine(), site)
    assert prepared.writes == ("factor_gradient", "shift_gradient")
    second = Affine().gradient(1)
    assert second is not None
    assert second.prepare(Affine(), site) == ()
