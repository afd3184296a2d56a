"""Images for a prediction, from files, folders and arrays."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.data import image_folder
from crossbow.data.examples import Selection
from crossbow.data.pictures import read_pictures
from crossbow.types import DataError
from tests.data.picture_files import picture, write_folder

pillow = pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")
UINT8 = np.dtype(np.uint8)


def test_resized_as_the_check_examples_of_folders(tmp_path: Path) -> None:
    """Photographs of any size, in a folder and below it, sorted; other files are left out."""
    files = {f"{kind}/{name}.jpg": picture(seed) for seed, (kind, name) in enumerate(("ab", "aa", "bx", "by"))}
    write_folder(tmp_path, {f"{part}/{name}": content for part in ("train", "val") for name, content in files.items()})
    (tmp_path / "val" / "notes.txt").write_text("no image")
    data = image_folder(tmp_path, image_size=16)
    assert data.check is not None
    expected = np.empty((4, 3, 16, 16), np.uint8)
    data.check.write_images(Selection.of(np.arange(4)), expected)
    received = list(read_pictures([tmp_path / "val"], (3, 16, 16), UINT8))
    assert [each.source for each in received] == [
        str(tmp_path / "val" / name) for name in ("a/a.jpg", "a/b.jpg", "b/x.jpg", "b/y.jpg")
    ]
    np.testing.assert_array_equal([each.image for each in received], expected)


def png(pixels: Any) -> bytes:
    out = io.BytesIO()
    pillow.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_images_of_the_models_size_are_unchanged(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    (tmp_path / "x").write_bytes(png(pixels))
    (colour,) = read_pictures([str(tmp_path / "x")], (3, 5, 7), UINT8)
    np.testing.assert_array_equal(colour.image, pixels.transpose(2, 0, 1))
    (gray,) = read_pictures([tmp_path / "x"], (1, 5, 7), UINT8)
    np.testing.assert_array_equal(gray.image[0], np.asarray(pillow.fromarray(pixels).convert("L")))


def test_an_array_is_read_while_it_is_used(tmp_path: Path) -> None:
    """It may be larger than the memory."""
    np.save(tmp_path / "x.npy", np.ones((2, 1, 3, 4), np.float32))
    first = next(iter(read_pictures([tmp_path / "x.npy"], (1, 3, 4), np.dtype(np.float32))))
    assert isinstance(first.image, np.memmap)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays(dtype: Any, tmp_path: Path) -> None:
    images = np.arange(24).reshape(2, 1, 3, 4).astype(dtype)
    np.save(tmp_path / "several.npy", images)
    np.save(tmp_path / "one.npy", images[0])
    received = list(read_pictures([tmp_path / "one.npy", tmp_path / "several.npy"], (1, 3, 4), np.dtype(dtype)))
    several = tmp_path / "several.npy"
    assert [each.source for each in received] == [str(tmp_path / "one.npy"), f"{several}[0]", f"{several}[1]"]
    np.testing.assert_array_equal([each.image for each in received], images[[0, 0, 1]])


def test_a_model_of_doubles_takes_any_floating_point(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 6), np.float32))
    assert len(list(read_pictures([tmp_path / "x.npy"], (6,), np.dtype(np.float64)))) == 2


def test_what_does_not_fit(tmp_path: Path) -> None:
    write_folder(
        tmp_path,
        {
            "photo.jpg": picture(0),
            "text.png": b"no image",
            "cut.jpg": picture(0)[:300],
            "folder/text": b"",
            "bad.npy": b"\x93NUMPY",
        },
    )
    np.save(tmp_path / "shape.npy", np.zeros((2, 3, 8, 9), np.uint8))
    np.save(tmp_path / "type.npy", np.zeros((2, 3, 8, 8), np.int64))
    np.save(tmp_path / "real.npy", np.zeros((2, 3, 8, 8), np.float32))
    np.save(tmp_path / "code.npy", np.array([{}]), allow_pickle=True)
    for name, shape, dtype, expected in (
        ("none.png", (3, 8, 8), np.uint8, "a readable image file. Received: No such file"),
        ("none.npy", (3, 8, 8), np.uint8, "a readable .npy file. Received: No such file"),
        ("text.png", (3, 8, 8), np.uint8, "an image file, "),
        ("cut.jpg", (3, 8, 8), np.uint8, ""),
        ("folder", (3, 8, 8), np.uint8, "image files in the folder. Received: none"),
        ("photo.jpg", (3, 8, 9), np.uint8, "an image of 8×9 pixels, like the model's. Received: 30×40"),
        ("photo.jpg", (3, 8, 8), np.float32, "an .npy file, because the model takes float32 arrays of shape (3, 8, 8)"),
        ("photo.jpg", (192,), np.uint8, "an .npy file, because"),
        ("photo.jpg", (2, 8, 8), np.uint8, "an .npy file, because"),
        ("bad.npy", (3, 8, 8), np.uint8, "an array (N, 3, 8, 8) of uint8, in an .npy file. Received: "),
        ("code.npy", (3, 8, 8), np.uint8, "an array (N, 3, 8, 8) of uint8, in an .npy file. Received: "),
        ("shape.npy", (3, 8, 8), np.uint8, "an array (N, 3, 8, 8) of uint8. Received: (2, 3, 8, 9) of uint8"),
        ("type.npy", (3, 8, 8), np.uint8, "an array (N, 3, 8, 8) of uint8. Received: (2, 3, 8, 8) of int64"),
        ("real.npy", (3, 8, 8), np.uint8, "an array (N, 3, 8, 8) of uint8. Received: (2, 3, 8, 8) of float32"),
    ):
        with pytest.raises(DataError) as error:
            list(read_pictures([tmp_path / name], shape, np.dtype(dtype)))
        assert str(error.value).startswith(f"{tmp_path / name}: "), error.value
        assert expected in str(error.value)
        assert "\n" not in str(error.value)


def test_a_damaged_image_in_a_folder_is_not_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path, {"1.jpg": picture(0), "2.jpg": b"", "notes.txt": b""})
    with pytest.raises(
        DataError, match=r"2\.jpg: expected an image file, JPEG, PNG, GIF, BMP or WebP\. Received: 0 bytes"
    ):
        list(read_pictures([tmp_path], (3, 8, 8), UINT8))
