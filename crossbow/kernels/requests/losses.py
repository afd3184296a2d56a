"""Requests of losses and metrics: scalars of shape (1,), over only the first state[EXAMPLES] examples.

The prediction of a factorisation, whose loss has the variables of the network, has a number for each example.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossbow.kernels.interface import Variable
from crossbow.kernels.requests.request import Request, Roles
from crossbow.types import Tensor

_EXAMPLES: Roles = ("input0", "labels", "state")
_FACTORS: Roles = (*_EXAMPLES, "users", "items")

NOTHING_IGNORED = -(2**40)
"""Label that stands for "no label is ignored": no 32-bit label is equal to it."""


@dataclass(frozen=True)
class Targets:
    """The targets of a cross-entropy: a label y stands for the target
    t[c] = w[c] · ((1 − smoothing) · [c = y] + smoothing / classes) of each class c.

    w: the class weights; None is 1 for every class.
    """

    smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None

    def weights(self, classes: int) -> NDArray[np.float64]:
        """w, for this number of classes."""
        return np.ones(classes) if self.class_weights is None else np.array(self.class_weights, np.float64)


def ignored_or_none(label: int | None) -> int:
    """The ignored label as a number for compiled kernels."""
    return NOTHING_IGNORED if label is None else label


@dataclass(frozen=True)
class SoftmaxLossForward(Request):
    """output (1,) = the cross-entropy of the probabilities p, input0, or of the logits x whose softmax is p.

    With the logits: Σ (log Σ exp x − x[label]) / normaliser, which is finite even if p is rounded to 0. With
    probabilities alone: Σ −log max(p[label], tiny) / normaliser.

    p: (N, classes, …); labels: (N, …), or (N,) if p has one row of classes per example. normalisation: "batch" divides
    by the number of examples, "full" by the number of their labels, "valid" by the number of labels that are not
    ignored (at least 1), "none" by 1.

    targets: with these, the loss of a label is Σ t[c] · −log p[c], and "valid" divides by the sum of the labels' class
    weights, if it is not 0. None is a target of 1 for the label.
    """

    p: Tensor
    labels: Tensor
    ignored_label: int | None
    normalisation: str
    logits: Tensor | None = None
    targets: Targets | None = None

    writes = ("output",)

    @property
    def label(self) -> str:
        return (
            f"{self.name}{'' if self.logits is None else ' of logits'}{'' if self.targets is None else ' and targets'}"
        )

    @property
    def reads(self) -> Roles:
        return _EXAMPLES if self.logits is None else ("logits", *_EXAMPLES[1:])


@dataclass(frozen=True)
class SoftmaxLossBackward(Request):
    """input_gradient = (p − y) / normaliser with respect to the logits; with targets, (p · Σ t[c] − t) / normaliser."""

    p: Tensor
    labels: Tensor
    dx: Tensor
    ignored_label: int | None
    normalisation: str
    targets: Targets | None = None

    reads, writes = _EXAMPLES, ("input_gradient",)


@dataclass(frozen=True)
class EuclideanLossForward(Request):
    """output (1,) = Σ (x − labels)² / (2 · examples)."""

    x: Tensor
    labels: Tensor

    reads, writes = _EXAMPLES, ("output",)


@dataclass(frozen=True)
class EuclideanLossBackward(Request):
    """input_gradient = (x − labels) / examples."""

    x: Tensor
    labels: Tensor
    dx: Tensor

    reads, writes = _EXAMPLES, ("input_gradient",)


@dataclass(frozen=True)
class SigmoidLossForward(Request):
    """output (1,) = Σ (max(x, 0) − t · x + log(1 + exp(−|x|))) / normaliser, with labels t.

    normalisation: "full" divides by the number of labels, "batch" by that of examples, "none" by 1.
    """

    x: Tensor
    labels: Tensor
    normalisation: str

    reads, writes = _EXAMPLES, ("output",)


@dataclass(frozen=True)
class SigmoidLossBackward(Request):
    """input_gradient = (1 / (1 + exp(−x)) − t) / normaliser."""

    x: Tensor
    labels: Tensor
    dx: Tensor
    normalisation: str

    reads, writes = _EXAMPLES, ("input_gradient",)


@dataclass(frozen=True)
class LabelAccuracy(Request):
    """output (1,) = the fraction of labels that are among the top_k largest classes.

    A label is among them if fewer than `top_k` classes have a strictly larger value, or an equal value and a smaller
    index.
    """

    name = "accuracy"

    p: Tensor
    labels: Tensor
    top_k: int
    ignored_label: int | None

    reads, writes = _EXAMPLES, ("output",)


@dataclass(frozen=True)
class FactorisationForward(Request):
    """output (1,) = Σ (label − u · v)² + regularisation · (|u|² + |v|²), where u and v are the rows of users and items
    with an example's two indices. x: (N, 2); labels: (N,)."""

    x: Tensor
    labels: Tensor
    users: Variable
    items: Variable
    regularisation: float

    reads, writes = _FACTORS, ("output",)


@dataclass(frozen=True)
class FactorisationBackward(Request):
    """The gradients of a factorisation's variables."""

    x: Tensor
    labels: Tensor
    users: Variable
    items: Variable
    regularisation: float

    reads, writes = _FACTORS, ("users_gradient", "items_gradient")


@dataclass(frozen=True)
class FactorisationPrediction(Request):
    """output (N,) = u · v, where u and v are the rows of users and items with an example's two indices; 0 for the
    padding of a batch. x: (N, 2)."""

    x: Tensor
    users: Variable
    items: Variable
    y: Tensor

    reads, writes = ("input0", "state", "users", "items"), ("output",)
