"""Compiled passes: their instructions, and their cache on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.arguments import Address, Arguments
from crossbow.kernels.interface import PreparedKernel
from crossbow.kernels.native import NativeCall, NativeError
from crossbow.kernels.random import philox
from crossbow.kernels.requests import CopyForward
from crossbow.types import Tensor, address
from tests.kernels.native_calls import add, compiled

TYPES = {
    "float32_at": np.float32,
    "float64_at": np.float64,
    "int32_at": np.int32,
    "int64_at": np.int64,
    "uint8_at": np.uint8,
    "uint32_at": np.uint32,
}


@pytest.mark.parametrize("name", TYPES)
def test_pointers_have_the_size_and_the_sign_of_their_type(name: str) -> None:
    at = getattr(compiled, name)

    def shift(memory: int, count: int, _2: int, _3: int) -> int:
        values = at(memory)
        for index in range(np.int64(count) - 1):
            values[index] = values[index + 1] / 2
        return 0

    shift.__name__ = f"shift_{name}"
    values = np.array([1, 200, 100, 50, 7], TYPES[name])
    NativeCall("shift", compiled.native(shift).address, (address(values), 4))()
    assert values.tolist() == [100, 50, 25, 50, 7]


@compiled.native
def words(counters: int, key: int, result: int, _3: int) -> int:
    """`philox` of one counter."""
    c, k, made = compiled.uint32_at(counters), compiled.uint32_at(key), compiled.uint32_at(result)
    w0, w1, w2, w3 = compiled.philox(
        np.uint64(c[0]), np.uint64(c[1]), np.uint64(c[2]), np.uint64(c[3]), np.uint64(k[0]), np.uint64(k[1])
    )
    made[0], made[1], made[2], made[3] = np.uint32(w0), np.uint32(w1), np.uint32(w2), np.uint32(w3)
    return 0


def test_compiled_random_words_are_those_of_the_generator() -> None:
    counters = np.random.default_rng(0).integers(0, 2**32, (4, 4), dtype=np.uint32)
    key, made = np.array([2**32 - 1, 12345], np.uint32), np.zeros((4, 4), np.uint32)
    for counter, row in zip(counters, made, strict=True):
        NativeCall("words", words.address, (address(counter), address(key), address(row)))()
    np.testing.assert_array_equal(made, philox(counters, (2**32 - 1, 12345)))


HALVE = Arguments(x=Address, y=Address, room=Address, length=int, status=int)


@compiled.native_pass(HALVE)
def halve(block: Any) -> int:
    x, y, room = compiled.float32_at(block.x), compiled.float32_at(block.y), compiled.float32_at(block.room)
    for index in range(block.length):
        room[index] = x[index]
        y[index] = room[index] / 2
    return np.int32(block.status)


VECTOR = Tensor((3,), np.dtype(np.float32))


def prepared(**options: Any) -> PreparedKernel:
    given: dict[str, Any] = {"x": "input0", "y": "output", "room": "workspace", "length": 3, "status": 0, **options}
    return compiled.prepared_pass(CopyForward(VECTOR, VECTOR), halve, workspace=12, **given)


def buffers() -> dict[str, Any]:
    x = np.array([1, 2, 3], np.float32)
    return {"input0": x, "output": np.zeros(3, np.float32), "workspace": np.zeros(12, np.uint8)}


def test_a_kernel_of_one_pass_takes_its_roles_from_the_request() -> None:
    kernel, given = prepared(), buffers()
    assert (kernel.name, kernel.reads, kernel.writes) == ("copy_forward numba", ("input0",), ("output",))
    assert (kernel.workspace, kernel.kept, kernel.in_place) == (12, 0, ("input0", "output"))
    assert (prepared(nbytes_kept=8).kept, prepared(in_place=False).in_place) == (8, None)
    (call,) = kernel.bind(given)
    call()
    assert given["output"].tolist() == [0.5, 1, 1.5]
    assert given["workspace"].view(np.float32).tolist() == [1, 2, 3]


def test_a_failed_pass_is_explained_from_its_buffers() -> None:
    def explain(given: Any) -> None:
        raise LookupError(f"Received: {given['input0'].tolist()}")

    (call,) = prepared(status=4, explain=explain).bind(buffers())
    with pytest.raises(LookupError, match=r"Received: \[1.0, 2.0, 3.0\]"):
        call()
    (call,) = prepared(status=4).bind(buffers())
    with pytest.raises(NativeError, match="copy_forward failed: it returned status 4"):
        call()


def test_arguments_that_a_pass_does_not_have_are_refused_while_preparing() -> None:
    with pytest.raises(TypeError, match="halve"):
        prepared(more=1)
    with pytest.raises(TypeError, match="halve"):
        compiled.prepared_pass(CopyForward(VECTOR, VECTOR), halve, x="input0", y="output")


SIGNAL_ONCE = """
import logging
import numpy as np
from crossbow.kernels import compiled
from crossbow.kernels.task_list import TaskList
from crossbow.kernels.cpu.passes import flags
from crossbow.kernels.requests import Signal
messages, handler = [], logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
compiled.LOGGER.addHandler(handler)
compiled.LOGGER.setLevel(logging.INFO)
state, flag = np.full(8, 3), np.zeros(1, np.int64)
TaskList(flags.signal(Signal()).bind({"state": state, "flag": flag}), ["signal"]).run()
print(flag[0], *(each._compiled.cache_hits for each in (flags.signal_flag, compiled.run_table)))
print(*sorted(messages), sep="\\n")
"""


def run_python(program: str, **environment: str) -> str:
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run(
        [sys.executable, "-c", program], env=variables, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
def test_the_second_process_finds_the_compiled_passes(tmp_path: Path) -> None:
    """And only the first one logs that they were compiled."""
    first, second = (run_python(SIGNAL_ONCE, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first.splitlines() == ["3 0 0", "compiled run_table", "compiled signal_flag"]
    assert second.splitlines() == ["3 1 1", ""]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            RuntimeError("cannot cache function 'add': no locator available for file 'here'"),
            "no directory for them can be written",
        ),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_passes_compile_where_nothing_can_be_kept(error: Exception, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is said once, before the first of them is compiled."""
    import numba

    real, done = numba.cfunc, []

    def without_cache(signature: object, cache: bool = False) -> object:
        if cache:
            raise error
        done.append("compiled")
        return real(signature)

    def warn(message: str, *arguments: object, **options: object) -> None:
        done.append(message)

    monkeypatch.setattr(numba, "cfunc", without_cache)
    monkeypatch.setattr("warnings.warn", warn)
    compiled._warn_of_cache.cache_clear()
    cell = np.zeros(1, np.int64)
    again, other = compiled.NativeFunction(add._function), compiled.NativeFunction(add._function)
    assert other.address
    NativeCall("add", again.address, (address(cell), 4, 0))()
    warning, *rest = done
    assert warning.startswith(f"compiled kernels cannot be kept on disk ({why}): every process compiles them again")
    assert warning.endswith("Set NUMBA_CACHE_DIR to a directory that can be written")
    assert rest == ["compiled", "compiled"]
    assert cell[0] == 4
    assert again._compiled.cache_hits == 0


@pytest.mark.slow
def test_without_numba_lists_of_python_calls_run() -> None:
    program = """
import sys
sys.modules["numba"] = None
from crossbow.kernels.task_list import TaskList
from crossbow.kernels import why_not_onednn
done = []
tasks = TaskList([lambda: done.append(1), lambda: done.append(2)], ["a", "b"])
tasks.run()
print(done, why_not_onednn())
"""
    assert run_python(program).startswith("[1, 2] ")
    assert "numba" in run_python(program, CROSSBOW_WITHOUT_ONEDNN="")


def test_a_change_of_any_kernels_file_is_another_checksum(tmp_path: Path) -> None:
    """A pass contains constants of other files: compiled before one changed, it must not be found again."""
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "a.py").write_text("ONE = 1")
    (below / "b.py").write_text("TWO = 2")
    before = compiled._checksum(tmp_path)
    (below / "b.py").write_text("TWO = 3")
    assert compiled._checksum(tmp_path) != before
    (below / "b.py").write_text("TWO = 2")
    assert compiled._checksum(tmp_path) == before
    assert compiled._checksum(Path(compiled.__file__).parent) == compiled._SALT
