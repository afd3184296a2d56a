"""Windows and macOS, imitated: what their Python lacks is taken away from this one.

The numerical libraries are those of this machine. So these tests find uses of modules, functions, files and encodings
that other systems do not have. They do not show that the package runs there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import crossbow
from crossbow import cli, clock, host_memory
from crossbow.console import printable
from crossbow.kernels.cpu.passes import flags
from crossbow.runtime import device
from crossbow.types import DataError
from models import lenet

ROOT = Path(__file__).parents[1]
PACKAGE = Path(crossbow.__file__).parent

if sys.platform == "win32":
    pytest.skip("this is Windows", allow_module_level=True)

WINDOWS = """
import builtins, ctypes, fcntl, os, platform, signal, sys, time
import numpy, numba, rich.console, safetensors.numpy, sklearn  # they decide by the system when they are imported

def locking(descriptor, mode, nbytes):
    assert nbytes == 1
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

class Library(ctypes.CDLL):
    def __init__(self, name, *more, **options):
        if name is None:
            raise TypeError("Windows has no library of the process")
        super().__init__(name, *more, **options)

rest = ctypes.CDLL(None).sched_yield
ctypes.CDLL = Library
ctypes.windll = type("windll", (), {"kernel32": type("kernel32", (), {"SwitchToThread": rest})})
sys.modules["msvcrt"] = type(sys)("msvcrt")
sys.modules["msvcrt"].locking, sys.modules["msvcrt"].LK_NBLCK = locking, 2
for name in ("fcntl", "resource", "termios", "pwd", "grp", "pty"):
    sys.modules[name] = None
for name in ("fork", "sched_getaffinity", "sched_setaffinity", "sysconf", "fchmod", "fchown", "geteuid", "O_NOFOLLOW",
             "O_NONBLOCK", "register_at_fork", "mkfifo", "uname", "getuid"):
    delattr(os, name)
for name in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGALRM", "SIGPIPE"):
    delattr(signal, name)
for name in ("CLOCK_MONOTONIC", "clock_gettime", "clock_gettime_ns"):
    delattr(time, name)
sys.platform = "win32"
platform.system, platform.machine = lambda: "Windows", lambda: "AMD64"
"""
MACOS = """
import os, platform, sys
import numpy, numba, rich.console, safetensors.numpy, sklearn

for name in ("sched_getaffinity", "sched_setaffinity"):
    delattr(os, name)
sys.platform = "darwin"
platform.system, platform.machine = lambda: "Darwin", lambda: "arm64"
"""
WITHOUT_PROC = """
import builtins, pathlib

def without_proc(function):
    def checked(path, *more, **options):
        if str(path).startswith(("/proc", "/dev", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *more, **options)
    return checked

builtins.open, pathlib.Path.open = without_proc(builtins.open), without_proc(pathlib.Path.open)
"""
PROGRAM = """
import numpy as np
from crossbow import Checkpoints, CsvMonitor, ExecutionContext, JsonLinesMonitor, ModelConf, Predictor, Sequential
from crossbow import StatusMonitor, SystemConf
from crossbow.data import digits
from crossbow.ops import InnerProduct, ReLU, SoftMax, SoftMaxLoss

data = digits()
network = Sequential(InnerProduct(16), ReLU(), InnerProduct(10), SoftMax(), SoftMaxLoss())
system = SystemConf(learners_per_device=2)
monitors = [CsvMonitor("log.csv"), JsonLinesMonitor("log.jsonl"), StatusMonitor("status.json")]
with ExecutionContext(network, data=data, model=ModelConf(batch_size=64), system=system, monitors=monitors,
                      checkpoints=Checkpoints("run")) as context:
    assert context.train_and_test(1).records[0].test is not None
    expected = context.predict(data.check.images)
    context.save("model.safetensors")
    print(context.summary().library)
with ExecutionContext.resume("run", network, data=data) as context:
    assert context.resumed.exact
    context.continue_training(count=2, verbose=1)
with Predictor.load("model.safetensors") as predictor:
    assert np.array_equal(predictor(data.check.images), expected)

import crossbow.cli
from models.lenet import main
assert main(["--epochs", "1", "--learners", "1", "--batch-size", "64", "--kernels", "reference", "--variant", "caffe",
             "--dataset", "synthetic", "--training-examples", "128", "--test-examples", "64"]) == 0
print("done")
"""


def imitated(system: str, directory: Path) -> str:
    """What the program prints on an imitated system, in cp1252."""
    done = subprocess.run(
        [sys.executable, "-c", system + WITHOUT_PROC + PROGRAM],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252:strict"},
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode("cp1252")


@pytest.mark.slow
@pytest.mark.parametrize("system", [WINDOWS, MACOS], ids=["windows", "macos"])
def test_training_where_the_system_has_less(system: str, tmp_path: Path) -> None:
    printed = imitated(system, tmp_path)
    assert printed.splitlines()[0] == "compiled", "oneDNN is for Linux on x86-64 only"
    assert printed.splitlines()[-1] == "done"


# Single parts


def module_on_windows(path: str, monkeypatch: pytest.MonkeyPatch, **modules: Any) -> ModuleType:
    """A second copy of a module of the package, imported as on Windows."""
    monkeypatch.setattr(sys, "platform", "win32")
    for name, module in {"fcntl": None, "resource": None, **modules}.items():
        monkeypatch.setitem(sys.modules, name, module)
    specification = importlib.util.spec_from_file_location("on_windows", PACKAGE / path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_files_without_locks_and_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows renames only closed files. Without locks, no partial file may be taken for an abandoned one."""
    files = module_on_windows("files.py", monkeypatch)
    replaced, open_files = os.replace, []

    def replace(source: Path, target: Path) -> None:
        open_files.extend(path for path in Path("/proc/self/fd").glob("*") if path.exists() and path.samefile(source))
        replaced(source, target)

    monkeypatch.setattr(os, "replace", replace)
    another = tmp_path / f".{'0' * 16}.partial"
    another.write_bytes(b"of another writer")
    for data in (b"first", b"second"):
        files.write_whole(tmp_path / "deep" / "file", data)
        files.write_whole(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == data
    assert open_files == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [another.name, "deep", "file"]


class Locks:
    """msvcrt: a lock on the first byte of a file, for all descriptors but the one that has it."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.locked: dict[tuple[int, int], int] = {}

    def locking(self, descriptor: int, mode: int, nbytes: int) -> None:
        assert (mode, nbytes, os.lseek(descriptor, 0, os.SEEK_CUR)) == (self.LK_NBLCK, 1, 0)
        status = os.fstat(descriptor)
        if self.locked.setdefault((status.st_dev, status.st_ino), descriptor) != descriptor:
            raise PermissionError(13, "Permission denied")


def test_a_directory_is_locked_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = module_on_windows("runtime/directory_lock.py", monkeypatch, msvcrt=Locks())
    with locks.DirectoryLock(tmp_path):
        assert locks.is_in_use(tmp_path)
        with pytest.raises(DataError, match=f"Received: one that process {os.getpid()} uses"):
            locks.DirectoryLock(tmp_path)


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def missing(*more: object, **options: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", missing)
        patched.setattr(Path, "read_text", missing)
        yield


@pytest.mark.usefixtures("no_proc")
def test_memory_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """getrusage counts bytes on macOS, and kilobytes elsewhere; Windows does not have it."""
    usage = SimpleNamespace(getrusage=lambda who: SimpleNamespace(ru_maxrss=4096), RUSAGE_SELF=0)
    assert host_memory.resident_memory() is None
    for system, module, expected in (("Darwin", usage, 4096), ("FreeBSD", usage, 4096 * 1024), ("Windows", None, None)):
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        monkeypatch.setitem(sys.modules, "resource", module)
        assert host_memory.peak_memory() == expected


def test_only_linux_is_asked_for_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for system in ("darwin", "win32"):
        host_memory._madvise.cache_clear()
        monkeypatch.setattr(sys, "platform", system)
        assert host_memory._madvise() is None
    host_memory._madvise.cache_clear()


def test_cores_where_threads_cannot_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert device.available_cores() == (0, 1, 2)


def test_the_clock_and_the_rest_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code gets no function that reads the clock, and yields with a function of the kernel."""
    windows = module_on_windows("clock.py", monkeypatch)
    assert windows.clock_gettime() == 0
    monkeypatch.setattr(clock, "MONOTONIC", 0)
    before = clock.now()
    assert clock.now() >= before
    import ctypes

    switch = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
    windll = SimpleNamespace(kernel32=SimpleNamespace(SwitchToThread=switch))
    monkeypatch.setattr(ctypes, "windll", windll, raising=False)
    flags.resting_functions.cache_clear()
    first, second = flags.resting_functions()
    flags.resting_functions.cache_clear()
    assert first == second == ctypes.cast(switch, ctypes.c_void_p).value


@pytest.mark.parametrize("main", [cli.main, lenet.main], ids=["crossbow", "lenet"])
def test_help_can_be_printed_in_cp1252(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    """A character without a counterpart would be a question mark."""
    with contextlib.suppress(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert len(text) > 500
    stream = io.TextIOWrapper(io.BytesIO(), "cp1252")
    assert {character for character in text if printable(character, stream) == "?"} <= {"?"}
