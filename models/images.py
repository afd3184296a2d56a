"""Preprocessing and augmentation of images for the networks of the zoo."""

from __future__ import annotations

import argparse

from crossbow.ops import DataTransform

AUGMENTED = ("cifar10", "cifar100", "cifar100_coarse")
"""Data sets whose training images are augmented by default."""
CENTRED = ("batch_files",)
"""Data sets whose pixels are already in [−1, 1], as the original's encoders of CIFAR write them."""
PADDING = 4
"""Pixels of padding on each side of an image before cropping."""
PADDED = (3, 32 + 2 * PADDING, 32 + 2 * PADDING)
"""Shape of CIFAR's images in batch-aligned files, which the original's encoders have already padded."""


def add_augmentation(group: argparse._ArgumentGroup) -> None:
    """Add the option that `image_transform` reads."""
    group.add_argument(
        "--augmentation",
        action=argparse.BooleanOptionalAction,
        help=f"train on random windows of the images with {PADDING} pixels of padding, half of them mirrored (default: "
        f"with {', '.join(AUGMENTED)}, and with CIFAR's batch_files, which are padded)",
    )


def image_transform(options: argparse.Namespace, scale: float = 2.0) -> DataTransform:
    """An operator that scales pixels from [0, 1] to [−scale / 2, scale / 2] and, with augmentation, crops and mirrors
    images at random.

    With the default scale, the range is [−1, 1], as in CifarEncoder.java; the crops are those of ResNetv1ForCifar.java
    and VGG.java, and of He et al. (arXiv:1512.03385), section 4.2.
    """
    padded = options.dataset in CENTRED and options.image_shape == PADDED
    augmented = options.dataset in AUGMENTED or padded if options.augmentation is None else options.augmentation
    mean, scale = (0.0, scale / 2) if options.dataset in CENTRED else (0.5, scale)
    if padded and augmented:
        return DataTransform(crop_size=32, mirror=True, mean=mean, scale=scale)
    return DataTransform(padding=PADDING if augmented else 0, mirror=augmented, mean=mean, scale=scale)
