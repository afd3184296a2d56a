"""Utilisation and memory of a GPU, sampled by nvidia-smi in the background."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass
from types import TracebackType

COMMAND = "nvidia-smi"
PERIOD_MS = 100
SECONDS_TO_START = 5.0
SMEAR = 0.3
"""Approximate time in seconds over which a sample averages: the driver's period is between 1/6 s and 1 s."""


@dataclass(frozen=True)
class Sample:
    """A sample of nvidia-smi, with its time of `time.monotonic`."""

    moment: float
    busy: float
    """Fraction of the time in which any kernel ran, even if it used only a part of the GPU."""
    memory: int
    """Bytes in use by all processes."""


def driver_version(bus: str) -> str:
    """The driver of a GPU, by its bus address; "unknown" if nvidia-smi does not report it."""
    query = ["--query-gpu=driver_version", "--format=csv,noheader", "-i", bus]
    try:
        done = subprocess.run([COMMAND, *query], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"


class Occupancy:
    """Samples in a `with` block. Without a working nvidia-smi there are none."""

    def __init__(self, bus: str | None) -> None:
        """`bus`: the GPU's address; None takes no samples."""
        self._bus = bus
        self._samples: list[Sample] = []
        self._process: subprocess.Popen[str] | None = None
        self._first = threading.Event()

    def __enter__(self) -> Occupancy:
        command = shutil.which(COMMAND)
        if command is None or self._bus is None:
            return self
        query = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits", "-i", self._bus]
        try:
            self._process = subprocess.Popen(
                [command, *query, "-lms", str(PERIOD_MS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            return self
        self._thread = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._thread.start()
        self._first.wait(SECONDS_TO_START)
        return self

    @property
    def known(self) -> bool:
        """Whether there are samples."""
        return bool(self._samples)

    def between(self, begin: float, end: float) -> list[Sample]:
        """The samples of a time interval."""
        return [sample for sample in list(self._samples) if begin <= sample.moment <= end]

    def busy(self, begin: float, end: float) -> float | None:
        """Fraction of a time interval in which the GPU ran any kernel; None if unknown."""
        found = self.between(min(begin + SMEAR, (begin + end) / 2), end)
        return statistics.mean(sample.busy for sample in found) if found else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._thread.join()
            self._process = None

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                sample = parse(line, time.monotonic())
                if sample is not None:
                    self._samples.append(sample)
                self._first.set()
        self._first.set()


def parse(line: str, moment: float) -> Sample | None:
    """Parse a line of nvidia-smi's output; None if it has no values ("[N/A]").

    >>> parse("87, 1024", 2.0)
    Sample(moment=2.0, busy=0.87, memory=1073741824)
    """
    busy, _, memory = line.partition(",")
    try:
        return Sample(moment, float(busy) / 100, int(memory) << 20)
    except ValueError:
        return None
