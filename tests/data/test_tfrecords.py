"""TFRecord files and tf.train.Example messages, made byte by byte."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.data.tfrecords import Feature, masked_checksum, parse_example, read_frames
from crossbow.types import DataError
from tests.data.test_crc32c import slow_crc32c


def frame(content: bytes) -> bytes:
    def masked(data: bytes) -> bytes:
        value = slow_crc32c(data)
        return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def test_a_known_frame() -> None:
    """Of one byte "a", as TensorFlow's TFRecordWriter writes it."""
    assert masked_checksum(struct.pack("<Q", 1)) == slow_masked(struct.pack("<Q", 1))
    assert frame(b"a")[:8] == b"\x01" + bytes(7)


def slow_masked(content: bytes) -> int:
    return struct.unpack("<I", frame(content)[-4:])[0]


@given(st.lists(st.binary(max_size=30), max_size=6), st.integers(0, 7))
def test_frames(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], skip: int) -> None:
    path = tmp_path_factory.getbasetemp() / "frames"
    path.write_bytes(b"".join(map(frame, contents)))
    assert [content for content, _ in read_frames(path, skip)] == contents[skip:]
    assert [end for _, end in read_frames(path)][-1:] == [path.stat().st_size][: len(contents)]


FRAMES = frame(b"first record") + frame(b"second")


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_truncated_file_is_refused_at_every_byte(tmp_path: Path, skip: int) -> None:
    path, first = tmp_path / "file", len(frame(b"first record"))
    for length in range(1, len(FRAMES)):
        if length == first:
            continue  # a whole file
        path.write_bytes(FRAMES[:length])
        with pytest.raises(DataError, match=rf"expected all of record {int(length > first)}\. Received: the end"):
            list(read_frames(path, skip))


def test_every_wrong_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for place in range(len(FRAMES)):
        path.write_bytes(FRAMES[:place] + bytes([FRAMES[place] ^ 1 << place % 8]) + FRAMES[place + 1 :])
        number = int(place >= len(frame(b"first record")))
        with pytest.raises(DataError, match=rf"file: expected the checksum [0-9a-f]{{8}} of .*record {number}, as"):
            list(read_frames(path))


def test_a_frame_that_is_too_large(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**31)
    (tmp_path / "file").write_bytes(length + struct.pack("<I", slow_masked(length)))
    with pytest.raises(DataError, match=r"at most 2\.1 GB in record 0\. Received: 2,147,483,648 bytes"):
        list(read_frames(tmp_path / "file"))


def test_the_largest_frame_is_read(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**31 - 1)
    (tmp_path / "file").write_bytes(length + struct.pack("<I", slow_masked(length)))
    with pytest.raises(DataError, match="expected all of record 0"):
        list(read_frames(tmp_path / "file"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a readable TFRecord file"):
        list(read_frames(tmp_path / "nowhere"))


# Messages


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Feature) -> bytes:
    if values and isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))  # type: ignore[arg-type]
    if values and isinstance(values[0], float):
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    return field(3, field(1, b"".join(varint(value) for value in values)))  # type: ignore[arg-type]


def example(features: dict[str, Feature]) -> bytes:
    entries = (field(1, name.encode()) + field(2, feature(values)) for name, values in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


number = st.floats(width=32, allow_nan=False)
values = (
    st.lists(st.binary(max_size=200), min_size=1, max_size=3)
    | st.lists(number, min_size=1, max_size=5)
    | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)
)


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=8), values, max_size=5))
def test_examples(features: dict[str, Feature]) -> None:
    assert parse_example(example(features), "here") == features


def test_the_largest_integers() -> None:
    features: dict[str, Feature] = {"a": [-(2**63), 2**63 - 1, -1, 0]}
    assert parse_example(example(features), "here") == features


def test_forms_that_the_wire_format_allows() -> None:
    """Numbers that are not packed, unknown fields, also of a known number, entries in another order, a name twice, and
    parts that are joined."""
    fixed = varint(1 << 3 | 5) + struct.pack("<f", 0.5)
    others = varint(2 << 3) + varint(5) + field(2, bytes(4)) + varint(2 << 3 | 5) + bytes(4)
    unpacked_int = field(3, varint(1 << 3) + varint(7) + fixed + others + varint(1 << 3) + varint(-1))
    unpacked_float = field(2, others + fixed + varint(1 << 3) + varint(7))
    unknown = (
        varint(9 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4) + varint(9 << 3) + varint(1) + field(9, b"x")
    )
    turned = field(2, unpacked_int) + field(1, b"a") + unknown
    twice = field(1, b"b") + field(2, feature([1])), field(1, b"b") + field(2, feature([b"last"]))
    joined = field(1, b"c") + field(2, unpacked_float + field(2, field(1, struct.pack("<f", 1.5))))
    content = field(1, b"".join(field(1, entry) for entry in (turned, *twice))) + unknown + field(1, field(1, joined))
    empty = field(1, field(1, field(1, b"d")))
    assert parse_example(content + empty, "here") == {"a": [7, -1], "b": [b"last"], "c": [0.5, 1.5], "d": []}


BROKEN = {
    "an integer without an end": (b"\x80", "an integer that does not end"),
    "an integer of eleven bytes": (b"\xff" * 10 + b"\x01", "more than ten bytes"),
    "field number 0": (b"\x02\x00", "a field of number 0"),
    "a group": (varint(1 << 3 | 3), "wire type 3"),
    "a field beyond the end": (varint(1 << 3 | 2) + varint(5) + b"abc", "a field of 5 bytes where 3 are left"),
    "float32 of three bytes": (field(1, field(1, field(1, b"x") + field(2, field(2, field(1, b"abc"))))), "3 bytes"),
    "a name that is no text": (field(1, field(1, field(1, b"\xff"))), "utf-8"),
}


@pytest.mark.parametrize(("content", "received"), BROKEN.values(), ids=BROKEN)
def test_broken_messages(content: bytes, received: str) -> None:
    with pytest.raises(DataError, match=rf"^here: expected a tf\.train\.Example message\. Received: .*{received}"):
        parse_example(content, "here")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_an_error(content: bytes) -> None:
    with contextlib.suppress(DataError):
        parse_example(content, "here")
