"""ResNeXt-50 (32×4d): `python -m models.resnext` trains it; `--help` lists the options.

S. Xie, R. Girshick, P. Dollár, Z. Tu and K. He, Aggregated Residual Transformations for Deep Neural Networks
(arXiv:1611.05431, 2016), table 1: the bottlenecks of ResNet-50 with twice as many features in the 3×3 convolution, in
32 groups of 4 in the first stage. 25,028,904 parameters with 1,000 classes of images 224×224.

The 3×3 convolution of a unit has the stride, and a shortcut that changes the shape is a 1×1 convolution with
normalisation. Batch, learning rate and weight decay are as in section 4. The number of epochs, 120, and the epochs of
the steps were chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence

from crossbow import Dataflow, DataflowNode, Gaussian, SolverConf
from crossbow.ops import DataTransform, ElementWiseOp, InnerProduct, Pool, ReLU
from crossbow.scripts import Defaults, ModelScript
from models.images import add_augmentation, image_transform
from models.layers import add, classifier, head_of, same_convolution

UNITS = (3, 4, 6, 3)
"""Number of units of each stage."""
GROUPS = 32
"""Groups of every 3×3 convolution; the paper's cardinality."""
WIDTHS, OUTPUTS = (128, 256, 512, 1024), (256, 512, 1024, 2048)
"""Features of the 3×3 convolutions and of the units of each stage."""


def resnext(*, number_of_outputs: int = 1000, transform: DataTransform | None = None) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of any size; ImageNet's are 3×224×224.

    transform  preprocessing of the images, if any.

    >>> [node.operator.name for node in resnext().subgraph.nodes][3:7]
    ['pool1', 'unit1-1-conv1', 'unit1-1-conv1-norm', 'unit1-1-conv1-relu']
    """
    inputs = () if transform is None else (add("transform", transform),)
    first = same_convolution("conv", 64, 7, *inputs, stride=2)
    x = add("pool1", Pool(method="max", kernel_size=3, stride=2, padding=1, rounding="floor"), first)
    for stage, (units, width, outputs) in enumerate(zip(UNITS, WIDTHS, OUTPUTS, strict=True), start=1):
        for unit in range(1, units + 1):
            stride = 2 if unit == 1 and stage > 1 else 1
            x = _unit(f"unit{stage}-{unit}", x, width, outputs, stride, projection=unit == 1)
    x = add("pool", Pool(method="average", global_pooling=True), x)
    logits = InnerProduct(number_of_outputs=number_of_outputs, weight_initialiser=Gaussian(std=0.01))
    return classifier(head_of(first), add("ip", logits, x))


def _unit(name: str, x: DataflowNode, width: int, outputs: int, stride: int, *, projection: bool) -> DataflowNode:
    y = same_convolution(f"{name}-conv1", width, 1, x)
    y = same_convolution(f"{name}-conv2", width, 3, y, stride=stride, groups=GROUPS)
    y = same_convolution(f"{name}-conv3", outputs, 1, y, activation=None)
    shortcut = same_convolution(f"{name}-shortcut", outputs, 1, x, stride=stride, activation=None) if projection else x
    return add(f"{name}-relu", ReLU(), add(f"{name}-sum", ElementWiseOp(type="sum"), y, shortcut))


SCRIPT = ModelScript(
    name="resnext",
    title="Trains ResNeXt-50, 32×4d (Xie et al., 2016: arXiv:1611.05431).",
    paper="arXiv:1611.05431",
    build=lambda options: resnext(number_of_outputs=options.classes, transform=image_transform(options)),
    defaults=Defaults(
        epochs={"synthetic": 3},
        epochs_with_files=120,
        batch_size=256,
        solver=SolverConf(
            learning_rate=0.1,
            policy="multistep",
            step_values=(30, 60, 90),
            learning_rate_step_unit="epochs",
            momentum=0.9,
            weight_decay=1e-4,
        ),
        image_shape=(3, 224, 224),
        number_of_classes=1000,
    ),
    add_options=add_augmentation,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
