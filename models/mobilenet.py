"""MobileNet v2: `python -m models.mobilenet` trains it; `--help` lists the options.

M. Sandler, A. Howard, M. Zhu, A. Zhmoginov and L.-C. Chen, MobileNetV2: Inverted Residuals and Linear Bottlenecks
(arXiv:1801.04381, 2018), table 2: a unit widens its input by a 1×1 convolution, convolves every channel separately, and
narrows the result by another 1×1 convolution, which has no activation; if the shapes are the same, the input is added.
The activations are ReLUs that are clipped at 6. 3,504,872 parameters with 1,000 classes of images 224×224.

Batch, learning rate, its decrease by 2 % per epoch, and weight decay are as in section 6.1, but with momentum 0.9
instead of RMSProp. The dropout of 0.2 before the classifier is from the authors' code. The paper does not state the
number of epochs; 300 was chosen here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from crossbow import Dataflow, DataflowNode, Gaussian, SolverConf
from crossbow.ops import DataTransform, Dropout, ElementWiseOp, InnerProduct, Pool, ReLU
from crossbow.scripts import Defaults, ModelScript
from models.images import add_augmentation, image_transform
from models.layers import add, classifier, head_of, same_convolution

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Settings of each stage: factor of the widening, number of outputs, number of units, and stride of the first unit."""
FIRST, LAST = 32, 1280
"""Numbers of outputs of the first and the last convolution."""
_convolution = functools.partial(same_convolution, activation=ReLU(mode="clipped", ceiling=6.0))


def mobilenet(
    *, dropout: float = 0.2, number_of_outputs: int = 1000, transform: DataTransform | None = None
) -> Dataflow:
    """The training dataflow, for images (N, C, H, W) of any size; ImageNet's are 3×224×224.

    dropout    ratio of the dropout before the inner product, in [0, 1); 0 omits it.
    transform  preprocessing of the images, if any.

    >>> [node.operator.name for node in mobilenet().subgraph.nodes][3:7]
    ['unit1-1-depthwise', 'unit1-1-depthwise-norm', 'unit1-1-depthwise-relu', 'unit1-1-narrow']
    """
    inputs = () if transform is None else (add("transform", transform),)
    x = first = _convolution("conv", FIRST, 3, *inputs, stride=2)
    channels = FIRST
    for stage, (factor, outputs, units, first_stride) in enumerate(STAGES, start=1):
        for unit in range(1, units + 1):
            stride = first_stride if unit == 1 else 1
            x = _unit(f"unit{stage}-{unit}", x, channels, outputs, factor, stride)
            channels = outputs
    x = add("pool", Pool(method="average", global_pooling=True), _convolution("last", LAST, 1, x))
    if dropout:
        x = add("dropout", Dropout(ratio=dropout), x)
    logits = InnerProduct(number_of_outputs=number_of_outputs, weight_initialiser=Gaussian(std=0.01))
    return classifier(head_of(first), add("ip", logits, x))


def _unit(name: str, x: DataflowNode, channels: int, outputs: int, factor: int, stride: int) -> DataflowNode:
    wide = factor * channels
    y = x if factor == 1 else _convolution(f"{name}-widen", wide, 1, x)
    y = _convolution(f"{name}-depthwise", wide, 3, y, stride=stride, groups=wide)
    y = _convolution(f"{name}-narrow", outputs, 1, y, activation=None)
    return add(f"{name}-sum", ElementWiseOp(type="sum"), y, x) if stride == 1 and channels == outputs else y


SCRIPT = ModelScript(
    name="mobilenet",
    title="Trains MobileNet v2 (Sandler et al., 2018: arXiv:1801.04381).",
    paper="arXiv:1801.04381",
    build=lambda options: mobilenet(number_of_outputs=options.classes, transform=image_transform(options)),
    defaults=Defaults(
        epochs={"synthetic": 3},
        epochs_with_files=300,
        batch_size=96,
        solver=SolverConf(
            learning_rate=0.045,
            policy="step",
            gamma=0.98,
            step_size=1,
            learning_rate_step_unit="epochs",
            momentum=0.9,
            weight_decay=4e-5,
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
