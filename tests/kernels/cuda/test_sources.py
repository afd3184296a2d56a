"""Every kernel is valid CUDA C++: compiled by NVIDIA's own compiler for GPUs of two generations, without a GPU."""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda.launch import OPTIONS, SOURCES, options_for, source_of
from crossbow.kernels.cuda.mixed import narrow_type
from crossbow.kernels.cuda.vector import combination_source, norm_source
from crossbow.kernels.interface import Assignment, State

PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
SMA = combination_source([Assignment("v", ("v", "g", "sign")), Assignment("w", ("w", "v", "z"))], {"sign": "w"})
KNOWS_STORED = re.compile(r"\bstored \*").search
FILES = {path.stem: source_of(path.stem) for path in sorted(SOURCES.glob("*.cu"))}
GENERATED = {
    "linear combination": source_of("vector") + SMA,
    "squared norm": source_of("vector") + norm_source(2),
}


def nvrtc() -> Any:
    """The library that compiles, or None where it is not installed."""
    for package in PACKAGES:
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
                return ctypes.CDLL(str(file.locate()))
    return None


LIBRARY = nvrtc()
needs_nvrtc = pytest.mark.skipif(LIBRARY is None, reason=f"NVRTC is not installed: pip install {PACKAGES[0]}")


def compile_source(source: str, options: Sequence[str]) -> tuple[str, str, str]:
    """(error, or "", what the compiler said, PTX)."""
    program, encoded = ctypes.c_void_p(), [option.encode() for option in options]
    LIBRARY.nvrtcGetErrorString.restype = ctypes.c_char_p
    LIBRARY.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    try:
        status = LIBRARY.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        error = LIBRARY.nvrtcGetErrorString(status).decode() if status else ""
        return error, text_of("ProgramLog", program), "" if status else text_of("PTX", program)
    finally:
        LIBRARY.nvrtcDestroyProgram(ctypes.byref(program))


def text_of(what: str, program: ctypes.c_void_p) -> str:
    """`nvrtcGet<what>`."""
    size = ctypes.c_size_t()
    getattr(LIBRARY, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(max(size.value, 1))
    getattr(LIBRARY, f"nvrtcGet{what}")(program, text)
    return text.value.decode()


def builds() -> Iterator[Any]:
    """Every source for every type, and for either architecture; 16 bits where kernels have tensors of such. To PTX only
    (`compute_90`) where there is nothing more for the assembler to find fault with."""
    for name, source in {**FILES, **GENERATED}.items():
        narrow = [("sm_80", "float16"), ("sm_90", "bfloat16")] if KNOWS_STORED(source) else []
        for gpu, dtype in [("sm_80", "float32"), ("compute_90", "float64"), *narrow]:
            marks = () if dtype in ("float32", "bfloat16") else pytest.mark.slow
            yield pytest.param(source, gpu, dtype, id=f"{name}-{gpu}-{dtype}", marks=marks)


def test_the_sources_with_tensors_of_16_bits() -> None:
    assert {name for name, source in FILES.items() if KNOWS_STORED(source)} >= {"activation", "channels", "mixed"}
    assert "softmax" in FILES
    assert not KNOWS_STORED(FILES["softmax"])


@needs_nvrtc
@pytest.mark.parametrize(("source", "architecture", "dtype"), list(builds()))
def test_compiles_without_a_warning(source: str, architecture: str, dtype: str) -> None:
    options = (*OPTIONS, *options_for(narrow_type(dtype)), f"-arch={architecture}")
    error, log, _ = compile_source(source, options)
    assert (error, log.strip()) == ("", "")


@needs_nvrtc
def test_what_is_no_kernel_is_noticed() -> None:
    error, log, _ = compile_source("KERNEL wrong() { return 1; }", (*OPTIONS, "-arch=sm_90"))
    assert "NVRTC_ERROR_COMPILATION" in error
    assert "error" in log
    error, log, _ = compile_source("__global__ void unused() { int nothing; }", (*OPTIONS, "-arch=sm_90"))
    assert error == ""
    assert "warning" in log


@needs_nvrtc
@pytest.mark.parametrize(("dtype", "lanes"), [(np.float32, 4), (np.float64, 2)])
def test_combinations_move_16_bytes_at_once(dtype: Any, lanes: int) -> None:
    """Each vector that is read is read once, each that is written is written once; and nothing becomes an FMA."""
    options = (*OPTIONS, *options_for(np.dtype(dtype)), "-arch=compute_90")
    _, _, ptx = compile_source(GENERATED["linear combination"], options)
    body = ptx[ptx.index(".entry linear_combination") :]
    assert len(re.findall(rf"ld\.global(?:\.nc)?\.v{lanes}\.", body)) == 4
    assert len(re.findall(rf"st\.global\.v{lanes}\.", body)) == 2
    assert not re.search(r"\bfma\.", body)


def test_kernels_know_the_positions_in_the_task_state() -> None:
    (text,) = re.findall(r"enum \{ (TASK = .*) \};", source_of("engine"))
    named = {name: value for name, value in vars(State).items() if name.isupper() and name != "SIZE"}
    assert text == ", ".join(f"{name} = {value}" for name, value in named.items())


def test_there_are_sources() -> None:
    assert "activation" in FILES
