"""What the networks of the zoo do to images before their first layer."""

from __future__ import annotations

import argparse

from crossbow.ops import DataTransform

AUGMENTED = ("cifar10",)
"""The data sets whose training images are cropped and mirrored where nothing is said."""
PADDING = 4
"""Pixels on each side of an image before a window of its size is cut out."""


def add_augmentation(group: argparse._ArgumentGroup) -> None:
    """The option that `image_transform` reads."""
    group.add_argument(
        "--augmentation",
        action=argparse.BooleanOptionalAction,
        help=f"train on random windows of the images with {PADDING} pixels of padding, half of them mirrored (default: "
        f"with {', '.join(AUGMENTED)})",
    )


def image_transform(options: argparse.Namespace, scale: float = 2.0) -> DataTransform:
    """Pixels from [0, 1] to [−scale / 2, scale / 2], and, where the images are augmented, another window in each epoch.

    With the default scale that is [−1, 1], as in CifarEncoder.java; the windows are those of ResNetv1ForCifar.java and
    VGG.java, and of He et al. (arXiv:1512.03385), section 4.2.
    """
    augmented = options.dataset in AUGMENTED if options.augmentation is None else options.augmentation
    return DataTransform(padding=PADDING if augmented else 0, mirror=augmented, mean=0.5, scale=scale)
