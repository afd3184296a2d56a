"""Description of the machine and the software of a measurement."""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from pathlib import Path

from crossbow.runtime.device import available_cores
from crossbow.types import ConfigurationError

PACKAGES = ("numpy", "numba", "onednn-cpu-gomp", "torch")
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
"""Flags in /proc/cpuinfo, widest vectors first."""


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def require_torch(why: str) -> None:
    """Raise ConfigurationError, which ends with `why`, unless PyTorch is installed."""
    if not has_torch():
        raise ConfigurationError(f"expected PyTorch. Received: it is not installed; {why}")


def busy_seconds() -> float | None:
    """CPU time of all processes since the machine started; None if unknown."""
    path = Path("/proc/stat")
    if not path.is_file():
        return None
    first = path.read_text("utf-8").split("\n", 1)[0]
    user, nice, system, _, _, interrupts, soft, stolen, *_ = map(int, first.split()[1:])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def process_seconds(process: int) -> float:
    """CPU time of a running process, if `busy_seconds` is known."""
    fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory, versions, date and commit, in printing order."""
    model, vectors = _processor()
    return {
        "processor": f"{model}{', ' if vectors else ''}{vectors}",
        "cores": f"{len(available_cores())} of {os.cpu_count()}",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _processor() -> tuple[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return platform.processor() or platform.machine(), ""
    lines = [line.partition(":") for line in path.read_text("utf-8").splitlines()]
    known = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = known.get("flags", known.get("Features", "")).split()
    vectors = next((text for flag, text in VECTORS.items() if flag in flags), "")
    return known.get("model name", platform.machine()), vectors


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _commit() -> str:
    root = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short", "HEAD")
        return commit + (" with changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
