"""Preprocessing and augmentation of images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import check_boolean, check_integer, configuration, is_number, refuse
from crossbow.files import reason
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.requests import CopyForward, ImageTransform, ImageWindows
from crossbow.ops.initialiser import Values, is_float32
from crossbow.ops.kernel import Kernel, Site
from crossbow.ops.window import are_sizes, per_axis
from crossbow.types import Phase, Shape


@configuration
class DataTransform(Kernel):
    """Normalises, crops and mirrors images: y = (x − mean) · scale, for a window of each image x (N, C, H, W).

    It is the first operator of a graph. Its input is the batch, whose pixels are in [0, 1] if the data set is of type
    uint8. y: (N, C, h, w) with crop_size = (h, w). In training, independently for each image:

    1. the image is padded with `padding` zeros on each side (H + 2 padding, W + 2 padding);
    2. a random window of h × w is cropped, uniformly over all positions;
    3. with `mirror`, the image is flipped horizontally with probability ½.

    In testing, the window is centred (rounded down), and no image is mirrored: with padding and a crop of the
    image's own size, the result is the image.

    The mean is that of the channel or, with `mean_image`, of the pixel at its position in the image before padding.
    Padding consists of *pixels* that are 0, so it becomes (0 − mean) · scale in y. The mean of a padding pixel is that
    of its channel; with `mean_image`, it is the average over the image.

    The random numbers of an image are Philox4x32-10 of (seed, epoch, index of the image in the data set) and of the
    operator's position in the graph. So they do not depend on the batch size, the number of learners or timing, and
    two operators crop different windows of the same image.

    Use it with padding=4 and mirror=True as the standard augmentation for CIFAR-10.

    Ports DataTransform.java and datatransform.cu. Fixed from the original: every channel has its own mean (all were
    written to the first channel); learners draw different numbers (all streams had the same seed); each image is
    mirrored independently, and only in training (on the CPU whole batches were mirrored, also in testing). The original
    stored images with a border, which was 0 after its scaling; here the operator adds a border of pixels that are 0.

    See also: `Pad`.
    """

    reads_batch: ClassVar[bool] = True

    crop_size: int | tuple[int, int] | None = None
    """Size of the window: one number or (height, width); None is the size of the input."""
    padding: int = 0
    """Zeros on each side of the image, ≥ 0."""
    mirror: bool = False
    """Whether images are mirrored in training with probability ½."""
    mean: float | Sequence[float] | None = None
    """Mean to subtract: one number for all channels or one per channel; None subtracts nothing."""
    mean_image: NDArray[np.floating] | str | os.PathLike[str] | Values | None = None
    """Mean to subtract from each pixel: (C, H, W), of the input's size, or the name of an .npy file with such an array.
    It is stored as `Values`."""
    scale: float | Sequence[float] = 1.0
    """Factor after the subtraction, such as 1/σ: one number for all channels or one per channel, not 0."""

    def __post_init__(self) -> None:
        size = self.crop_size
        if size is not None:
            if not are_sizes(size, 1) or (isinstance(size, tuple | list) and len(size) != 2):
                raise refuse(self, "crop_size", size, "an integer ≥ 1 or a pair (height, width) of such")
            object.__setattr__(self, "crop_size", per_axis(size, 2))
        check_integer(self, "padding", 0)
        check_boolean(self, "mirror")
        if self.mean is not None:
            object.__setattr__(self, "mean", self._numbers("mean"))
        object.__setattr__(self, "scale", self._numbers("scale"))
        if any(value == 0 for value in np.atleast_1d(self.scale)):
            raise refuse(self, "scale", self.scale, "a number that is not 0, or one for each channel")
        if self.mean_image is not None:
            if self.mean is not None:
                raise refuse(self, "mean_image", "an image", "None if mean is given")
            object.__setattr__(self, "mean_image", self._read_image())

    def _numbers(self, name: str) -> float | tuple[float, ...]:
        value = getattr(self, name)
        values = (value,) if is_number(value) else value
        if isinstance(value, np.ndarray):
            values = value.tolist()
        if not isinstance(values, tuple | list) or not values or not all(map(is_number, values)):
            raise refuse(self, name, value, "a finite number, or one for each channel")
        if not all(map(is_float32, values)):
            raise refuse(self, name, value, "a number that float32 can represent, or one for each channel")
        return float(value) if is_number(value) else tuple(float(each) for each in values)

    def _read_image(self) -> Values:
        given = self.mean_image
        what = "an array of numbers (C, H, W), or the name of an .npy file of one"
        if isinstance(given, Values):
            given = given.array
        elif isinstance(given, str | os.PathLike):
            try:
                with open(given, "rb") as file:
                    given = np.load(file, allow_pickle=False)
            except Exception as error:  # damaged files: NumPy does not document the exceptions that they raise
                raise refuse(self, "mean_image", os.fspath(given), f"{what} ({reason(error)})") from error
        if not isinstance(given, np.ndarray) or given.ndim != 3 or given.dtype.kind not in "iuf" or not given.size:
            received = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
            raise refuse(self, "mean_image", received, what)
        image = Values(given if given.dtype.kind == "f" else given.astype(np.float64))
        largest = np.abs(image.array).max()
        if not is_float32(largest):
            raise refuse(self, "mean_image", f"up to {largest:g}", "of numbers that float32 can represent")
        return image

    def output_shape(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        if len(x) != 4:
            raise ValueError(f"expected images (N, C, H, W). Received: {x}")
        n, channels, *size = x
        for name in ("mean", "scale"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != channels:
                raise ValueError(f"expected images with {len(value)} channels, for {name}={value}. Received: {x}")
        if isinstance(self.mean_image, Values) and self.mean_image.array.shape != x[1:]:
            mean = self.mean_image.array.shape
            raise ValueError(f"expected images of the shape of the mean image, {mean}. Received: {x[1:]}")
        window = self._window(x)
        if any(part > length + 2 * self.padding for part, length in zip(window, size, strict=True)):
            raise ValueError(
                f"expected images of at least {window[0]}×{window[1]}, for crop_size={window} with "
                f"{self.padding} of padding on each side. Received: {x}"
            )
        return n, channels, *window

    def _window(self, x: Shape) -> tuple[int, int]:
        return self.crop_size if isinstance(self.crop_size, tuple) else (x[2], x[3])

    def transform(self, x: Shape) -> ImageTransform:
        """The configuration for images (N, C, H, W)."""
        per_channel = (x[1], 1, 1)
        if isinstance(self.mean_image, Values):
            mean = self.mean_image.array.astype(np.float64)
        else:
            mean = np.zeros(per_channel) + np.reshape(0.0 if self.mean is None else self.mean, (-1, 1, 1))
        return ImageTransform(
            self.padding, self.mirror, mean, np.ones(per_channel) * np.reshape(self.scale, (-1, 1, 1))
        )

    def prepare(self, site: Site) -> tuple[PreparedKernel, ...]:
        (x,), y = site.inputs, site.output
        transform = self.transform(x.shape)
        fixed = transform.choices(x.shape, y.shape) == (1, 1) and not self.mirror
        random = site.phase is Phase.TRAIN and not fixed
        if not random and x.shape == y.shape and not transform.mean.any() and (transform.scale == 1).all():
            return (site.library.prepare(CopyForward(x, y)),)
        return (site.library.prepare(ImageWindows(x, y, transform, site.seed if random else None, site.key)),)
