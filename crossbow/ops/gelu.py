"""The Gaussian error linear unit."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_choice, configuration
from crossbow.ops.gated import Gated, GatedGradient
from crossbow.ops.kernel import Gradient, Precision


@configuration
class GELU(Gated):
    """y = x · Φ(x), element by element, where Φ is the distribution function of the standard normal distribution.

    ============ ==================================================
    approximate  Φ(x)
    ============ ==================================================
    none         (1 + erf(x / √2)) / 2
    tanh         (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2
    ============ ==================================================

    x and y have any shape. The approximation differs by at most 5e-4. Use it for weights that were trained with it,
    such as GPT-2's.

    Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016. Equals torch.nn.GELU.

    See also: `SiLU`, `HardSwish`, `ReLU`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    approximate: str = "none"
    """The approximation of Φ: "none" or "tanh"."""

    def __post_init__(self) -> None:
        check_choice(self, "approximate", ("none", "tanh"))

    @property
    def gate(self) -> str:
        return "gelu" if self.approximate == "none" else "gelu_tanh"

    def gradient(self, input: int = 0) -> Gradient:
        return GELUGradient(input=input)


@configuration
class GELUGradient(GatedGradient):
    """Gradient of a `GELU`: dx = dy · (Φ(x) + x · Φ'(x))."""
