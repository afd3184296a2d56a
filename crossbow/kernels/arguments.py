"""Argument blocks: the memory from which a compiled pass reads its arguments by name.

A pass declares its block once, as names and kinds; the code that binds the pass passes the arguments by the same names:

    FILL = Arguments(target=Address, length=int, value=float)

    @native_pass(FILL)
    def fill(block: Any) -> int:
        target, value = float32_at(block.target), np.float32(block.value)
        for index in range(block.length):
            target[index] = value
        return 0

    fill.call("fill", target=array, length=array.size, value=1.0)

A field is 8 bytes. In a pass, `block` is a record of numba: `block.length` compiles to the load that
`int64_at(address)[1]` compiles to. Passes that share sizes share a group of fields, another declaration:
`Arguments(source=Address, grid=GRID)` has `block.grid.rows`. Fields can also be assigned.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numba import types
from numba.core.datamodel import models
from numba.extending import register_model

from crossbow.types import Array, address

SLOT = 8
"""Bytes of a field."""


class Address:
    """The kind of an argument that is the address of an array, of a compiled function, or 0 (passed as None)."""


Kind = Any
"""`Address`, `int`, `float`, or the `Arguments` of a group of fields."""
Value = Any
"""An array, a compiled function, an address or None for an `Address`; a number; a mapping for a group of fields."""


class Block(types.Record):
    """numba's type of an argument block.

    Its name in symbols is a checksum of its fields. numba numbers its own records in each process, so two functions
    that were compiled in different processes and loaded from the cache could have the same symbol.
    """

    @property
    def mangling_args(self) -> tuple[str, tuple[str, ...]]:
        return "Block", (f"{zlib.crc32(self.name.encode()):08x}",)


register_model(Block)(models.RecordModel)


class Arguments:
    """The declaration of an argument block: the names of its fields, in order, and their kinds.

    tail: name of a sequence of integers of any length after the fields, whose address in a pass is `tail(block)`.
    """

    def __init__(self, *, tail: str | None = None, **kinds: Kind) -> None:
        for name, kind in kinds.items():
            if not isinstance(kind, Arguments) and kind not in (Address, int, float):
                raise TypeError(f"{name}: expected Address, int, float or Arguments. Received: {kind!r}")
            if isinstance(kind, Arguments) and kind.tail is not None:
                raise TypeError(f"{name}: expected a group of fields without a tail. Received: the tail {kind.tail!r}")
        self.kinds: Mapping[str, Kind] = kinds
        self.tail: str | None = tail
        fields: list[Any] = []
        offset = 0
        for name, kind in kinds.items():
            group = isinstance(kind, Arguments)
            type_ = kind.block if group else types.float64 if kind is float else types.int64
            fields.append((name, {"type": type_, "offset": offset}))
            offset += kind.size if group else SLOT
        self.size = offset
        """Number of bytes, without the tail."""
        self.block = Block(fields, self.size, True)
        """Type of the block in passes."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a caller passes."""
        return (*self.kinds, *(() if self.tail is None else (self.tail,)))

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The block without its tail as a NumPy record, for a caller that changes fields between calls."""
        kinds = self.kinds.items()
        return np.dtype(
            [(n, k.dtype if isinstance(k, Arguments) else np.float64 if k is float else np.int64) for n, k in kinds]
        )

    def check_names(self, owner: str, names: Sequence[str]) -> None:
        """Raise TypeError unless these are the declared names. owner: name of the pass or group, for the message."""
        if set(names) != set(self.names):
            raise TypeError(f"{owner}: expected the arguments {_listed(self.names)}. Received: {_listed(names)}")

    def located(self, values: Mapping[str, Value], locate: Callable[[Value], Value]) -> dict[str, Value]:
        """The values, with `locate` applied to the values of addresses."""
        return {name: locate(value) if self.kinds.get(name) is Address else value for name, value in values.items()}

    def pack(self, owner: str, values: Mapping[str, Value]) -> tuple[Array, tuple[object, ...]]:
        """The block in memory, and the objects to which its addresses refer.

        Raises TypeError if a name is missing or unknown, or a value is not of its kind.
        """
        slots: list[int | float] = []
        references: list[object] = []
        self._pack(owner, values, slots, references)
        block = np.zeros(len(slots), np.int64)
        floats = block.view(np.float64)
        for index, slot in enumerate(slots):
            (floats if isinstance(slot, float) else block)[index] = slot
        return block, tuple(references)

    def _pack(
        self, owner: str, values: Mapping[str, Value], slots: list[int | float], references: list[object]
    ) -> None:
        self.check_names(owner, tuple(values))
        for name, kind in self.kinds.items():
            value = values[name]
            if isinstance(kind, Arguments):
                if not isinstance(value, Mapping):
                    raise _wrong_kind(f"{owner}.{name}", "a mapping", value)
                kind._pack(f"{owner}.{name}", value, slots, references)
            elif kind is Address:
                slots.append(_address(f"{owner}.{name}", value))
                references.append(value)
            elif kind is float:
                slots.append(_converted(f"{owner}.{name}", "a number", float, value))
            else:
                slots.append(_converted(f"{owner}.{name}", "an integer", operator.index, value))
        if self.tail is not None:
            slots += [
                _converted(f"{owner}.{self.tail}", "integers", operator.index, each) for each in values[self.tail]
            ]


def _address(name: str, value: Value) -> int:
    if value is None:
        return 0
    if isinstance(value, np.ndarray):
        return address(value)
    found = getattr(value, "address", value)  # the address of a compiled function, or the value itself
    made: int = _converted(name, "an array, a compiled function, an address or None", operator.index, found)
    return made


def _converted(name: str, expected: str, convert: Callable[[Value], Any], value: Value) -> Any:
    if isinstance(value, str):
        raise _wrong_kind(name, expected, value)
    try:
        return convert(value)
    except TypeError:
        raise _wrong_kind(name, expected, value) from None


def _wrong_kind(name: str, expected: str, value: Value) -> TypeError:
    return TypeError(f"{name}: expected {expected}. Received: {value!r}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
