"""Pickles of arrays are read as Python reads them, and no pickle runs anything."""

from __future__ import annotations

import collections
import os
import pickle
from typing import Any

import numpy as np
import pytest

from crossbow.data.pickles import read_pickle
from crossbow.types import DataError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
ARRAYS = {
    "uint8": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "booleans": np.array([True, False]),
    "big-endian": np.arange(6, dtype=">i4").reshape(2, 3),
    "Fortran order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "one number": np.array(2.5, np.float16),
}


def shared_lists(depth: int) -> bytes:
    """A list of ten times one list, which is ten times one list, and so on."""
    value: list[object] = [1]
    for _ in range(depth):
        value = [value] * 10
    return pickle.dumps({"data": value}, protocol=2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_as_they_were(name: str, protocol: int) -> None:
    """A part of an array, too, whose elements a pickle stores in another way."""
    arrays = [ARRAYS[name], ARRAYS[name][..., ::-1] if ARRAYS[name].ndim else ARRAYS[name]]
    found: Any = read_pickle(pickle.dumps({"data": arrays}, protocol), "arrays")
    for array, expected in zip(found["data"], arrays, strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_read_as_python_reads_them(protocol: int) -> None:
    value = {"a": [1, 2.5, "text", b"bytes", None, True], 3: {"b": (1, 2)}}
    assert read_pickle(pickle.dumps(value, protocol), "values") == value


def test_a_list_in_many_places_stays_one() -> None:
    held = read_pickle(shared_lists(9), "lists")
    assert isinstance(held, dict)
    assert held["data"][0] is held["data"][9]


def test_a_list_that_holds_itself() -> None:
    value: list[object] = [1]
    value.append(value)
    held = read_pickle(pickle.dumps(value), "list")
    assert isinstance(held, list)
    assert held[1] is held


def test_arrays_in_shared_lists_are_still_arrays() -> None:
    inner = [np.arange(3)]
    held = read_pickle(pickle.dumps([inner, inner, {"a": inner}]), "lists")
    assert isinstance(held, list)
    assert held[0] is held[1] is held[2]["a"]
    np.testing.assert_array_equal(held[0][0], np.arange(3))


class Attack:
    """Its pickle would run a program."""

    def __reduce__(self) -> Any:
        return os.putenv, ("CROSSBOW_TEST_OF_PICKLES", "attacked")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Attack(), r"one that calls .*putenv"),
        (np.array([Attack()], object), r"one that calls .*putenv|an array of objects"),
        (np.array(["text"], object), "an array of objects"),
        (np.array(["text"]), "an array of type <U4"),
        (np.array(["2020-01-01"], "datetime64[D]"), "an array of type datetime64"),
        (collections.OrderedDict(a=1), r"one that calls collections\.OrderedDict"),
        (np.float32(1), r"one that calls numpy.*scalar"),
    ],
    ids=["a program", "a program in an array", "objects", "text", "dates", "a class", "a number of NumPy"],
)
def test_other_values_are_refused(value: object, message: str, protocol: int) -> None:
    with pytest.raises(
        DataError, match=rf"^file: expected a pickle of arrays, lists and numbers only\. Received: ({message})"
    ):
        read_pickle(pickle.dumps({"data": value}, protocol), "file")


@pytest.mark.parametrize("protocol", [2, 5])
def test_a_truncated_pickle_is_refused_at_every_byte(protocol: int) -> None:
    content = pickle.dumps({"data": np.arange(5), "labels": [1, 2]}, protocol)
    for length in range(len(content)):
        with pytest.raises(DataError, match=rf"^file: expected an intact pickle\. Received: {length} bytes \("):
            read_pickle(content[:length], "file")


def test_a_value_stored_far_away_is_refused() -> None:
    """Python's unpickler would allocate memory for all indices below."""
    for content in (b"\x80\x02]r\xff\xff\xff\x3f.", b"\x80\x02]p1000000000\n."):
        with pytest.raises(DataError, match=r"Received: a value stored at index 1\d{9}$"):
            read_pickle(content, "file")
