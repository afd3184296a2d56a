"""What a kernel library is: it turns a request (`convolution_forward`, …) into a prepared kernel.

A *prepared kernel* has settled everything that can be settled at compile time: descriptors, algorithm,
workspace, how variables lie in memory. `bind` gives it buffers and returns *calls* without arguments.
A task is a flat list of such calls.

Buffers are passed by *role*. Roles of a forward kernel: `input0`, `input1`, …, `output`, `labels`, the names of
the variables (`weights`, `bias`), `kept`, `workspace`, `state`. Roles of a gradient kernel: the same, and
`output_gradient`, `input_gradient`, `weights_gradient`, `bias_gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from crossbow.types import Array, Layout, Shape, Tensor

if TYPE_CHECKING:
    from crossbow.types import Phase

Buffers = Mapping[str, Array]
"""Role to array. Activations have their logical shape (a strided view where the layout is channels-last);
variables have their logical shape when stored plain, else they are the flat storage; `workspace` and `kept` are
1-D uint8, 64-byte aligned; `labels` is int32 (N,) for classes, else floating point; `state` is the task state."""


class State:
    """Positions in a learner's task state: an int64 array that kernels read, rewritten before every task.

    Whatever changes from task to task lives here, so that bound calls (and captured graphs) never change.
    """

    TASK = 0
    """Number of the task, from 0: the position of the dropout generator."""
    SLOT = 1
    """Which slot of the batch ring holds the batch."""
    EXAMPLES = 2
    """Number of real examples in the batch; the rest is padding, which loss and accuracy leave out."""
    TICK = 3
    """Number of the clock tick, from 0: what `wait` and `signal` count."""
    SIZE = 8


class Call(Protocol):
    """One bound kernel: a call without arguments."""

    def __call__(self) -> None: ...


class Storage(Protocol):
    """How a variable lies in the flat vector of a replica. Element-wise arithmetic is indifferent to it."""

    @property
    def elements(self) -> int:
        """Number of elements in the flat vector, padding included (padding stays zero)."""

    def pack(self, plain: Array, flat: Array) -> None:
        """Write the logical array `plain` into the 1-D `flat`."""

    def unpack(self, flat: Array, plain: Array) -> None:
        """Write the 1-D `flat` into the logical array `plain`."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class PlainStorage:
    """Row-major in logical order."""

    shape: Shape

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def pack(self, plain: Array, flat: Array) -> None:
        flat[...] = plain.ravel()

    def unpack(self, flat: Array, plain: Array) -> None:
        plain[...] = flat.reshape(self.shape)

    def __str__(self) -> str:
        return "plain"


@dataclass(frozen=True)
class Variable:
    """A variable as kernels see it: its logical shape and type, and its storage once that is decided.

    A forward kernel that receives `storage=None` may choose one and says so in `PreparedKernel.storages`;
    the kernels prepared after it (gradients, the check dataflow) receive the choice.
    """

    shape: Shape
    dtype: np.dtype[np.generic]
    storage: Storage | None = None


@dataclass(frozen=True)
class GradientBlock:
    """A part of a weight gradient that fits the cache, to be used before the next one is computed."""

    calls: Sequence[Call]
    """They write the part to `gradient`."""
    place: slice
    """Which elements of the variable's flat storage these are."""
    gradient: Array
    """Where the part lies until the next block's calls: 1-D, in the kernel's workspace."""


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel with every decision taken, waiting for buffers."""

    name: str
    """What `describe()` prints: the request and the implementation, as "convolution_forward jit:avx512_core"."""
    reads: tuple[str, ...]
    """Roles that are read; they bound the lifetime of buffers."""
    writes: tuple[str, ...]
    """Roles that are written."""
    bind: Callable[[Buffers], Sequence[Call]]
    """Buffers of all roles read and written (and `workspace`, `kept`) to calls."""
    workspace: int = 0
    """Bytes of scratch memory, used only during the call."""
    kept: int = 0
    """Bytes of opaque memory that a forward kernel writes for its gradient kernel (role `kept`)."""
    in_place: tuple[str, str] | None = None
    """(read role, written role) that may be the same memory."""
    alias: tuple[str, str] | None = None
    """(read role, written role) that hold the same bytes afterwards: as one memory, there is nothing to do."""
    storages: Mapping[str, Storage] = field(default_factory=dict)
    """The storage chosen for each variable by name."""
    blocks: Callable[[Buffers], Sequence[GradientBlock]] | None = None
    """Instead of `bind`, where a weight gradient is large: the gradient of `weights` in parts, for an optimiser that
    updates each part at once and never reads the whole. The first block's calls write the other gradients."""


@dataclass(frozen=True)
class ConvolutionGeometry:
    """Geometry of a two-dimensional convolution (cross-correlation, as in every framework)."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


@dataclass(frozen=True)
class PoolingGeometry:
    """Geometry of a two-dimensional pooling. Windows may hang over the padded input (rounding up)."""

    method: str
    """"max" or "average"."""
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    count_padding: bool = True
    """Average: whether padding counts in the divisor. The overhang beyond input + padding never does."""


@dataclass(frozen=True)
class BatchNormSetting:
    """What batch normalisation does beside the formula."""

    epsilon: float
    fraction: float | None
    """How much of the running statistics a training task keeps; None is the mean of all tasks, by a `count`."""
    bias: bool
    relu: bool = False
    """Whether the output is that of a ReLU behind, whose gradient is then part of this one."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("weights", "bias") if self.bias else ("weights",)

    @property
    def observed(self) -> tuple[str, ...]:
        statistics = ("running_mean", "running_variance")
        return statistics if self.fraction is not None else (*statistics, "count")


@dataclass(frozen=True)
class Assignment:
    """target ← Σ coefficient × term, element by element. The target may be one of the terms."""

    target: str
    terms: tuple[str, ...]


class KernelLibrary(Protocol):
    """A device's kernels. The reference library is the specification; the others differ in speed only."""

    name: str
    dtypes: tuple[np.dtype[np.generic], ...]
    """Floating-point types that the library computes in."""
    fused_relu: tuple[str, ...]
    """Requests that gain from taking in the ReLU behind: of convolution, inner_product, batch_norm, weighted_sum."""

    def layout(self, shape: Shape) -> Layout:
        """The layout of an activation of this shape."""

    # Weighted operators. `weights` is (outputs, channels / groups, kh, kw) or (outputs, features).

    def convolution_forward(
        self,
        x: Tensor,
        weights: Variable,
        bias: Variable | None,
        y: Tensor,
        geometry: ConvolutionGeometry,
        *,
        relu: bool = False,
    ) -> PreparedKernel:
        """input0, weights[, bias] → output. relu: max(output, 0) instead."""

    def convolution_backward_data(
        self, dy: Tensor, weights: Variable, dx: Tensor, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        """output_gradient, weights → input_gradient."""

    def convolution_backward_weights(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, geometry: ConvolutionGeometry
    ) -> PreparedKernel:
        """input0, output_gradient → weights_gradient[, bias_gradient]."""

    def inner_product_forward(
        self, x: Tensor, weights: Variable, bias: Variable | None, y: Tensor, *, relu: bool = False
    ) -> PreparedKernel:
        """input0, weights[, bias] → output (relu: max(output, 0)). x: (N, features) or (N, C, H, W), whose features are ordered C, H, W."""

    def inner_product_backward_data(self, dy: Tensor, weights: Variable, dx: Tensor) -> PreparedKernel:
        """output_gradient, weights → input_gradient."""

    def inner_product_backward_weights(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None
    ) -> PreparedKernel:
        """input0, output_gradient → weights_gradient[, bias_gradient]."""

    def batch_norm_training(self, x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
        """input0, weights[, bias], running_mean, running_variance[, count] → output, kept, and `…_next` of each statistic,
        which may be the same memory. kept: what `batch_norm_backward` needs of the batch's statistics."""

    def batch_norm_inference(self, x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
        """input0, weights[, bias], running_mean, running_variance → output."""

    def batch_norm_backward(self, x: Tensor, dy: Tensor, dx: Tensor | None, setting: BatchNormSetting) -> PreparedKernel:
        """input0, output_gradient, weights[, bias], kept → weights_gradient[, bias_gradient][, input_gradient]."""

    # Operators without variables.

    def pooling_forward(self, x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase) -> PreparedKernel:
        """input0 → output (and kept, when training with max pooling)."""

    def pooling_backward(self, dy: Tensor, dx: Tensor, geometry: PoolingGeometry) -> PreparedKernel:
        """output_gradient[, kept] → input_gradient. Of equal maxima in a window the first (row-major) wins."""

    def activation_forward(
        self, x: Tensor, y: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        """input0 → output; may be in place. mode: "relu", "sigmoid", "tanh" or "clipped"."""

    def activation_backward(
        self, y: Tensor, dy: Tensor, dx: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        """output, output_gradient → input_gradient; may be in place on output_gradient."""

    def softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        """input0 → output; may be in place."""

    def softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        """output, output_gradient → input_gradient; may be in place on output_gradient."""

    def dropout_forward(self, x: Tensor, y: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
        """input0, state → output; may be in place. The mask is `crossbow.kernels.random.keep_mask`."""

    def dropout_backward(self, dy: Tensor, dx: Tensor, ratio: float, seed: int, key: int) -> PreparedKernel:
        """output_gradient, state → input_gradient; may be in place. The same mask, drawn again."""

    def weighted_sum(
        self, xs: Sequence[Tensor], y: Tensor, coefficients: Sequence[float], *, relu: bool = False
    ) -> PreparedKernel:
        """input0, input1, … → output = Σ coefficient × input (relu: max(output, 0)); may be in place on input0."""

    def scale(self, dy: Tensor, dx: Tensor, coefficient: float) -> PreparedKernel:
        """output_gradient → input_gradient = coefficient × output_gradient; may be in place."""

    # Losses and measures: scalars of shape (1,), over the first state[EXAMPLES] examples only.

    def softmax_loss_forward(
        self, p: Tensor, labels: Tensor, ignored_label: int | None, normalisation: str
    ) -> PreparedKernel:
        """input0 (probabilities), labels, state → output (1,): Σ −log max(p[label], tiny) / normaliser.

        normalisation: "batch" and "full" divide by the number of labels, "valid" by the number not ignored (at
        least 1), "none" by 1.
        """

    def softmax_loss_backward(
        self, p: Tensor, labels: Tensor, dx: Tensor, ignored_label: int | None, normalisation: str
    ) -> PreparedKernel:
        """input0, labels, state → input_gradient: (p − y) / normaliser, with respect to the logits."""

    def euclidean_loss_forward(self, x: Tensor, labels: Tensor) -> PreparedKernel:
        """input0, labels, state → output (1,): Σ (x − labels)² / (2 · examples)."""

    def euclidean_loss_backward(self, x: Tensor, labels: Tensor, dx: Tensor) -> PreparedKernel:
        """input0, labels, state → input_gradient: (x − labels) / examples."""

    def accuracy(self, p: Tensor, labels: Tensor, top_k: int, ignored_label: int | None) -> PreparedKernel:
        """input0, labels, state → output (1,): fraction of examples whose label is among the top_k largest.

        An example counts when fewer than `top_k` classes have a strictly larger value, or an equal value and a
        smaller index.
        """

    # The engine's own kernels.

    def load_batch(self, slots: Tensor, x: Tensor, slot_labels: Tensor, labels: Tensor, scale: float) -> PreparedKernel:
        """slots, slot_labels, state → input, labels: slot state[SLOT], converted and multiplied by `scale`.

        slots: (S, N, C, H, W) or (S, N, features), plain, uint8 or floating point; slot_labels: (S, …).
        """

    def linear_combination(self, assignments: Sequence[Assignment], dtype: np.dtype[np.generic]) -> PreparedKernel:
        """The named 1-D vectors (all equally long), coefficients → the targets, in order, in one pass over memory.

        `coefficients` is a float64 array with one element per term, in order; it is read at every call. A target
        may be a term, and may be a term of later assignments, which then see the new value.
        """

    def wait(self) -> PreparedKernel:
        """flags, abort, state: return once every flag ≥ state[TICK]; until then raise `Aborted` if abort[0] ≠ 0.

        flags: 1-D int64; abort: int64 of shape (1,).
        """

    def signal(self) -> PreparedKernel:
        """state → flag (int64 of shape (1,)) = state[TICK], after everything before it in the list."""


class Aborted(Exception):  # noqa: N818 - an order to stop, not an error
    """A wait was given up because another learner failed."""
