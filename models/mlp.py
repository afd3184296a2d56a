"""A multilayer perceptron: `python -m models.mlp` trains it; `--help` lists the options.

Inner products, with an activation after each except the last: 784-2048-4096-1024-10 with sigmoids, 14,205,962
parameters.

Ports Crossbow's dlbench/MLP.java (src/test/java/uk/ac/imperial/lsds/crossbow), which is named after the benchmark of S.
Shi, Q. Wang, P. Xu and X. Chu, Benchmarking State-of-the-Art Deep Learning Software Tools (arXiv:1608.07249, 2016).
Fixed from the original: the initial weights, which are all 0 there, are Xavier's with the average fan, times 4 before a
sigmoid (X. Glorot and Y. Bengio, Understanding the Difficulty of Training Deep Feedforward Neural Networks, AISTATS
2010).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from crossbow import Dataflow, Sequential, SolverConf, Xavier
from crossbow.conf import is_integer, shown
from crossbow.ops import InnerProduct, ReLU
from crossbow.ops.kernel import Kernel
from crossbow.scripts import Defaults, ModelScript
from crossbow.types import ConfigurationError
from models.layers import classifier

HIDDEN = (2048, 4096, 1024)
ACTIVATIONS = {"sigmoid": 4.0, "relu": 2**0.5, "tanh": 1.0}
"""Activations, with the gains of the initial weights before them, which compensate for the slopes (that of a sigmoid at
0 is 1/4)."""


def mlp(hidden: Sequence[int] = HIDDEN, *, activation: str = "sigmoid", number_of_outputs: int = 10) -> Dataflow:
    """The training dataflow, for examples (N, …) of any shape; MNIST's are (N, 1, 28, 28).

    hidden      outputs of the inner products before the last, each ≥ 1; if it is empty, the model is linear.
    activation  "sigmoid", "relu" or "tanh".

    Raises ConfigurationError for an invalid size, and for another activation.

    >>> [node.operator.name for node in mlp((512,)).subgraph.nodes]
    ['ip1', 'activation1', 'ip2', 'softmax', 'loss', 'accuracy']
    """
    if not all(is_integer(width) and width >= 1 for width in hidden):
        raise ConfigurationError(f"hidden must be integers ≥ 1. Received: {shown(hidden)}")
    if activation not in ACTIVATIONS:
        raise ConfigurationError(f"activation must be one of {', '.join(ACTIVATIONS)}. Received: {shown(activation)}")
    layers: list[tuple[str, Kernel]] = []
    weights = Xavier(norm="average", gain=ACTIVATIONS[activation])
    for number, width in enumerate(hidden, start=1):
        layers += [
            (f"ip{number}", InnerProduct(number_of_outputs=width, weight_initialiser=weights)),
            (f"activation{number}", ReLU(mode=activation)),
        ]
    last = InnerProduct(number_of_outputs=number_of_outputs, weight_initialiser=Xavier(norm="average"))
    network = Sequential(*layers, (f"ip{len(hidden) + 1}", last))
    return classifier(network.head, network.tail)


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in text.split(","))
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"expected integers ≥ 1, as 512,512. Received: {text!r}")
    return sizes


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--hidden",
        type=_sizes,
        metavar="N,N,…",
        default=HIDDEN,
        help=f"outputs of the inner products before the last (default: {','.join(map(str, HIDDEN))})",
    )
    group.add_argument(
        "--activation",
        choices=ACTIVATIONS,
        default=next(iter(ACTIVATIONS)),
        help="after each inner product but the last (default: %(default)s)",
    )


SCRIPT = ModelScript(
    name="mlp",
    title="Trains a multilayer perceptron on handwritten digits (Shi et al., 2016: arXiv:1608.07249).",
    paper="arXiv:1608.07249",
    variants=(
        "",
        "--hidden 512,512",
    ),
    build=lambda options: mlp(options.hidden, activation=options.activation, number_of_outputs=options.classes),
    defaults=Defaults(
        epochs={"mnist": 20, "fashion_mnist": 20, "digits": 30, "synthetic": 3},
        batch_size=64,
        solver=SolverConf(learning_rate=0.1, momentum=0.9),
        image_shape=(1, 28, 28),
    ),
    add_options=_add_options,
    variant=lambda options: "-".join(map(str, options.hidden)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
