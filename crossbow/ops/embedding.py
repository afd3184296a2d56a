"""Rows of a trained table, chosen by integers."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_integer, configuration, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import EmbeddingBackward, EmbeddingForward
from crossbow.ops.initialiser import Gaussian, Initialiser
from crossbow.ops.kernel import Gradient, Kernel, Site
from crossbow.ops.weighted import Weighted
from crossbow.types import LARGEST_EXACT, Shape


@configuration
class Embedding(Weighted):
    """y[n, t] = weights[x[n, t]], a row of the table for every index.

    x: (N, T), indices from 0 to number_of_rows − 1 as floating-point numbers; y: (N, T, number_of_outputs);
    weights: (number_of_rows, number_of_outputs). On the CPU an index without a row raises a DataError; on a GPU its
    output is NaN. Indices have no gradient, so the input must be the batch. `Dataset` accepts int32 indices.

    Use it for characters, words and categories, at the beginning of a network.

    The original has no such operator.

    See also: `SelfAttention`, `MatFact`.
    """

    takes_indices: ClassVar[bool] = True

    number_of_rows: int = field(kw_only=False)
    """Number of different indices, ≥ 1."""
    number_of_outputs: int = field(kw_only=False)
    """Length of a row, ≥ 1."""
    weight_initialiser: Initialiser = Gaussian(std=0.02)
    weight_learning_rate_multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_rows(self, "number_of_rows")
        check_integer(self, "number_of_outputs", 1)
        super().__post_init__()

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != 2:
            raise ValueError(f"expected indices of shape (N, T). Received: {x}")
        return (*x, self.number_of_outputs)

    def weights_shape(self, x: Shape) -> Shape:
        return (self.number_of_rows, self.number_of_outputs)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        return (site.library.prepare(EmbeddingForward(site.inputs[0], site.variables["weights"], site.output)),)

    def gradient(self, input: int = 0) -> Gradient:
        return EmbeddingGradient(input=input)


@configuration
class EmbeddingGradient(Gradient):
    """Gradient of an `Embedding`'s weights: for each row, the sum of dy where its index is; 0 for other rows."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, Embedding)
        return (site.library.prepare(EmbeddingBackward(site.inputs[0], site.variables["weights"], site.output)),)


def check_rows(owner: object, name: str) -> None:
    """Raise ConfigurationError unless the field is a number of rows, ≥ 1, whose indices float32 represents exactly."""
    check_integer(owner, name, 1)
    rows = getattr(owner, name)
    if rows > LARGEST_EXACT:
        raise refuse(owner, name, rows, f"at most {LARGEST_EXACT}, up to which float32 represents all integers")
