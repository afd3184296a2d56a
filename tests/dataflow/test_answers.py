"""Operators that users write: whatever is wrong with one, the sentence names the node, and the traceback is theirs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crossbow import (
    ConfigurationError,
    Constant,
    Dataflow,
    ExecutionContext,
    GraphError,
    Phase,
    SubGraph,
    SystemConf,
    TaskError,
)
from crossbow.conf import configuration
from crossbow.dataflow.answers import output_shape
from crossbow.ops import Conv, Initialiser, InnerProduct, Kernel, SoftMax, SoftMaxLoss, VariableSpec
from crossbow.testing import run_operator
from crossbow.types import Shape
from tests.support import blobs, chain

Answer = Callable[..., Any]


@configuration
class Own(Kernel):
    """y = w · x, but for what a test has it say."""

    answers: dict[str, Answer]

    def _answer(self, name: str, right: Answer, *arguments: Any) -> Any:
        return self.answers.get(name, right)(*arguments)

    def output_shape(self, *inputs: Shape) -> Shape:
        return self._answer("output_shape", lambda x: x, *inputs)  # type: ignore[no-any-return]

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return self._answer("variables", lambda x: (spec("w", x[1:]),), *inputs)  # type: ignore[no-any-return]

    def running_statistics(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return self._answer("running_statistics", lambda x: (), *inputs)  # type: ignore[no-any-return]

    def check_training(self, *inputs: Shape) -> None:
        self._answer("check_training", lambda x: None, *inputs)

    def gradient(self, input: int = 0) -> Any:
        return self._answer("gradient", super().gradient, input)

    def forward(self, xp: Any, inputs: Any, variables: Any) -> Any:
        return self._answer("forward", lambda x, w: x * w, inputs[0], variables["w"])

    def backward(self, xp: Any, inputs: Any, output: Any, variables: Any, output_gradient: Any) -> Any:
        gradients = output_gradient * variables["w"], (output_gradient * inputs[0]).sum(0)
        return self._answer("backward", lambda x, w: ([x], {"w": w}), *gradients)


@configuration
class Drawing(Initialiser):
    """Standard normal, but for what a test makes of it."""

    change: Answer

    def fill(self, shape: Shape, generator: np.random.Generator) -> Any:
        return self.change(generator.normal(size=shape))


def spec(name: Any, shape: Any, initialiser: Any = None, multiplier: Any = 1.0) -> VariableSpec:
    return VariableSpec(name, shape, Constant(1.0) if initialiser is None else initialiser, multiplier)


def divide_by_zero(*arguments: Any) -> Any:
    return 1 / 0


def train(*kernels: Kernel) -> None:
    nodes = chain(*kernels, InnerProduct(number_of_outputs=3), SoftMax(), SoftMaxLoss())
    for node in nodes:
        node.operator.name = type(node.operator.kernel).__name__.lower()
    system = SystemConf(learners_per_device=1, kernels="reference")
    dataflow = Dataflow(SubGraph(nodes[0])).set_phase(Phase.TRAIN)
    with ExecutionContext([dataflow, None], data=blobs(), system=system) as context:
        context.train(1)


NO_SHAPE = "expected output_shape to return a tuple of integers ≥ 0. Received: "
NO_SPECS = "expected variables to return a tuple of VariableSpec. Received: "
NO_NAMES = "expected variables with unique names that no other buffer has, unlike 'output' or 'x_gradient'. Received: "


@pytest.mark.parametrize(
    ("method", "answer", "text"),
    [
        ("output_shape", lambda x: None, NO_SHAPE + "None"),
        ("output_shape", lambda x: 5, NO_SHAPE + "5"),
        ("output_shape", lambda x: (*x, -1), NO_SHAPE + "(32, 6, -1)"),
        ("output_shape", lambda x: (x[0], 1.5), NO_SHAPE + "(32, 1.5)"),
        ("output_shape", lambda x: np.array(x), NO_SHAPE + "an array of shape (2,), int64"),
        ("output_shape", divide_by_zero, "output_shape raised ZeroDivisionError: division by zero"),
        ("variables", lambda x: None, NO_SPECS + "None"),
        ("variables", lambda x: ["w"], NO_SPECS + "['w']"),
        ("variables", lambda x: [spec("w", x[1:])] * 2, NO_NAMES + "'w'"),
        ("variables", lambda x: [spec("output", x[1:]), spec("v_gradient", ())], NO_NAMES + "'output', 'v_gradient'"),
        ("variables", lambda x: spec("", x), "expected a variable's name, a str that is not empty. Received: ''"),
        ("variables", lambda x: spec("w", 3), "expected a shape of 'w', a tuple of integers ≥ 0. Received: 3"),
        ("variables", lambda x: spec("w", (-3,)), "expected a shape of 'w', a tuple of integers ≥ 0. Received: (-3,)"),
        ("variables", lambda x: spec("w", x, 5), "expected an initialiser of 'w', as Gaussian(std=0.1). Received: 5"),
        (
            "variables",
            lambda x: spec("w", x, None, float("nan")),
            "expected a learning_rate_multiplier of 'w' that is a finite number ≥ 0. Received: nan",
        ),
        ("variables", lambda x: x[9], "variables raised IndexError: tuple index out of range"),
        (
            "running_statistics",
            lambda x: (x,),
            "expected running_statistics to return a tuple of VariableSpec. Received: ((32, 6),)",
        ),
        ("check_training", divide_by_zero, "check_training raised ZeroDivisionError: division by zero"),
        ("gradient", divide_by_zero, "gradient raised ZeroDivisionError: division by zero"),
        ("gradient", lambda index: 5, "expected gradient to return a gradient operator or None. Received: 5"),
    ],
)
def test_answers_that_are_none(method: str, answer: Answer, text: str) -> None:
    with pytest.raises(GraphError) as caught:
        train(Own(answers={method: answer}))
    assert caught.value.faults == (f"node 'own' (Own): {text}",)


def test_a_size_may_be_zero() -> None:
    assert output_shape(Own(answers={"output_shape": lambda x: (x[0], 0)}), ((4, 3),)) == (4, 0)


def test_lists_and_numpys_integers_are_answers() -> None:
    shape = {"output_shape": lambda x: list(np.array(x)), "variables": lambda x: [spec("w", list(np.array(x[1:])))]}
    train(Own(answers=shape))


@pytest.mark.parametrize(
    ("change", "received"),
    [
        (np.transpose, "of shape (6, 3) and type float64"),
        (np.ravel, "of shape (18,) and type float64"),
        (lambda x: x + 1j, "of shape (3, 6) and type complex128"),
        (lambda x: x.astype(object), "of shape (3, 6) and type object"),
        (lambda x: x > 0, "of shape (3, 6) and type bool"),
        (lambda x: None, "of shape () and type object"),
    ],
)
def test_initial_values_that_do_not_fit_their_variable(change: Answer, received: str) -> None:
    kernel = InnerProduct(number_of_outputs=3, weight_initialiser=Drawing(change=change))
    text = f"expected initial values of shape (3, 6) that are real numbers. Received: values of Drawing, {received}"
    with pytest.raises(ConfigurationError) as caught:
        train(kernel)
    assert str(caught.value) == f"innerproduct.weights: {text}"
    with pytest.raises(ConfigurationError) as caught:
        run_operator(kernel, [np.zeros((2, 6))])
    assert str(caught.value) == f"InnerProduct: weights: {text}"


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e39])
def test_initial_values_that_are_not_finite(number: float) -> None:
    kernel = InnerProduct(number_of_outputs=3, weight_initialiser=Drawing(change=lambda x: x * number))
    with pytest.raises(ConfigurationError, match=r"^innerproduct\.weights: expected initial values that are finite"):
        train(kernel)


@pytest.mark.parametrize("change", [np.ndarray.tolist, lambda x: x.astype(int), lambda x: x.astype(np.float16)])
def test_initial_values_of_any_real_type(change: Answer) -> None:
    train(InnerProduct(number_of_outputs=3, weight_initialiser=Drawing(change=change)))


@pytest.mark.parametrize(
    ("method", "answer", "text"),
    [
        ("forward", divide_by_zero, "'own' on learner 0: ZeroDivisionError: division by zero"),
        ("forward", lambda x, w: x.T, r"expected an output of shape \(32, 6\)\. Received: \(6, 32\)"),
        ("forward", lambda x, w: [[1], [1, 2]], r"expected an output of shape \(32, 6\)\. Received: setting an array"),
        ("backward", divide_by_zero, r"'own\.gradient' on learner 0: ZeroDivisionError: division by zero"),
        (
            "backward",
            lambda x, w: ([x], {"w": w, "v": w}),
            r"'own\.gradient' .*expected gradients of the variables w\. Received: w, v",
        ),
        ("backward", lambda x, w: ([x], {}), r"expected gradients of the variables w\. Received: none"),
        ("backward", lambda x, w: ([x], {"w": w[None]}), r"a gradient of 'w' of shape \(6,\)\. Received: \(1, 6\)"),
        ("backward", lambda x, w: ([x], {"w": w + 1j}), r"a gradient of 'w' of type float32\. Received: complex64"),
        ("backward", lambda x, w: ([x.T], {"w": w}), r"a gradient of input 0 of shape \(32, 6\)\. Received: \(6, 32\)"),
        ("backward", lambda x, w: ([x + 1j], {"w": w}), r"of input 0 of type float32\. Received: complex64"),
        ("backward", lambda x, w: ([x, x], {"w": w}), r"expected gradients of at most 1 inputs\. Received: 2"),
        ("backward", lambda x, w: (x, {"w": w}), r"expected \(a sequence .*\)\. Received: \(ndarray, dict\)"),
    ],
)
@pytest.mark.parametrize("input_trains", [False, True])
def test_tasks_that_fail_name_the_node(method: str, answer: Answer, text: str, input_trains: bool) -> None:
    """Also where nobody needs the gradient of the input."""
    before = [InnerProduct(number_of_outputs=6)] if input_trains else []
    with pytest.raises(TaskError, match=text):
        train(*before, Own(answers={method: answer}))


def test_an_unknown_variable_of_an_operator_without_variables() -> None:
    @configuration
    class Plain(Own):
        def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
            return ()

        def forward(self, xp: Any, inputs: Any, variables: Any) -> Any:
            return inputs[0]

        def backward(self, xp: Any, inputs: Any, output: Any, variables: Any, output_gradient: Any) -> Any:
            return [output_gradient], {"w": output_gradient}

    with pytest.raises(TaskError, match=r"expected gradients of the variables none\. Received: w$"):
        train(InnerProduct(number_of_outputs=6), Plain(answers={}))


def test_an_operator_without_code() -> None:
    @configuration
    class Nothing(Kernel):
        def output_shape(self, *inputs: Shape) -> Shape:
            return inputs[0]

    @configuration
    class Shapeless(Kernel):
        pass

    with pytest.raises(GraphError) as caught:
        train(Nothing(), Shapeless())
    expected = "expected an operator with `forward`, or with `prepare`. Received: one with neither"
    assert caught.value.faults[:1] == (f"node 'nothing' (Nothing): {expected}",)
    with pytest.raises(GraphError, match=r"^node 'shapeless' \(Shapeless\): Shapeless has no output_shape$"):
        train(Shapeless())


def test_the_traceback_is_that_of_the_users_code() -> None:
    """Of the error itself, and of what their own operator raised."""
    with pytest.raises(GraphError) as caught:
        train(Own(answers={"output_shape": divide_by_zero}))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    shown = "".join(traceback.format_exception(caught.value))
    assert "in divide_by_zero" in shown
    files = {entry.filename for error in (caught.value, caught.value.__cause__) for entry in frames(error)}
    assert files == {__file__}


def frames(error: BaseException) -> traceback.StackSummary:
    return traceback.extract_tb(error.__traceback__)


def test_every_error_that_operators_raised_is_shown() -> None:
    def refuse(x: Shape) -> Shape:
        _, _, height, width = x
        return height, width

    def quarrel(*arguments: Any) -> Any:
        raise KeyError("name")

    (head,) = chain(Own(answers={}))
    for answer in (divide_by_zero, refuse, quarrel):
        head.connect_to(chain(Own(answers={"output_shape": answer}))[0])
    with pytest.raises(GraphError, match=r"^3 faults in the graph:\n") as caught:
        Dataflow(SubGraph(head)).set_phase(Phase.CHECK).describe((4, 6))
    group = caught.value.__cause__
    assert isinstance(group, BaseExceptionGroup)
    assert [type(error) for error in group.exceptions] == [ZeroDivisionError, ValueError, KeyError]


def test_graph_errors_come_without_frames_of_the_package() -> None:
    kernel, data = Conv(number_of_outputs=2, kernel_size=9), blobs()
    nodes = chain(kernel, SoftMax(), SoftMaxLoss())
    dataflow = Dataflow(SubGraph(nodes[0])).set_phase(Phase.TRAIN)
    circle = chain(SoftMax(), SoftMax())
    circle[1].connect_to(circle[0])
    for attempt in (
        lambda: ExecutionContext([dataflow, None], data=data),
        lambda: dataflow.describe((4, 6)),
        lambda: Dataflow(SubGraph(nodes[1])).set_phase(Phase.TRAIN).graph,
        lambda: SubGraph(circle[0]),
        lambda: run_operator(kernel, [data.train.images]),
    ):
        with pytest.raises((GraphError, ConfigurationError)) as caught:
            attempt()
        assert {entry.filename for entry in frames(caught.value)} == {__file__}
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
