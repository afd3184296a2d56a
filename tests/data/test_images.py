"""Image files to pixels: as Pillow decodes them, bit for bit, by simplejpeg or by Pillow itself."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.data import decode_image, images
from crossbow.data.images import Scratch, decode_pixels, looks_like_an_image
from crossbow.types import DataError

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the extra zoo, is not installed")

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "jpeg"
REAL = pytest.mark.skipif(not FOLDER.is_dir(), reason="no real JPEG files beside the repository (../shared/data/jpeg)")
TRUNCATED = {"truncated_jpeg.jpg", "ultrahdr.jpg"}

PHOTO = np.random.default_rng(0).integers(0, 256, (13, 21, 3)).astype(np.uint8)


def encoded(pixels: np.ndarray = PHOTO, mode: str | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(out, **{"format": "JPEG", **options})
    return out.getvalue()


def by_pillow(content: bytes) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As if these packages were not installed."""
    package = images._package
    monkeypatch.setattr(images, "_package", lambda name: None if name.split(".")[0] in names else package(name))


@REAL
@pytest.mark.parametrize("package", ["simplejpeg", "Pillow"])
def test_all_real_files_equal_pillow(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(FOLDER.glob("*/*.jp*g"))
    if package == "Pillow":
        without(monkeypatch, "simplejpeg")
        paths = [path for path in paths if path.parent.name != "photos"]
    assert len(paths) > 60
    for path in paths:
        content = path.read_bytes()
        if path.name in TRUNCATED:
            with pytest.raises(DataError, match="truncated"):
                decode_image(content)
            continue
        decoded = decode_image(content)
        assert decoded.dtype == np.uint8
        assert decoded.flags.c_contiguous
        np.testing.assert_array_equal(decoded, by_pillow(content), err_msg=path.name)


CASES = {
    "baseline": {},
    "progressive": {"progressive": True},
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "restarts": {"restart_marker_blocks": 1},
    "grey": {"mode": "L"},
    "CMYK": {"mode": "CMYK"},
    "PNG": {"format": "PNG"},
    "PNG of 16 colours": {"mode": "P", "format": "PNG", "bits": 4},
    "PNG with transparency": {"mode": "P", "format": "PNG", "transparency": bytes(range(0, 250, 10))},
    "PNG with alpha": {"mode": "RGBA", "format": "PNG"},
    "PNG of grey with alpha": {"mode": "LA", "format": "PNG"},
    "PNG of 1 bit": {"mode": "1", "format": "PNG"},
    "PNG of 16 bits": {"mode": "I;16", "format": "PNG"},
    "GIF": {"format": "GIF"},
    "GIF of two images": {"format": "GIF", "save_all": True, "append_images": [Image.fromarray(255 - PHOTO)]},
    "BMP": {"format": "BMP"},
    "WebP": {"format": "WEBP", "lossless": True},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(13, 21), (1, 1), (16, 16)], ids=str)
def test_every_kind_of_file_equals_pillow(case: str, shape: tuple[int, int]) -> None:
    options = dict(CASES[case])
    pixels = PHOTO[: shape[0], : shape[1]] if shape != (16, 16) else np.full((16, 16, 3), 77, np.uint8)
    if options.get("mode") == "I;16":
        options["mode"], pixels = None, pixels[:, :, 0].astype(np.uint16) * 257
    content = encoded(pixels, **options)
    np.testing.assert_array_equal(decode_image(content), by_pillow(content))


def test_transparency_after_the_pixels_does_not_matter() -> None:
    content = encoded(mode="P", format="PNG", transparency=bytes(range(0, 250, 10)))
    chunks, start = list[bytes](), 8
    while start < len(content):
        end = start + 12 + int.from_bytes(content[start : start + 4], "big")
        chunks.append(content[start:end])
        start = end
    late = sorted(chunks, key=lambda chunk: (chunk[4:8] == b"IEND", chunk[4:8] == b"tRNS"))
    assert late != chunks
    np.testing.assert_array_equal(decode_image(content[:8] + b"".join(late)), decode_image(content))


def adobe(content: bytes, transform: int) -> bytes:
    """A JPEG file with another colour transform in its Adobe segment."""
    place = content.index(b"Adobe") + 11
    return content[:place] + bytes([transform]) + content[place + 1 :]


def test_ycck_equals_pillow() -> None:
    content = adobe(encoded(mode="CMYK"), 2)
    assert (
        images._package("simplejpeg") is None or images._package("simplejpeg").decode_jpeg_header(content)[2] == "YCCK"
    )
    np.testing.assert_array_equal(decode_image(content), by_pillow(content))


def test_an_orientation_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    plain, turned = encoded(), encoded(exif=exif)
    assert turned != plain
    np.testing.assert_array_equal(decode_image(turned), decode_image(plain))


@pytest.mark.parametrize("package", ["simplejpeg", "Pillow"])
def test_what_follows_the_image_does_not_matter(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if package == "Pillow":
        without(monkeypatch, "simplejpeg")
    np.testing.assert_array_equal(decode_image(encoded() + b"more" * 100), decode_image(encoded()))


def test_bytes_between_segments_do_not_matter() -> None:
    content = encoded()
    place = content.index(b"\xff\xdb")
    damaged = content[:place] + b"\x00\x01\x02" + content[place:]
    np.testing.assert_array_equal(decode_image(damaged), decode_image(content))


@pytest.mark.parametrize("convert", [bytes, bytearray, memoryview, lambda content: np.frombuffer(content, np.uint8)])
def test_kinds_of_bytes(convert: Callable[[bytes], Any]) -> None:
    for content in (encoded(), encoded(format="PNG")):
        np.testing.assert_array_equal(decode_image(convert(content)), by_pillow(content))


def test_rows_of_pixels_are_as_in_files() -> None:
    assert decode_pixels(encoded()).shape == (13, 21, 3)
    np.testing.assert_array_equal(decode_pixels(encoded()).transpose(2, 0, 1), decode_image(encoded()))


def test_images_are_decoded_to_given_memory() -> None:
    pytest.importorskip("simplejpeg", reason="Pillow allocates its images")
    scratch = Scratch()
    large = scratch.array(2000)
    decoded = decode_pixels(encoded(), scratch=scratch)
    assert np.shares_memory(decoded, large)
    np.testing.assert_array_equal(decoded, decode_pixels(encoded()))
    png = decode_pixels(encoded(format="PNG"), scratch=scratch)
    np.testing.assert_array_equal(png, PHOTO)


def test_scratch_memory_grows_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scratch, "LARGEST_KEPT", 1000)
    scratch = Scratch()
    assert [scratch.array(count).shape for count in (0, 10, 5)] == [(0,), (10,), (5,)]
    first = scratch.array(10)
    assert np.shares_memory(scratch.array(3), first)
    grown = scratch.array(11)
    assert not np.shares_memory(grown, first)
    assert np.shares_memory(scratch.array(20), grown)  # it at least doubles
    assert scratch.array(1001).shape == (1001,)
    assert np.shares_memory(scratch.array(20), grown)  # larger memory was not kept
    assert scratch.array(1000).shape == (1000,)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", True),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", True),
        (b"GIF89a", True),
        (b"BM\x36\x03\x00\x00\x00\x00\x00\x00\x36\x00", True),
        (b"BM is what this text", False),
        (b"RIFF\x24\x00\x00\x00WEBPVP8L", True),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", False),
        (b"\xff\xd8", False),
        (b"", False),
    ],
)
def test_files_are_known_by_their_first_bytes(start: bytes, expected: bool) -> None:
    assert looks_like_an_image(start) is expected


# What is no image


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"mode": "L"}, {"mode": "CMYK"}], ids=str)
def test_a_truncated_jpeg_file_is_bad_at_every_byte(options: dict[str, Any]) -> None:
    content = encoded(**options)
    decode_image(content)
    for length in range(len(content)):
        with pytest.raises(DataError, match=r"expected .*\. Received: "):
            decode_image(content[:length])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected an image file, JPEG, PNG, GIF, BMP or WebP. Received: 0 bytes beginning with none"),
        (b"<!DOCTYPE html>", "Received: 15 bytes beginning with 3c 21 44 4f 43 54 59 50"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "expected an image file"),
        (b"\xff\xd8\xff" + bytes(40), "expected an intact JPEG file"),
        (encoded(format="PNG")[:60], "expected an intact PNG file"),
        (b"BM" + bytes(100), "expected an intact BMP file"),
        (b"RIFF" + bytes(100), "expected an intact WebP file"),
        ("text", "expected the bytes of an image file. Received: str"),
        (None, "expected the bytes of an image file. Received: NoneType"),
    ],
    ids=repr,
)
def test_what_is_no_image(content: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        decode_image(content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def stated_size(content: bytes, size: int) -> bytes:
    """A JPEG file that says that it is so high and wide."""
    place = content.index(b"\xff\xc0") + 5
    return content[:place] + size.to_bytes(2, "big") * 2 + content[place + 4 :]


@pytest.mark.parametrize("package", ["simplejpeg", "Pillow"])
def test_an_image_that_is_too_large_is_refused_before_there_is_memory_for_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if package == "Pillow":
        without(monkeypatch, "simplejpeg")
    with pytest.raises(DataError, match=r"at most 89,478,485 pixels\. Received: 65,000 × 65,000"):
        decode_image(stated_size(encoded(), 65_000))


@pytest.mark.parametrize("package", ["simplejpeg", "PIL"])
def test_one_package_is_enough_for_a_good_jpeg_file(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    expected = by_pillow(encoded())
    without(monkeypatch, package)
    np.testing.assert_array_equal(decode_image(encoded()), expected)


def test_without_pillow_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "PIL")
    for content, received in ((encoded(format="PNG"), "PNG"), (encoded(mode="CMYK"), "JPEG")):
        with pytest.raises(DataError, match=rf"needs Pillow: pip install 'crossbow\[zoo\]'\. Received: {received}$"):
            decode_image(content)
    pytest.importorskip("simplejpeg")
    with pytest.raises(DataError, match=r"Received: JPEG \(Premature end of JPEG file\)$"):
        decode_image(encoded()[:-40])


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_the_caller_may_refuse_a_size_before_there_is_memory(form: str) -> None:
    pillow, out = pytest.importorskip("PIL.Image"), io.BytesIO()
    pillow.fromarray(np.zeros((6, 9, 3), np.uint8)).save(out, form)

    def refuse(height: int, width: int) -> None:
        raise DataError(f"expected another size. Received: {height} × {width}")

    with pytest.raises(DataError, match=r"^expected another size\. Received: 6 × 9$"):
        decode_pixels(out.getvalue(), refuse)
    assert decode_pixels(out.getvalue(), lambda *size: None).shape == (6, 9, 3)


@pytest.mark.parametrize("content", [b"\xff\xd8\xff", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"RIFF\x04\0\0\0WEBP"])
def test_a_header_that_is_cut_off(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^expected an intact \w+ file\. Received: ") as caught:
        decode_image(content)
    assert "driver" not in str(caught.value)
    assert "unpack" not in str(caught.value)
