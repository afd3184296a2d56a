"""The sigmoid linear unit."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import configuration
from crossbow.ops.gated import Gated, GatedGradient
from crossbow.ops.kernel import Gradient, Precision


@configuration
class SiLU(Gated):
    """y = x / (1 + exp(−x)), element by element: x times its sigmoid. It is also known as Swish.

    x and y have any shape.

    Source: Elfwing, Uchibe and Doya, Sigmoid-Weighted Linear Units for Neural Network Function Approximation in
    Reinforcement Learning, 2017. Equals torch.nn.SiLU.

    See also: `HardSwish`, `GELU`, `ReLU`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    @property
    def gate(self) -> str:
        return "silu"

    def gradient(self, input: int = 0) -> Gradient:
        return SiLUGradient(input=input)


@configuration
class SiLUGradient(GatedGradient):
    """Gradient of a `SiLU`: dx = dy · s · (1 + x · (1 − s)), where s is the sigmoid of x."""
