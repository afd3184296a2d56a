"""A tensor with a border."""

from __future__ import annotations

from crossbow.conf import check_number, configuration, is_integer, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class Pad(Kernel):
    """y = x with elements of one value before and behind it, on each axis but that of the examples.

    x: (N, d_1, …, d_r); y: (N, b_1 + d_1 + a_1, …), `padding` being ((b_1, a_1), …, (b_r, a_r)). As PyTorch's
    ConstantPad and Keras' ZeroPadding. Convolutions and poolings have padding of their own, which costs no copy. The
    original has no such operator.
    """

    padding: tuple[tuple[int, int], ...]
    """(before, behind) for every axis of an example, each ≥ 0."""
    value: float = 0.0

    def __post_init__(self) -> None:
        pairs = self.padding
        if not isinstance(pairs, tuple | list) or not pairs or not all(_is_pair(pair) for pair in pairs):
            raise refuse(self, "padding", pairs, "a pair of integers ≥ 0 for every axis of an example")
        check_number(self, "value")
        object.__setattr__(self, "padding", tuple((int(before), int(behind)) for before, behind in pairs))

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != 1 + len(self.padding):
            expected = f"expected an input (N, …) of {1 + len(self.padding)} dimensions, for padding={self.padding}"
            raise ValueError(f"{expected}. Received: {x}")
        return (x[0], *(size + sum(pair) for size, pair in zip(x[1:], self.padding, strict=True)))

    @property
    def before(self) -> tuple[int, ...]:
        """How far from the beginning of each axis x lies."""
        return (0, *(before for before, _ in self.padding))

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.pad_forward(site.inputs[0], site.output, self.before, float(self.value)),)

    def gradient(self, input: int = 0) -> Gradient:
        return PadGradient(input=input)


@configuration
class PadGradient(Gradient):
    """Gradient of a `Pad`: what of dy lies inside the border."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Pad)
        if not site.needs_input_gradient:
            return ()
        return (site.library.pad_backward(site.output, site.inputs[0], peer.before),)


def _is_pair(pair: object) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and all(is_integer(n) and n >= 0 for n in pair)
