"""The data of the comparison, and the networks as crossbow's dataflows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crossbow import Constant, Dataflow, DataflowNode, Dataset, Gaussian, Operator, Phase, SubGraph
from crossbow.ops import Conv, Dropout, InnerProduct, Pool, ReLU, SoftMax, SoftMaxLoss
from crossbow.ops.kernel import Kernel

VARIANTS = {"original": 1_111_946, "caffe": 431_080}
"""The networks by name, with their number of parameters."""
CLASSES = 10
EXAMPLES = 60_000
"""As many as MNIST has."""


def dataset(seed: int = 0) -> Dataset:
    """MNIST's shape and type: uint8 (60,000, 1, 28, 28), 10 classes. Each image is its class's picture under noise.

    One label in ten is random, so that gradients do not fade to denormal numbers, which are slow to compute with.
    """
    generator = np.random.default_rng(seed)
    pictures = generator.integers(0, 128, (CLASSES, 1, 28, 28), dtype=np.uint8)
    labels: NDArray[np.int32] = generator.integers(0, CLASSES, EXAMPLES, dtype=np.int32)
    images = generator.integers(0, 128, (EXAMPLES, 1, 28, 28), dtype=np.uint8)
    images += pictures[labels]
    wrong = generator.random(EXAMPLES) < 0.1
    labels[wrong] = generator.integers(0, CLASSES, int(wrong.sum()), dtype=np.int32)
    return Dataset((images, labels), number_of_classes=CLASSES)


def dataflow(variant: str) -> Dataflow:
    """The training dataflow of a network."""
    first, *rest = [DataflowNode(Operator(name, kernel)) for name, kernel in _operators(variant)]
    last = first
    for node in rest:
        last = last.connect_to(node)
    return Dataflow(SubGraph(first)).set_phase(Phase.TRAIN)


def _operators(variant: str) -> list[tuple[str, Kernel]]:
    weights, bias = Gaussian(std=0.05), Constant(0.1)

    def conv(outputs: int) -> Conv:
        return Conv(number_of_outputs=outputs, kernel_size=5, weight_initialiser=weights, bias_initialiser=bias)

    def inner_product(outputs: int) -> InnerProduct:
        return InnerProduct(number_of_outputs=outputs, weight_initialiser=weights, bias_initialiser=bias)

    pool = Pool(method="max", kernel_size=2, stride=2)
    if variant == "original":
        body: list[tuple[str, Kernel]] = [
            ("conv1", conv(32)),
            ("relu1", ReLU()),
            ("pool1", pool),
            ("conv2", conv(64)),
            ("relu2", ReLU()),
            ("pool2", pool),
            ("ip1", inner_product(1024)),
            ("relu3", ReLU()),
            ("dropout", Dropout(ratio=0.4)),
        ]
    else:
        body = [
            ("conv1", conv(20)),
            ("pool1", pool),
            ("conv2", conv(50)),
            ("pool2", pool),
            ("ip1", inner_product(500)),
            ("relu1", ReLU()),
        ]
    return [*body, ("ip2", inner_product(CLASSES)), ("softmax", SoftMax()), ("loss", SoftMaxLoss())]
