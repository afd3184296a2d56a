"""The end of a training dataflow."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.kernel import Kernel, Site
from crossbow.types import Shape


@configuration
class GradientDescentOptimiser(Kernel):
    """Marks where the learner takes its step: after every gradient operator that is an input.

    It has no kernel of its own: the step (v ← momentum · v − γ (g + λ w)) and the correction of the rule are one
    linear combination over whole vectors, which the runtime performs in its place. Ports GradientDescentOptimiser.java.
    """

    number_of_inputs: ClassVar[int | None] = None

    def output_shape(self, *inputs: Shape) -> Shape:
        return (1,)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return ()
