"""The last operator of a training dataflow."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.kernel import Kernel, Site
from crossbow.types import Shape


@configuration
class GradientDescentOptimiser(Kernel):
    """Marks the point of the learner's step, after all gradient operators, which are its inputs.

    `Dataflow` adds it; a network does not contain it. It has no kernel: the step (v ← momentum · v − γ (g + λ w)) and
    the correction by the rule are one linear combination of whole vectors, which the runtime computes; with a method
    other than sgd, the combination includes an adaptive step.

    Ports GradientDescentOptimiser.java.
    """

    number_of_inputs: ClassVar[int | None] = None
    is_step: ClassVar[bool] = True

    def output_shape(self, *inputs: Shape) -> Shape:
        return (1,)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return ()
