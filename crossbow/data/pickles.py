"""Safe reading of pickled dictionaries of NumPy arrays, without running any code of the pickle."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from crossbow.files import reason
from crossbow.types import Array, DataError


def read_pickle(content: bytes, source: str) -> object:
    """The contents of a pickle: numbers, strings, bytes, lists, dictionaries and arrays of numbers.

    Strings of a Python-2 pickle become bytes. A pickle is a program, and may call any function that it names. Here no
    function is called, not even NumPy's: the few names that a pickled array uses map to the harmless classes below, and
    every other name is rejected.

    Raises DataError, which begins with `source`.
    """
    try:
        _check_places(content)
        return _plain(_Unpickler(io.BytesIO(content), encoding="bytes").load(), {})
    except _NotAllowedError as error:
        raise DataError(f"{source}: expected a pickle of arrays, lists and numbers only. Received: {error}") from error
    except Exception as error:  # damaged files: the unpickler does not document the exceptions that they raise
        received = f"{len(content):,} bytes ({reason(error)})"
        raise DataError(f"{source}: expected an intact pickle. Received: {received}") from error


class _NotAllowedError(Exception):
    """The pickle uses a name that does not belong to an array."""


class _Type:
    """The type of an array in a pickle, created as numpy.dtype(name, …), then given a state with the byte order."""

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
    """An array in a pickle, created empty, then given a state (version, shape, type, Fortran order, bytes).

    An array of objects has a list instead of the bytes.
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
    """An array in a pickle of protocol 5, created from bytes, type, shape and order."""

    def __init__(self, content: Any, dtype: Any, shape: Any, order: Any) -> None:
        self.array = _array(content, dtype, shape, order)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Replacement for the function that pickles of protocol 2 call to create bytes."""
    if encoding not in ("latin1", b"latin1"):
        raise _NotAllowedError(f"text to be encoded as {encoding}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}
for _core in ("numpy.core", "numpy._core"):  # before and after NumPy 2
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _Array
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _Buffer


_STORING = ("PUT", "BINPUT", "LONG_BINPUT")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _NotAllowedError(f"one that calls {module}.{name}")
        return _ALLOWED[module, name]


def _check_places(content: bytes) -> None:
    """Reject a pickle that stores values at indices beyond its length, because the unpickler would allocate memory for
    all smaller indices."""
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in _STORING and int(str(argument)) > len(content):
            raise _NotAllowedError(f"a value stored at index {argument}")


def _plain(value: object, done: dict[int, object]) -> object:
    """The value with every array replaced by NumPy's. A value that occurs several times stays one object, because the
    number of copies could be huge.

    done: converted values by their id.
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
