"""The piecewise approximation of SiLU."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import configuration
from crossbow.ops.gated import Gated, GatedGradient
from crossbow.ops.kernel import Gradient, Precision


@configuration
class HardSwish(Gated):
    """y = x · min(max(x + 3, 0), 6) / 6, element by element: `SiLU` without an exponential.

    x and y have any shape. At the kinks, the derivative is that of the outer side: 0 at −3, and 1 at 3.

    Source: Howard et al., Searching for MobileNetV3, 2019. Equals torch.nn.Hardswish.

    See also: `SiLU`, `ReLU`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    @property
    def gate(self) -> str:
        return "hard_swish"

    def gradient(self, input: int = 0) -> Gradient:
        return HardSwishGradient(input=input)


@configuration
class HardSwishGradient(GatedGradient):
    """Gradient of a `HardSwish`: dx = 0 for x ≤ −3, dy for x ≥ 3, else dy · (x / 3 + ½)."""
