"""Many JPEG files are decoded to the same images in any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from crossbow.data import jpeg
from crossbow.data.jpeg import decode_images
from crossbow.types import DataError

simplejpeg = pytest.importorskip("simplejpeg", reason="simplejpeg, of the extra zoo, is not installed")
SHAPE = (3, 16, 24)


def encoded(count: int) -> list[bytes]:
    """Files of images of one colour each, of various lengths."""
    random = np.random.default_rng(0)
    colours = random.integers(0, 256, (count, 2, 2, 3)).astype(np.uint8)
    return [simplejpeg.encode_jpeg(colour.repeat(8, 0).repeat(12, 1), 80 + n % 20) for n, colour in enumerate(colours)]


def joined(files: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)])


@pytest.mark.parametrize(("together", "cores"), [(3, 7), (1, 2), (100, 4), (256, 1)])
def test_images_are_in_the_order_of_files(together: int, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg, "TOGETHER", together)
    monkeypatch.setattr(jpeg, "_cores", lambda: cores)
    files = encoded(50)
    images = decode_images(*joined(files), SHAPE, "somewhere")
    assert images.shape == (50, *SHAPE)
    for image, file in zip(images, files, strict=True):
        np.testing.assert_array_equal(image.transpose(1, 2, 0), simplejpeg.decode_jpeg(file))


def test_no_images() -> None:
    assert decode_images(np.zeros(0, np.uint8), np.zeros(1, np.int64), SHAPE, "somewhere").shape == (0, *SHAPE)


def test_the_first_bad_image_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first in the order of images, not the first that a thread comes across."""
    monkeypatch.setattr(jpeg, "TOGETHER", 4)
    monkeypatch.setattr(jpeg, "_cores", lambda: 4)
    files = encoded(20)
    files[7], files[8], files[15] = files[7][: len(files[7]) // 2], b"", b"GIF89a"
    with pytest.raises(DataError, match=r"^somewhere: image 7: expected an intact JPEG file"):
        decode_images(*joined(files), SHAPE, "somewhere")
    with pytest.raises(DataError, match=r"^somewhere: image 0: expected 24×16 pixels\. Received: 16×24$"):
        decode_images(*joined(files), (3, 24, 16), "somewhere")


def test_the_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert jpeg._cores() == 3
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert jpeg._cores() == 6
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert jpeg._cores() == 1
