"""Random small networks, as a hypothesis strategy."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from crossbow import DataflowNode
from crossbow.ops import (
    LRN,
    Accuracy,
    BatchNorm,
    Conv,
    Dropout,
    ElementWiseOp,
    Gaussian,
    InnerProduct,
    Kernel,
    Noop,
    Pool,
    ReLU,
    Scale,
    SoftMax,
    SoftMaxLoss,
)
from tests.dataflow.networks import node

BATCH = (3, 2, 4, 4)
"""Every activation has this shape, so that any two can be added."""
CLASSES = 3
_WINDOW = {"kernel_size": 3, "stride": 1, "padding": 1}

KERNELS: dict[str, Callable[[], Kernel]] = {
    "conv": lambda: Conv(
        number_of_outputs=2,
        kernel_size=3,
        padding=1,
        weight_initialiser=Gaussian(std=0.4),
        bias_initialiser=Gaussian(std=0.4),
    ),
    "relu": ReLU,
    "leaky": lambda: ReLU(negative_slope=0.25),
    "tanh": lambda: ReLU(mode="tanh"),
    "dropout": lambda: Dropout(ratio=0.3),
    "max": lambda: Pool(method="max", **_WINDOW),
    "average": lambda: Pool(method="average", **_WINDOW),
    "softmax": SoftMax,
    "noop": Noop,
    "lrn": lambda: LRN(size=3),
    "norm": lambda: BatchNorm(weight_initialiser=Gaussian(std=0.5), bias_initialiser=Gaussian(std=0.5)),
    "scale": lambda: Scale(bias=True, weight_initialiser=Gaussian(std=0.5), bias_initialiser=Gaussian(std=0.5)),
    "sum": lambda: ElementWiseOp(coefficients=None),
    "product": lambda: ElementWiseOp(type="product"),
    "largest": lambda: ElementWiseOp(type="max"),
}
"""Operators that keep the shape; "sum", "product" and "largest" take two to four inputs."""
CHAINS: dict[str, tuple[str, ...]] = {
    "conv-relu": ("conv", "relu"),
    "conv-norm-relu": ("conv", "norm", "relu"),
    "sum-relu": ("sum", "relu"),
    "conv-relu-max": ("conv", "relu", "max"),
    "norm-relu-max": ("norm", "relu", "max"),
    "tanh-max": ("tanh", "max"),
    "noop-relu-noop": ("noop", "relu", "noop"),
}
"""What the compiler looks for. Others may read what stands in the middle of a chain, or not."""


@st.composite
def networks(draw: st.DrawFn, *, kinds: tuple[str, ...] = (*KERNELS, *CHAINS), most: int = 10) -> DataflowNode:
    """The head of a network that ends with a loss: a random graph, whose loose ends are added up for the classifier.

    Operators' names differ and tell what they are. Some operators may read what nothing else needs; an accuracy may
    stand beside the loss.
    """
    head = node("conv0", KERNELS["conv"]())
    nodes = [head]
    for number in range(1, draw(st.integers(1, most)) + 1):
        drawn = draw(st.sampled_from(kinds))
        kind, *others = CHAINS.get(drawn, (drawn,))
        if kind in ("sum", "product", "largest"):
            sources = draw(st.lists(st.integers(0, len(nodes) - 1), min_size=2, max_size=4))
            factors = st.sampled_from([1.0, -0.5, 0.5, 2.0])
            weighted = kind == "sum" and draw(st.booleans())
            coefficients = tuple(draw(factors) for _ in sources) if weighted else None
            made = node(f"{kind}{number}", ElementWiseOp(coefficients=coefficients) if weighted else KERNELS[kind]())
        else:
            sources = [draw(st.integers(0, len(nodes) - 1))]
            made = node(f"{kind}{number}", KERNELS[kind]())
        for source in sources:
            nodes[source].connect_to(made)
        chained = [made]
        for other in others:
            chained.append(chained[-1].connect_to(node(f"{other}{number}.{len(chained)}", KERNELS[other]())))
        nodes.extend(chained if draw(st.booleans()) else chained[-1:])
    ends = [end for end in nodes if not end.next]
    total = ends[0]
    if len(ends) > 1:
        total = node("total", ElementWiseOp())
        for end in ends:
            end.connect_to(total)
    for number in range(draw(st.integers(0, 2))):
        loose = node(f"loose{number}", KERNELS[draw(st.sampled_from(["relu", "max", "dropout"]))]())
        nodes[draw(st.integers(0, len(nodes) - 1))].connect_to(loose)
    gaussian = Gaussian(std=0.3)
    classifier = InnerProduct(number_of_outputs=CLASSES, weight_initialiser=gaussian, bias_initialiser=gaussian)
    softmax = node("classes", SoftMax())
    total.connect_to(node("classifier", classifier)).connect_to(softmax).connect_to(node("loss", SoftMaxLoss()))
    if draw(st.booleans()):
        softmax.connect_to(node("accuracy", Accuracy()))
    return head
