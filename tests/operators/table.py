"""The table of operators: every configuration that the generic tests of this folder run.

An operator that `crossbow.ops` exports and that has no row here fails the suite.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossbow.ops import (
    GELU,
    LRN,
    Accuracy,
    BatchNorm,
    Broadcast,
    ChannelShuffle,
    Classify,
    Concat,
    Constant,
    Conv,
    DataTransform,
    Dropout,
    ElementWiseOp,
    Embedding,
    EuclideanLoss,
    Flatten,
    Gaussian,
    HardSwish,
    InnerProduct,
    Kernel,
    LayerNorm,
    LogSoftMax,
    MatFact,
    MatFactPrediction,
    MatMul,
    Noop,
    Pad,
    Pool,
    PReLU,
    ReLU,
    Reshape,
    Scale,
    SelfAttention,
    SigmoidLoss,
    SiLU,
    Slice,
    SoftMax,
    SoftMaxLoss,
    Transpose,
    TransposedConv,
    Upsample,
    Values,
)
from crossbow.types import Shape

TOLERANCES: dict[type[Kernel], float] = {
    Accuracy: 1e-6,
    BatchNorm: 5e-6,
    Broadcast: 1e-6,
    ChannelShuffle: 0.0,
    Classify: 0.0,
    Concat: 0.0,
    Conv: 1e-5,
    DataTransform: 1e-6,
    Dropout: 1e-6,
    ElementWiseOp: 1e-6,
    Embedding: 1e-6,
    EuclideanLoss: 1e-6,
    Flatten: 0.0,
    GELU: 2e-6,
    HardSwish: 1e-6,
    InnerProduct: 1e-5,
    LRN: 2e-6,
    LayerNorm: 5e-6,
    LogSoftMax: 1e-6,
    MatFact: 1e-6,
    MatFactPrediction: 1e-6,
    MatMul: 1e-5,
    Noop: 0.0,
    Pad: 0.0,
    PReLU: 1e-6,
    Pool: 1e-6,
    ReLU: 1e-6,
    Reshape: 0.0,
    Scale: 1e-6,
    SelfAttention: 1e-5,
    SigmoidLoss: 1e-6,
    SiLU: 1e-6,
    Slice: 0.0,
    SoftMax: 1e-6,
    SoftMaxLoss: 1e-6,
    Transpose: 0.0,
    TransposedConv: 1e-5,
    Upsample: 1e-6,
}
"""How far a fast library's float32 result may be from the reference in float64, on the same float32 inputs: largest
difference over largest magnitude of the tensor, for the output and every gradient. Observed on x86-64 with AVX-512:
Conv 1e-6, InnerProduct 3e-7, the others 1.3e-7 at the most; other processors add in another order."""

WITHOUT_KERNELS = ("GradientDescentOptimiser", "TotalLoss")
"""Operators that no network contains: one marks a place in the graph, the other is a sum, as an ElementWiseOp's."""


@dataclass(frozen=True)
class Case:
    """A row: an operator's configuration and the shapes it runs on."""

    kernel: Kernel
    shapes: tuple[Shape, ...]
    """Of the inputs, the labels left out."""
    labels: str | None = None
    """"classes": (N, …) integers for an input (N, C, …); "class": (N,) integers; "values": floating point of the
    input's shape; "value": (N,) floating point; "fractions": as "values", from 0 to 1."""
    examples: int | None = None
    """Losses and measures: how many examples of the batch are real."""
    offset: float = 0.0
    """Added to every input."""

    def __str__(self) -> str:
        changed = [
            f"{field.name}={getattr(self.kernel, field.name)}"
            for field in dataclasses.fields(self.kernel)  # type: ignore[arg-type]
            if getattr(self.kernel, field.name) != field.default and "initialiser" not in field.name
        ]
        shapes = " ".join("x".join(map(str, shape)) for shape in self.shapes)
        real = "" if self.examples is None else f" real={self.examples}"
        offset = f" offset={self.offset:g}" if self.offset else ""
        return f"{type(self.kernel).__name__}({', '.join(changed)}) {shapes}{real}{offset}"

    @property
    def name(self) -> str:
        return type(self.kernel).__name__

    @property
    def tolerance(self) -> float:
        """Of an input far from 0 the rounding errors are as much larger than what makes it differ from others."""
        return TOLERANCES[type(self.kernel)] * (1 + abs(self.offset))

    def label_array(self, generator: np.random.Generator) -> NDArray[np.generic] | None:
        """Labels; where the operator ignores one, it is among them."""
        x = self.shapes[0]
        if self.labels is None:
            return None
        if self.labels in ("class", "classes"):
            classes = generator.integers(0, x[1], x[:1] + (x[2:] if self.labels == "classes" else ()))
            ignored = getattr(self.kernel, "ignored_label", None)
            if ignored is not None:
                classes[generator.random(classes.shape) < 0.3] = ignored
                classes[(0,) * classes.ndim] = ignored
            return classes
        if self.labels == "fractions":
            return generator.random(x).astype(np.float32).round(1)
        return generator.standard_normal(x if self.labels == "values" else x[:1]).astype(np.float32)

    def draw(self, generator: np.random.Generator, shape: Shape) -> NDArray[np.floating]:
        """An input: normal numbers, or indices where the operator takes such."""
        if isinstance(self.kernel, MatFact | MatFactPrediction) and shape in self.shapes:
            return generator.integers(0, (self.kernel.rows, self.kernel.columns), shape).astype(np.float64)
        if isinstance(self.kernel, Embedding) and shape in self.shapes:
            return generator.integers(0, self.kernel.number_of_rows, shape).astype(np.float64)
        return generator.standard_normal(shape)

    def inputs(self, seed: int = 0) -> list[NDArray[np.generic]]:
        """Inputs, the labels last, that float32 represents exactly. Probabilities where the operator takes some."""
        generator = np.random.default_rng(seed)
        arrays = [(self.draw(generator, shape) + self.offset).astype(np.float32) for shape in self.shapes]
        if isinstance(self.kernel, SoftMaxLoss | Accuracy):
            exponentials = np.exp(arrays[0])
            arrays[0] = exponentials / exponentials.sum(axis=1, keepdims=True)
        labels = self.label_array(generator)
        return arrays if labels is None else [*arrays, labels]


def _inner_products_of_many_rows() -> list[Case]:
    def case(axis: int, shape: Shape, **more: object) -> Case:
        bias = {"bias_initialiser": Gaussian(std=0.5)} if more.get("bias", True) else {}
        more = {"number_of_outputs": 5, **bias, **more}
        return Case(InnerProduct(axis=axis, **more), (shape,))  # type: ignore[arg-type]

    return [
        case(2, (2, 3, 7)),
        case(-1, (2, 3, 7), bias=False),
        case(2, (2, 3, 4, 6)),
        case(3, (2, 3, 4, 6)),  # y has four dimensions too
        case(-1, (2, 1, 4, 6)),
        case(3, (2, 3, 1, 1)),
        case(3, (2, 3, 4, 2, 3)),  # from five dimensions to four
        case(4, (2, 3, 2, 2, 3)),
        case(-2, (2, 2, 1, 2, 3, 2)),
        case(2, (4, 9, 130), number_of_outputs=33),
        case(2, (3, 8, 520), number_of_outputs=600),  # a weight gradient in blocks, a data gradient in row blocks
    ]


def _matrix_products() -> list[Case]:
    def case(a: Shape, b: Shape, a_turned: bool = False, b_turned: bool = False) -> Case:
        return Case(MatMul(transpose_a=a_turned, transpose_b=b_turned), (a, b))

    return [
        case((3, 4), (4, 5)),
        case((4, 3), (4, 5), True),
        case((3, 4), (5, 4), False, True),
        case((4, 3), (5, 4), True, True),
        case((1, 1), (1, 1)),
        case((2, 3, 4), (2, 4, 5)),
        case((2, 3, 4), (4, 5)),  # one b for all
        case((3, 4), (2, 4, 5)),  # one a for all
        case((2, 4, 3), (4, 5), True),
        case((2, 3, 3, 4), (2, 3, 4, 5)),  # channels last
        case((2, 3, 4, 3), (2, 3, 5, 4), True, True),
        case((2, 1, 3, 4), (1, 3, 4, 5)),  # both repeated
        case((2, 3, 4), (3, 2, 4, 5)),
        case((2, 3, 2, 3, 4), (2, 1, 2, 5, 4), False, True),
        case((4,), (4,)),
        case((4,), (4, 5)),
        case((3, 4), (4,)),
        case((4,), (2, 3, 4, 5)),
        case((2, 3, 2, 3, 4), (4,)),  # from five dimensions to four
        case((8, 33, 70), (8, 70, 40)),
        # A matrix and a vector.
        case((300,), (300,)),
        case((33, 70), (70,)),
        case((70,), (40, 70), False, True),
        case((2, 3, 33, 70), (2, 1, 70, 1)),
        case((1, 3, 33, 70), (2, 3, 1, 70), False, True),
        case((2, 3, 70, 1), (3, 70, 33), True),
        case((2, 3, 1, 70), (1, 33, 70), False, True),
    ]


def _label_maps() -> list[Case]:
    losses = [
        Case(SoftMaxLoss(ignored_label=ignored, normalisation=normalisation), (shape,), "classes", examples=examples)
        for shape, examples in (((3, 4, 5), None), ((4, 5, 3, 4), 3), ((2, 3, 2, 3, 2), 1))
        for normalisation, ignored in (("batch", None), ("full", -1), ("valid", 2), ("none", 255))
    ]
    return [
        *losses,
        Case(
            SoftMaxLoss(class_weights=(0.5, 1, 3, 0.1), label_smoothing=0.2, ignored_label=2, normalisation="valid"),
            ((3, 4, 5, 2),),
            "classes",
            examples=2,
        ),
        Case(SoftMaxLoss(class_weights=(0.5, 1, 3, 0.1), normalisation="full"), ((3, 4, 5),), "classes"),
        Case(SoftMaxLoss(), ((3, 4, 1, 1),), "classes"),
        Case(SoftMaxLoss(), ((3, 4, 1, 1),), "class"),
        Case(SoftMaxLoss(normalisation="full"), ((3, 1, 2, 2),), "classes"),
        Case(Accuracy(), ((3, 4, 5),), "classes"),
        Case(Accuracy(top_k=2, ignored_label=3), ((4, 5, 3, 4),), "classes", examples=3),
        Case(Accuracy(ignored_label=-1), ((2, 3, 2, 3, 2),), "classes"),
        Case(Accuracy(), ((5, 4, 1, 1),), "class"),
    ]


def _factorisations() -> list[Case]:
    def case(examples: int, real: int | None = None, **more: object) -> Case:
        configuration = {"rows": 5, "columns": 7, "latents": 3, **more}
        return Case(MatFact(**configuration), ((examples, 2),), "value", real)  # type: ignore[arg-type]

    return [
        case(4),
        case(40),  # every row several times
        case(9, real=4),
        case(6, regularisation=0, latents=1),
        case(6, rows=1, columns=1, learning_rate=0.1),
        Case(MatFactPrediction(rows=5, columns=7, latents=3), ((9, 2),)),
        Case(MatFactPrediction(rows=1, columns=2, latents=40), ((4, 2),)),
    ]


def _embeddings() -> list[Case]:
    return [
        Case(Embedding(5, 3), ((4, 6),)),
        Case(Embedding(1, 1), ((3, 1),)),
        Case(Embedding(50, 40), ((6, 9),)),  # some rows without an index
    ]


def _attentions() -> list[Case]:
    return [
        *(Case(SelfAttention(2, causal=causal), ((3, 5, 12),)) for causal in (False, True)),
        Case(SelfAttention(3), ((2, 1, 9),)),
        Case(SelfAttention(1, causal=True), ((2, 33, 21),)),
        Case(SelfAttention(4, causal=True), ((2, 20, 48),)),
        Case(SelfAttention(2), ((2, 7, 30),), offset=3.0),
    ]


def _conv(shape: Shape, **configuration: object) -> Case:
    # A bias of constant 0 would hide a bias that is not added.
    bias = {"bias_initialiser": Gaussian(std=0.5)} if configuration.get("bias", True) else {}
    return Case(Conv(**{**bias, **configuration}), (shape,))  # type: ignore[arg-type]


def _transposed(shape: Shape, outputs: int, kernel_size: object, **configuration: object) -> Case:
    bias = {"bias_initialiser": Gaussian(std=0.5)} if configuration.get("bias", True) else {}
    return Case(TransposedConv(outputs, kernel_size, **{**bias, **configuration}), (shape,))  # type: ignore[arg-type]


IMAGES: list[Shape] = [(2, 3, 4, 5), (1, 20, 3, 2), (2, 3, 5), (1, 2, 2, 3, 2)]


def _global_pools() -> list[Case]:
    return [
        Case(Pool(method=method, global_pooling=True), (shape,))
        for method in ("max", "average", "stochastic")
        for shape in ((2, 5, 4, 3), (2, 5, 7), (2, 3, 2, 3, 4))
    ]


def _pools(method: str, **more: object) -> list[Case]:
    def case(shape: Shape, **configuration: object) -> Case:
        return Case(Pool(method=method, **more, **configuration), (shape,))  # type: ignore[arg-type]

    return [
        case((2, 3, 6, 6), kernel_size=2, stride=2),
        case((1, 1, 5, 5), kernel_size=2, stride=2),  # an overhanging last window
        case((1, 1, 5, 5), kernel_size=2, stride=2, rounding="floor"),
        case((2, 4, 7, 8), kernel_size=3, stride=2),  # overlapping windows
        case((2, 4, 7, 8), kernel_size=3, stride=2, rounding="floor"),
        case((2, 3, 6, 7), kernel_size=3, stride=2, padding=1),
        case((2, 3, 6, 7), kernel_size=3, stride=2, padding=1, rounding="floor"),
        case((1, 2, 8, 5), kernel_size=(3, 2), stride=(2, 3), padding=(1, 0)),
        case((1, 2, 8, 5), kernel_size=(3, 2), stride=(2, 3), padding=(1, 0), rounding="floor"),
        case((3, 16, 5, 4), kernel_size=3, stride=1, padding=1),
        case((1, 3, 7, 7), kernel_size=2, stride=3),  # gaps between windows; the last one would be empty
        case((1, 3, 6, 6), kernel_size=4, stride=3, padding=2),
        case((2, 3, 3, 4), kernel_size=4, stride=4, padding=1),  # a window wider than the input
        case((2, 3, 4, 4), kernel_size=1, stride=1),
        case((1, 32, 24, 24), kernel_size=2, stride=2),
        case((2, 3, 6, 7), kernel_size=3, padding=((2, 0), (0, 1))),
        case((2, 3, 6, 7), kernel_size=(3, 4), padding=((0, 2), (1, 3)), rounding="floor"),
        case((2, 17, 7, 6), kernel_size=(2, 3), stride=1, dilation=2),
        case((2, 3, 8, 9), kernel_size=3, stride=2, dilation=(1, 3), padding=((1, 0), (4, 5))),
        case((2, 3, 8, 7), kernel_size=2, stride=3, dilation=3, padding=1),  # dilated windows that hang over
        case((2, 3, 9), kernel_size=3, stride=2, padding=1),
        case((1, 2, 8), kernel_size=2, dilation=3, padding=((0, 2),)),
        case((2, 3, 4, 5, 6), kernel_size=2),
        case(
            (1, 2, 5, 4, 6),
            kernel_size=(3, 2, 2),
            stride=(1, 2, 3),
            padding=((1, 2), (0, 1), (1, 0)),
            dilation=(1, 1, 2),
        ),
    ]


def _products_and_maxima() -> list[Case]:
    shapes: list[tuple[Shape, ...]] = [
        ((3, 7),),
        ((3, 7),) * 2,
        ((2, 3, 5, 4),) * 3,
        ((1, 1),) * 4,
        ((5,),) * 2,
        ((2, 3, 4),) * 2,
        ((2, 3, 2, 2, 2),) * 2,
        ((33, 67),) * 2,  # two chunks of a pass and a bit
    ]
    return [Case(ElementWiseOp(type=type), each) for type in ("product", "max") for each in shapes]


def _concatenations() -> list[Case]:
    def case(*shapes: Shape, **configuration: object) -> Case:
        return Case(Concat(**configuration), shapes)  # type: ignore[arg-type]

    image = (2, 3, 4, 5)
    return [
        case((3, 4), (3, 1), (3, 6)),
        case((2, 3, 4, 5), (2, 1, 4, 5)),
        case((1, 16, 3, 3), (1, 32, 3, 3), (1, 7, 3, 3), (1, 1, 3, 3)),  # an inception block's
        case(image, image),
        case(image),
        *(case(image, image, (2, 3, 4, 5), axis=axis) for axis in range(-4, 4)),
        case((2, 3, 4, 5), (2, 3, 1, 5), axis=2),
        case((2, 3, 4, 5), (2, 3, 4, 2), axis=-1),
        case((1, 3, 4, 5), (3, 3, 4, 5), axis=0),
        case((3, 4), (2, 4), axis=0),
        case((3,), (2,), axis=0),
        case((2, 3, 4), (2, 5, 4)),
        case((2, 3, 2, 1, 2), (2, 3, 2, 4, 2), axis=3),
        case((1, 1), (1, 1)),
    ]


def _rearrangements() -> list[Case]:
    """The elements of a tensor in other places, or some of them, or others around them."""

    def case(kernel: Kernel, shape: Shape) -> Case:
        return Case(kernel, (shape,))

    image, volume = (2, 3, 4, 5), (2, 3, 4, 2, 5)
    slices = ((1, 1, None, 1), (1, 0, 2, 1), (2, 1, -1, 1), (3, 0, None, 2), (-1, -4, 9, 3))
    return [
        *(case(Transpose(order=order), image) for order in ((0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2), (0, 1, 2, 3))),
        case(Transpose(order=(0, 3, 2, 1)), (2, 17, 9, 33)),
        case(Transpose(order=(0, 2, 3, 1)), (2, 1, 4, 5)),
        case(Transpose(order=(0, 2, 1)), (2, 3, 5)),
        case(Transpose(order=(0, 1)), (2, 3)),
        *(case(Transpose(order=order), volume) for order in ((0, 2, 1, 3, 4), (0, 4, 3, 2, 1))),
        case(Transpose(order=(0, 6, 4, 2, 1, 3, 5)), (2, 3, 2, 4, 2, 3, 2)),  # no two axes stay neighbours
        *(case(ChannelShuffle(groups=groups), (2, 12, 3, 4)) for groups in (1, 2, 3, 12)),
        case(ChannelShuffle(groups=3), (2, 48, 5, 5)),
        *(case(ChannelShuffle(), shape) for shape in ((3, 8), (2, 4, 5), (2, 4, 2, 3, 2))),
        *(
            case(Reshape(shape=sizes), image)
            for sizes in ((60,), (-1, 5), (4, 3, 5), (1, 3, 4, 5), (3, 2, 2, 5), (3, 4, 5))
        ),
        case(Reshape(shape=(2, 3, 4)), (5, 24)),
        case(Reshape(shape=(-1,)), (3, 1, 1, 1)),
        *(case(Slice(axis=axis, start=start, stop=stop, step=step), image) for axis, start, stop, step in slices),
        case(Slice(start=2, stop=3), (2, 3)),
        case(Slice(axis=2, start=1, step=2), (2, 3, 6)),
        case(Slice(start=16, stop=48), (2, 64, 3, 3)),
        case(Slice(axis=3, stop=1), volume),
        case(Slice(), (2, 1, 3, 3)),
        case(Pad(padding=((0, 0), (1, 2), (3, 0))), image),
        case(Pad(padding=((1, 2), (0, 0), (0, 1)), value=-1.5), image),
        case(Pad(padding=((2, 0),), value=0.5), (3, 4)),
        case(Pad(padding=((0, 0), (2, 3))), (2, 3, 5)),
        case(Pad(padding=((0, 1), (1, 0), (1, 1), (0, 2))), volume),
        case(Pad(padding=((0, 0),) * 3), image),
    ]


def _responses() -> list[Case]:
    def case(shape: Shape, **configuration: object) -> Case:
        return Case(LRN(**configuration), (shape,))  # type: ignore[arg-type]

    within = {"region": "within_channel"}
    return [
        case((2, 7, 3, 4)),
        case((2, 16, 5, 5)),
        case((1, 40, 3, 3), size=3, alpha=0.5, kappa=0.5),
        case((2, 7, 3, 4), size=3, alpha=2.0, beta=0.5, kappa=2.0),
        case((2, 7, 3, 4), size=1),
        case((2, 7, 3, 4), size=2),  # even: the window is not symmetric
        case((2, 7, 3, 4), size=4, beta=1.0),
        case((2, 7, 3, 4), size=2, longer_side="before"),
        case((2, 16, 3, 4), size=4, longer_side="before"),
        case((2, 7, 3, 4), size=3, longer_side="before"),
        case((2, 3, 2, 2), size=9, alpha=0.5),  # wider than the channels
        case((2, 3, 2, 2), alpha=0.0, kappa=3.0),
        case((2, 3, 2, 2), beta=0.0),
        case((3, 8)),
        case((2, 6, 5), size=4),
        case((2, 6, 3, 1, 2), size=3),
        case((1, 1)),
        case((2, 3, 7, 6), **within),
        case((2, 16, 7, 6), **within),
        case((2, 3, 7, 6), size=3, alpha=2.0, beta=0.5, kappa=2.0, **within),
        case((2, 3, 7, 6), size=4, **within),
        case((1, 2, 3, 2), size=7, **within),  # wider than the image
        case((2, 3, 4, 5), size=1, beta=1.0, **within),
        case((1, 1, 1, 6), size=2, **within),
        case((2, 3, 7, 6), size=4, longer_side="before", **within),
    ]


def _scales() -> list[Case]:
    def case(shape: Shape, **configuration: object) -> Case:
        bias = {"bias_initialiser": Gaussian(std=0.5)} if configuration.get("bias", False) else {}
        values = {"weight_initialiser": Gaussian(std=1.0), **bias, **configuration}
        return Case(Scale(**values), (shape,))  # type: ignore[arg-type]

    image = (2, 3, 5, 4)
    return [
        *(case(shape, bias=bias) for shape in ((3, 7), image, (2, 3, 4), (1, 1)) for bias in (False, True)),
        case((2, 33, 3, 3), bias=True),
        case((2, 1, 5, 4), bias=True),
        *(
            case(image, axis=axis, number_of_axes=number, bias=True)
            for axis, number in ((2, 1), (3, 1), (1, 2), (2, 2), (1, 3), (-1, 1), (-3, 2))
        ),
        case((2, 3, 4, 2, 2), axis=2, number_of_axes=2, bias=True),
        case((4, 1, 5, 1), axis=2, number_of_axes=2),
    ]


def normalisation(shape: Shape, offset: float = 0.0, **configuration: object) -> Case:
    """A row of BatchNorm. The statistics before the task are of every channel others, and float32 represents them."""
    channel = np.arange(shape[1], dtype=np.float64)
    values = {
        "weight_initialiser": Gaussian(mean=1.0, std=0.5),
        "bias_initialiser": Gaussian(std=0.5) if configuration.get("bias", True) else Constant(0.0),
        "mean_initialiser": Values(channel / 8 - 0.5),
        "variance_initialiser": Values(channel / 16 + 0.25),
        **configuration,
    }
    return Case(BatchNorm(**values), (shape,), offset=offset)  # type: ignore[arg-type]


def _normalisations() -> list[Case]:
    image, matrix = (3, 5, 4, 6), (9, 5)
    return [
        *(normalisation((4, channels, 3, 5)) for channels in (1, 3, 15, 16, 17, 33, 64)),
        *(normalisation((9, channels)) for channels in (1, 3, 16, 33, 64)),
        *(normalisation(shape) for shape in ((4, 3, 7), (1, 16, 9), (3, 4, 2, 3, 3), (1, 17, 2, 3, 4))),
        *(normalisation(shape) for shape in ((2, 3, 2, 2, 3, 2), (1, 16, 2, 1, 2, 3, 2))),
        normalisation((1, 3, 4, 4)),
        normalisation((16, 3, 1, 1)),
        normalisation((8, 20, 12, 12)),
        *(normalisation(shape, bias=False) for shape in (image, matrix, (4, 3, 7))),
        *(normalisation(shape, statistics="cma") for shape in (image, matrix)),
        *(normalisation(shape, epsilon=epsilon) for shape in (image, matrix) for epsilon in (1e-8, 0.1, 10.0)),
        *(normalisation(image, moving_average_fraction=fraction) for fraction in (0.0, 0.3, 1.0)),
        normalisation(image, bias=False, statistics="cma", epsilon=1e-3),
        # Far from 0 the variance must not be the mean of the squares less the square of the mean.
        *(normalisation(shape, offset) for shape in (image, matrix, (4, 3, 7)) for offset in (100.0, -1000.0)),
    ]


def _layer_normalisations() -> list[Case]:
    def case(shape: Shape, offset: float = 0.0, **configuration: object) -> Case:
        bias = {"bias_initialiser": Gaussian(std=0.5)} if configuration.get("bias", True) else {}
        values = {"weight_initialiser": Gaussian(mean=1.0, std=0.5), **bias, **configuration}
        return Case(LayerNorm(**values), (shape,), offset=offset)  # type: ignore[arg-type]

    image = (2, 3, 5, 4)
    return [
        *(case(shape, bias=bias) for shape in ((3, 7), (2, 5, 9), image) for bias in (False, True)),
        *(case(image, axis=1, number_of_axes=number) for number in (1, 2, 3)),  # the channels, and with them others
        case(image, axis=-2, number_of_axes=2),
        case(image, axis=2),
        case((2, 3, 4, 2, 5), axis=2, number_of_axes=2),
        case((2, 33, 3, 3), axis=1),
        case((65, 3, 130)),
        case((2, 700)),
        *(case((9, 5), epsilon=epsilon) for epsilon in (1e-8, 0.1)),
        *(case((9, 50), offset=offset) for offset in (100.0, -1000.0)),  # far from 0
    ]


def _transforms() -> list[Case]:
    def case(shape: Shape, **configuration: object) -> Case:
        return Case(DataTransform(**configuration), (shape,))  # type: ignore[arg-type]

    def values(*shape: int) -> Values:
        return Values(np.linspace(-1.0, 1.5, int(np.prod(shape))).reshape(shape))

    image, three = (5, 3, 6, 7), {"mean": (0.5, -0.25, 0.125), "scale": (2.0, 0.5, -3.0)}
    return [
        case(image),
        case(image, padding=2),
        case(image, mirror=True),
        case(image, padding=4, mirror=True, **three),  # as for CIFAR
        case(image, crop_size=3, mirror=True, **three),
        case(image, crop_size=(6, 1)),
        case(image, crop_size=(10, 4), padding=2, mirror=True, **three),  # higher than the image
        case(image, crop_size=2, padding=5, mirror=True, mean=0.5),  # windows of padding alone
        case(image, mean=0.25, scale=4.0),
        case(image, scale=(1.0, 2.0, 3.0)),
        case(image, mean_image=values(3, 6, 7), scale=2.0),
        case(image, mean_image=values(3, 6, 7), crop_size=(3, 4), padding=1, mirror=True, scale=(1.0, 2.0, 3.0)),
        case((4, 1, 6, 7), padding=1, mirror=True, mean=0.5, scale=2.0),
        case((3, 5, 4, 4), mean_image=values(5, 4, 4), padding=2, mirror=True),
        case((2, 17, 9, 8), crop_size=5, mirror=True),
        case((1, 1, 1, 1), padding=1),
        case((2, 3, 32, 32), padding=4, mirror=True, mean=0.5),
    ]


CASES: tuple[Case, ...] = (
    *(Case(PReLU(shared), (shape,)) for shared in (False, True) for shape in ((3, 7), (2, 3, 5, 4), (2, 20, 3, 3))),
    Case(PReLU(), ((2, 3, 40),)),
    Case(PReLU(), ((2, 3, 2, 3, 4),)),
    *(Case(Upsample(2, method=method), (shape,)) for method in ("nearest", "linear") for shape in IMAGES),
    Case(Upsample((1.5, 3)), ((2, 3, 4, 5),)),
    Case(Upsample(1.7, method="linear"), ((2, 17, 4, 5),)),
    Case(Upsample(0.6, method="linear"), ((2, 3, 5, 9),)),
    Case(Upsample(size=(9, 3)), ((2, 3, 5, 4),)),
    Case(Upsample(size=(9, 3), method="linear"), ((2, 3, 5, 4),)),
    Case(Upsample(size=(9, 3), method="linear", align_corners=True), ((2, 3, 5, 4),)),
    Case(Upsample(size=(5, 1), method="linear", align_corners=True), ((2, 3, 5, 4),)),  # one axis stays
    Case(Upsample(size=(5, 4)), ((2, 3, 5, 4),)),  # both do
    _transposed((2, 3, 4, 5), 4, 3),
    _transposed((2, 3, 4, 5), 4, 3, stride=2, padding=1, output_padding=1, bias=False),
    _transposed((3, 16, 4, 4), 32, 4, stride=2, padding=1),
    _transposed((2, 4, 3, 4), 6, (3, 2), stride=(1, 3), groups=2, dilation=(2, 1), padding=((1, 2), (0, 1))),
    _transposed((2, 8, 3, 3), 8, 3, groups=8, stride=2),
    _transposed((2, 3, 5), 4, 3, stride=2),
    _transposed((1, 2, 2, 3, 2), 3, 2, stride=2),
    _conv((2, 3, 6, 6), number_of_outputs=4, kernel_size=3),
    _conv((1, 1, 5, 5), number_of_outputs=1, kernel_size=3),
    _conv((2, 3, 6, 6), number_of_outputs=4, kernel_size=3, bias=False),
    _conv((2, 3, 7, 5), number_of_outputs=5, kernel_size=(3, 2), stride=(2, 1), padding=(1, 2)),
    _conv((2, 3, 8, 8), number_of_outputs=4, kernel_size=3, stride=3),  # columns that no window covers
    _conv((3, 2, 5, 5), number_of_outputs=4, kernel_size=3, padding=2),
    _conv((2, 16, 5, 5), number_of_outputs=32, kernel_size=3, padding=1),  # whole vector registers
    _conv((2, 17, 5, 6), number_of_outputs=33, kernel_size=3, padding=1, stride=2),  # and one more
    _conv((2, 4, 6, 6), number_of_outputs=6, kernel_size=3, groups=2),
    _conv((2, 4, 6, 6), number_of_outputs=6, kernel_size=3, groups=2, bias=False, stride=2, padding=1),
    _conv((2, 8, 6, 5), number_of_outputs=8, kernel_size=3, groups=8, padding=1),  # depthwise
    _conv((2, 3, 9, 8), number_of_outputs=4, kernel_size=3, dilation=2),
    _conv((1, 2, 9, 8), number_of_outputs=3, kernel_size=(2, 3), dilation=(3, 2), padding=(2, 1), stride=2),
    _conv((2, 5, 4, 3), number_of_outputs=7),  # 1×1
    _conv((2, 5, 5, 5), number_of_outputs=7, stride=2),  # 1×1 with gaps
    _conv((2, 3, 4, 4), number_of_outputs=10, kernel_size=4),  # as an inner product
    _conv((1, 1, 28, 28), number_of_outputs=8, kernel_size=5),
    _conv((4, 32, 12, 12), number_of_outputs=64, kernel_size=5),  # LeNet's second
    _conv((2, 3, 6, 7), number_of_outputs=4, kernel_size=(3, 2), padding=((1, 2), (0, 1))),
    _conv((2, 16, 6, 7), number_of_outputs=32, kernel_size=3, stride=2, padding=((0, 1), (0, 1))),  # "same", stride 2
    _conv((1, 4, 6, 5), number_of_outputs=6, kernel_size=3, padding=((3, 0), (0, 4)), dilation=2, groups=2),
    _conv((2, 32, 9, 8), number_of_outputs=32, kernel_size=3, groups=32, padding=1),  # depthwise, whole registers
    _conv((2, 20, 9, 8), number_of_outputs=20, kernel_size=5, groups=20, padding=2, stride=2),
    _conv((2, 6, 7, 8), number_of_outputs=12, kernel_size=3, groups=6, dilation=2, padding=2),  # two outputs a channel
    _conv((2, 3, 9), number_of_outputs=4, kernel_size=3, padding=1),
    _conv(
        (2, 4, 10), number_of_outputs=6, kernel_size=2, stride=2, padding=((2, 1),), dilation=3, groups=2, bias=False
    ),
    _conv((2, 3, 4, 5, 6), number_of_outputs=4, kernel_size=3, padding=1),
    _conv(
        (1, 4, 5, 4, 6),
        number_of_outputs=2,
        kernel_size=(3, 1, 2),
        stride=(1, 2, 2),
        padding=((1, 0), (0, 0), (0, 2)),
        dilation=(2, 1, 3),
        groups=2,
    ),
    *_pools("max"),
    *_pools("average"),
    *_pools("average", count_padding=False),
    *_global_pools(),
    *_pools("stochastic"),
    Case(InnerProduct(number_of_outputs=4, bias_initialiser=Gaussian(std=0.5)), ((3, 7),)),
    Case(InnerProduct(number_of_outputs=4, bias=False), ((3, 7),)),
    Case(InnerProduct(number_of_outputs=1, bias_initialiser=Gaussian(std=0.5)), ((1, 1),)),
    Case(InnerProduct(number_of_outputs=5, bias_initialiser=Gaussian(std=0.5)), ((2, 3, 4, 5),)),
    Case(InnerProduct(number_of_outputs=5, bias=False), ((2, 16, 3, 1),)),
    Case(InnerProduct(number_of_outputs=33, bias_initialiser=Gaussian(std=0.5)), ((16, 130),)),
    Case(InnerProduct(number_of_outputs=10, bias_initialiser=Gaussian(std=0.5)), ((1, 1, 8, 8),)),
    Case(ReLU(), ((3, 7),)),
    Case(ReLU(), ((2, 3, 5, 4),)),
    Case(ReLU(), ((1, 1),)),
    Case(ReLU(negative_slope=0.1), ((2, 3, 5, 4),)),
    Case(ReLU(negative_slope=2.0), ((3, 7),)),
    Case(ReLU(mode="sigmoid"), ((2, 3, 5, 4),)),
    Case(ReLU(mode="sigmoid"), ((3, 7),)),
    Case(ReLU(mode="tanh"), ((2, 3, 5, 4),)),
    Case(ReLU(mode="tanh"), ((1, 9),)),
    Case(ReLU(mode="clipped", ceiling=0.7), ((2, 3, 5, 4),)),
    Case(ReLU(mode="clipped"), ((3, 7),)),
    *[
        Case(kernel, (shape,))
        for kernel in (GELU(), GELU(approximate="tanh"), SiLU(), HardSwish())
        for shape in ((3, 7), (2, 3, 5, 4), (2, 3, 4), (2, 3, 2, 2, 2), (1,))
    ],
    Case(SoftMax(), ((3, 10),)),
    Case(SoftMax(), ((1, 1),)),
    Case(SoftMax(), ((2, 5, 3, 4),)),
    Case(SoftMax(axis=2), ((2, 5, 3, 4),)),
    Case(SoftMax(axis=3), ((2, 5, 3, 4),)),
    Case(SoftMax(axis=-1), ((2, 5, 4),)),
    Case(SoftMax(), ((2, 5, 4),)),
    Case(SoftMax(), ((2, 3, 2, 3, 2),)),
    Case(SoftMax(axis=-2), ((2, 3, 2, 3, 2),)),
    Case(SoftMax(axis=4), ((2, 3, 2, 1, 3, 2),)),
    *(
        Case(LogSoftMax(axis=axis), (shape,))
        for axis, shape in (
            (1, (3, 10)),
            (1, (1, 1)),
            (1, (2, 5, 3, 4)),
            (3, (2, 5, 3, 4)),
            (-1, (2, 5, 4)),
            (-2, (2, 3, 2, 3, 2)),
            (1, (2, 300)),
        )
    ),
    Case(SoftMaxLoss(), ((4, 10),), "classes"),
    Case(SoftMaxLoss(), ((1, 2),), "classes"),
    Case(SoftMaxLoss(normalisation="none"), ((5, 3),), "classes"),
    Case(SoftMaxLoss(normalisation="full", ignored_label=2), ((5, 3),), "classes"),
    Case(SoftMaxLoss(normalisation="batch", ignored_label=-1), ((5, 3),), "classes"),
    Case(SoftMaxLoss(normalisation="valid", ignored_label=255), ((5, 3),), "classes"),
    Case(SoftMaxLoss(normalisation="valid", ignored_label=0), ((1, 3),), "classes"),  # all ignored
    Case(SoftMaxLoss(), ((8, 10),), "classes", examples=5),
    Case(SoftMaxLoss(label_smoothing=0.1), ((8, 10),), "classes", examples=5),
    Case(SoftMaxLoss(class_weights=(0.5, 0.0, 3.0), ignored_label=2), ((5, 3),), "classes"),
    Case(SoftMaxLoss(class_weights=(0.1, 0.2, 0.3), normalisation="valid"), ((5, 3),), "classes", examples=3),
    Case(SoftMaxLoss(class_weights=(0.5, 1.0, 3.0), normalisation="valid", ignored_label=0), ((1, 3),), "classes"),
    Case(SoftMaxLoss(class_weights=(0.5, 1.0, 3.0), label_smoothing=0.3, normalisation="none"), ((5, 3),), "classes"),
    Case(SoftMaxLoss(normalisation="valid", ignored_label=-1), ((8, 10),), "classes", examples=5),
    Case(SoftMaxLoss(normalisation="none"), ((8, 10),), "classes", examples=1),
    Case(EuclideanLoss(), ((4, 3),), "values"),
    Case(EuclideanLoss(), ((1, 1),), "values"),
    Case(EuclideanLoss(), ((5, 1),), "value"),
    Case(EuclideanLoss(), ((2, 3, 4, 5),), "values"),
    Case(EuclideanLoss(), ((6, 3),), "values", examples=4),
    Case(SigmoidLoss(), ((4, 3),), "fractions"),
    Case(SigmoidLoss(), ((6, 3, 2),), "fractions", examples=4),
    Case(SigmoidLoss(normalisation="batch"), ((2, 3, 4, 5),), "fractions"),
    Case(SigmoidLoss(normalisation="none"), ((5, 1),), "fractions", examples=1),
    Case(Dropout(), ((5, 9),)),
    Case(Dropout(ratio=0.4), ((2, 3, 5, 4),)),
    Case(Dropout(ratio=0.9), ((1, 50),)),
    Case(Dropout(ratio=0.0), ((2, 3, 2, 2),)),
    Case(Broadcast(shape=(3, 5, 4)), ((2, 3, 1, 1),)),
    Case(Broadcast(shape=(3, 5, 4)), ((2, 1, 5, 4),)),
    Case(Broadcast(shape=(7,)), ((3, 1),)),
    Case(Broadcast(shape=(2, 3)), ((4, 2, 3),)),  # nothing to repeat
    Case(Accuracy(), ((7, 4),), "classes"),
    Case(Accuracy(), ((1, 1),), "classes"),
    Case(Accuracy(top_k=3), ((20, 10),), "classes"),
    Case(Accuracy(ignored_label=1), ((9, 3),), "classes"),
    Case(Accuracy(), ((20, 4),), "classes", examples=11),
    Case(ElementWiseOp(), ((3, 7), (3, 7))),
    Case(ElementWiseOp(), ((2, 3, 5, 4),) * 3),
    Case(ElementWiseOp(), ((2, 3, 5, 4),)),
    Case(ElementWiseOp(coefficients=(2.0, -0.5)), ((2, 3, 5, 4),) * 2),
    Case(ElementWiseOp(coefficients=(1.0, 0.0, -3.0)), ((3, 7),) * 3),
    *_products_and_maxima(),
    *_inner_products_of_many_rows(),
    *_matrix_products(),
    *_label_maps(),
    *_factorisations(),
    *_embeddings(),
    *_attentions(),
    *[Case(Classify(), (shape,)) for shape in ((3, 7), (1, 1), (2, 3, 4), (2, 3, 4, 5), (2, 3, 1, 1), (2, 3, 2, 2, 2))],
    Case(Classify(axis=2), ((2, 3, 4, 5),)),
    *[Case(Classify(axis=axis, keep_axis=True), ((2, 3, 4, 5),)) for axis in (1, 2, -1)],
    *[Case(Classify(ties="last", keep_axis=keep), ((3, 7),)) for keep in (False, True)],
    Case(Classify(axis=-1), ((2, 3, 4, 5),)),
    Case(Classify(axis=3), ((2, 3, 2, 5, 4),)),  # from five dimensions to four
    *[Case(Noop(), (shape,)) for shape in ((3, 7), (2, 3, 4, 5), (4,))],
    *[Case(Flatten(), (shape,)) for shape in ((3, 7), (2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (2, 3, 2, 2, 2), (4,))],
    *[Case(Flatten(axis=axis), ((2, 3, 4, 5),)) for axis in (0, 2, 3, 4, -1, -3)],
    *_concatenations(),
    *_rearrangements(),
    *_responses(),
    *_scales(),
    *_normalisations(),
    *_layer_normalisations(),
    *_transforms(),
)
