"""Every kernel is valid CUDA C++, and needs few registers: compiled and assembled for GPUs of two generations by
NVRTC, as CuPy does it, without a GPU."""

from __future__ import annotations

import ctypes
import importlib.metadata
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from crossbow.kernels.cuda import launch
from crossbow.kernels.cuda.adaptive import step_source
from crossbow.kernels.cuda.launch import NARROW, OPTIONS, SOURCES, CudaKernel, options_for
from crossbow.kernels.cuda.mixed import narrow_type
from crossbow.kernels.cuda.series import series_source
from crossbow.kernels.cuda.vector import combination_source, norm_source
from crossbow.kernels.interface import State
from crossbow.solver.adaptation import STEP, AdaptationForm
from crossbow.solver.update import Assignment
from tests.combinations import one_in
from tests.kernels.cuda.emulator import SIGNATURE

PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
SMA = combination_source([Assignment("v", ("v", "g", "sign")), Assignment("w", ("w", "v", "z"))], {"sign": "w"})
ADAM = step_source(AdaptationForm(("g", "w"), "s", "v"), Assignment("w", ("w", STEP, "z")))
CLASSIFIER = [
    CudaKernel(file, name, np.dtype(np.float32))
    for file, name in (
        ("inner_product", "small_product"),
        ("softmax", "softmax_forward"),
        ("loss", "softmax_loss_of_logits"),
        ("loss", "accuracy"),
        ("task", "store_results"),
        ("loss", "softmax_loss_backward"),
        ("inner_product", "sum_rows"),
        ("inner_product", "small_product"),
    )
]
KNOWS_STORED = re.compile(r"\bstored \*").search
OF_CHANNELS = ("batch_norm", "batch_norm_whole", "channels")
RUNS = {"": (1, 1), " of adjacent values": ("PACK", 1), " of adjacent channels": (1, "PACK")}
"""VALUES and CHANNELS of the sources, by the end of a name."""


def source_of(file: str, run: str = "") -> str:
    values, channels = RUNS[run]
    defined = f"enum {{ VALUES = {values}, CHANNELS = {channels} }};\n" if file in OF_CHANNELS else ""
    return launch.text_of("") + defined + launch.text_of(file)


FILES = {path.stem: source_of(path.stem) for path in sorted(SOURCES.glob("*.cu"))}
FILES |= {f"{file}{run}": source_of(file, run) for file in OF_CHANNELS for run in RUNS if run}
del FILES["batch_norm_whole of adjacent channels"]  # its blocks keep single channels
GENERATED = {
    "linear combination": source_of("vector") + SMA,
    "squared norm": source_of("vector") + norm_source(2),
    "adaptive step": source_of("vector") + ADAM,
    "batch_norm of large tensors": "#define WIDE 1\n" + source_of("batch_norm"),
    "end of a classifier": source_of("series") + series_source(CLASSIFIER, barrier=True),
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


WHOLE_PACK = r"{}\.global(?:\.nc)?\.(?:v2\.\w64|v4\.\w32|v8\.\w16)"
"""An instruction that moves 16 bytes."""
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
"""What CuPy adds to our options, beside the architecture and where its own headers lie."""
REGISTERS = 80
"""Of a thread, at most: then three blocks of 256 threads are on a multiprocessor at once."""
MOST_REGISTERS = {
    **dict.fromkeys(("batch_norm_training", "batch_norm_gradient", "sum_channels", "sum_rows"), 64),
    **dict.fromkeys(("pooling_expected", "pooling_stochastic", "adaptive_step", "series"), 128),
}
"""Other limits: of kernels with blocks of 1024 threads; and of those of which two blocks suffice (in double precision,
or in 16 bits), or a single one."""
SIDE_BY_SIDE = 104
"""Registers of a thread with eight channels of 16 bits, at most: then two blocks are on a multiprocessor at once."""
STACK = {"softmax": 128, "classify": 64, "end of a classifier": 128}
"""Bytes of a thread's memory, by source; others have none. These keep the sums of parts on the way to a long one."""
USES = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True)
class Uses:
    """What a kernel needs of a multiprocessor."""

    registers: int
    stack: int
    spilled: int

    @staticmethod
    def of(log: str) -> dict[str, Uses]:
        """By kernel: as the assembler says."""
        return {
            found["name"]: Uses(
                int(found["registers"]), int(found["stack"]), int(found["stores"]) + int(found["loads"])
            )
            for found in USES.finditer(log)
        }


def assemble(source: str, architecture: str, dtype: str) -> tuple[str, dict[str, Uses], str]:
    """A source as CuPy has it compiled, through to the GPU's own code: what is wrong, or "", what kernels use, and the
    PTX on the way."""
    ours, arch = (*OPTIONS, *options_for(narrow_type(dtype))), f"-arch={architecture}"
    error, log, ptx = compile_source(source, (*ours, *CUPY_OPTIONS, arch, "--ptxas-options=-v"))
    said = [line for line in log.splitlines() if line.strip() and not re.match(r"ptxas (info|\s*\.) ", line)]
    return "\n".join([*([error] if error else []), *said]), Uses.of(log), ptx


def builds() -> Iterator[Any]:
    """Every source for every type and either architecture; 16 bits where kernels have tensors of such. One of each is
    tried always, but for those that take the longest, the rest where slow tests are."""
    for name, source in {**FILES, **GENERATED}.items():
        types = ("float32", "float64", *(NARROW if KNOWS_STORED(source) else ()))
        for dtype, gpu in itertools.product(types, ("sm_80", "sm_90")):
            quick = (dtype, gpu) == ("float32", "sm_90") and name not in (
                *(f"channels{run}" for run in RUNS),
                "loss",
                "max_pooling",
                "average_pooling",
                "stochastic_pooling",
                "softmax",
                "end of a classifier",
            )
            slow = () if quick else (pytest.mark.slow,)
            yield pytest.param(name, source, gpu, dtype, id=f"{name}-{gpu}-{dtype}", marks=slow)


def test_the_sources_with_tensors_of_16_bits() -> None:
    assert {name for name, source in FILES.items() if KNOWS_STORED(source)} >= {"activation", "channels", "mixed"}
    assert "softmax" in FILES
    assert not KNOWS_STORED(FILES["softmax"])


@one_in(12)
@needs_nvrtc
@pytest.mark.parametrize(("name", "source", "architecture", "dtype"), list(builds()))
def test_compiles_without_a_warning_and_uses_little(name: str, source: str, architecture: str, dtype: str) -> None:
    """Nor does it divide numbers of 64 bits, which a GPU does in software. In large tensors, which need positions of 64
    bits, there is no other way."""
    wrong, kernels, ptx = assemble(source, architecture, dtype)
    assert wrong == ""
    assert set(kernels) == {name for name, _ in SIGNATURE.findall(source)}
    for kernel, uses in kernels.items():
        assert uses.spilled == 0, kernel
        assert uses.stack <= STACK.get(name, 0), kernel
        most = SIDE_BY_SIDE if dtype in NARROW and name.endswith(" of adjacent channels") else REGISTERS
        assert uses.registers <= MOST_REGISTERS.get(kernel, most), kernel
    assert "of large tensors" in name or not re.search(r"\b(?:div|rem)\.[su]64\b", ptx)


@pytest.mark.slow
@needs_nvrtc
def test_what_a_kernel_uses_is_read() -> None:
    source = """
    extern "C" __global__ void __launch_bounds__(1024, 2) spills(float *y) {
        float values[64];
        for (int i = 0; i < 64; ++i) values[i] = y[i];
        for (int i = 0; i < 64; ++i) for (int j = 0; j < 64; ++j) values[i] += values[j] * y[j];
        for (int i = 0; i < 64; ++i) y[i] = values[i];
    }
    extern "C" __global__ void indexes(float *y, int where) {
        float values[64];
        for (int i = 0; i < 64; ++i) values[(i * where) & 63] = y[i];
        y[where] = values[where & 63];
    }"""
    wrong, kernels, _ = assemble(source, "sm_90", "float32")
    assert (wrong, set(kernels)) == ("", {"spills", "indexes"})
    assert kernels["spills"].spilled > 0
    assert kernels["spills"].registers <= 32
    assert kernels["indexes"].stack >= 256
    assert assemble("__global__ void unused() { int nothing; }", "sm_90", "float32")[0]


def test_the_options_are_those_that_cupy_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="cupy is not installed")
    from cupy._core import core
    from cupy.cuda import compiler

    given: list[str] = []

    class Program:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def compile(self, options: Sequence[str], log: Any = None) -> None:
            given.extend(options)
            raise compiler.CompileException("far enough", "", "", options, "nvrtc")

    monkeypatch.setattr(compiler, "_get_arch", lambda: "90")
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch=None: ("-arch=sm_90", "cubin"))
    monkeypatch.setattr(compiler, "_preprocess", lambda *_: "")
    monkeypatch.setattr(compiler, "_NVRTCProgram", Program)
    with pytest.raises(compiler.CompileException):
        core.compile_with_cache("// compiled by nobody", OPTIONS)
    assert sorted(option for option in given if not option.startswith("-I")) == sorted(
        (*OPTIONS, *CUPY_OPTIONS, "-arch=sm_90")
    )


@needs_nvrtc
def test_what_is_no_kernel_is_noticed() -> None:
    error, log, _ = compile_source("KERNEL wrong() { return 1; }", (*OPTIONS, "-arch=sm_90"))
    assert "NVRTC_ERROR_COMPILATION" in error
    assert "error" in log
    error, log, _ = compile_source("__global__ void unused() { int nothing; }", (*OPTIONS, "-arch=sm_90"))
    assert error == ""
    assert "warning" in log


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize(("dtype", "lanes"), [(np.float32, 4), (np.float64, 2)])
@pytest.mark.parametrize(
    ("name", "read", "written"), [("linear combination", 4, 2), ("adaptive step", 5, 3)], ids=["linear", "adaptive"]
)
def test_combinations_move_16_bytes_at_once(name: str, read: int, written: int, dtype: Any, lanes: int) -> None:
    """Each vector that is read is read once, each that is written is written once; and nothing becomes an FMA."""
    options = (*OPTIONS, *options_for(np.dtype(dtype)), "-arch=compute_90")
    _, _, ptx = compile_source(GENERATED[name], options)
    body = ptx[ptx.index(f".entry {name.replace(' ', '_')}") :]
    assert len(re.findall(rf"ld\.global(?:\.nc)?\.v{lanes}\.", body)) == read
    assert len(re.findall(rf"st\.global\.v{lanes}\.", body)) == written
    assert not re.search(r"\bfma\.", body)


@pytest.mark.slow
@one_in(3)
@needs_nvrtc
@pytest.mark.parametrize("run", [" of adjacent values", " of adjacent channels"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kernels_of_channels_move_16_bytes_at_once(run: str, dtype: str) -> None:
    _, _, ptx = compile_source(
        FILES[f"channels{run}"], (*OPTIONS, *options_for(narrow_type(dtype)), "-arch=compute_90")
    )
    for kernel, stores in (("scaling_forward", True), ("scaling_products", False), ("slope_backward", True)):
        body = re.split(r"\.entry ", ptx[ptx.index(f".entry {kernel}(") :])[1]
        assert re.search(WHOLE_PACK.format("ld"), body), kernel
        assert bool(re.search(WHOLE_PACK.format("st"), body)) == stores, kernel


@pytest.mark.slow
@one_in(4)
@needs_nvrtc
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("file", "kernel", "read"),
    [
        ("activation", "activation_backward", 2),
        ("element_wise", "weighted_sum", 8),
        ("gated_activation", "gated_activation_forward", 1),
        ("bias", "add_bias", 1),
        ("dropout", "drop", 1),
        ("copy", "copy", 1),
        ("copy", "fill", 0),
    ],
)
def test_pointwise_kernels_move_16_bytes_at_once(file: str, kernel: str, read: int, dtype: str) -> None:
    _, _, ptx = compile_source(FILES[file], (*OPTIONS, *options_for(narrow_type(dtype)), "-arch=compute_90"))
    body = re.split(r"\.entry ", ptx[ptx.index(f".entry {kernel}(") :])[1]
    assert len(re.findall(WHOLE_PACK.format("ld"), body)) >= read
    assert re.search(WHOLE_PACK.format("st"), body)


def test_kernels_know_the_positions_in_the_task_state() -> None:
    (text,) = re.findall(r"enum \{ (TASK = .*) \};", source_of("task"))
    of_all = [name for name in vars(State) if name.isupper() and name != "SIZE"]
    named = {name: getattr(State, name) for name in of_all if getattr(State, name) <= State.TURN}  # others: CPUs' alone
    assert text == ", ".join(f"{name} = {value}" for name, value in named.items())


def test_there_are_sources() -> None:
    assert "activation" in FILES
