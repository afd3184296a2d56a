"""Wide residual networks: `python -m models.wide_resnet` trains one; `--help` lists the options.

S. Zagoruyko and N. Komodakis, Wide Residual Networks (arXiv:1605.07146, 2016): residual networks for CIFAR with
normalisation and ReLU before the convolutions, k times as many features, and fewer layers. Three stages of 16 k, 32 k
and 64 k features have (depth − 4) / 6 units of two 3×3 convolutions each; a 1×1 convolution without normalisation is
the shortcut where the number of features changes. WRN-16-4 has 2,748,890 parameters, WRN-28-10 36,479,194, and
36,536,884 with the 100 classes of CIFAR-100.

The schedule is the paper's (section 3): Nesterov's momentum, and a learning rate that decreases to a fifth after 60,
120 and 160 of 200 epochs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from crossbow import MSRA, Dataflow, DataflowNode, SolverConf
from crossbow.conf import is_integer, shown
from crossbow.ops import BatchNorm, Conv, DataTransform, Dropout, ElementWiseOp, InnerProduct, Pool, ReLU
from crossbow.scripts import Defaults, ModelScript
from crossbow.types import ConfigurationError
from models.images import add_augmentation, image_transform
from models.layers import add, classifier

FEATURES = (16, 32, 64)
"""Number of features of each stage, without the factor k."""


def wide_resnet(
    depth: int = 16,
    width: int = 4,
    *,
    dropout: float = 0.0,
    number_of_outputs: int = 10,
    transform: DataTransform | None = None,
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of any size; CIFAR's are 3×32×32.

    depth      number of convolutions, including the shortcuts, 6n + 4: 10, 16, 22, 28, 40, …
    width      the factor k of the features, ≥ 1.
    dropout    ratio of the dropout between the two convolutions of a unit, in [0, 1); 0 omits it. The paper tries 0.3.
    transform  preprocessing of the images, if any.

    Raises ConfigurationError for another depth or width.

    >>> [node.operator.name for node in wide_resnet(10, 1).subgraph.nodes][:5]
    ['conv', 'unit1-1-norm1', 'unit1-1-relu1', 'unit1-1-conv1', 'unit1-1-norm2']
    """
    if not is_integer(depth) or depth < 10 or depth % 6 != 4:
        raise ConfigurationError(f"depth must be 6n + 4, at least 10: 16, 22, 28, 40, …. Received: {shown(depth)}")
    if not is_integer(width) or width < 1:
        raise ConfigurationError(f"width must be an integer ≥ 1. Received: {shown(width)}")
    inputs = () if transform is None else (add("transform", transform),)
    first = x = _convolution("conv", FEATURES[0], 3, 1, *inputs)
    channels = FEATURES[0]
    for stage, features in enumerate(FEATURES, start=1):
        for unit in range(1, (depth - 4) // 6 + 1):
            stride = 2 if unit == 1 and stage > 1 else 1
            x = _unit(f"unit{stage}-{unit}", x, channels, features * width, stride, dropout)
            channels = features * width
    x = add("pool", Pool(method="average", global_pooling=True), _activation("norm", "relu", x))
    logits = add("ip", InnerProduct(number_of_outputs=number_of_outputs, weight_initialiser=MSRA()), x)
    return classifier(inputs[0] if inputs else first, logits)


def _unit(name: str, x: DataflowNode, channels: int, features: int, stride: int, dropout: float) -> DataflowNode:
    """A unit. A shortcut that changes the number of features reads the unit's first activation."""
    activated = _activation(f"{name}-norm1", f"{name}-relu1", x)
    y = _convolution(f"{name}-conv1", features, 3, stride, activated)
    y = _activation(f"{name}-norm2", f"{name}-relu2", y)
    if dropout:
        y = add(f"{name}-dropout", Dropout(ratio=dropout), y)
    y = _convolution(f"{name}-conv2", features, 3, 1, y)
    shortcut = x if channels == features else _convolution(f"{name}-shortcut", features, 1, stride, activated)
    return add(f"{name}-sum", ElementWiseOp(type="sum"), y, shortcut)


def _activation(norm: str, relu: str, x: DataflowNode) -> DataflowNode:
    return add(relu, ReLU(), add(norm, BatchNorm(), x))


def _convolution(name: str, outputs: int, size: int, stride: int, *inputs: DataflowNode) -> DataflowNode:
    kernel = Conv(
        number_of_outputs=outputs,
        kernel_size=size,
        stride=stride,
        padding=size // 2,
        bias=False,
        weight_initialiser=MSRA(),
    )
    return add(name, kernel, *inputs)


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--depth", type=int, metavar="N", default=16, help="convolutions, 6n + 4 (default: %(default)s)")
    group.add_argument(
        "--width", type=int, metavar="K", default=4, help="factor of the features, ≥ 1 (default: %(default)s)"
    )
    group.add_argument(
        "--dropout",
        type=float,
        metavar="P",
        default=0.0,
        help="ratio between the convolutions of a unit, in [0, 1) (default: 0, none)",
    )
    add_augmentation(group)


SCRIPT = ModelScript(
    name="wide_resnet",
    title="Trains a wide residual network (Zagoruyko and Komodakis, 2016: arXiv:1605.07146).",
    paper="arXiv:1605.07146",
    variants=(
        "",
        "--depth 28 --width 10",
        "--depth 28 --width 10 --dataset cifar100",
    ),
    build=lambda options: wide_resnet(
        options.depth,
        options.width,
        dropout=options.dropout,
        number_of_outputs=options.classes,
        transform=image_transform(options),
    ),
    defaults=Defaults(
        epochs={"cifar10": 200, "cifar100": 200, "cifar100_coarse": 200, "synthetic": 3},
        batch_size=128,
        solver=SolverConf(
            learning_rate=0.1,
            policy="multistep",
            gamma=0.2,
            step_values=(60, 120, 160),
            learning_rate_step_unit="epochs",
            momentum=0.9,
            momentum_method="nesterov",
            weight_decay=5e-4,
        ),
    ),
    add_options=_add_options,
    variant=lambda options: f"{options.depth}-{options.width}",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
