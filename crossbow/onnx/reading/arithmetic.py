"""Sums, products, maxima and minima of tensors, and affine functions with constants, which become a Scale."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossbow.onnx.network import NetworkStep
from crossbow.onnx.reading.node import LARGEST_CONSTANT, Node, Numbers, Refused, shortest
from crossbow.onnx.reading.table import reads, reads_group
from crossbow.ops import Broadcast, Constant, ElementWiseOp, Scale, Values
from crossbow.types import Shape

BINARY = (6, 7, 13, 14)


@reads("Sum", versions=(6, 8, 13))
def sum_of_all(node: Node) -> NetworkStep:
    return node.apply(ElementWiseOp(type="sum"), *_all(node))


@reads("Max", versions=(6, 8, 12, 13))
def max_of_all(node: Node) -> NetworkStep:
    return node.apply(ElementWiseOp(type="max"), *_all(node))


@reads("Min", versions=(6, 8, 12, 13))
def min_of_all(node: Node) -> NetworkStep:
    """The minimum as −max(−x_i)."""
    steps = [negated(node, step, f"negated{number}") for number, step in enumerate(_all(node))]
    return negated(node, node.apply(ElementWiseOp(type="max"), *steps, part="max"))


@reads("Mean", versions=(6, 8, 13))
def mean_of_all(node: Node) -> NetworkStep:
    count = node.inputs
    return node.apply(ElementWiseOp(type="sum", coefficients=(1 / count,) * count), *_all(node))


@reads("Neg", versions=(6, 13))
def negative(node: Node) -> NetworkStep:
    return negated(node, node.step())


def negated(node: Node, x: NetworkStep, part: str = "") -> NetworkStep:
    return node.apply(ElementWiseOp(type="sum", coefficients=(-1.0,)), x, part=part)


@reads("Add", versions=BINARY, attributes="broadcast axis")
def add(node: Node) -> NetworkStep:
    constant = node.constant_index()
    if constant is None:
        return node.apply(ElementWiseOp(type="sum"), *_all(node))
    x = node.step(1 - constant)
    return affine(node, x, None, Term.of(node, constant, x))


@reads("Sub", versions=BINARY, attributes="broadcast axis")
def subtract(node: Node) -> NetworkStep:
    constant = node.constant_index()
    if constant is None:
        return node.apply(ElementWiseOp(type="sum", coefficients=(1.0, -1.0)), *_all(node))
    x = node.step(1 - constant)
    term = Term.of(node, constant, x)
    if constant == 1:
        return affine(node, x, None, term.times(-1.0))
    return affine(node, x, Term.number(-1.0), term)


@reads("Mul", versions=BINARY, attributes="broadcast axis")
def multiply(node: Node) -> NetworkStep:
    """A product; with a constant, a Scale. If the Add of another constant follows, that constant becomes the bias."""
    constant = node.constant_index()
    if constant is None:
        return node.apply(ElementWiseOp(type="product"), *_all(node))
    x = node.step(1 - constant)
    return _factor_and_bias(node, x, Term.of(node, constant, x))


@reads("Div", versions=BINARY, attributes="broadcast axis", is_form=True)
def divide(node: Node) -> NetworkStep:
    constant = node.constant_index()
    if constant != 1:
        raise Refused("expected a divisor that is a constant, and a dividend that is not")
    x = node.step(0)
    term = Term.of(node, 1, x)
    if not term.array.all():
        raise Refused("expected a divisor other than 0. Received: a 0")
    return _factor_and_bias(node, x, Term(1 / term.array, term.fixed))


@reads_group("Scale", least=1)
def scale(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `save` writes for a Scale: Mul, optionally followed by Add."""
    first, x = nodes[0], nodes[0].step()
    factor, *bias = (Term.of(node, 1, x) for node in nodes)
    return _scale(first, x, factor, bias[0] if bias else None)


@reads_group("ElementWiseOp")
def element_wise(nodes: Sequence[Node]) -> NetworkStep:
    """The nodes that `save` writes for a sum or a product: a Mul by each coefficient, then Sum; or a chain of Muls."""
    if nodes[-1].proto.op_type == "Sum":
        coefficients = tuple(node.single(1, 1.0) for node in nodes[:-1])
        return nodes[-1].apply(ElementWiseOp(type="sum", coefficients=coefficients), *(n.step() for n in nodes[:-1]))
    factors = [nodes[0].step(0), *(node.step(1) for node in nodes)]
    return nodes[-1].apply(ElementWiseOp(type="product"), *factors)


@dataclass(frozen=True)
class Term:
    """A constant summand or factor."""

    array: Numbers
    fixed: bool
    """Whether the term is a number in the model's code instead of a parameter, and therefore is not trained."""

    @classmethod
    def of(cls, node: Node, index: int, x: NetworkStep) -> Term:
        """The constant input of a node whose other input is x."""
        return cls(_aligned(node, node.weights(index), len(x.shape)), node.is_literal(index))

    @classmethod
    def number(cls, value: float) -> Term:
        return cls(np.array(value, np.float32), True)

    @property
    def value(self) -> float:
        """The value of a term that is one number."""
        return shortest(self.array.reshape(-1)[0])

    def times(self, factor: float) -> Term:
        return Term(self.array * self.array.dtype.type(factor), self.fixed)

    def run(self, x: Shape) -> tuple[int, int]:
        """The range of axes of x along which the term varies: (first, last + 1). (1, 2) for one number."""
        try:
            fits = np.broadcast_shapes(self.array.shape, x) == x
        except ValueError:
            fits = False
        if not fits:
            raise Refused(f"expected a constant that is broadcast to {x}. Received: {self.array.shape}")
        offset = len(x) - self.array.ndim
        varying = [offset + axis for axis, size in enumerate(self.array.shape) if size != 1]
        if not varying:
            return 1, 2
        if varying[0] == 0:
            raise Refused(f"expected a constant that is the same for every example. Received: {self.array.shape}")
        return varying[0], varying[-1] + 1

    def along(self, x: Shape, first: int, last: int) -> Numbers:
        """The values of the term for the axes from `first` up to, but not including, `last`."""
        if math.prod(x[first:last]) > LARGEST_CONSTANT:
            raise Refused(f"expected a constant of at most {LARGEST_CONSTANT:,} elements. Received: {x[first:last]}")
        shape = (1,) * (len(x) - self.array.ndim) + self.array.shape
        return np.ascontiguousarray(np.broadcast_to(self.array.reshape(shape[first:last]), x[first:last]))


def _factor_and_bias(node: Node, x: NetworkStep, factor: Term) -> NetworkStep:
    """x multiplied by a factor. If the Add of a constant follows, the constant becomes the bias."""
    follower = node.follower("Add")
    constant = None if follower is None else follower.constant_index()
    bias = None
    if follower is not None and constant is not None and factor.array.size > 1:
        with contextlib.suppress(Refused):  # the fault is reported when the follower itself is read
            term = Term.of(follower, constant, x)
            if term.run(x.shape) == factor.run(x.shape) and term.fixed == factor.fixed:
                bias = term
                node.absorb(follower)
    return affine(node, x, factor, bias)


def affine(node: Node, x: NetworkStep, factor: Term | None, bias: Term | None, part: str = "") -> NetworkStep:
    """x · factor + bias: a coefficient if the factor is one number and there is no bias, else a Scale."""
    if factor is not None and bias is None and factor.array.size == 1 and factor.run(x.shape):
        return node.apply(ElementWiseOp(type="sum", coefficients=(factor.value,)), x, part=part)
    return _scale(node, x, Term.number(1.0) if factor is None else factor, bias, part)


def _scale(node: Node, x: NetworkStep, factor: Term, bias: Term | None, part: str = "") -> NetworkStep:
    if len(x.shape) < 2:
        raise Refused(f"expected an input of two dimensions or more. Received: {x.shape}")
    runs = [term.run(x.shape) for term in (factor, bias) if term is not None and term.run(x.shape) != (1, 2)]
    first, last = min((run[0] for run in runs), default=1), max((run[1] for run in runs), default=2)
    kernel = Scale(
        axis=first,
        number_of_axes=last - first,
        bias=bias is not None,
        weight_initialiser=Values(factor.along(x.shape, first, last)),
        weight_learning_rate_multiplier=0.0 if factor.fixed else 1.0,
        bias_learning_rate_multiplier=0.0 if bias is not None and bias.fixed else 1.0,
        bias_initialiser=Constant() if bias is None else Values(bias.along(x.shape, first, last)),
    )
    return node.apply(kernel, x, part=part)


def _all(node: Node) -> list[NetworkStep]:
    """All inputs of a node, broadcast to one shape."""
    return together(node, [node.step(index) for index in range(node.inputs)])


def together(node: Node, steps: list[NetworkStep]) -> list[NetworkStep]:
    """The steps, broadcast to one shape, but not along the examples."""
    if all(step.shape == steps[0].shape for step in steps):
        return steps
    try:
        shape = np.broadcast_shapes(*(step.shape for step in steps))
    except ValueError:
        shape = ()
    if any(len(step.shape) != len(shape) or step.shape[:1] != shape[:1] for step in steps):
        raise Refused(
            "expected inputs that agree in their first dimension, the examples, and in the number of dimensions. "
            f"Received: {', '.join(str(step.shape) for step in steps)}"
        )
    return [
        step if step.shape == shape else node.apply(Broadcast(shape=shape[1:]), step, part=f"input{number}")
        for number, step in enumerate(steps)
    ]


def _aligned(node: Node, array: Numbers, rank: int) -> Numbers:
    """The constant with trailing dimensions for broadcasting. Before version 7, the attribute axis defines its
    position."""
    if node.version >= 7 or not node.has("axis"):
        return array
    return array.reshape(*array.shape, *(1,) * (rank - node.integer("axis", 0) % rank - array.ndim))
