"""Metadata files: every key, and every mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.data.batch_metadata import PAGE, TYPES, Metadata, pad_to_page, read_metadata, tuple_bytes, write_metadata
from crossbow.types import DataError
from tests.data.hand_made_files import TEXT


def test_metadata_of_the_original(tmp_path: Path) -> None:
    """Comments, empty lines, any case, no fill, no pads."""
    text = "# a comment\n\n EXAMPLES: /a/x.examples\nLabels :/a/x.labels\npartitions: 1\nelements:4\nBatch Size: 2\n"
    text += "example shape: [3,4, 5]\nlabel shape: [1]\nexample type: int\nlabel type: float"
    (tmp_path / "metadata").write_bytes(text.replace("\n", "\r\n").encode())
    metadata = read_metadata(tmp_path / "metadata")
    expected = Metadata("/a/x.examples", "/a/x.labels", 1, 4, 2, (3, 4, 5), (1,), "int", "float")
    assert metadata == expected
    assert metadata.number_of_examples == 4


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Notepad writes one."""
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    (tmp_path / "metadata").write_text(TEXT)
    assert read_metadata(tmp_path / "marked") == read_metadata(tmp_path / "metadata")
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf" + TEXT.partition("#\n")[2].encode())
    assert read_metadata(tmp_path / "marked") == read_metadata(tmp_path / "metadata")


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    """After any byte: without the last keys, which may be missing, the repeated examples would count twice."""
    path = tmp_path / "metadata"
    path.write_text(TEXT)
    whole = read_metadata(path)
    for end in range(1, len(TEXT) - 1):
        path.write_text(TEXT[:end])
        with pytest.raises(DataError, match="metadata: expected "):
            read_metadata(path)
    path.write_text(TEXT.partition("fill")[0])
    with pytest.raises(DataError, match=r"the line '# EOF' at the end.*a file that ends with 'label pad    : 4088'"):
        read_metadata(path)
    path.write_text(TEXT.replace("# Metadata file", "# Another comment").replace("# EOF", ""))
    assert read_metadata(path) == whole


BAD_METADATA = {
    "an unknown key": ("fill   ", "filling", ["line 14", "'filling'"]),
    "a key twice": ("label pad", "example pad", ["'example pad' once", "line 13"]),
    "a missing key": ("partitions   : 2\n", "", ["the keys", "none of partitions"]),
    "no colon": ("partitions   :", "partitions", ["line 5", "'partitions 2'"]),
    "two colons": ("partitions   : 2", "partitions : 2:3", ["line 5"]),
    "no value": ("partitions   : 2", "partitions :", ["line 5"]),
    "no partitions": ("partitions   : 2", "partitions : 0", ["partitions to be an integer from 1", "'0'"]),
    "too many partitions": ("partitions   : 2", "partitions : 7", ["partitions to be at most 6", "Received: 7"]),
    "no elements": ("elements     : 6", "elements : 0", ["elements to be an integer from 1", "'0'"]),
    "no batch": ("batch size   : 2", "batch size : 0", ["batch size to be an integer from 1", "'0'"]),
    "a negative pad of examples": ("example pad  : 4080", "example pad : -1", ["example pad to be", "from 0", "'-1'"]),
    "a negative fill": ("fill         : 1", "fill : -1", ["fill to be an integer from 0", "'-1'"]),
    "nine dimensions": ("[1, 2]", "[1, 1, 1, 1, 1, 1, 1, 1, 1]", ["example shape to be sizes"]),
    "a huge shape": ("[1, 2]", "[65536, 32768]", ["example shape to be sizes"]),
    "no integer": ("elements     : 6", "elements : six", ["elements to be an integer from 1", "'six'"]),
    "a huge integer": ("elements     : 6", "elements : 2147483648", ["elements", "'2147483648'"]),
    "an endless integer": ("elements     : 6", "elements : " + "9" * 5000, ["elements to be an integer"]),
    "half a batch": ("elements     : 6", "elements : 5", ["elements to be a multiple of batch size, 2", "Received: 5"]),
    "a negative batch size": ("batch size   : 2", "batch size : -2", ["batch size to be an integer from 1", "'-2'"]),
    "a negative pad": ("label pad    : 4088", "label pad : -8", ["label pad to be an integer from 0", "'-8'"]),
    "a batch as fill": ("fill         : 1", "fill : 2", ["fill to be less than batch size, 2", "Received: 2"]),
    "a shape without brackets": ("[1, 2]", "1, 2", ["example shape to be sizes", "'1, 2'"]),
    "an empty shape": ("[1, 2]", "[]", ["example shape"]),
    "a shape with a zero": ("[1, 2]", "[1, 0]", ["example shape"]),
    "an unknown type": (": float", ": double", ["example type to be int or float", "'double'"]),
}


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        read_metadata(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 6000
    for part in (str(path), "expected", "Received: ", *parts):
        assert part in message, message


@pytest.mark.parametrize(("old", "new", "parts"), BAD_METADATA.values(), ids=BAD_METADATA)
def test_wrong_metadata_are_named(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    assert old in TEXT
    (tmp_path / "metadata").write_text(TEXT.replace(old, new))
    refused(tmp_path / "metadata", *parts)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "the keys"),
        (b"\xff\xfe", "UTF-8"),
        (bytes(100), "line 1"),
        (b"#" * (1 << 20), "the keys"),
        (b"#" * ((1 << 20) + 1), "at most 1.0 MB"),
    ],
)
def test_what_is_no_metadata_file(tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "metadata").write_bytes(content)
    refused(tmp_path / "metadata", part)


def test_the_text_is_that_of_the_original(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(TEXT)
    metadata = read_metadata(tmp_path / "metadata")
    assert metadata.text() == TEXT
    assert (metadata.number_of_examples, metadata.batches) == (5, 3)
    assert "fill" not in replace(metadata, fill=None).text()


def test_the_largest_numbers(tmp_path: Path) -> None:
    text = TEXT.replace("label pad    : 4088", "label pad : 2147483647").replace("[1, 2]", "[1, 2147483647]")
    (tmp_path / "metadata").write_text(text)
    metadata = read_metadata(tmp_path / "metadata")
    assert (metadata.label_pad, metadata.example_shape) == (2147483647, (1, 2147483647))


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(tuple)
types = st.sampled_from(sorted(TYPES))


@given(st.data(), shapes, shapes, types, types)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    example_shape: tuple[int, ...],
    label_shape: tuple[int, ...],
    example_type: str,
    label_type: str,
) -> None:
    batch_size, batches = data.draw(st.integers(1, 1000)), data.draw(st.integers(1, 1000))
    metadata = Metadata(
        examples=data.draw(st.sampled_from(["x", "/a b/ü.examples", "y#z"])),
        labels="labels",
        partitions=data.draw(st.integers(1, batches)),
        elements=batches * batch_size,
        batch_size=batch_size,
        example_shape=example_shape,
        label_shape=label_shape,
        example_type=example_type,
        label_type=label_type,
        example_pad=data.draw(st.integers(0, PAGE)),
        label_pad=data.draw(st.integers(0, PAGE)),
        fill=data.draw(st.none() | st.integers(0, batch_size - 1)),
    )
    path = tmp_path_factory.getbasetemp() / "metadata"
    write_metadata(path, metadata)
    assert read_metadata(path) == metadata


@pytest.mark.parametrize("prefix", ["a:b", "a\nb", " a", "a\r", "#a", "a\u2028b", "a\udcff"])
@pytest.mark.parametrize("name", ["examples", "labels"])
def test_a_prefix_that_would_be_read_as_another_is_refused(tmp_path: Path, name: str, prefix: str) -> None:
    good = Metadata("x", "y", 1, 4, 2, (3,), (1,), "int", "float")
    with pytest.raises(DataError, match=r"a path without colons, line breaks or surrounding spaces"):
        write_metadata(tmp_path / "metadata", replace(good, **{name: prefix}))
    assert not (tmp_path / "metadata").exists()


@pytest.mark.parametrize(("nbytes", "pad"), [(0, 0), (1, 4095), (4095, 1), (4096, 0), (4097, 4095)])
def test_pads_fill_the_last_page(nbytes: int, pad: int) -> None:
    assert pad_to_page(nbytes) == pad


def test_bytes_of_an_example() -> None:
    assert tuple_bytes((3, 4, 5), "float") == 240
    assert tuple_bytes((1,), "int") == 4
