"""The table of operators: every configuration that the generic tests of this folder run.

An operator that `crossbow.ops` exports and that has no row here fails the suite.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossbow.ops import (
    Accuracy,
    Conv,
    Dropout,
    ElementWiseOp,
    EuclideanLoss,
    Gaussian,
    InnerProduct,
    Kernel,
    Pool,
    ReLU,
    SoftMax,
    SoftMaxLoss,
)
from crossbow.types import Shape

TOLERANCES: dict[type[Kernel], float] = {
    Accuracy: 1e-6,
    Conv: 1e-5,
    Dropout: 1e-6,
    ElementWiseOp: 1e-6,
    EuclideanLoss: 1e-6,
    InnerProduct: 1e-5,
    Pool: 1e-6,
    ReLU: 1e-6,
    SoftMax: 1e-6,
    SoftMaxLoss: 1e-6,
}
"""How far a fast library's float32 result may be from the reference in float64, on the same float32 inputs: largest
difference over largest magnitude of the tensor, for the output and every gradient. Observed on x86-64 with AVX-512:
Conv 1e-6, InnerProduct 3e-7, the others 1.3e-7 at the most; other processors add in another order."""

WITHOUT_KERNELS = ("GradientDescentOptimiser",)
"""Operators that mark a place in the graph and compute nothing themselves."""


@dataclass(frozen=True)
class Case:
    """A row: an operator's configuration and the shapes it runs on."""

    kernel: Kernel
    shapes: tuple[Shape, ...]
    """Of the inputs, the labels left out."""
    labels: str | None = None
    """"classes": (N,) integers; "values": floating point of the input's shape; "value": (N,) floating point."""
    examples: int | None = None
    """Losses and measures: how many examples of the batch are real."""

    def __str__(self) -> str:
        changed = [
            f"{field.name}={getattr(self.kernel, field.name)}"
            for field in dataclasses.fields(self.kernel)  # type: ignore[arg-type]
            if getattr(self.kernel, field.name) != field.default and "initialiser" not in field.name
        ]
        shapes = " ".join("x".join(map(str, shape)) for shape in self.shapes)
        real = "" if self.examples is None else f" real={self.examples}"
        return f"{type(self.kernel).__name__}({', '.join(changed)}) {shapes}{real}"

    @property
    def name(self) -> str:
        return type(self.kernel).__name__

    def label_array(self, generator: np.random.Generator) -> NDArray[np.generic] | None:
        """Labels; where the operator ignores one, it is among them."""
        x = self.shapes[0]
        if self.labels is None:
            return None
        if self.labels == "classes":
            classes = generator.integers(0, x[1], x[0])
            ignored = getattr(self.kernel, "ignored_label", None)
            if ignored is not None:
                classes[0] = ignored
            return classes
        return generator.standard_normal(x if self.labels == "values" else x[:1]).astype(np.float32)

    def inputs(self, seed: int = 0) -> list[NDArray[np.generic]]:
        """Inputs, the labels last, that float32 represents exactly. Probabilities where the operator takes some."""
        generator = np.random.default_rng(seed)
        arrays = [generator.standard_normal(shape).astype(np.float32) for shape in self.shapes]
        if isinstance(self.kernel, SoftMaxLoss | Accuracy):
            exponentials = np.exp(arrays[0])
            arrays[0] = exponentials / exponentials.sum(axis=1, keepdims=True)
        labels = self.label_array(generator)
        return arrays if labels is None else [*arrays, labels]


def _conv(shape: Shape, **configuration: object) -> Case:
    # A bias of constant 0 would hide a bias that is not added.
    return Case(Conv(**{"bias_initialiser": Gaussian(std=0.5), **configuration}), (shape,))  # type: ignore[arg-type]


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
        case((2, 5, 4, 3), global_pooling=True),
        case((2, 3, 4, 4), kernel_size=1, stride=1),
        case((1, 32, 24, 24), kernel_size=2, stride=2),
    ]


CASES: tuple[Case, ...] = (
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
    *_pools("max"),
    *_pools("average"),
    *_pools("average", count_padding=False),
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
    Case(SoftMax(), ((3, 10),)),
    Case(SoftMax(), ((1, 1),)),
    Case(SoftMax(), ((2, 5, 3, 4),)),
    Case(SoftMax(axis=2), ((2, 5, 3, 4),)),
    Case(SoftMax(axis=3), ((2, 5, 3, 4),)),
    Case(SoftMaxLoss(), ((4, 10),), "classes"),
    Case(SoftMaxLoss(), ((1, 2),), "classes"),
    Case(SoftMaxLoss(normalisation="none"), ((5, 3),), "classes"),
    Case(SoftMaxLoss(normalisation="full", ignored_label=2), ((5, 3),), "classes"),
    Case(SoftMaxLoss(normalisation="batch", ignored_label=-1), ((5, 3),), "classes"),
    Case(SoftMaxLoss(normalisation="valid", ignored_label=255), ((5, 3),), "classes"),
    Case(SoftMaxLoss(normalisation="valid", ignored_label=0), ((1, 3),), "classes"),  # all ignored
    Case(SoftMaxLoss(), ((8, 10),), "classes", examples=5),
    Case(SoftMaxLoss(normalisation="valid", ignored_label=-1), ((8, 10),), "classes", examples=5),
    Case(SoftMaxLoss(normalisation="none"), ((8, 10),), "classes", examples=1),
    Case(EuclideanLoss(), ((4, 3),), "values"),
    Case(EuclideanLoss(), ((1, 1),), "values"),
    Case(EuclideanLoss(), ((5, 1),), "value"),
    Case(EuclideanLoss(), ((2, 3, 4, 5),), "values"),
    Case(EuclideanLoss(), ((6, 3),), "values", examples=4),
    Case(Dropout(), ((5, 9),)),
    Case(Dropout(ratio=0.4), ((2, 3, 5, 4),)),
    Case(Dropout(ratio=0.9), ((1, 50),)),
    Case(Dropout(ratio=0.0), ((2, 3, 2, 2),)),
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
)
