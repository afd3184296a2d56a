"""Weights of whole images, which lie as the images do."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.kernels.cuda.storage import ChannelsLastStorage
from crossbow.types import Shape


def test_storage_of_images() -> None:
    storage, weights = ChannelsLastStorage((2, 12), (3, 2, 2)), np.arange(24.0).reshape(2, 12)
    flat, again = np.empty(24), np.empty((2, 12))
    storage.pack(weights, flat)
    assert (storage.elements, str(storage)) == (24, "channels last")
    np.testing.assert_array_equal(flat[:6], [0, 4, 8, 1, 5, 9])
    storage.unpack(flat, again)
    np.testing.assert_array_equal(again, weights)


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (4, 30)], ids=["convolution", "inner product"])
def test_each_output_is_an_image_channels_last(shape: Shape) -> None:
    weights = np.random.default_rng(0).standard_normal(shape)
    storage, flat = ChannelsLastStorage(shape, (3, 2, 5)), np.full(120, np.nan)
    storage.pack(weights, flat)
    for place, value in np.ndenumerate(weights.reshape(4, 3, 2, 5)):
        output, channel, row, column = place
        assert flat[((output * 2 + row) * 5 + column) * 3 + channel] == value
    again = np.full(shape, np.nan)
    storage.unpack(flat, again)
    np.testing.assert_array_equal(again, weights)
