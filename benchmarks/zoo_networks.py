"""All networks of the zoo as measured networks, by the command that trains them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from benchmarks.networks import NETWORKS, Network
from benchmarks.torch_network import NoEquivalentError, torch_network
from crossbow.scripts import ModelDescription, ModelScript

LARGE = 128
"""Minimum height of large images, of which a batch has only a few."""
EXAMPLES, LARGE_EXAMPLES, RATINGS = 4096, 256, 2**18
"""Number of training examples: small images, large images, ratings."""


def network_named(name: str) -> Network:
    """A network of `NETWORKS` by its name, or of the zoo by its command, such as "python -m models.resnet"."""
    if name in NETWORKS:
        return NETWORKS[name]
    _, _, module, *options = name.split()
    return zoo_network(module, options)


def zoo_network(module: str, options: Sequence[str]) -> Network:
    """The network that a script trains with these options."""
    script = importlib.import_module(module).SCRIPT
    assert isinstance(script, ModelScript)
    described = script.describe(options)
    shape = described.input_shape
    images = len(shape) == 3
    examples = LARGE_EXAMPLES if is_large(described) else EXAMPLES if script.defaults.number_of_classes else RATINGS
    return Network(
        parameters=described.parameters,
        image_shape=shape,
        examples=examples,
        build=lambda: script.dataflow(options),
        torch=lambda: torch_network(script.dataflow(options), shape),
        batches=(),
        targets={},
        data=None if images else lambda: script.synthetic_data(options, training=examples, check=1),
    )


def is_large(described: ModelDescription) -> bool:
    """Whether a network is for large images."""
    return len(described.input_shape) == 3 and described.input_shape[1] >= LARGE


def torch_problem(described: ModelDescription) -> str:
    """The reason why PyTorch cannot compute the same as a network of the zoo; empty if it can."""
    import torch

    try:
        with torch.device("meta"):  # allocates no memory
            network_named(described.command).torch()
    except NoEquivalentError as error:
        return str(error)
    return ""
