"""ResNet: residual networks. `python -m models.resnet` trains one; `--help` lists the options.

Version 1: K. He, X. Zhang, S. Ren and J. Sun, Deep Residual Learning for Image Recognition (arXiv:1512.03385, 2015).
Version 2, with normalisation and ReLU before the convolutions: the same, Identity Mappings in Deep Residual Networks
(arXiv:1603.05027, 2016).

Ports Crossbow's ResNetv1.java and ResNetv1ForCifar.java (src/test/java/uk/ac/imperial/lsds/crossbow), and the idea of
ResNetv2.java, which is commented out there. The depth determines the kind:

* 20, 32, 44, 56, 110 (6n + 2), for CIFAR: 3×3 convolutions, three stages of 16, 32 and 64 features and n units;
* 164 (9n + 2), for CIFAR: the same with bottlenecks 1×1, 3×3, 1×1, which end in 64, 128 and 256 features;
* 18, 34 (units of two 3×3 convolutions) and 50, 101, 152 (bottlenecks 1×1, 3×3, 1×1), for ImageNet: a 7×7 convolution
  and a max pooling, then four stages.

Where the original and the papers differ, this module does the following:

shortcuts   If a unit changes the shape, the paper's networks for CIFAR take every second pixel and add channels of
            zeros ("identity", its option A, without parameters), and those for ImageNet use a 1×1 convolution
            ("projection", option B). So does this module; the original has projections in both. Version 1 normalises a
            projection, and version 2 does not, as in the original.
stride      In a bottleneck, the first 1×1 convolution has the stride, as in the papers and ResNetv1.java; with
            `bottleneck_stride="3x3"` the 3×3 convolution has it, as in ResNetv1ForCifar.java and torchvision.
pooling     The last pooling is global, as in the papers. The original's 7×7 window leaves 2×2 of CIFAR's 8×8, and so
            2,560 weights in the inner product of 64 features, which should have 640. Fixed.
            The first pooling is the original's, without padding and with ⌈·⌉ (112 → 56), where others pad by 1.
initial     As in the original, not in the papers: Xavier with fan-in (CIFAR); Xavier with the average fan, and
values      N(0, 0.0221) in the inner product (ImageNet). The latter is truncated at two standard deviations, as
            intended in the original, where it was not, because a flag was inverted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from crossbow import Dataflow, DataflowNode, Gaussian, SolverConf, Xavier
from crossbow.conf import is_integer, shown
from crossbow.ops import BatchNorm, Concat, Conv, DataTransform, ElementWiseOp, Initialiser, InnerProduct, Pool, ReLU
from crossbow.scripts import Defaults, ModelScript
from crossbow.types import ConfigurationError
from models.images import add_augmentation, image_transform
from models.layers import add, classifier

CIFAR_DEPTHS = (20, 32, 44, 56, 110, 164)
IMAGENET_UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Numbers of units of the stages, by depth."""
BOTTLENECK_DEPTHS = (50, 101, 152, 164)
EXPANSION = 4
"""Number of output features of a bottleneck, relative to its 3×3 convolution."""
DEPTHS = tuple(sorted((*CIFAR_DEPTHS, *IMAGENET_UNITS)))
VERSIONS = (1, 2)
SHORTCUTS = ("identity", "projection")
BOTTLENECK_STRIDES = ("1x1", "3x3")


def resnet(
    depth: int = 32,
    *,
    version: int = 1,
    number_of_outputs: int | None = None,
    shortcut: str | None = None,
    bottleneck_stride: str | None = None,
    transform: DataTransform | None = None,
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of any size; CIFAR's are 3×32×32, ImageNet's 3×224×224.

    number_of_outputs  classes; by default 10 (depths for CIFAR) or 1,000 (for ImageNet).
    shortcut           for changes of shape: "identity" (the default for CIFAR) or "projection" (for ImageNet).
    bottleneck_stride  the convolution of a bottleneck that has the stride: "1x1" (the default) or "3x3".
    transform          preprocessing of the images, if any.

    Parameters, in version 1: 269,722 (20), 464,154 (32), 658,586 (44), 853,018 (56), 1,727,962 (110); 11,689,512 (18),
    21,797,672 (34), 25,557,032 (50), 44,549,160 (101), 60,192,808 (152). Depth 164 with projections: 1,704,154 in
    version 1, 1,703,258 in version 2.

    Raises ConfigurationError for an unknown depth, version, shortcut or stride, and for a `bottleneck_stride` without
    bottlenecks.

    >>> [node.operator.name for node in resnet(20).subgraph.nodes][:6]
    ['conv', 'norm', 'relu', 'unit1-1-conv1', 'unit1-1-norm1', 'unit1-1-relu1']
    """
    _check("depth", depth, DEPTHS)
    _check("version", version, VERSIONS)
    imagenet, bottleneck = depth in IMAGENET_UNITS, depth in BOTTLENECK_DEPTHS
    if bottleneck_stride is not None and not bottleneck:
        raise ConfigurationError(
            f"bottleneck_stride belongs to the depths {_names(BOTTLENECK_DEPTHS)}. "
            f"Received: {bottleneck_stride!r} with depth={depth}"
        )
    network = _Network(
        version=version,
        bottleneck=bottleneck,
        shortcut=shortcut if shortcut is not None else ("projection" if imagenet else "identity"),
        bottleneck_stride=bottleneck_stride if bottleneck_stride is not None else BOTTLENECK_STRIDES[0],
        weights=Xavier(norm="average" if imagenet else "fan_in"),
    )
    units = IMAGENET_UNITS[depth] if imagenet else ((depth - 2) // (9 if bottleneck else 6),) * 3
    features = (64, 128, 256, 512) if imagenet else (16, 32, 64)
    inputs = () if transform is None else (add("transform", transform),)
    first = network.convolution("conv", features[0], 7 if imagenet else 3, 2 if imagenet else 1, *inputs)
    x = network.activation("norm", "relu", first)
    if imagenet:
        x = add("pool1", Pool(method="max", kernel_size=3, stride=2), x)
    x = network.stages(x, features[0], units, features)
    x = add("pool", Pool(method="average", global_pooling=True), x)
    last_weights = Gaussian(std=0.0221, truncate=True) if imagenet else Xavier()
    classes = number_of_outputs if number_of_outputs is not None else (1000 if imagenet else 10)
    logits = add("ip", InnerProduct(number_of_outputs=classes, weight_initialiser=last_weights), x)
    return classifier(inputs[0] if inputs else first, logits)


@dataclass(frozen=True)
class _Network:
    """Settings that all units of a network share."""

    version: int
    bottleneck: bool
    shortcut: str
    bottleneck_stride: str
    weights: Initialiser

    def __post_init__(self) -> None:
        _check("shortcut", self.shortcut, SHORTCUTS)
        _check("bottleneck_stride", self.bottleneck_stride, BOTTLENECK_STRIDES)

    def convolution(self, name: str, outputs: int, size: int, stride: int, *inputs: DataflowNode) -> DataflowNode:
        """A convolution without bias, because a normalisation with bias follows, here or in the next unit."""
        kernel = Conv(
            number_of_outputs=outputs,
            kernel_size=size,
            stride=stride,
            padding=size // 2,
            bias=False,
            weight_initialiser=self.weights,
        )
        return add(name, kernel, *inputs)

    def activation(self, norm: str, relu: str, x: DataflowNode) -> DataflowNode:
        return add(relu, ReLU(), _norm(norm, x))

    def stages(self, x: DataflowNode, channels: int, units: Sequence[int], features: Sequence[int]) -> DataflowNode:
        """All units and, in version 2, the activation after the last one."""
        for stage, (count, width) in enumerate(zip(units, features, strict=True), start=1):
            for unit in range(1, count + 1):
                stride = 2 if unit == 1 and stage > 1 else 1
                x, channels = self.unit(x, f"unit{stage}-{unit}", channels, width, stride)
        return x if self.version == 1 else self.activation("norm2", "relu2", x)

    def unit(self, x: DataflowNode, name: str, channels: int, features: int, stride: int) -> tuple[DataflowNode, int]:
        """A unit's output and its number of channels. The residual and the shortcut are added at the end.

        In version 1, a ReLU follows the sum. In version 2, the unit begins with an activation, which a shortcut that
        changes the shape also reads. The first unit has no activation at its beginning, because the stem ends with one.
        """
        sizes = self.convolutions(features, stride)
        outputs = sizes[-1][0]
        residual, start = x, x
        for number, (width, size, step) in enumerate(sizes, start=1):
            norm, relu = f"{name}-norm{number}", f"{name}-relu{number}"
            if self.version == 2 and (number > 1 or name != "unit1-1"):
                residual = self.activation(norm, relu, residual)
            if number == 1:
                start = residual
            residual = self.convolution(f"{name}-conv{number}", width, size, step, residual)
            if self.version == 1:
                last = number == len(sizes)
                residual = _norm(norm, residual) if last else self.activation(norm, relu, residual)
        same = stride == 1 and channels == outputs
        shortcut = x if same else self.changed(start, f"{name}-shortcut", channels, outputs, stride)
        total = add(f"{name}-sum", ElementWiseOp(type="sum"), residual, shortcut)
        return (total if self.version == 2 else add(f"{name}-relu", ReLU(), total)), outputs

    def convolutions(self, features: int, stride: int) -> list[tuple[int, int, int]]:
        """A unit's convolutions: outputs, kernel size, stride."""
        if not self.bottleneck:
            return [(features, 3, stride), (features, 3, 1)]
        first, second = (stride, 1) if self.bottleneck_stride == "1x1" else (1, stride)
        return [(features, 1, first), (features, 3, second), (EXPANSION * features, 1, 1)]

    def changed(self, x: DataflowNode, name: str, channels: int, outputs: int, stride: int) -> DataflowNode:
        """A shortcut that changes the shape."""
        if self.shortcut == "projection":
            x = self.convolution(f"{name}-conv", outputs, 1, stride, x)
            return _norm(f"{name}-norm", x) if self.version == 1 else x
        if stride > 1:
            subsample = Pool(method="average", kernel_size=1, stride=stride, rounding="floor")
            x = add(f"{name}-subsample", subsample, x)
        if outputs == channels:
            return x
        zeros = add(f"{name}-zeros", ElementWiseOp(type="sum", coefficients=(0.0,)), x)
        return add(f"{name}-concat", Concat(axis=1), x, *[zeros] * (outputs // channels - 1))


def _norm(name: str, x: DataflowNode) -> DataflowNode:
    return add(name, BatchNorm(epsilon=1e-5, moving_average_fraction=0.9), x)


def _check(name: str, value: object, allowed: Sequence[object]) -> None:
    if not (is_integer(value) or isinstance(value, str)) or value not in allowed:
        raise ConfigurationError(f"{name} must be one of {_names(allowed)}. Received: {shown(value)}")


def _names(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--depth",
        type=int,
        choices=DEPTHS,
        default=32,
        help=f"layers with weights: {_names(CIFAR_DEPTHS)} are the networks for CIFAR, {_names(tuple(IMAGENET_UNITS))} "
        "those for ImageNet (default: %(default)s)",
    )
    group.add_argument(
        "--version",
        type=int,
        choices=VERSIONS,
        default=1,
        help="1: normalisation and ReLU after the convolutions; 2: before them (default: %(default)s)",
    )
    group.add_argument(
        "--shortcut",
        choices=SHORTCUTS,
        help="where the shape changes, identity: every second pixel, and channels of zeros; projection: a 1×1 "
        "convolution (default: identity with the networks for CIFAR, projection with those for ImageNet)",
    )
    group.add_argument(
        "--bottleneck-stride",
        choices=BOTTLENECK_STRIDES,
        help=f"depths {_names(BOTTLENECK_DEPTHS)}: which convolution has a unit's stride "
        f"(default: {BOTTLENECK_STRIDES[0]})",
    )
    add_augmentation(group)


def _stepping_at(*epochs: int) -> SolverConf:
    """A solver whose learning rate decreases to a tenth at each of these epochs."""
    return SolverConf(
        learning_rate=0.1,
        policy="multistep",
        step_values=epochs,
        learning_rate_step_unit="epochs",
        momentum=0.9,
        weight_decay=1e-4,
    )


CIFAR = Defaults(
    epochs={"cifar10": 160, "cifar100": 160, "cifar100_coarse": 160, "synthetic": 3},
    batch_size=64,
    solver=_stepping_at(80, 120),
)
"""Defaults of scripts/benchmarks/resnet-32.sh, with the batch of ResNetv1ForCifar.java (the script's is 512 for a
GPU)."""
IMAGENET = Defaults(
    epochs={"synthetic": 3, "cifar10": 90},
    epochs_with_files=90,
    batch_size=16,
    solver=_stepping_at(30, 60, 80),
    image_shape=(3, 224, 224),
    number_of_classes=1000,
)
"""Defaults of scripts/benchmarks/resnet-50.sh."""

SCRIPT = ModelScript(
    name="resnet",
    title="Trains a residual network (He et al., 2015: arXiv:1512.03385; version 2: arXiv:1603.05027).",
    paper="arXiv:1512.03385; arXiv:1603.05027",
    variants=(
        *(f"--depth {depth}" for depth in DEPTHS if depth != 164),
        *(f"--depth 164 --shortcut projection --version {version}" for version in VERSIONS),
    ),
    build=lambda options: resnet(
        options.depth,
        version=options.version,
        number_of_outputs=options.classes,
        shortcut=options.shortcut,
        bottleneck_stride=options.bottleneck_stride,
        transform=image_transform(options),
    ),
    defaults=CIFAR,
    add_options=_add_options,
    choose_defaults=lambda options: IMAGENET if options.depth in IMAGENET_UNITS else CIFAR,
    variant=lambda options: f"{options.depth}, version {options.version}",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
