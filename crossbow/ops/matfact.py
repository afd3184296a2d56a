"""Matrix factorisation: approximation of a sparse matrix of ratings by a product of two thin matrices."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import check_integer, check_number, configuration
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import FactorisationBackward, FactorisationForward, FactorisationPrediction
from crossbow.ops.embedding import check_rows
from crossbow.ops.initialiser import Gaussian, Initialiser
from crossbow.ops.kernel import Gradient, Kernel, Site, VariableSpec
from crossbow.ops.weighted import check_variables
from crossbow.solver import SolverConf
from crossbow.types import Array, LabelRange, Shape


@configuration
class MatFact(Kernel):
    """Loss of a matrix factorisation: Σ_n e² + λ (|u|² + |v|²).

    Here e = rating − u · v, u = users[x[n, 0]] and v = items[x[n, 1]]. x: (N, 2), the indices of user and item as
    floating-point numbers; labels: the ratings, floating point, (N,); output: (1,), a sum over the real examples of
    the batch. users: (rows, latents); items: (columns, latents); λ = `regularisation`. On the CPU, an index without a
    row in `users` or `items` raises a DataError; on a GPU, the loss is NaN.

    Without `learning_rate`, it is a loss like any other: its gradient, Σ_n 2 (λ u − e v) for the row of a user and
    Σ_n 2 (λ v − e u) for the row of an item, goes to the solver. With `learning_rate` η, the update is the original's,
    u ← u + η (2 e v − 2 λ u) and likewise for v, both from the values before the batch, independent of the context's
    SolverConf; no other operator may then have variables. This update is a solver's step with rate η and without
    momentum and weight decay, so it is averaged like any other step, and the multipliers are factors of η.

    Use it for collaborative filtering. Its input must be the batch of indices. A trained network predicts the ratings
    u · v, as a `MatFactPrediction` with the same users and items.

    Ports MatFact.java and matfact.cu. Fixed from the original: the initial values can be chosen (they were always 1,
    and latents with equal initial values stay equal, so that only one was learnt); the reported loss includes the λ
    terms, whose gradients are part of the update.
    """

    takes_labels: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True
    takes_indices: ClassVar[bool] = True

    rows: int
    """Number of users, ≥ 1."""
    columns: int
    """Number of items, ≥ 1."""
    latents: int
    """Number of latent features, ≥ 1."""
    regularisation: float = 0.1
    """λ, ≥ 0."""
    learning_rate: float | None = None
    """η of the operator's own update, > 0; None leaves the update to the context's solver."""
    users_initialiser: Initialiser = Gaussian(std=0.1)
    items_initialiser: Initialiser = Gaussian(std=0.1)
    users_learning_rate_multiplier: float = 1.0
    """Factor of the learning rate (η or the solver's) for the users, ≥ 0; 0 freezes them."""
    items_learning_rate_multiplier: float = 1.0
    """Factor of the learning rate (η or the solver's) for the items, ≥ 0; 0 freezes them."""

    def __post_init__(self) -> None:
        check_rows(self, "rows")
        check_rows(self, "columns")
        check_integer(self, "latents", 1)
        check_number(self, "regularisation", minimum=0)
        check_number(self, "learning_rate", minimum=0, above=True, optional=True)
        check_variables(self)

    def output_shape(self, *inputs: Shape) -> Shape:
        _check_pairs(inputs[0])
        return (1,)

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        users, items = (self.rows, self.latents), (self.columns, self.latents)
        return (
            VariableSpec("users", users, self.users_initialiser, self.users_learning_rate_multiplier),
            VariableSpec("items", items, self.items_initialiser, self.items_learning_rate_multiplier),
        )

    def prediction(self) -> MatFactPrediction:
        return MatFactPrediction(
            rows=self.rows,
            columns=self.columns,
            latents=self.latents,
            users_initialiser=self.users_initialiser,
            items_initialiser=self.items_initialiser,
        )

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        if labels.classes or labels.shape != inputs[0][:1]:
            raise ValueError(f"expected floating-point ratings of shape {inputs[0][:1]}. Received: {labels}")

    def own_solver(self) -> SolverConf | None:
        return None if self.learning_rate is None else SolverConf(learning_rate=self.learning_rate)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        assert site.labels is not None
        (x,), users, items = site.inputs, site.variables["users"], site.variables["items"]
        return (site.library.prepare(FactorisationForward(x, site.labels, users, items, self.regularisation)),)

    def counts(self, labels: Array) -> float:
        return 1.0  # the sum over a set is the sum over its batches

    def gradient(self, input: int = 0) -> Gradient:
        return MatFactGradient(input=input)


@configuration
class MatFactGradient(Gradient):
    """Gradients of a `MatFact`'s variables: 0 in rows that the batch does not refer to. Indices have no gradient."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, MatFact)
        assert site.labels is not None
        (x,), users, items = site.inputs, site.variables["users"], site.variables["items"]
        return (site.library.prepare(FactorisationBackward(x, site.labels, users, items, peer.regularisation)),)


@configuration
class MatFactPrediction(Kernel):
    """y[n] = users[x[n, 0]] · items[x[n, 1]], the rating that a matrix factorisation predicts.

    x: (N, 2), the indices of user and item as floating-point numbers; y: (N,). users: (rows, latents); items:
    (columns, latents). On the CPU, an index without a row raises a DataError; on a GPU, its output is NaN. The operator
    has no gradient.

    A network whose loss is a `MatFact` predicts with this operator, in `ExecutionContext.predict` and as an ONNX model,
    so there is seldom a need to connect it.

    The original has no such operator.

    See also: `MatFact`.
    """

    takes_indices: ClassVar[bool] = True

    rows: int
    """Number of users, ≥ 1."""
    columns: int
    """Number of items, ≥ 1."""
    latents: int
    """Number of latent features, ≥ 1."""
    users_initialiser: Initialiser = Gaussian(std=0.1)
    items_initialiser: Initialiser = Gaussian(std=0.1)

    def __post_init__(self) -> None:
        check_rows(self, "rows")
        check_rows(self, "columns")
        check_integer(self, "latents", 1)
        check_variables(self)

    @property
    def is_frozen(self) -> bool:
        return True

    def output_shape(self, *inputs: Shape) -> Shape:
        _check_pairs(inputs[0])
        return inputs[0][:1]

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        return (
            VariableSpec("users", (self.rows, self.latents), self.users_initialiser, 0.0),
            VariableSpec("items", (self.columns, self.latents), self.items_initialiser, 0.0),
        )

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), users, items = site.inputs, site.variables["users"], site.variables["items"]
        return (site.library.prepare(FactorisationPrediction(x, users, items, site.output)),)


def _check_pairs(x: Shape) -> None:
    """Raise ValueError unless this is the shape of pairs of indices."""
    if len(x) != 2 or x[1] != 2:
        raise ValueError(f"expected an input of shape (N, 2), with pairs of user and item. Received: {x}")
