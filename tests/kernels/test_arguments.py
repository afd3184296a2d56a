"""Argument blocks: what a caller passes by name is what a pass reads by name, at the cost of reading it by position."""

from __future__ import annotations

import gc
import importlib.util
import re
import weakref
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("numba") is None:
    pytest.skip("numba is not installed", allow_module_level=True)

import numba

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.compiled import (
    SIGNATURE,
    address_of,
    float32_at,
    float64_at,
    inlined,
    int64_at,
    native_pass,
    tail,
)
from crossbow.types import address

SIZES = Arguments(rows=int, columns=int)
MIXED = Arguments(target=Address, sizes=SIZES, scale=float, offset=int, tail="more")


@inlined
def _area(sizes: Any) -> Any:
    return sizes.rows * sizes.columns


@native_pass(MIXED)
def mixed(block: Any) -> int:
    target, more = float64_at(block.target), int64_at(tail(block))
    target[0], target[1], target[2] = _area(block.sizes), block.scale, block.offset
    target[3], target[4] = more[0], more[1]
    target[5] = int64_at(address_of(block.sizes))[1]
    block.sizes.rows += 1
    return 0


GIVEN: dict[str, Any] = {"sizes": {"rows": 2, "columns": 3}, "scale": 0.5, "offset": -7, "more": [8, 9]}


def test_arguments_arrive_under_their_names_and_can_be_assigned() -> None:
    target = np.zeros(6)
    call = mixed.call("mixed", target=target, **GIVEN)
    call()
    assert target.tolist() == [6, 0.5, -7, 8, 9, 3]
    call()
    assert target[0] == 9  # sizes.rows is 3 now, in this call's block
    mixed.call("another", target=target, **GIVEN)()
    assert target[0] == 6


def test_an_address_is_an_array_a_compiled_function_a_number_or_none() -> None:
    one, array = Arguments(place=Address), np.zeros(3, np.float32)
    for given, expected in ((array, address(array)), (mixed, mixed.address), (77, 77), (None, 0)):
        block, _ = one.pack("one", {"place": given})
        assert block.tolist() == [expected]


def test_a_call_keeps_the_arrays_alive_that_it_points_to() -> None:
    group, array = Arguments(inside=SIZES, group=Arguments(place=Address)), np.zeros(3)
    kept = weakref.ref(array)
    block, references = group.pack("group", {"inside": GIVEN["sizes"], "group": {"place": array}})
    del array
    gc.collect()
    assert kept() is not None
    assert block[-1] == address(references[-1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"scales": 1.0},
            "mixed: expected the arguments target, sizes, scale, offset, more. Received: target, sizes, ",
        ),
        ({"sizes": {"rows": 2}}, "mixed.sizes: expected the arguments rows, columns. Received: rows"),
        ({"sizes": (2, 3)}, "mixed.sizes: expected a mapping. Received: (2, 3)"),
        ({"offset": 1.5}, "mixed.offset: expected an integer. Received: 1.5"),
        ({"scale": "1"}, "mixed.scale: expected a number. Received: '1'"),
        ({"more": [1, 2.5]}, "mixed.more: expected integers. Received: 2.5"),
        (
            {"target": "input0"},
            "mixed.target: expected an array, a compiled function, an address or None. Received: 'i",
        ),
    ],
)
def test_bad_arguments(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        mixed.call("mixed", **{"target": np.zeros(6), **GIVEN, **changed})


def test_a_missing_argument() -> None:
    with pytest.raises(TypeError, match=r"^mixed: expected the arguments .*\. Received: target$"):
        mixed.call("mixed", target=np.zeros(6))


def test_bad_declarations() -> None:
    with pytest.raises(TypeError, match=r"^size: expected Address, int, float or Arguments. Received: <class 'str'>$"):
        Arguments(size=str)
    with pytest.raises(
        TypeError, match=r"^group: expected a group of fields without a tail. Received: the tail 'more'$"
    ):
        Arguments(group=MIXED)


def test_blocks_have_symbols_by_their_fields() -> None:
    """Not by numba's numbers of types, which differ between processes: compiled code is cached."""
    again, other = Arguments(rows=int, columns=int).block, Arguments(rows=int, columns=float).block
    assert again.mangling_args == SIZES.block.mangling_args != other.mangling_args
    assert str(again._code) not in again.mangling_args[1]


def _instructions(function: Any) -> list[str]:
    """The machine code of a function, sorted, without labels: the order of prologue and epilogue may differ."""
    lines = [line.strip() for line in function._library.get_asm_str().splitlines() if line.startswith("\t")]
    return sorted(re.sub(r"\S*_ZN\S*|\S*cfunc\S*|\.L\w+", "NAME", line) for line in lines if line[0] != ".")


def test_names_compile_to_the_instructions_of_positions() -> None:
    clip = Arguments(x=Address, y=Address, window=SIZES, length=int, scale=float)

    def named(block: Any, _1: int, _2: int, _3: int) -> int:
        x, y, scale = float32_at(block.x), float32_at(block.y), np.float32(block.scale)
        for i in range(block.length):
            y[i] = x[i] * scale + np.float32(block.window.columns)
        return 0

    def positional(arguments: int, _1: int, _2: int, _3: int) -> int:
        b = int64_at(arguments)
        x, y, scale = float32_at(b[0]), float32_at(b[1]), np.float32(float64_at(arguments)[5])
        for i in range(b[4]):
            y[i] = x[i] * scale + np.float32(b[3])
        return 0

    by_name = _instructions(numba.cfunc(numba.types.int32(clip.block, *SIGNATURE.args[1:]))(named))
    by_position = _instructions(numba.cfunc(SIGNATURE)(positional))
    assert by_name == by_position
    assert len(by_name) > 50


def test_a_block_whose_fields_the_caller_changes() -> None:
    group = Arguments(first=int, factor=float)
    declared = Arguments(source=Address, group=group, length=int)
    block = np.zeros((), declared.dtype)
    block["group"] = (3, 0.5)
    block["length"] = 7
    packed, _ = declared.pack("it", {"source": None, "group": {"first": 3, "factor": 0.5}, "length": 7})
    assert block.tobytes() == packed.tobytes()
    assert block.nbytes == declared.size
