"""A custom operator: Swish with a trainable slope, written outside Crossbow in array-module code.

`python -m examples.custom_operator` compares its gradients with finite differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import configuration
from crossbow.ops import Constant, Initialiser, Kernel, VariableSpec
from crossbow.testing import check_gradients, run_operator
from crossbow.types import Shape

Array = NDArray[Any]


@configuration
class Swish(Kernel):
    """y = x · σ(β x), with one trainable β per channel (Ramachandran et al., 2017).

    x and y: (N, C, …); beta: (C,).
    """

    beta_initialiser: Initialiser = Constant(1.0)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) < 2:
            raise ValueError(f"expected an input of shape (N, C, …). Received: {x}")
        return x

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return (VariableSpec("beta", (inputs[0][1],), self.beta_initialiser),)

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        (x,) = inputs
        return x * self._gate(xp, x, variables["beta"])

    def backward(
        self,
        xp: ModuleType,
        inputs: Sequence[Array],
        output: Array,
        variables: Mapping[str, Array],
        output_gradient: Array,
    ) -> tuple[Sequence[Array], Mapping[str, Array]]:
        (x,) = inputs
        gate = self._gate(xp, x, variables["beta"])
        slope = x * gate * (1 - gate)  # the derivative of y with respect to β x
        beta = self._per_channel(variables["beta"], x)
        all_axes_but_channels = (0, *range(2, x.ndim))
        return (
            [output_gradient * (gate + beta * slope)],
            {"beta": xp.sum(output_gradient * slope * x, axis=all_axes_but_channels)},
        )

    def _gate(self, xp: ModuleType, x: Array, beta: Array) -> Array:
        """σ(β x)."""
        gate: Array = 1 / (1 + xp.exp(-self._per_channel(beta, x) * x))
        return gate

    @staticmethod
    def _per_channel(beta: Array, x: Array) -> Array:
        return beta.reshape(1, -1, *[1] * (x.ndim - 2))


def main() -> None:
    """Check the operator, and show an output and a gradient."""
    error = check_gradients(Swish(), [(2, 3, 4, 4)])
    print(f"Swish: worst relative error of the gradients {error:.1e}")
    run = run_operator(Swish(), [np.array([[-1.0, 0.0, 1.0]])], variables={"beta": [2.0, 2.0, 2.0]})
    print("y =", np.round(run.outputs[0], 3), " dy/dx =", np.round(run.input_gradients[0], 3))


if __name__ == "__main__":
    main()
