"""Matrix factorisation: a sparse matrix of ratings as a product of two thin ones."""

from __future__ import annotations

from typing import ClassVar

from crossbow.conf import (
    SolverConf,
    check_integer,
    check_learning_rate_multipliers,
    check_number,
    configuration,
    refuse,
)
from crossbow.kernels.interface import PreparedKernel
from crossbow.ops.initialiser import Gaussian, Initialiser, check_initialisers
from crossbow.ops.kernel import Gradient, Kernel, Site, VariableSpec
from crossbow.types import Array, LabelRange, Shape

LARGEST_INDEX = 2**24
"""Up to here float32 counts without a gap."""


@configuration
class MatFact(Kernel):
    """Σ_n e² + λ (|u|² + |v|²), where e = rating − u · v, u = users[x[n, 0]] and v = items[x[n, 1]].

    x: (N, 2), the user's and the item's number as floating-point numbers; labels: the ratings, floating point, (N,);
    the loss, a sum over the real examples of the batch: (1,). users: (rows, latents); items: (columns, latents);
    λ = `regularisation`. A number that is no row of `users` or `items` ends the task with a DataError.

    Without `learning_rate` it is a loss like any other: its gradient, Σ_n 2 (λ u − e v) for the row of a user and
    Σ_n 2 (λ v − e u) for that of an item, goes to the solver. With `learning_rate` η the update is the original's,
    u ← u + η (2 e v − 2 λ u) and likewise v, both from the values before the batch, whatever the context's SolverConf
    says; the operator must then be the only one with variables. That update is a solver's step with rate η, without
    momentum and decay, so it takes part in averaging as every other, and the multipliers are of η.

    Ports MatFact.java and matfact.cu. Fixed from the original: the initial values can be chosen (they were forced to
    1, and latents that start equal stay equal, so that only one was learnt); the reported loss has the λ terms whose
    gradient is followed.
    """

    takes_labels: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True
    takes_indices: ClassVar[bool] = True

    rows: int
    columns: int
    latents: int
    regularisation: float = 0.1
    learning_rate: float | None = None
    users_initialiser: Initialiser = Gaussian(std=0.1)
    items_initialiser: Initialiser = Gaussian(std=0.1)
    users_learning_rate_multiplier: float = 1.0
    """≥ 0; times the learning rate, the solver's or one's own. 0 keeps the users as they are."""
    items_learning_rate_multiplier: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            check_integer(self, name, 1)
            if getattr(self, name) > LARGEST_INDEX:
                raise refuse(self, name, getattr(self, name), f"at most {LARGEST_INDEX}, where float32 counts on")
        check_integer(self, "latents", 1)
        check_number(self, "regularisation", minimum=0)
        check_number(self, "learning_rate", minimum=0, above=True, optional=True)
        check_learning_rate_multipliers(self)
        check_initialisers(self)

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != 2 or x[1] != 2:
            raise ValueError(f"expected an input of shape (N, 2), a user and an item each. Received: {x}")
        return (1,)

    def variables(self, *inputs: Shape) -> tuple[VariableSpec, ...]:
        users, items = (self.rows, self.latents), (self.columns, self.latents)
        return (
            VariableSpec("users", users, self.users_initialiser, self.users_learning_rate_multiplier),
            VariableSpec("items", items, self.items_initialiser, self.items_learning_rate_multiplier),
        )

    def check_labels(self, labels: LabelRange, *inputs: Shape) -> None:
        if labels.classes or labels.shape != inputs[0][:1]:
            raise ValueError(f"expected floating-point ratings of shape {inputs[0][:1]}. Received: {labels}")

    def own_solver(self) -> SolverConf | None:
        return None if self.learning_rate is None else SolverConf(learning_rate=self.learning_rate)

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        assert site.labels is not None
        (x,), users, items = site.inputs, site.variables["users"], site.variables["items"]
        return (site.library.factorisation_forward(x, site.labels, users, items, self.regularisation),)

    def counts(self, labels: Array) -> float:
        return 1.0  # the sum over a set is the sum over its batches

    def gradient(self, input: int = 0) -> Gradient:
        return MatFactGradient(input=input)


@configuration
class MatFactGradient(Gradient):
    """Gradients of a `MatFact`'s variables: 0 in the rows that no example of the batch names. Indices have none."""

    def prepare(self, peer: Kernel, site: Site) -> tuple[PreparedKernel, ...]:
        assert isinstance(peer, MatFact)
        assert site.labels is not None
        (x,), users, items = site.inputs, site.variables["users"], site.variables["items"]
        return (site.library.factorisation_backward(x, site.labels, users, items, peer.regularisation),)
