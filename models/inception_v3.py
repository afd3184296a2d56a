"""Inception v3: `python -m models.inception_v3` trains it; `--help` lists the options.

C. Szegedy, V. Vanhoucke, S. Ioffe, J. Shlens and Z. Wojna, Rethinking the Inception Architecture for Computer Vision
(arXiv:1512.00567, 2015): eleven modules with factorised convolutions, 1×7 and 7×1 or 1×3 and 3×1, and batch
normalisation after every convolution. 23,834,568 parameters with 1,000 classes of images 299×299.

With `auxiliary`, another classifier reads the last module of 17×17, and its loss is added with a weight of 0.3. It is
part of training only, and has 3,326,696 parameters; the total is 27,161,264.

Ports Crossbow's Inceptionv3.java (src/test/java/uk/ac/imperial/lsds/crossbow), which follows MXNet's; batch, learning
rate and weight decay are its own. Initial weights of convolutions are from N(0, 0.1), here truncated at two standard
deviations, as in the authors' code. Fixed from the original: the gradients of the concatenated branches, because of
which it could not be trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from crossbow import Dataflow, DataflowNode, Gaussian, SolverConf
from crossbow.ops import BatchNorm, Concat, Conv, DataTransform, InnerProduct, Pool
from crossbow.scripts import Defaults, ModelScript
from models.images import add_augmentation, image_transform
from models.layers import add, auxiliary_classifier, classifier, head_of, normalised_convolution

AUXILIARY_WEIGHT = 0.3
WEIGHTS = Gaussian(std=0.1, truncate=True)
NORM = BatchNorm(epsilon=1e-3)


def inception_v3(
    *, auxiliary: bool = False, number_of_outputs: int = 1000, transform: DataTransform | None = None
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of at least 75×75; ImageNet's are 3×299×299.

    auxiliary  whether to add the auxiliary classifier; images must then be at least 299×299.
    transform  preprocessing of the images, if any.

    >>> [node.operator.name for node in inception_v3().subgraph.nodes if "pool" in node.operator.name][:3]
    ['pool1', 'pool2', 'moduleA1-pool']
    """
    inputs = () if transform is None else (add("transform", transform),)
    x = first = _convolution("conv1", 32, 3, *inputs, stride=2)
    x = _convolution("conv2", 32, 3, x)
    x = add("pool1", _max_pool(), _convolution("conv3", 64, 3, x, padding=1))
    x = _convolution("conv4", 80, 1, x)
    x = add("pool2", _max_pool(), _convolution("conv5", 192, 3, x))
    for number, projection in enumerate((32, 64, 64), start=1):
        x = _module_a(f"moduleA{number}", x, projection)
    x = _module_b("moduleB", x)
    for number, width in enumerate((128, 160, 160, 192), start=1):
        x = _module_c(f"moduleC{number}", x, width)
    if auxiliary:
        _auxiliary("auxiliary", x, number_of_outputs)
    x = _module_d("moduleD", x)
    for number in (1, 2):
        x = _module_e(f"moduleE{number}", x)
    x = add("pool", Pool(method="average", global_pooling=True), x)
    return classifier(head_of(first), add("ip", InnerProduct(number_of_outputs=number_of_outputs), x))


def _module_a(name: str, x: DataflowNode, projection: int) -> DataflowNode:
    """A module on 35×35: 1×1, 5×5 and double 3×3 convolutions, and a pooling."""
    five = _convolution(f"{name}-5x5", 64, 5, _convolution(f"{name}-5x5-reduce", 48, 1, x), padding=2)
    double = _convolution(f"{name}-double-1", 96, 3, _convolution(f"{name}-double-reduce", 64, 1, x), padding=1)
    double = _convolution(f"{name}-double-2", 96, 3, double, padding=1)
    return _join(name, _convolution(f"{name}-1x1", 64, 1, x), five, double, _pooled(name, x, projection))


def _module_b(name: str, x: DataflowNode) -> DataflowNode:
    """A module from 35×35 to 17×17."""
    double = _convolution(f"{name}-double-1", 96, 3, _convolution(f"{name}-double-reduce", 64, 1, x), padding=1)
    double = _convolution(f"{name}-double-2", 96, 3, double, stride=2)
    return _join(name, _convolution(f"{name}-3x3", 384, 3, x, stride=2), double, add(f"{name}-pool", _max_pool(), x))


def _module_c(name: str, x: DataflowNode, width: int) -> DataflowNode:
    """A module on 17×17: 7×7 convolutions, factorised into 1×7 and 7×1."""
    seven = _sevens(f"{name}-7x7", _convolution(f"{name}-7x7-reduce", width, 1, x), ((1, 7), (7, 1)), (width, 192))
    sizes = ((7, 1), (1, 7), (7, 1), (1, 7))
    double = _convolution(f"{name}-double-reduce", width, 1, x)
    double = _sevens(f"{name}-double", double, sizes, (width, width, width, 192))
    return _join(name, _convolution(f"{name}-1x1", 192, 1, x), seven, double, _pooled(name, x, 192))


def _module_d(name: str, x: DataflowNode) -> DataflowNode:
    """A module from 17×17 to 8×8."""
    three = _convolution(f"{name}-3x3", 320, 3, _convolution(f"{name}-3x3-reduce", 192, 1, x), stride=2)
    seven = _sevens(f"{name}-7x7", _convolution(f"{name}-7x7-reduce", 192, 1, x), ((1, 7), (7, 1)), (192, 192))
    seven = _convolution(f"{name}-7x7-3", 192, 3, seven, stride=2)
    return _join(name, three, seven, add(f"{name}-pool", _max_pool(), x))


def _module_e(name: str, x: DataflowNode) -> DataflowNode:
    """A module on 8×8: 3×3 convolutions, replaced by 1×3 and 3×1 side by side."""
    three = _convolution(f"{name}-3x3-reduce", 384, 1, x)
    double = _convolution(f"{name}-double-1", 384, 3, _convolution(f"{name}-double-reduce", 448, 1, x), padding=1)
    return _join(
        name,
        _convolution(f"{name}-1x1", 320, 1, x),
        *_split(f"{name}-3x3", three),
        *_split(f"{name}-double", double),
        _pooled(name, x, 192),
    )


def _sevens(name: str, x: DataflowNode, sizes: Sequence[tuple[int, int]], widths: Sequence[int]) -> DataflowNode:
    for number, (size, width) in enumerate(zip(sizes, widths, strict=True), start=1):
        x = _convolution(f"{name}-{number}", width, size, x, padding=(size[0] // 2, size[1] // 2))
    return x


def _split(name: str, x: DataflowNode) -> list[DataflowNode]:
    return [
        _convolution(f"{name}-1x3", 384, (1, 3), x, padding=(0, 1)),
        _convolution(f"{name}-3x1", 384, (3, 1), x, padding=(1, 0)),
    ]


def _pooled(name: str, x: DataflowNode, projection: int) -> DataflowNode:
    pooled = add(f"{name}-pool", Pool(method="average", kernel_size=3, stride=1, padding=1), x)
    return _convolution(f"{name}-projection", projection, 1, pooled)


def _auxiliary(name: str, x: DataflowNode, number_of_outputs: int) -> None:
    x = add(f"{name}-pool", Pool(method="average", kernel_size=5, stride=3, rounding="floor"), x)
    x = _convolution(f"{name}-conv2", 768, 5, _convolution(f"{name}-conv1", 128, 1, x))
    x = add(f"{name}-global-pool", Pool(method="average", global_pooling=True), x)
    auxiliary_classifier(
        name, add(f"{name}-ip", InnerProduct(number_of_outputs=number_of_outputs), x), AUXILIARY_WEIGHT
    )


def _join(name: str, *branches: DataflowNode) -> DataflowNode:
    return add(f"{name}-concat", Concat(axis=1), *branches)


def _max_pool() -> Pool:
    return Pool(method="max", kernel_size=3, stride=2, rounding="floor")


def _convolution(
    name: str,
    outputs: int,
    size: int | tuple[int, int],
    *inputs: DataflowNode,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> DataflowNode:
    kernel = Conv(
        number_of_outputs=outputs,
        kernel_size=size,
        stride=stride,
        padding=padding,
        bias=False,
        weight_initialiser=WEIGHTS,
    )
    return normalised_convolution(name, kernel, *inputs, norm=NORM)


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--auxiliary",
        action="store_true",
        help=f"train with an auxiliary classifier, whose loss has weight {AUXILIARY_WEIGHT} (default: without)",
    )
    add_augmentation(group)


SCRIPT = ModelScript(
    name="inception_v3",
    title="Trains Inception v3 (Szegedy et al., 2015: arXiv:1512.00567).",
    paper="arXiv:1512.00567",
    variants=(
        "",
        "--auxiliary",
    ),
    build=lambda options: inception_v3(
        auxiliary=options.auxiliary, number_of_outputs=options.classes, transform=image_transform(options)
    ),
    defaults=Defaults(
        epochs={"synthetic": 3},
        epochs_with_files=100,
        batch_size=32,
        solver=SolverConf(learning_rate=0.045, momentum=0.9, weight_decay=1e-4),
        image_shape=(3, 299, 299),
        number_of_classes=1000,
    ),
    add_options=_add_options,
    variant=lambda options: "auxiliary classifier" if options.auxiliary else "",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
