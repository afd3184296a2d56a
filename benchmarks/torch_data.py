"""PyTorch's training images in these benchmarks: converted in advance, channels-last, augmented batch by batch."""

from __future__ import annotations

from typing import Any

from crossbow import Dataset

PADDING = 4
"""Pixels around an image before it is cropped."""


def augmented(x: Any, chosen: Any, size: int, generator: Any) -> Any:
    """Random windows of the chosen images, which have a border. Half of the windows are mirrored."""
    import torch

    corners = torch.randint(0, 2 * PADDING + 1, (len(chosen), 2), generator=generator)
    offsets = torch.arange(size)
    columns = offsets.expand(len(chosen), size)
    mirrored = torch.rand(len(chosen), generator=generator) < 0.5
    columns = torch.where(mirrored[:, None], columns.flip(1), columns) + corners[:, 1:]
    rows = offsets + corners[:, :1]
    # Indices before and after the channels' slice: (N, size, size, C), which is channels-last.
    return x[chosen[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def tensors(data: Dataset, part: Any, *, padded: bool) -> tuple[Any, Any]:
    """Images, float32 and channels-last, optionally with a border, and labels."""
    import torch

    images = torch.from_numpy(part.images.copy()).float().mul_(data.scale)
    if data.image_shape[0] == 3:
        images = images.sub_(0.5).mul_(2.0)
    if padded:
        images = torch.nn.functional.pad(images, (PADDING,) * 4, value=-1.0)
    return images.contiguous(memory_format=torch.channels_last), torch.from_numpy(part.labels.copy()).long()
