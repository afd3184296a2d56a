"""The option --top-k: a second metric of a script's network."""

from __future__ import annotations

import argparse
from dataclasses import replace

from crossbow import Dataflow, DataflowNode, Operator, SubGraph
from crossbow.ops import Accuracy
from crossbow.scripts.values import integer
from crossbow.types import ConfigurationError


def add_top_k(group: argparse._ArgumentGroup) -> None:
    """Add the option to a parser's group."""
    group.add_argument(
        "--top-k",
        type=integer(2),
        metavar="K",
        help="also report the fraction of test examples whose label is among the K most probable classes, as top-K "
        "(default: none)",
    )


def with_top_k(dataflow: Dataflow, k: int) -> Dataflow:
    """The dataflow with another metric, "top-K", that reads the same probabilities as its accuracy. The nodes of the
    given dataflow are used. Raises ConfigurationError if there is no accuracy."""
    for node in dataflow.subgraph.nodes:
        kernel = node.operator.kernel
        if isinstance(kernel, Accuracy):
            node.previous[0].connect_to(DataflowNode(Operator(f"top-{k}", replace(kernel, top_k=k))))
            return Dataflow(SubGraph(dataflow.subgraph.head)).set_phase(dataflow.phase)
    raise ConfigurationError(f"--top-k: expected a network with an accuracy. Received: one without, and --top-k {k}")
