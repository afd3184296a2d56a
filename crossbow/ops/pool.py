"""Pooling over one, two or three spatial axes."""

from __future__ import annotations

from dataclasses import field, replace
from typing import ClassVar

from crossbow.conf import check_boolean, check_choice, check_unused, configuration, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import PoolingBackward, PoolingForward, PoolingGeometry
from crossbow.ops.kernel import Gradient, Kernel, Precision, Site
from crossbow.ops.window import Padding, Sizes, check_windows, padding_per_axis, per_axis, spatial_axes, times
from crossbow.types import Shape


@configuration
class Pool(Kernel):
    """Pooling: the maximum, the average, or a random element of every window of a channel.

    x: (N, C, H, W); y: (N, C, H', W') with H' = ⌈(H + before + after − d(k − 1) − 1) / s⌉ + 1, or ⌊…⌋ with
    rounding="floor". A last window that would begin after the input and its left padding is omitted. Inputs with one
    spatial axis, (N, C, W), or three, (N, C, D, H, W), work the same way.

    Sizes are an integer, or a tuple with one integer per spatial axis, such as (height, width). The padding may also be
    one pair (before, after) per spatial axis, such as ((1, 2), (0, 1)). With `global_pooling`, the window is the whole
    image; `kernel_size`, `stride`, `rounding` and `count_padding` then have no effect, and must keep their defaults.

    A window is clipped to the input and its padding. The result of a window depends on `method`:

    * max: its largest element, never padding. The gradient goes to the first of equal elements, row by row.
    * average: the sum of its elements divided by their number. Padding counts, unless `count_padding=False`.
    * stochastic: in training, element i with probability p_i = max(x_i, 0) / Σ max(x_j, 0), which also receives the
      gradient; in the check phase, the expectation Σ p_i · x_i. A window without positive elements returns its first
      element in both. Padding is never selected. The random numbers depend only on the seed, the number of the task,
      the operator and the output's position in (N, C, H, W) order (Zeiler and Fergus, 2013, section 3).

    Use "max" between convolutions, and "average" with `global_pooling` before the classifier of a residual network.

    Ports Pool.java and cudnnpool.cu. Fixed from the original: the default padding works; height and width may
    differ; an empty last window is also omitted without padding (stride > kernel_size); stochastic pooling, dilation,
    and one or three spatial axes, which the original rejects, work.

    See also: `Conv`, `ReLU`.
    """

    precision: ClassVar[Precision] = Precision.FOLLOWING

    method: str = field(default="max", kw_only=False)
    """One of "max", "average" and "stochastic"."""
    kernel_size: Sizes = field(default=2, kw_only=False)
    """Size of the window, ≥ 1."""
    stride: Sizes = 2
    """Distance s between neighbouring windows, ≥ 1."""
    padding: Padding = 0
    """Padding on each side of the input, ≥ 0 and smaller than the window."""
    dilation: Sizes = 1
    """Distance d between neighbouring elements of a window, ≥ 1."""
    rounding: str = "ceil"
    """Rounding of the output size: "ceil" or "floor"."""
    count_padding: bool = True
    """Whether padding counts in an average."""
    global_pooling: bool = False
    """Whether the window is the whole image."""

    def __post_init__(self) -> None:
        check_choice(self, "method", ("max", "average", "stochastic"))
        check_choice(self, "rounding", ("ceil", "floor"))
        check_boolean(self, "count_padding")
        check_boolean(self, "global_pooling")
        check_windows(self)
        if self.method != "average":
            check_unused(self, f"method={self.method!r}", "count_padding")
        values = (self.kernel_size, self.padding, self.dilation)
        axes = next((len(value) for value in values if isinstance(value, tuple | list)), 1)  # one suffices for integers
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
        """The windows on an input of this shape, without the positions of a window that always lie outside the padded
        input.

        Such positions never count. They are removed because a window may be far larger than the input.
        """
        windows = self._windows(x)
        reach = (
            max(1, -(-(size + before + after) // dilation))
            for size, (before, after), dilation in zip(x[2:], windows.padding, windows.dilation, strict=True)
        )
        return replace(windows, kernel=tuple(map(min, windows.kernel, reach)))

    def _windows(self, x: Shape) -> PoolingGeometry:
        """The windows on an input of this shape, with the configured sizes."""
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

    @property
    def picks_largest(self) -> bool:
        return self.method == "max"

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        g = self._windows(x)
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
                f"expected an input with an element in every window. Received: input {times(x[2:])}, "
                f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
                f"dilation={self.dilation}"
            )
        return (*x[:2], *sizes)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), geometry = site.inputs, self.geometry(site.inputs[0].shape)
        return (site.library.prepare(PoolingForward(x, site.output, geometry, site.phase, site.seed, site.key)),)

    def gradient(self, input: int = 0) -> Gradient:
        return PoolGradient(input=input)


@configuration
class PoolGradient(Gradient):
    """Gradient of a `Pool`: dy at the selected element, or spread evenly over the window (average)."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Pool)
        (x,) = site.inputs
        return (site.library.prepare(PoolingBackward(site.output, x, peer.geometry(x.shape), relu=site.fused_relu)),)


def pooled_size(size: int, extent: int, stride: int, padding: tuple[int, int], rounding: str) -> int:
    """Number of windows of the given extent on one axis.

    >>> [pooled_size(6, 3, 2, (0, 0), rounding) for rounding in ("ceil", "floor")]
    [3, 2]
    """
    before, after = padding
    span = size + before + after - extent
    if rounding == "floor":
        return span // stride + 1
    windows = -(-span // stride) + 1
    if (windows - 1) * stride >= size + before:
        windows -= 1  # the last window would begin after the input, so it would have no elements
    return windows


MOST_STARTS = 1 << 20
"""Maximum number of windows that begin before the input and are checked one by one. With more, it is assumed that one
of them misses the input."""


def _window_misses(x: Shape, sizes: Shape, geometry: PoolingGeometry) -> bool:
    """Whether a window misses the input, because its elements are further apart than the input is long."""
    g = geometry
    for size, windows, s, d, (before, _) in zip(x[2:], sizes, g.stride, g.dilation, g.padding, strict=True):
        # The padding is smaller than a window, so no window ends before the input or begins after it.
        starts = range(-before, min(0, windows * s - before), s)
        # The first element that is not before the input is at start mod d.
        if d > size and (len(starts) > MOST_STARTS or any(start % d >= size for start in starts)):
            return True
    return False
