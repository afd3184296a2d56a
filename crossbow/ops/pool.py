"""Pooling over one, two or three spatial axes."""

from __future__ import annotations

from crossbow.conf import check_boolean, check_choice, check_unused, configuration, refuse
from crossbow.kernels.interface import PoolingGeometry, PreparedKernel
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.ops.window import Padding, Sizes, check_windows, padding_per_axis, per_axis, spatial_axes, times
from crossbow.types import Shape


@configuration
class Pool(Kernel):
    """The maximum, the average, or a random element of every window of a channel.

    x: (N, C, H, W); y: (N, C, H', W') with H' = ⌈(H + before + after − d(k − 1) − 1) / s⌉ + 1, or ⌊…⌋ with
    rounding="floor"; a last window that would begin behind the input and its left padding is left out. The same with
    one spatial axis, (N, C, W), and with three, (N, C, D, H, W).

    Sizes are an integer or a tuple with one per spatial axis, as (height, width); the padding also one pair
    (before, after) per spatial axis, as ((1, 2), (0, 1)). `global_pooling` takes the whole image as the window:
    `kernel_size`, `stride`, `rounding` and `count_padding` would do nothing then, and must be left as they are.

    A window is clipped to input + padding. What it gives, by `method`:

    * max: its largest element; it never sees padding. The gradient goes to the first one of equals, row by row.
    * average: the sum of its elements by their number, padding counted, or left out where `count_padding=False`.
    * stochastic: in training, element i with probability p_i = max(x_i, 0) / Σ max(x_j, 0), and the gradient goes to
      it; in the check phase the mean of that, Σ p_i · x_i. A window without a positive element gives its first one in
      both. Padding is never picked. The random numbers depend on the seed, the number of the task, the operator and
      the output's position in (N, C, H, W) order alone (Zeiler and Fergus, 2013, section 3).

    Ports Pool.java and cudnnpool.cu. Fixed from the original: the padding has a default that works, height and width
    can differ, the last window is also left out without padding, where it would be empty (stride > kernel_size), and
    stochastic pooling, dilation and other than two spatial axes, which it refuses, work.
    """

    method: str = "max"
    kernel_size: Sizes = 2
    stride: Sizes = 2
    padding: Padding = 0
    dilation: Sizes = 1
    rounding: str = "ceil"
    count_padding: bool = True
    global_pooling: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "method", ("max", "average", "stochastic"))
        check_choice(self, "rounding", ("ceil", "floor"))
        check_boolean(self, "count_padding")
        check_boolean(self, "global_pooling")
        check_windows(self)
        if self.method != "average":
            check_unused(self, f"method={self.method!r}", "count_padding")
        values = (self.kernel_size, self.padding, self.dilation)
        axes = next((len(value) for value in values if isinstance(value, tuple | list)), 1)  # integers: each is alike
        kernel, dilation = per_axis(self.kernel_size, axes), per_axis(self.dilation, axes)
        padding = padding_per_axis(self.padding, axes)
        if self.global_pooling:
            if any(map(any, padding)):
                raise refuse(self, "padding", self.padding, "0 with global_pooling=True")
            if max(dilation) > 1:
                raise refuse(self, "dilation", self.dilation, "1 with global_pooling=True")
            check_unused(self, "global_pooling=True", "kernel_size", "stride", "rounding", "count_padding")
        elif any(max(p) > d * (k - 1) for p, k, d in zip(padding, kernel, dilation, strict=True)):
            window = f"kernel_size={self.kernel_size!r}" + (
                f" with dilation={self.dilation!r}" if max(dilation) > 1 else ""
            )
            raise refuse(self, "padding", self.padding, f"smaller than the window of {window}")

    def geometry(self, x: Shape) -> PoolingGeometry:
        """The windows on an input of this shape."""
        axes = spatial_axes(self, x)
        if self.global_pooling:
            return PoolingGeometry(kernel=x[2:], method=self.method, count_padding=self.count_padding)
        return PoolingGeometry(
            kernel=per_axis(self.kernel_size, axes),
            stride=per_axis(self.stride, axes),
            padding=padding_per_axis(self.padding, axes),
            dilation=per_axis(self.dilation, axes),
            method=self.method,
            count_padding=self.count_padding,
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        g = self.geometry(x)
        sizes = tuple(
            pooled_size(size, extent, s, p, self.rounding)
            for size, extent, s, p in zip(x[2:], g.extent, g.stride, g.padding, strict=True)
        )
        if min(sizes) < 1:
            raise ValueError(
                f"expected an input at least as large as the window. Received: input {times(x[2:])}, "
                f"kernel_size={self.kernel_size}, padding={self.padding}, dilation={self.dilation}"
            )
        if not (self.method == "average" and self.count_padding) and _window_misses(x, sizes, g):
            raise ValueError(
                f"expected an input of which every window holds an element. Received: input {times(x[2:])}, "
                f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
                f"dilation={self.dilation}"
            )
        return (*x[:2], *sizes)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), geometry = site.inputs, self.geometry(site.inputs[0].shape)
        return (site.library.pooling_forward(x, site.output, geometry, site.phase, site.seed, site.key),)

    def gradient(self, input: int = 0) -> Gradient:
        return PoolGradient(input=input)


@configuration
class PoolGradient(Gradient):
    """Gradient of a `Pool`: to the element that the window gave, or spread evenly over the window (average)."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Pool)
        (x,) = site.inputs
        if not site.needs_input_gradient:
            return ()
        return (site.library.pooling_backward(site.output, x, peer.geometry(x.shape)),)


def pooled_size(size: int, extent: int, stride: int, padding: tuple[int, int], rounding: str) -> int:
    """How many windows, so long from end to end, fit on one axis.

    >>> [pooled_size(6, 3, 2, (0, 0), rounding) for rounding in ("ceil", "floor")]
    [3, 2]
    """
    before, after = padding
    span = size + before + after - extent
    if rounding == "floor":
        return span // stride + 1
    windows = -(-span // stride) + 1
    if (windows - 1) * stride >= size + before:
        windows -= 1  # it would begin behind the input: a window without a single element
    return windows


MOST_STARTS = 1 << 20
"""Windows that begin before the input, of which each is looked at; more, which nobody needs, count as missing it."""


def _window_misses(x: Shape, sizes: Shape, geometry: PoolingGeometry) -> bool:
    """Whether a window steps over the input: its elements are further apart than the input is long."""
    g = geometry
    for size, windows, k, s, d, (before, _) in zip(
        x[2:], sizes, g.kernel, g.stride, g.dilation, g.padding, strict=True
    ):
        if (windows - 1) * s - before >= size or before > (k - 1) * d:
            return True  # the last one begins behind the input, or the first one ends before it
        starts = range(-before, min(0, windows * s - before), s)
        # The first element that is not before the input lies at start mod d.
        if d > size and (len(starts) > MOST_STARTS or any(start % d >= size for start in starts)):
            return True
    return False
