"""Matrix factorisation of ratings: `python -m models.matrix_factorisation` trains it; `--help` lists the options.

Each user and each item has a vector with as many numbers as the rank, and the product of their vectors approximates the
rating of an item by a user: Y. Koren, R. Bell and C. Volinsky, Matrix Factorization Techniques for Recommender Systems
(IEEE Computer 42, 2009). 5,000 users, 5,000 items and rank 10 have 100,000 parameters.

Ports Crossbow's MatrixFactorisation.java (src/test/java/uk/ac/imperial/lsds/crossbow), with its sizes, regularisation,
batch and learning rate. The solver's step equals the one that the original's kernel takes by itself. Fixed from the
original: the initial numbers are drawn from N(0.5, 0.1). The original's are equal and stay equal, so that rank 10 is in
effect rank 1.

The synthetic ratings are products of random vectors of the same rank, whose numbers are uniform in [0, 1.1), plus noise
from N(0, 0.1); the mean rating is 3. `--dataset batch_files` reads other ratings: examples of shape [2], with the
numbers of user and item from 0, and labels of type float. A trained model predicts the ratings of pairs of user and
item, also as an ONNX model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crossbow import Dataflow, Dataset, Gaussian, Phase, SolverConf, SubGraph
from crossbow.ops import MatFact
from crossbow.scripts import Defaults, ModelScript
from crossbow.scripts.data_sources import DataSource
from crossbow.scripts.values import add_sizes, number
from models.layers import add

LARGEST, NOISE = 1.1, 0.1
"""Upper bound of the numbers in a vector, and standard deviation of the noise, of the synthetic ratings."""


def matrix_factorisation(
    users: int = 5000, items: int = 5000, *, rank: int = 10, regularisation: float = 0.1
) -> Dataflow:
    """The training dataflow, for examples (N, 2), the numbers of user and item, with ratings (N,) as labels.

    regularisation  λ of the loss Σ e² + λ (|u|² + |v|²).

    Raises ConfigurationError unless all sizes are ≥ 1 and regularisation is ≥ 0.

    >>> matrix_factorisation(rank=2).graph[0].kernel.latents
    2
    """
    start = Gaussian(mean=0.5, std=0.1)
    kernel = MatFact(
        rows=users,
        columns=items,
        latents=rank,
        regularisation=regularisation,
        users_initialiser=start,
        items_initialiser=start,
    )
    return Dataflow(SubGraph(add("factorisation", kernel))).set_phase(Phase.TRAIN)


def ratings(users: int, items: int, *, rank: int, training: int, check: int, seed: int = 0) -> Dataset:
    """Synthetic ratings: users and items are drawn with equal probability. The same seed gives the same data set."""
    generator = np.random.default_rng(seed)
    of_users, of_items = (generator.uniform(0, LARGEST, (count, rank)).astype(np.float32) for count in (users, items))

    def draw(count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        pairs = np.stack([generator.integers(0, users, count), generator.integers(0, items, count)], axis=1)
        products = np.einsum("nr,nr->n", of_users[pairs[:, 0]], of_items[pairs[:, 1]])
        noise = NOISE * generator.standard_normal(count, np.float32)
        return pairs.astype(np.float32), products + noise

    return Dataset(draw(training), draw(check))


def _synthetic(options: argparse.Namespace, source: DataSource) -> Dataset:
    return ratings(options.users, options.items, rank=options.rank, training=source.training, check=source.check)


def _add_options(group: argparse._ArgumentGroup) -> None:
    add_sizes(group, ("users", 5000, "users"), ("items", 5000, "items"), ("rank", 10, "numbers a vector"))
    group.add_argument(
        "--penalty",
        type=number(0, np.inf),
        metavar="L",
        default=0.1,
        help="factor of the squares of the vectors in the loss, ≥ 0 (default: %(default)s)",
    )


SCRIPT = ModelScript(
    name="matrix_factorisation",
    title="Trains a matrix factorisation of ratings (Koren et al., IEEE Computer 42, 2009).",
    paper="IEEE Computer 42, 2009",
    build=lambda options: matrix_factorisation(
        options.users, options.items, rank=options.rank, regularisation=options.penalty
    ),
    defaults=Defaults(
        epochs={"synthetic": 10},
        batch_size=4096,
        solver=SolverConf(learning_rate=1e-4),
        image_shape=(2,),
        number_of_classes=None,
        examples="ratings",
        training=637 * 4096,
        check=65536,
    ),
    add_options=_add_options,
    variant=lambda options: f"{options.users:,}×{options.items:,}, rank {options.rank}",
    synthetic=_synthetic,
)
"""The number of training examples is that of the original between two averages: 637 batches of 4,096 ratings."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
