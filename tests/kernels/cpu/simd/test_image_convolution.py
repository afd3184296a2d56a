"""Sizes of the convolutions that our own kernels support, and images with padding around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import float32_at, native_pass
from crossbow.kernels.cpu.simd.image_convolution import (
    CONVOLUTION,
    IMAGES,
    Convolution,
    ImageConvolution,
    PaddedImages,
    chosen_storage,
    clear_image,
    image_convolution,
    image_with_padding,
    image_without_padding,
    own_sizes,
)
from crossbow.kernels.cpu.steps import Steps
from crossbow.kernels.interface import PlainStorage, Storage, Variable
from crossbow.kernels.requests import (
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvolutionForward,
    ConvolutionGeometry,
    CopyForward,
)
from crossbow.types import Shape
from tests.kernels.cpu.buffers import FLOAT32, draw, output_shape, tensor
from tests.kernels.cpu.own_convolutions import lies_outputs_last, stored_outputs_last, use_threads

G = ConvolutionGeometry((3, 5), (2, 1), ((1, 2), (0, 3)), (2, 1))
X: Shape = (4, 3, 10, 11)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    use_threads(monkeypatch, 1)


def sizes(shape: Shape = X, outputs: int = 6, g: ConvolutionGeometry = G) -> ImageConvolution | None:
    return image_convolution(tensor(shape), tensor(output_shape(shape, outputs, g)), g)


def test_sizes_have_their_names() -> None:
    found = sizes()
    assert found is not None
    assert found.input == PaddedImages(4, 10, 11, 3, ((1, 2), (0, 3)))
    assert (found.channels, found.window, found.positions) == (3, 15, 4 * 5 * 10)
    images = {"images": 4, "height": 10, "width": 11, "channels": 3, "top": 1, "left": 0}
    assert found.arguments == {
        "input": {**images, "padded_height": 13, "padded_width": 14},
        "outputs": 6,
        "rows": 5,
        "columns": 10,
        "kernel_rows": 3,
        "kernel_columns": 5,
        "row_stride": 2,
        "column_stride": 1,
        "dilation": 2,
    }
    assert set(CONVOLUTION.names) == set(found.arguments)


@pytest.mark.parametrize(
    ("shape", "g"),
    [
        ((4, 4, 10, 11), ConvolutionGeometry((3, 3), groups=2)),
        ((4, 3, 10, 11), ConvolutionGeometry((3, 3), dilation=(1, 2))),
        ((4, 3, 10), ConvolutionGeometry((3,))),
        ((4, 3, 10, 11, 12), ConvolutionGeometry((3, 3, 3))),
    ],
    ids=["groups", "gaps in a row", "one axis", "three axes"],
)
def test_what_is_not_supported(shape: Shape, g: ConvolutionGeometry) -> None:
    assert sizes(shape, 6, g) is None


def test_not_with_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossbow.kernels.cpu.simd.image_convolution.max_threads", lambda: 2)
    assert sizes() is None


def requests(storage: Storage | None) -> list[Convolution]:
    x, y, weights = tensor(X), tensor(output_shape(X, 6, G)), Variable((6, 3, 3, 5), FLOAT32, storage)
    return [
        ConvolutionForward(x, weights, None, y, G),
        ConvolutionBackwardData(y, weights, x, G),
        ConvolutionBackwardWeights(x, y, weights, None, G),
    ]


def test_weights_must_lie_outputs_last() -> None:
    """Only a forward kernel may choose how they lie."""
    own, free = stored_outputs_last((6, 3, 3, 5)).storage, requests(None)
    assert [own_sizes(request) is not None for request in requests(own)] == [True, True, True]
    assert [own_sizes(request) is not None for request in free] == [True, False, False]
    assert [own_sizes(request) is None for request in requests(PlainStorage((6, 3, 3, 5)))] == [True] * 3
    assert isinstance(free[0], ConvolutionForward)
    (chosen,) = chosen_storage(free[0]).values()
    assert lies_outputs_last(chosen, (6, 3, 3, 5))
    settled = requests(own)[0]
    assert isinstance(settled, ConvolutionForward)
    assert chosen_storage(settled) == {}


def test_only_images_with_padding_need_a_copy() -> None:
    steps = Steps(CopyForward(tensor((1,)), tensor((1,))))
    assert PaddedImages(2, 4, 5, 3, ((0, 0), (0, 0))).reserve(steps) is None
    assert steps.workspace == 0
    assert PaddedImages(2, 4, 5, 3, ((1, 0), (0, 2))).reserve(steps) == 0
    assert steps.workspace >= 4 * 5 * 7 * 3


COPY = Arguments(images=IMAGES, x=Address, padded=Address, back=Address)


@native_pass(COPY)
def there_and_back(block: Any) -> int:
    """Each image with its padding, whose pixels are doubled, and back."""
    sizes = block.images
    for number in range(sizes.images):
        image = image_with_padding(sizes, block.x, number, block.padded)
        pixels = float32_at(image)
        for index in range(sizes.padded_height * sizes.padded_width * sizes.channels):
            pixels[index] = 2 * pixels[index]
        image_without_padding(sizes, block.padded, block.back, number)
    return 0


@native_pass(Arguments(images=IMAGES, image=Address))
def clear(block: Any) -> int:
    clear_image(block.images, block.image)
    return 0


@pytest.mark.slow
def test_images_are_copied_into_their_padding_and_back() -> None:
    images = PaddedImages(3, 4, 5, 2, ((1, 2), (3, 0)))
    x, back = draw((3, 4, 5, 2)), np.full((3, 4, 5, 2), np.nan, np.float32)
    padded = np.full((8, 8, 2), np.nan, np.float32)  # one row more than needed
    there_and_back.call("copy", images=images.arguments, x=x, padded=padded, back=back)()
    np.testing.assert_array_equal(back, 2 * x)
    expected = np.zeros((7, 8, 2))
    expected[1:5, 3:] = 2 * x[-1]
    np.testing.assert_array_equal(padded[:7], expected)  # the padding stayed clear from image to image
    assert np.isnan(padded[7:]).all()


def test_without_padding_an_image_is_taken_where_it_lies() -> None:
    images = PaddedImages(3, 4, 5, 2, ((0, 0), (0, 0)))
    x = draw((3, 4, 5, 2))
    expected, back = 2 * x, np.full((3, 4, 5, 2), np.nan, np.float32)
    there_and_back.call("copy", images=images.arguments, x=x, padded=None, back=back)()
    np.testing.assert_array_equal(x, expected)
    assert np.isnan(back).all()


def test_clearing_goes_to_the_last_pixel_of_the_padding() -> None:
    images, room = PaddedImages(3, 4, 5, 2, ((1, 2), (3, 0))), np.full(7 * 8 * 2 + 1, np.nan, np.float32)
    clear.call("clear", images=images.arguments, image=room)()
    assert not room[:-1].any()
    assert np.isnan(room[-1])
