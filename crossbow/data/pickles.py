"""Pickled dictionaries of NumPy arrays, read without running what a pickle may ask to be run."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from crossbow.types import Array, DataError


def read_pickle(content: bytes, source: str) -> object:
    """What the bytes of a pickle hold: numbers, texts, bytes, lists, dictionaries and arrays of numbers.

    The texts of a Python-2 pickle become bytes. A pickle is a program, and may call any function that it names. Here
    none is called, not even NumPy's: the few names that a pickled array consists of stand for the harmless classes
    below, and every other name is refused.

    Raises DataError that begins with `source`.
    """
    try:
        _check_places(content)
        return _plain(_Unpickler(io.BytesIO(content), encoding="bytes").load(), {})
    except _NotAllowedError as error:
        raise DataError(f"{source}: expected a pickle of arrays, lists and numbers only. Received: {error}") from error
    except Exception as error:  # whatever damaged bytes lead to: the unpickler documents no list of errors
        reason = str(error) or type(error).__name__
        raise DataError(f"{source}: expected an intact pickle. Received: {len(content):,} bytes ({reason})") from error


class _NotAllowedError(Exception):
    """The pickle names something that is not an array's."""


class _Type:
    """What a pickle says of an array's type: numpy.dtype(name, …), then a state that holds the order of bytes."""

    def __init__(self, name: object, *unused: object) -> None:
        self.name = name.decode("ascii") if isinstance(name, bytes) else str(name)
        self.order = ""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        order = order.decode("ascii") if isinstance(order, bytes) else order
        self.order = order if order in ("<", ">") else ""

    def dtype(self) -> np.dtype[Any]:
        dtype = np.dtype(self.order + self.name)
        if dtype.kind not in "biuf":
            raise _NotAllowedError(f"an array of type {dtype}")
        return dtype


class _Array:
    """An array in a pickle: made empty, then given a state (version, shape, type, whether in Fortran's order, bytes).

    An array of objects has a list in place of the bytes.
    """

    def __init__(self, *unused: object) -> None:
        self.array: Array | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        self.array = _array(content, dtype, shape, "F" if fortran else "C")


def _array(content: Any, dtype: Any, shape: Any, order: str) -> Array:
    if not isinstance(content, bytes | bytearray) or not isinstance(dtype, _Type):
        raise _NotAllowedError("an array of objects")
    array = np.frombuffer(content, dtype.dtype())
    return array.reshape(tuple(shape), order="F" if order == "F" else "C")


class _Buffer(_Array):
    """An array in a pickle of protocol 5: made of bytes, type, shape and order."""

    def __init__(self, content: Any, dtype: Any, shape: Any, order: Any) -> None:
        self.array = _array(content, dtype, shape, order)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How protocol 2 writes bytes."""
    if encoding not in ("latin1", b"latin1"):
        raise _NotAllowedError(f"text to be encoded as {encoding}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}
for _core in ("numpy.core", "numpy._core"):  # the name of the second changed with NumPy 2
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _Array
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _Buffer


_STORING = ("PUT", "BINPUT", "LONG_BINPUT")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _NotAllowedError(f"one that calls {module}.{name}")
        return _ALLOWED[module, name]


def _check_places(content: bytes) -> None:
    """Refuse a pickle that stores values in places beyond any that it can need: the unpickler would make room for all
    the places before."""
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in _STORING and int(str(argument)) > len(content):
            raise _NotAllowedError(f"a value stored in place {argument}")


def _plain(value: object, done: dict[int, object]) -> object:
    """With every array as NumPy's. What is in several places stays one object: copies could be any number.

    done: by its identity, what has become of a value.
    """
    if isinstance(value, _Array):
        if value.array is None:
            raise _NotAllowedError("an array without elements")
        return value.array
    if not isinstance(value, dict | list):
        return value
    if id(value) not in done:
        done[id(value)] = value
        if isinstance(value, dict):
            value.update({key: _plain(item, done) for key, item in value.items()})
        else:
            value[:] = [_plain(item, done) for item in value]
    return done[id(value)]
