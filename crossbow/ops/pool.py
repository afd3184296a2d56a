"""Two-dimensional pooling."""

from __future__ import annotations

from crossbow.conf import check_boolean, check_choice, configuration, pair, refuse
from crossbow.kernels.interface import PoolingGeometry, PreparedKernel
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class Pool(Kernel):
    """The maximum, or the average, of every window of a channel.

    x: (N, C, H, W); y: (N, C, H', W') with H' = ⌈(H + 2p − k) / s⌉ + 1, or ⌊…⌋ with rounding="floor"; a last window
    that would begin behind the input and its left padding is left out. Sizes are an integer or (height, width).

    A window is clipped to input + padding. The average divides by the number of its elements, padding included, or
    without the padding where `count_padding=False`; the maximum never sees padding. `global_pooling` takes the whole
    image as the window: `kernel_size` and `stride` are then not used.

    Ports Pool.java and cudnnpool.cu. Fixed from the original: the padding has a default that works, height and width
    can differ, and the last window is also left out without padding, where it would be empty (stride > kernel_size).
    """

    method: str = "max"
    kernel_size: int | tuple[int, int] = 2
    stride: int | tuple[int, int] = 2
    padding: int | tuple[int, int] = 0
    rounding: str = "ceil"
    count_padding: bool = True
    global_pooling: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "method", ("max", "average", "stochastic"))
        if self.method == "stochastic":
            raise refuse(self, "method", self.method, "'max' or 'average' ('stochastic' does not exist yet)")
        check_choice(self, "rounding", ("ceil", "floor"))
        check_boolean(self, "count_padding")
        check_boolean(self, "global_pooling")
        kernel, _, padding = pair(self, "kernel_size", 1), pair(self, "stride", 1), pair(self, "padding", 0)
        if self.global_pooling:
            if padding != (0, 0):
                raise refuse(self, "padding", self.padding, "0 with global_pooling=True")
        elif any(p >= k for p, k in zip(padding, kernel, strict=True)):
            raise refuse(self, "padding", self.padding, f"smaller than kernel_size={self.kernel_size!r}")

    def geometry(self, x: Shape) -> PoolingGeometry:
        """The windows on an input of shape (N, C, H, W)."""
        if self.global_pooling:
            return PoolingGeometry(self.method, kernel=(x[2], x[3]), stride=(1, 1), count_padding=self.count_padding)
        return PoolingGeometry(
            method=self.method,
            kernel=pair(self, "kernel_size", 1),
            stride=pair(self, "stride", 1),
            padding=pair(self, "padding", 0),
            count_padding=self.count_padding,
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != 4:
            raise ValueError(f"expected an input of shape (N, C, H, W). Received: {x}")
        g = self.geometry(x)
        sizes = tuple(
            pooled_size(size, k, s, p, self.rounding)
            for size, k, s, p in zip(x[2:], g.kernel, g.stride, g.padding, strict=True)
        )
        if min(sizes) < 1:
            raise ValueError(
                f"expected an input at least as large as the window. Received: input {x[2]}×{x[3]}, "
                f"kernel_size={g.kernel}, padding={g.padding}"
            )
        return (*x[:2], *sizes)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,) = site.inputs
        return (site.library.pooling_forward(x, site.output, self.geometry(x.shape), site.phase),)

    def gradient(self, input: int = 0) -> Gradient:
        return PoolGradient(input=input)


@configuration
class PoolGradient(Gradient):
    """Gradient of a `Pool`: to the first largest element of a window, or spread evenly over it."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Pool)
        (x,) = site.inputs
        if not site.needs_input_gradient:
            return ()
        return (site.library.pooling_backward(site.output, x, peer.geometry(x.shape)),)


def pooled_size(size: int, kernel: int, stride: int, padding: int, rounding: str) -> int:
    """How many windows fit on one axis.

    >>> pooled_size(28, 2, 2, 0, "ceil"), pooled_size(6, 3, 2, 0, "ceil"), pooled_size(6, 3, 2, 0, "floor")
    (14, 3, 2)
    """
    span = size + 2 * padding - kernel
    if rounding == "floor":
        return span // stride + 1
    windows = -(-span // stride) + 1
    if (windows - 1) * stride >= size + padding:
        windows -= 1  # it would begin behind the input: a window without a single element
    return windows
