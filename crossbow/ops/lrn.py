"""Local response normalisation."""

from __future__ import annotations

from crossbow.conf import check_choice, check_integer, check_number, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import LRNBackward, LRNForward, ResponseGeometry
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.types import Shape


@configuration
class LRN(Kernel):
    """Local response normalisation (Krizhevsky et al., 2012): y = x / (κ + α/n · Σ x²)^β.

    With region="across_channels", the sum is over the `size` channels around the element; n = size and x: (N, C) or
    (N, C, …). With region="within_channel", it is over the size × size elements around it in its own channel;
    n = size² and x: (N, C, H, W). y has the shape of x. Elements outside the tensor count as 0. An even window begins
    ⌊(size − 1) / 2⌋ before the element and ends ⌈(size − 1) / 2⌉ after it, as in ONNX and cuDNN; with
    longer_side="before" it lies one element further to the front, as in PyTorch.

    Use it to reproduce networks such as AlexNet and GoogLeNet.

    α is divided by n, as in PyTorch, cuDNN, ONNX and Caffe. The original has only the configuration: LRN.java sets no
    output shape, and its kernels are empty.

    See also: `BatchNorm`.
    """

    size: int = 5
    """Side of the window, ≥ 1."""
    alpha: float = 1.0
    """α, ≥ 0."""
    beta: float = 0.75
    """The exponent β, ≥ 0."""
    kappa: float = 1.0
    """κ, > 0, so that the denominator is never 0."""
    region: str = "across_channels"
    """"across_channels" or "within_channel"."""
    longer_side: str = "after"
    """Side of the element on which an even window is longer: "after" or "before"."""

    def __post_init__(self) -> None:
        check_integer(self, "size", 1)
        check_number(self, "alpha", minimum=0)
        check_number(self, "beta", minimum=0)
        check_number(self, "kappa", minimum=0, above=True)
        check_choice(self, "region", ("across_channels", "within_channel"))
        check_choice(self, "longer_side", ("after", "before"))

    @property
    def geometry(self) -> ResponseGeometry:
        """The windows, and α divided by their size."""
        axes = (1,) if self.region == "across_channels" else (2, 3)
        share = float(self.alpha) / int(self.size) ** len(axes)
        leads = self.longer_side == "before"
        return ResponseGeometry(axes, int(self.size), share, float(self.beta), float(self.kappa), leads)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if self.region == "within_channel" and len(x) != 4:
            raise ValueError(f"expected an input of shape (N, C, H, W) with region='within_channel'. Received: {x}")
        if len(x) < 2:
            raise ValueError(f"expected an input of shape (N, C) or (N, C, …). Received: {x}")
        return x

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.prepare(LRNForward(site.inputs[0], site.output, self.geometry, site.phase)),)

    def gradient(self, input: int = 0) -> Gradient:
        return LRNGradient(input=input)


@configuration
class LRNGradient(Gradient):
    """Gradient of an `LRN`, with s = κ + α/n · Σ x² over each element's window:

    dx_j = dy_j · s_j^−β − 2αβ/n · x_j · Σ dy_i · x_i · s_i^(−β−1), with the sum over the elements i whose window
    contains j.
    """

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, LRN)
        (x,) = site.inputs
        return (site.library.prepare(LRNBackward(x, site.output, x, peer.geometry)),)
