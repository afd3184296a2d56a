"""Rows of a trained table, chosen by integers."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from crossbow.conf import check_integer, check_number, configuration, refuse
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import EmbeddingBackward, EmbeddingForward
from crossbow.ops.initialiser import Gaussian, Initialiser, check_initialisers
from crossbow.ops.kernel import Gradient, Kernel, Site, VariableSpec
from crossbow.ops.matfact import LARGEST_INDEX
from crossbow.types import Shape


@configuration
class Embedding(Kernel):
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
    """Factor of the learning rate for the weights, ≥ 0; 0 freezes them."""

    def __post_init__(self) -> None:
        check_integer(self, "number_of_rows", 1)
        if self.number_of_rows > LARGEST_INDEX:
            allowed = f"at most {LARGEST_INDEX}, up to which float32 represents all integers"
            raise refuse(self, "number_of_rows", self.number_of_rows, allowed)
        check_integer(self, "number_of_outputs", 1)
        check_initialisers(self)
        check_number(self, "weight_learning_rate_multiplier", minimum=0)

    @property
    def is_frozen(self) -> bool:
        return self.weight_learning_rate_multiplier == 0

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != 2:
            raise ValueError(f"expected indices of shape (N, T). Received: {x}")
        return (*x, self.number_of_outputs)

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        shape = (self.number_of_rows, self.number_of_outputs)
        return (VariableSpec("weights", shape, self.weight_initialiser, self.weight_learning_rate_multiplier),)

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
