"""A vision transformer for small images: `python -m models.vit` trains it; `--help` lists the options.

A. Dosovitskiy et al., An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale (arXiv:2010.11929,
2020): an image is a sequence of patches. Instead of a class token, the classifier reads the mean over all patches, as
in L. Beyer, X. Zhai and A. Kolesnikov, Better plain ViT baselines for ImageNet-1k (arXiv:2205.01580, 2022). By default,
patches are 4×4, and there are four layers of width 128 with four heads. For CIFAR-10, this gives 817,290 parameters, of
which the 8,192 factors of `positions` stay 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from crossbow import Dataflow, Gaussian, SolverConf
from crossbow.ops import Conv, InnerProduct, LayerNorm, Pool, Reshape, Transpose
from crossbow.scripts import Defaults, ModelScript
from crossbow.scripts.run_texts import count
from crossbow.scripts.values import add_sizes
from crossbow.types import ConfigurationError
from models.layers import TRANSFORMER_DEVIATION, add, check_sizes, classifier, positions, transformer_block


def vit(
    image_size: int = 32,
    *,
    patch: int = 4,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    number_of_outputs: int = 10,
) -> Dataflow:
    """The training dataflow, for images (N, C, image_size, image_size).

    patch: height and width of a patch, which divides the image size. layers: number of layers, each of which has an
    attention and two inner products. width: number of features of each patch. heads: number of heads of each attention,
    which divides the width.

    Raises ConfigurationError for invalid sizes.

    >>> [node.operator.name for node in vit(layers=1).subgraph.nodes][:4]
    ['patches', 'flatten', 'sequence', 'positions']
    """
    check_sizes(image_size=image_size, patch=patch, layers=layers, width=width, heads=heads)
    if image_size % patch:
        raise ConfigurationError(f"image_size must be a multiple of patch. Received: {image_size} and {patch}")
    side, weights = image_size // patch, Gaussian(std=TRANSFORMER_DEVIATION)
    head = add("patches", Conv(number_of_outputs=width, kernel_size=patch, stride=patch, weight_initialiser=weights))
    x = add("flatten", Reshape((width, side * side)), head)
    x = positions(add("sequence", Transpose((0, 2, 1)), x))
    for number in range(1, layers + 1):
        x = transformer_block(f"layer{number}", width, heads, x)
    x = add("channels-first", Transpose((0, 2, 1)), add("norm", LayerNorm(), x))
    x = add("image", Reshape((width, side, side)), x)
    x = add("mean", Pool(method="average", global_pooling=True), x)
    logits = InnerProduct(number_of_outputs=number_of_outputs, weight_initialiser=weights)
    return classifier(head, add("logits", logits, x))


def _build(options: argparse.Namespace) -> Dataflow:
    height, width = options.image_shape[1:]
    if height != width:
        raise ConfigurationError(f"expected square images. Received: {height}×{width}")
    sizes = {name: getattr(options, name) for name in ("patch", "layers", "width", "heads")}
    return vit(height, **sizes, number_of_outputs=options.classes)


def _add_options(group: argparse._ArgumentGroup) -> None:
    add_sizes(
        group,
        ("patch", 4, "height and width of a patch, which divides those of the images"),
        ("layers", 4, "number of layers"),
        ("width", 128, "numbers for each patch"),
        ("heads", 4, "heads of each attention, which divide the width"),
    )


SCRIPT = ModelScript(
    name="vit",
    title="Trains a vision transformer on small images (Dosovitskiy et al., 2020: arXiv:2010.11929).",
    paper="arXiv:2010.11929",
    build=_build,
    defaults=Defaults(
        epochs={"cifar10": 40, "cifar100": 40, "cifar100_coarse": 40, "synthetic": 3},
        batch_size=32,
        solver=SolverConf(method="adamw", learning_rate=0.001, weight_decay=0.01),
        image_shape=(3, 32, 32),
    ),
    add_options=_add_options,
    variant=lambda options: f"patch {options.patch}, {count(options.layers, 'layer')}, width {options.width}",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says. Returns the exit status."""
    return SCRIPT.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
