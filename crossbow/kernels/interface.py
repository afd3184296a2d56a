"""What a kernel library is: it turns a request (`convolution_forward`, …) into a prepared kernel.

A *prepared kernel* has settled everything that can be settled at compile time: descriptors, algorithm,
workspace, how variables lie in memory. `bind` gives it buffers and returns *calls* without arguments.
A task is a flat list of such calls.

Buffers are passed by *role*. Roles of a forward kernel: `input0`, `input1`, …, `output`, `labels`, `logits` (the
input of the softmax whose output a loss reads), the names of the variables (`weights`, `bias`), `kept`, `workspace`,
`state`, `slot_positions`. Roles of a gradient kernel: the same, and `output_gradient`, `input_gradient`,
`weights_gradient`, `bias_gradient`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from crossbow.solver.update import Assignment
from crossbow.types import Array, Layout, Shape, Tensor

if TYPE_CHECKING:
    from crossbow.types import Phase

Buffers = Mapping[str, Array]
"""Role to array. Activations have their logical shape (a strided view where the layout is channels-last);
variables have their logical shape when stored plain, else they are the flat storage; `workspace` and `kept` are
1-D uint8, 64-byte aligned; `labels` is int32 (N, …) for classes, else floating point; `state` is the task state.
`slot_positions`, int64 (slots, N, 2), holds (epoch, index in the data set) of every example of a training batch in slot
state[SLOT]."""


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
    TURN = 4
    """On GPUs: which row of the learner's results the task's loss and accuracy go to."""
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
        return math.prod(self.shape)

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
class WindowGeometry:
    """Windows that slide over the spatial axes: one value per axis in every field."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    """Empty is 1 everywhere."""
    padding: tuple[tuple[int, int], ...] = ()
    """(before, after). Empty is none."""
    dilation: tuple[int, ...] = ()
    """Distance between neighbours in a window. Empty is 1 everywhere."""

    def __post_init__(self) -> None:
        axes = len(self.kernel)
        for name, usual in (("stride", 1), ("padding", (0, 0)), ("dilation", 1)):
            value = getattr(self, name) or (usual,) * axes
            if len(value) != axes:
                raise ValueError(f"expected {axes} values, as kernel={self.kernel} has. Received: {name}={value}")
            object.__setattr__(self, name, value)

    @property
    def extent(self) -> tuple[int, ...]:
        """From the first to the last element of a window: d (k − 1) + 1."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))


@dataclass(frozen=True)
class ConvolutionGeometry(WindowGeometry):
    """Geometry of a convolution (cross-correlation, as in every framework)."""

    groups: int = 1


@dataclass(frozen=True)
class PoolingGeometry(WindowGeometry):
    """Geometry of a pooling. Windows may hang over the padded input (rounding up)."""

    method: str = "max"
    """"max", "average" or "stochastic"."""
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
class ResponseGeometry:
    """What local response normalisation sums over, and its constants: y = x · (kappa + share · Σ x²)^−beta."""

    axes: tuple[int, ...]
    """(1,), the channels, or (2, 3), the image."""
    size: int
    """Of the window, on each axis."""
    share: float
    beta: float
    kappa: float
    leads: bool = False
    """Whether the longer half of an even window lies before its element."""

    @property
    def before(self) -> int:
        """How far the window reaches before its element."""
        return (self.size - (not self.leads)) // 2

    @property
    def after(self) -> int:
        return self.size - 1 - self.before


@dataclass(frozen=True, eq=False)
class ImageTransform:
    """What is done to images (N, C, H, W) with a border of zeros: (pixel − mean) · scale, of a window.

    A window is (top, left) of the image with its border, and of the output's size.
    """

    padding: int
    """Pixels of the border, on each side."""
    mirror: bool
    """Whether left and right are exchanged in half of the random windows."""
    mean: NDArray[np.float64]
    """(C, 1, 1), or (C, H, W): at the pixel's place in the image without its border."""
    scale: NDArray[np.float64]
    """(C, 1, 1)."""

    @property
    def border_mean(self) -> NDArray[np.float64]:
        """The mean that the border's pixels have: (C, 1, 1)."""
        mean: NDArray[np.float64] = self.mean.mean(axis=(1, 2), keepdims=True)
        return mean

    def choices(self, x: Shape, y: Shape) -> tuple[int, int]:
        """How many tops, and how many lefts, there are for windows of y's size."""
        rows, columns = (x[axis] + 2 * self.padding - y[axis] + 1 for axis in (2, 3))
        return rows, columns

    def centre(self, x: Shape, y: Shape) -> tuple[int, int]:
        """(top, left) of the window in the middle."""
        rows, columns = self.choices(x, y)
        return (rows - 1) // 2, (columns - 1) // 2


@dataclass(frozen=True)
class MatrixProductGeometry:
    """Two stacks of matrices to be multiplied, of equally many dimensions. A dimension of size 1 before those of the
    matrices is repeated where the other's is larger."""

    inputs: tuple[Shape, Shape]
    """As they are given."""
    transposed: tuple[bool, bool] = (False, False)
    """Which of the two is multiplied as its transpose."""

    def factor(self, number: int) -> Shape:
        """The shape of an input as it is multiplied."""
        *stack, rows, columns = self.inputs[number]
        return (*stack, columns, rows) if self.transposed[number] else (*stack, rows, columns)

    @property
    def y(self) -> Shape:
        """The shape of the product."""
        a, b = self.factor(0), self.factor(1)
        return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


class MixedPrecision(Protocol):
    """A library's kernels for tensors that consist of numbers of 16 bits, beside its own type.

    Gradients of 16 bits may be scaled, so that small ones do not become zero: by a number that changes as training
    goes on, in the runtime's array `scaling`.
    """

    dtype: np.dtype[np.generic]
    """That of 16 bits."""
    scales: bool
    """Whether gradients of that type are scaled. Those that are too large for it then count as zero."""

    def new_scaling(self) -> Array:
        """What a learner's `scaling` is when training begins, on the host."""

    def convert(self, x: Tensor, y: Tensor, *, gradient: bool) -> PreparedKernel:
        """input0[, scaling] → output: one type to the other. The tensors lie in the same order."""

    def narrow_weights(self, *, training: bool) -> PreparedKernel:
        """weights[, scaling] → narrow_weights: whole vectors. training: the scale is also brought up to date."""

    def widen_gradient(self, parts: Sequence[tuple[slice, str]]) -> PreparedKernel:
        """narrow_gradient, gradient[, scaling] → gradient: whole vectors, of which parts were computed in 16 bits
        ("narrow"), others are in their place but "scaled", and others "ready". With a scale, a gradient with a number
        that is not finite becomes zero."""


class KernelLibrary(Protocol):
    """A device's kernels. The reference library is the specification; the others differ in speed only."""

    name: str
    dtypes: tuple[np.dtype[np.generic], ...]
    """Floating-point types that the library computes in."""
    fused_relu: tuple[str, ...]
    """Requests that gain from taking in the ReLU behind: of convolution, inner_product, batch_norm, weighted_sum."""

    @property
    def mixed(self) -> MixedPrecision | None:
        """What else is needed where operators compute with tensors of 16 bits. None where none do."""

    def layout(self, shape: Shape) -> Layout:
        """The layout of an activation of this shape."""

    # Weighted operators. `weights` is (outputs, channels / groups, *kernel) or (outputs, features).

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
        """input0, weights[, bias] → output (relu: max(output, 0)). y: (…, outputs), and x: (…, features), where the
        features may be several dimensions, in logical order: C, H, W."""

    def inner_product_backward_data(self, dy: Tensor, weights: Variable, dx: Tensor) -> PreparedKernel:
        """output_gradient, weights → input_gradient."""

    def inner_product_backward_weights(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None
    ) -> PreparedKernel:
        """input0, output_gradient → weights_gradient[, bias_gradient]."""

    def batch_norm_training(self, x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
        """input0, weights[, bias], running_mean, running_variance[, count] → output, kept, and `…_next` of each.

        The next of a statistic may be the same memory. kept: what `batch_norm_backward` needs of the batch's.
        """

    def batch_norm_inference(self, x: Tensor, y: Tensor, setting: BatchNormSetting) -> PreparedKernel:
        """input0, weights[, bias], running_mean, running_variance → output."""

    def batch_norm_backward(
        self, x: Tensor, dy: Tensor, dx: Tensor | None, setting: BatchNormSetting
    ) -> PreparedKernel:
        """input0, output_gradient, weights[, bias], kept → weights_gradient[, bias_gradient][, input_gradient]."""

    def scaling_forward(
        self, x: Tensor, weights: Variable, bias: Variable | None, y: Tensor, axis: int
    ) -> PreparedKernel:
        """input0, weights[, bias] → output = weights · x (+ bias); may be in place. The variables, of one shape, lie
        along the axes of x from `axis` on."""

    def scaling_backward(
        self, x: Tensor, dy: Tensor, weights: Variable, bias: Variable | None, dx: Tensor | None, axis: int
    ) -> PreparedKernel:
        """input0, output_gradient, weights → weights_gradient[, bias_gradient][, input_gradient]; may be in place on
        output_gradient."""

    # Operators without variables.

    def pooling_forward(
        self, x: Tensor, y: Tensor, geometry: PoolingGeometry, phase: Phase, seed: int = 0, key: int = 0
    ) -> PreparedKernel:
        """input0 → output; in training max also writes kept, and stochastic reads state and writes kept.

        Of equal maxima in a window the first (row-major) wins. Stochastic pooling's random numbers are
        `crossbow.kernels.random.random_words`, one for each output.
        """

    def pooling_backward(self, dy: Tensor, dx: Tensor, geometry: PoolingGeometry) -> PreparedKernel:
        """output_gradient[, kept] → input_gradient."""

    def activation_forward(
        self, x: Tensor, y: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        """input0 → output; may be in place. mode: "relu", "sigmoid", "tanh" or "clipped"."""

    def activation_backward(
        self, y: Tensor, dy: Tensor, dx: Tensor, mode: str, negative_slope: float, ceiling: float
    ) -> PreparedKernel:
        """output, output_gradient → input_gradient; may be in place on output_gradient."""

    def lrn_forward(self, x: Tensor, y: Tensor, geometry: ResponseGeometry, phase: Phase) -> PreparedKernel:
        """input0 → output (and perhaps kept, when training)."""

    def lrn_backward(self, x: Tensor, dy: Tensor, dx: Tensor, geometry: ResponseGeometry) -> PreparedKernel:
        """input0, output_gradient[, kept] → input_gradient; may be in place on output_gradient."""

    def softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        """input0 → output; may be in place."""

    def softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
        """output, output_gradient → input_gradient; may be in place on output_gradient."""

    def log_softmax_forward(self, x: Tensor, y: Tensor, axis: int) -> PreparedKernel:
        """input0 → output; may be in place."""

    def log_softmax_backward(self, y: Tensor, dy: Tensor, dx: Tensor, axis: int) -> PreparedKernel:
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

    def product_forward(self, xs: Sequence[Tensor], y: Tensor) -> PreparedKernel:
        """input0, input1, … → output = Π input, from left to right; may be in place on input0."""

    def product_backward(self, xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
        """output_gradient, all inputs but this one → input_gradient = output_gradient · Π those inputs, from left to
        right; may be in place on output_gradient."""

    def maximum_forward(self, xs: Sequence[Tensor], y: Tensor, phase: Phase) -> PreparedKernel:
        """input0, input1, … (at most 256) → output (and kept, when training); may be in place on input0. NaN is larger
        than everything."""

    def maximum_backward(self, xs: Sequence[Tensor], dy: Tensor, index: int) -> PreparedKernel:
        """output_gradient, kept → input_gradient: where this input is the first of the largest ones, else 0; may be in
        place on output_gradient."""

    def concat_forward(self, xs: Sequence[Tensor], y: Tensor, axis: int) -> PreparedKernel:
        """input0, input1, … → output: one behind the other along `axis`."""

    def concat_backward(self, dy: Tensor, dx: Tensor, axis: int, start: int) -> PreparedKernel:
        """output_gradient → input_gradient: the slice from `start` on along `axis`."""

    def copy_forward(self, x: Tensor, y: Tensor) -> PreparedKernel:
        """input0 → output: the same elements in logical order, with y's shape; may be in place or an alias where they
        lie in the same order."""

    def copy_backward(self, dy: Tensor, dx: Tensor) -> PreparedKernel:
        """output_gradient → input_gradient: as `copy_forward`."""

    def transpose_forward(self, x: Tensor, y: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
        """input0 → output: x, seen as an array of `sizes`, with its axes in `order`, seen with y's shape; may be an
        alias where the elements lie in the same order.

        Each axis of x consists of one or more neighbours among `sizes`, and each axis of y of one or more neighbours
        among those in their new order.
        """

    def transpose_backward(self, dy: Tensor, dx: Tensor, sizes: Shape, order: Sequence[int]) -> PreparedKernel:
        """output_gradient → input_gradient: the way back, with the sizes and the order of `transpose_forward`."""

    def slice_forward(self, x: Tensor, y: Tensor, axis: int, start: int, step: int) -> PreparedKernel:
        """input0 → output: along `axis` the elements start, start + step, …, as many as y has."""

    def slice_backward(self, dy: Tensor, dx: Tensor, axis: int, start: int, step: int) -> PreparedKernel:
        """output_gradient → input_gradient: at their places, and 0 elsewhere."""

    def pad_forward(self, x: Tensor, y: Tensor, before: Sequence[int], value: float) -> PreparedKernel:
        """input0 → output: x, with so many elements `before` it on each axis, and the rest of y behind it, which all
        have the value."""

    def pad_backward(self, dy: Tensor, dx: Tensor, before: Sequence[int]) -> PreparedKernel:
        """output_gradient → input_gradient: what lies inside the padding."""

    def matmul_forward(self, a: Tensor, b: Tensor, y: Tensor, geometry: MatrixProductGeometry) -> PreparedKernel:
        """input0, input1 → output = input0 · input1, each with the dimensions that the geometry says."""

    def matmul_backward(
        self, dy: Tensor, a: Tensor, b: Tensor, number: int, geometry: MatrixProductGeometry
    ) -> PreparedKernel:
        """output_gradient, the other input → input_gradient, of input `number`."""

    def classify(self, x: Tensor, y: Tensor, axis: int, ties: str = "first") -> PreparedKernel:
        """input0 → output: the index of the largest value along `axis`, the "first" or "last" of equal ones; NaN is
        larger than everything. y lacks the axis, or has it with size 1."""

    def data_transform(
        self, x: Tensor, y: Tensor, transform: ImageTransform, seed: int | None, key: int
    ) -> PreparedKernel:
        """input0[, state, slot_positions] → output: windows of the images, that in the middle where seed is None.

        Else the words of an image are `crossbow.kernels.random.image_words` of its (epoch, index) in slot_positions
        of the slot: top = below(word 0, tops), left = below(word 1, lefts), and with `mirror` it is mirrored if
        below(word 2, 2) is 1.
        """

    # Losses and measures: scalars of shape (1,), over the first state[EXAMPLES] examples only.

    def softmax_loss_forward(
        self,
        p: Tensor,
        labels: Tensor,
        ignored_label: int | None,
        normalisation: str,
        logits: Tensor | None = None,
    ) -> PreparedKernel:
        """input0 (probabilities) or `logits`, labels, state → output (1,).

        With x, the logits of which p is the softmax: Σ (log Σ exp x − x[label]) / normaliser, which is finite whatever
        p is rounded to. From probabilities alone: Σ −log max(p[label], tiny) / normaliser.

        p: (N, classes, …); labels: (N, …), or (N,) where p has one row of classes per example. normalisation: "batch"
        divides by the number of examples, "full" by that of their labels, "valid" by that of the labels not ignored (at
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
        """input0, labels, state → output (1,): fraction of the labels that are among the top_k largest.

        A label is among them when fewer than `top_k` classes have a strictly larger value, or an equal value and a
        smaller index.
        """

    def factorisation_forward(
        self, x: Tensor, labels: Tensor, users: Variable, items: Variable, regularisation: float
    ) -> PreparedKernel:
        """input0 (N, 2), labels (N,), state, users, items → output (1,): Σ (label − u · v)² + regularisation ·
        (|u|² + |v|²), where u and v are the rows of users and items that an example's numbers name."""

    def factorisation_backward(
        self, x: Tensor, labels: Tensor, users: Variable, items: Variable, regularisation: float
    ) -> PreparedKernel:
        """input0, labels, state, users, items → users_gradient, items_gradient."""

    # The engine's own kernels.

    def load_batch(self, slots: Tensor, x: Tensor, slot_labels: Tensor, labels: Tensor, scale: float) -> PreparedKernel:
        """slots, slot_labels, state → input, labels: slot state[SLOT], converted and multiplied by `scale`.

        slots: (S, N, C, H, W) or (S, N, features), plain, uint8 or floating point; slot_labels: (S, …).
        """

    def check_finite(self, what: str) -> PreparedKernel:
        """value → nothing. The call raises NonFiniteError, which says what it is, where a number is NaN or infinite."""

    def linear_combination(
        self,
        assignments: Sequence[Assignment],
        dtype: np.dtype[np.generic],
        signs: Sequence[tuple[str, str]] = (),
    ) -> PreparedKernel:
        """The named 1-D vectors (all equally long), coefficients → the targets, in order, in one pass over memory.

        `coefficients` is a float64 array with one element per term, in order; it is read at every call. A target
        may be a term, and may be a term of later assignments, which then see the new value. signs: (name, vector); such
        a name is the term −1, 0 or 1, the sign of that vector's elements before the call.
        """

    def squared_norm(self, terms: Sequence[str], dtype: np.dtype[np.generic]) -> PreparedKernel:
        """The named 1-D vectors (all equally long), coefficients (float64, one per term) → square (float64, (1,)):
        ‖Σ coefficient × vector‖², the squares added up in double precision, always in the same order."""

    def clip_coefficients(self, limit: float, clipped: Sequence[bool]) -> PreparedKernel:
        """squares (float64, 1-D), coefficients → clipped_coefficients (float64, one for each of `clipped`).

        Those marked are multiplied by min(1, limit / √Σ squares), the others are as they were.
        """


class HostLibrary(KernelLibrary, Protocol):
    """A library whose calls run on the host's threads, which can wait for each other."""

    def wait(self) -> PreparedKernel:
        """flags, abort, state: return once every flag ≥ state[TICK]; until then raise `Aborted` if abort[0] ≠ 0.

        flags: 1-D int64; abort: int64 of shape (1,).
        """

    def signal(self) -> PreparedKernel:
        """state → flag (int64 of shape (1,)) = state[TICK], after everything before it in the list."""


class Aborted(Exception):  # noqa: N818 - an order to stop, not an error
    """A wait was given up because another learner failed."""
