"""GoogLeNet: nine Inception modules. `python -m models.googlenet` trains it; `--help` lists the options.

C. Szegedy, W. Liu, Y. Jia, P. Sermanet, S. Reed, D. Anguelov, D. Erhan, V. Vanhoucke and A. Rabinovich, Going Deeper
with Convolutions (arXiv:1409.4842, 2014), table 1, as in Caffe's models/bvlc_googlenet: a module joins 1×1, 3×3 and 5×5
convolutions and a max pooling; local response normalisation follows the first convolutions. 6,998,552 parameters with
1,000 classes of images 224×224.

With `auxiliary`, two more classifiers read the modules 4a and 4d, and their losses are added with a weight of 0.3. They
are part of training only, and have 6,379,728 parameters; the total is 13,378,280.

The original contains it only as one of the convnet benchmarks (src/test/java/uk/ac/imperial/lsds/crossbow/convnet), and
does not train it. Batch, learning rate and weight decay are as in Caffe's solver; the learning rate decreases by 4 %
every 8 epochs, as in the paper.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from crossbow import Constant, Dataflow, DataflowNode, SolverConf, Xavier
from crossbow.ops import LRN, Concat, Conv, DataTransform, Dropout, InnerProduct, Pool, ReLU
from crossbow.scripts import Defaults, ModelScript
from models.images import add_augmentation, image_transform
from models.layers import add, auxiliary_classifier, classifier

MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Outputs of a module's 1×1 convolution, 3×3 reduction and convolution, 5×5 reduction and convolution, and projection
after the pooling."""
POOLED = ("3b", "4e")
"""Modules that are followed by a max pooling."""
AUXILIARY = {"4a": 1, "4d": 2}
"""Modules that the auxiliary classifiers read, with the classifiers' numbers."""
AUXILIARY_WEIGHT = 0.3


def googlenet(
    *,
    auxiliary: bool = False,
    dropout: float = 0.4,
    number_of_outputs: int = 1000,
    transform: DataTransform | None = None,
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of any size; ImageNet's are 3×224×224.

    auxiliary  whether to add the auxiliary classifiers; images must then be at least 65×65. The number of parameters
               above is for images of 224×224.
    dropout    ratio of the dropout before the last inner product, in [0, 1); 0 omits all dropout, including that of the
               auxiliary classifiers, whose ratio is 0.7.
    transform  preprocessing of the images, if any.

    >>> [node.operator.name for node in googlenet().subgraph.nodes][:8]
    ['conv1', 'conv1-relu', 'pool1', 'norm1', 'conv2-reduce', 'conv2-reduce-relu', 'conv2', 'conv2-relu']
    """
    inputs = () if transform is None else (add("transform", transform),)
    first, x = _convolution("conv1", 64, 7, *inputs, stride=2)
    x = add("norm1", _norm(), add("pool1", _max_pool(), x))
    x = _convolution("conv2-reduce", 64, 1, x)[1]
    x = add("norm2", _norm(), _convolution("conv2", 192, 3, x)[1])
    x = add("pool2", _max_pool(), x)
    for name, widths in MODULES.items():
        x = _module(f"module{name}", x, *widths)
        if auxiliary and name in AUXILIARY:
            _auxiliary(f"auxiliary{AUXILIARY[name]}", x, number_of_outputs, 0.7 if dropout else 0.0)
        if name in POOLED:
            x = add(f"pool{name[0]}", _max_pool(), x)
    x = add("pool", Pool(method="average", global_pooling=True), x)
    if dropout:
        x = add("dropout", Dropout(ratio=dropout), x)
    logits = add("ip", InnerProduct(number_of_outputs=number_of_outputs), x)
    return classifier(inputs[0] if inputs else first, logits)


def _module(
    name: str, x: DataflowNode, one: int, reduce3: int, three: int, reduce5: int, five: int, projection: int
) -> DataflowNode:
    """A module: four branches, whose channels are concatenated in the order of the paper."""
    branches = [
        _convolution(f"{name}-1x1", one, 1, x),
        _convolution(f"{name}-3x3", three, 3, _convolution(f"{name}-3x3-reduce", reduce3, 1, x)[1]),
        _convolution(f"{name}-5x5", five, 5, _convolution(f"{name}-5x5-reduce", reduce5, 1, x)[1]),
        _convolution(
            f"{name}-projection",
            projection,
            1,
            add(f"{name}-pool", Pool(method="max", kernel_size=3, stride=1, padding=1), x),
        ),
    ]
    return add(f"{name}-concat", Concat(axis=1), *(last for _, last in branches))


def _auxiliary(name: str, x: DataflowNode, number_of_outputs: int, dropout: float) -> None:
    x = add(f"{name}-pool", Pool(method="average", kernel_size=5, stride=3), x)
    x = _convolution(f"{name}-conv", 128, 1, x)[1]
    x = add(f"{name}-ip1-relu", ReLU(), add(f"{name}-ip1", InnerProduct(number_of_outputs=1024), x))
    if dropout:
        x = add(f"{name}-dropout", Dropout(ratio=dropout), x)
    logits = add(f"{name}-ip2", InnerProduct(number_of_outputs=number_of_outputs), x)
    auxiliary_classifier(name, logits, AUXILIARY_WEIGHT)


def _convolution(
    name: str, outputs: int, size: int, *inputs: DataflowNode, stride: int = 1
) -> tuple[DataflowNode, DataflowNode]:
    """A convolution and a ReLU. Weights are initialised with Xavier and biases with 0.2, as in Caffe's network."""
    kernel = Conv(
        number_of_outputs=outputs,
        kernel_size=size,
        stride=stride,
        padding=size // 2,
        weight_initialiser=Xavier(),
        bias_initialiser=Constant(0.2),
    )
    convolution = add(name, kernel, *inputs)
    return convolution, add(f"{name}-relu", ReLU(), convolution)


def _max_pool() -> Pool:
    return Pool(method="max", kernel_size=3, stride=2)


def _norm() -> LRN:
    return LRN(size=5, alpha=1e-4, beta=0.75)


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--auxiliary",
        action="store_true",
        help=f"train with two auxiliary classifiers, whose losses have weight {AUXILIARY_WEIGHT} (default: without)",
    )
    add_augmentation(group)


SCRIPT = ModelScript(
    name="googlenet",
    title="Trains GoogLeNet (Szegedy et al., 2014: arXiv:1409.4842).",
    paper="arXiv:1409.4842",
    variants=(
        "",
        "--auxiliary",
    ),
    build=lambda options: googlenet(
        auxiliary=options.auxiliary, number_of_outputs=options.classes, transform=image_transform(options)
    ),
    defaults=Defaults(
        epochs={"synthetic": 3},
        epochs_with_files=60,
        batch_size=32,
        solver=SolverConf(
            learning_rate=0.01,
            policy="step",
            gamma=0.96,
            step_size=8,
            learning_rate_step_unit="epochs",
            momentum=0.9,
            weight_decay=2e-4,
        ),
        image_shape=(3, 224, 224),
        number_of_classes=1000,
    ),
    add_options=_add_options,
    variant=lambda options: "auxiliary classifiers" if options.auxiliary else "",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
