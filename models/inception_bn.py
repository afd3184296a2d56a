"""Inception with batch normalisation: `python -m models.inception_bn` trains it; `--help` lists the options.

S. Ioffe and C. Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift
(arXiv:1502.03167, 2015), figure 5, in the two forms that MXNet and MXNet-G train (example/image-classification).
Convolutions have a bias, and are followed by a normalisation and a ReLU:

imagenet  symbol_inception-bn.py: ten modules of 1×1, 3×3 and double 3×3 convolutions and a pooling; 11,295,240
          parameters with 1,000 classes of images 224×224.
small     symbol_inception-bn-28-small.py, for CIFAR: eight modules of a 1×1 and a 3×3 convolution, and two that halve
          the image by a 3×3 convolution and a max pooling; 1,652,826 parameters with 10 classes.

Batch, learning rate and weight decay are as in MXNet-G's scripts, in which the rate does not decrease. MXNet-G crops
images of CIFAR to 28×28; here they keep their 32×32, and the last pooling is global.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from crossbow import Dataflow, DataflowNode, SolverConf
from crossbow.ops import Concat, Conv, DataTransform, InnerProduct, Pool
from crossbow.scripts import Defaults, ModelScript
from crossbow.types import ConfigurationError
from models.images import add_augmentation, image_transform
from models.layers import add, classifier, head_of, normalised_convolution

VARIANTS = ("imagenet", "small")
MODULES: dict[str, tuple[int, ...]] = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (128, 160, 64, 96),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (128, 192, 192, 256),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}
"""Outputs of a module's 1×1 convolution, of the reduction and the convolution of its 3×3 and double 3×3 branches, and
of the projection after its pooling. The modules with four numbers halve the image; they have neither the first nor the
last."""
SMALL_MODULES: dict[str, tuple[int, ...]] = {
    "3a": (32, 32),
    "3b": (32, 48),
    "3c": (80,),
    "4a": (112, 48),
    "4b": (96, 64),
    "4c": (80, 80),
    "4d": (48, 96),
    "4e": (96,),
    "5a": (176, 160),
    "5b": (176, 160),
}
"""Outputs of a module's 1×1 and 3×3 convolution; of the 3×3 convolution alone where the module halves the image."""


def inception_bn(
    variant: str = "imagenet", *, number_of_outputs: int | None = None, transform: DataTransform | None = None
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of any size; ImageNet's are 3×224×224, CIFAR's 3×32×32.

    number_of_outputs  classes; by default 1,000 (imagenet) or 10 (small).
    transform          preprocessing of the images, if any.

    Raises ConfigurationError for an unknown variant.

    >>> [node.operator.name for node in inception_bn("small").subgraph.nodes][:4]
    ['conv1', 'conv1-norm', 'conv1-relu', 'module3a-1x1']
    """
    if variant not in VARIANTS:
        raise ConfigurationError(f"variant must be one of {', '.join(VARIANTS)}. Received: {variant!r}")
    inputs = () if transform is None else (add("transform", transform),)
    if variant == "small":
        x = first = _convolution("conv1", 96, 3, *inputs)
        for name, widths in SMALL_MODULES.items():
            x = _small_module(f"module{name}", x, widths)
    else:
        first = _convolution("conv1", 64, 7, *inputs, stride=2)
        x = add("pool1", Pool(method="max", kernel_size=3, stride=2), first)
        x = _convolution("conv2", 192, 3, _convolution("conv2-reduce", 64, 1, x))
        x = add("pool2", Pool(method="max", kernel_size=3, stride=2), x)
        for name, widths in MODULES.items():
            x = _module(f"module{name}", x, widths, "max" if name == "5b" else "average")
    classes = number_of_outputs if number_of_outputs is not None else (10 if variant == "small" else 1000)
    x = add("pool", Pool(method="average", global_pooling=True), x)
    return classifier(head_of(first), add("ip", InnerProduct(number_of_outputs=classes), x))


def _module(name: str, x: DataflowNode, widths: tuple[int, ...], pooling: str) -> DataflowNode:
    halves = len(widths) == 4
    reduce3, three, reduce_double, double = widths if halves else widths[1:5]
    stride = 2 if halves else 1
    branch = _convolution(f"{name}-double-reduce", reduce_double, 1, x)
    branch = _convolution(f"{name}-double-1", double, 3, branch)
    branches = [
        _convolution(f"{name}-3x3", three, 3, _convolution(f"{name}-3x3-reduce", reduce3, 1, x), stride=stride),
        _convolution(f"{name}-double-2", double, 3, branch, stride=stride),
    ]
    if halves:
        branches.append(add(f"{name}-pool", _halving(), x))
    else:
        pooled = add(f"{name}-pool", Pool(method=pooling, kernel_size=3, stride=1, padding=1), x)
        projection = _convolution(f"{name}-projection", widths[5], 1, pooled)
        branches = [_convolution(f"{name}-1x1", widths[0], 1, x), *branches, projection]
    return add(f"{name}-concat", Concat(axis=1), *branches)


def _small_module(name: str, x: DataflowNode, widths: tuple[int, ...]) -> DataflowNode:
    if len(widths) == 1:
        branches = [_convolution(f"{name}-3x3", widths[0], 3, x, stride=2), add(f"{name}-pool", _halving(), x)]
    else:
        branches = [_convolution(f"{name}-1x1", widths[0], 1, x), _convolution(f"{name}-3x3", widths[1], 3, x)]
    return add(f"{name}-concat", Concat(axis=1), *branches)


def _halving() -> Pool:
    """A pooling whose output has the same size as that of a 3×3 convolution with a stride of 2."""
    return Pool(method="max", kernel_size=3, stride=2, padding=1, rounding="floor")


def _convolution(name: str, outputs: int, size: int, *inputs: DataflowNode, stride: int = 1) -> DataflowNode:
    kernel = Conv(number_of_outputs=outputs, kernel_size=size, stride=stride, padding=size // 2)
    return normalised_convolution(name, kernel, *inputs)


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--variant",
        choices=VARIANTS,
        default=VARIANTS[0],
        help="imagenet: 11.3 M parameters; small: for CIFAR, 1.65 M (default: %(default)s)",
    )
    add_augmentation(group)


IMAGENET = Defaults(
    epochs={"synthetic": 3},
    epochs_with_files=20,
    batch_size=32,
    solver=SolverConf(learning_rate=0.01, momentum=0.9, weight_decay=1e-5),
    image_shape=(3, 224, 224),
    number_of_classes=1000,
)
SMALL = Defaults(
    epochs={"cifar10": 20, "cifar100": 20, "cifar100_coarse": 20, "synthetic": 3},
    batch_size=128,
    solver=SolverConf(learning_rate=0.05, momentum=0.9, weight_decay=1e-5),
)

SCRIPT = ModelScript(
    name="inception_bn",
    title="Trains Inception with batch normalisation (Ioffe and Szegedy, 2015: arXiv:1502.03167).",
    paper="arXiv:1502.03167",
    variants=(
        "",
        "--variant small",
    ),
    build=lambda options: inception_bn(
        options.variant, number_of_outputs=options.classes, transform=image_transform(options)
    ),
    defaults=IMAGENET,
    add_options=_add_options,
    choose_defaults=lambda options: SMALL if options.variant == "small" else IMAGENET,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
