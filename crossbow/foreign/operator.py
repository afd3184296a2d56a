"""The network of a foreign model: one operator that runs the model, and two that return its cost and its accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import configuration
from crossbow.dataflow import Dataflow, DataflowNode, Operator, SubGraph
from crossbow.foreign.learners import ForeignLearners
from crossbow.foreign.parameters import host_arrays
from crossbow.kernels.interface import Buffers, Call, PreparedKernel, State
from crossbow.ops.initialiser import Values
from crossbow.ops.kernel import Gradient, Kernel, Site, VariableSpec
from crossbow.types import Array, CrossbowError, Phase, Shape

REPORTED = 2
"""Number of values that an iteration reports: cost and accuracy."""


@configuration
class ForeignModel(Kernel):
    """An iteration of a foreign model, in training or in a test.

    x: (N, 1), which is not read, because the model has its own data; output: (N, 2), cost and accuracy. The variables
    are the parameters of the model, `params0`, `params1`, …
    """

    learners: ForeignLearners
    """The models of the learners."""
    initial: tuple[Values, ...]
    """Initial values of the parameters."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return (inputs[0][0], REPORTED)

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return tuple(
            VariableSpec(f"params{index}", values.array.shape, values) for index, values in enumerate(self.initial)
        )

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        names, training = tuple(site.variables), site.phase is Phase.TRAIN

        def bind(buffers: Buffers) -> list[Call]:
            state, weights, output = buffers["state"], [buffers[name] for name in names], buffers["output"]
            if not training and not self.learners.has_state(state):
                raise CrossbowError("a foreign model cannot predict: it reads its own data")
            own = self.learners.of_state(state)

            def run() -> None:
                task = int(state[State.TASK])
                reported = own.train(task, weights) if training else self.learners.tester(task).test(task, weights)
                output[...] = reported.cost, 1 - reported.error

            return [run]

        method = "gradients" if self.learners.by_gradients else "train_iter"
        name = f"foreign {method if training else 'val_iter'}"
        return (PreparedKernel(name, ("input0", *names, "state"), ("output",), bind),)

    def gradient(self, input: int = 0) -> Gradient:
        return ForeignGradient(input=input)


@configuration
class ForeignGradient(Gradient):
    """The gradients of a foreign model's parameters."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, ForeignModel)
        learners, names = peer.learners, tuple(site.variables)
        gradients = tuple(f"{name}_gradient" for name in names)

        def bind(buffers: Buffers) -> list[Call]:
            own = learners.of_state(buffers["state"])
            weights, targets = ([buffers[name] for name in each] for each in (names, gradients))
            return [lambda: own.write_gradient(weights, targets)]

        return (PreparedKernel("foreign gradient", (*names, "state"), gradients, bind),)


@configuration
class ReportedCost(Kernel):
    """The cost that a foreign model reported. Its gradient is a placeholder: the model computes its own gradients."""

    is_loss: ClassVar[bool] = True

    def output_shape(self, *inputs: Shape) -> Shape:
        return (1,)

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        cost: Array = xp.mean(inputs[0][:, :1], axis=0)
        return cost

    def backward(
        self,
        xp: ModuleType,
        inputs: Sequence[Array],
        output: Array,
        variables: Mapping[str, Array],
        output_gradient: Array,
    ) -> tuple[Sequence[Array], Mapping[str, Array]]:
        return [xp.ones_like(inputs[0])], {}


@configuration
class ReportedAccuracy(Kernel):
    """The accuracy that a foreign model reported, 1 − error."""

    is_measure: ClassVar[bool] = True

    def output_shape(self, *inputs: Shape) -> Shape:
        return (1,)

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        accuracy: Array = xp.mean(inputs[0][:, 1:], axis=0)
        return accuracy


def foreign_dataflow(learners: ForeignLearners, parameters: Sequence[NDArray[Any]]) -> Dataflow:
    """The dataflow of foreign models. parameters: their initial values."""
    kernel = ForeignModel(learners=learners, initial=tuple(Values(each) for each in parameters))
    node = DataflowNode(Operator("model", kernel))
    node.connect_to(DataflowNode(Operator("cost", ReportedCost())))
    node.connect_to(DataflowNode(Operator("accuracy", ReportedAccuracy())))
    return Dataflow(SubGraph(node))


def initial_parameters(learners: ForeignLearners) -> list[NDArray[Any]]:
    """Copies of the parameters of the first learner's model."""
    return [np.array(each) for each in host_arrays(learners.models[0].params)]
