"""How many small mistakes the tests catch: changes the package, bit by bit, and runs the tests that should fail.

    python -m tests.mutations --sample 120 --seed 1

Every mutant lives in a copy of the working tree, where the tests that mirror its file run first, then the others of its
area and whole training runs, until one fails. What fails without the change, too, does not count. Mutants that are
caught and that survive are printed as they are found; `--results FILE` keeps them, and the same command goes on
from there. `--only` and `--leave-out` choose files; `--again FILE` tries the survivors of an earlier run once more.

mutmut and Cosmic Ray cannot do this: the one replaces functions, also those that numba compiles, by trampolines; the
other has one test command for all files; neither mutates CUDA C++.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants import Mutant, mutants, sample

ROOT = Path(__file__).parent.parent
PACKAGES = ("runtime", "synch", "solver", "compile", "dataflow", "kernels", "data", "ops")
WHOLE_RUNS = ("tests/test_trajectory.py", "tests/runtime/test_engine.py", "tests/test_context.py")
AREAS: dict[str, tuple[str, ...]] = {
    "crossbow/runtime/cuda": ("tests/runtime/cuda", "tests/runtime/test_run.py"),
    "crossbow/runtime": ("tests/runtime/test_*.py", "tests/test_faults.py", "tests/test_collective_faults.py"),
    "crossbow/synch": ("tests/synch", "tests/runtime/test_free.py", "tests/runtime/test_tick.py"),
    "crossbow/solver": ("tests/solver", "tests/synch/test_trajectories.py", "tests/runtime/test_solver.py"),
    "crossbow/kernels/cuda": ("tests/kernels/cuda", "tests/runtime/cuda/test_training.py"),
    "crossbow/kernels/onednn": ("tests/kernels/onednn", "tests/operators", "tests/ops"),
    "crossbow/kernels": ("tests/operators", "tests/kernels/test_*.py", "tests/kernels/reference", "tests/ops"),
    "crossbow/ops": ("tests/ops", "tests/operators"),
    "crossbow/compile": ("tests/compile", "tests/operators/test_random_combinations.py", "tests/test_numerics.py"),
    "crossbow/dataflow": ("tests/dataflow", "tests/compile/test_gradients.py"),
    "crossbow/data": ("tests/data",),
}
"""The other tests of an area; the longest prefix of a file's path says which it is of."""
SECONDS_OF_A_TEST = 120
"""After which a test hangs. On a busy machine, too."""


@dataclass(frozen=True)
class Outcome:
    """Of a mutant: caught by a test, or None, and after how long."""

    mutant: Mutant
    caught_by: str | None
    seconds: float

    def __str__(self) -> str:
        how = "SURVIVED" if self.caught_by is None else "caught  "
        return f"{how} {self.seconds:4.0f} s  {self.mutant}" + (
            "" if self.caught_by is None else f"  by {self.caught_by}"
        )


def stages(path: str, root: Path = ROOT) -> list[list[str]]:
    """Files of tests for a source file, in the order in which they are worth running."""
    source = Path(path)
    folder, stem = source.relative_to("crossbow").parent, source.stem
    folder = folder.parent if folder.name == "sources" else folder
    mirrored = [f"tests/{folder}/test_{stem}.py"]
    module = ".".join(source.with_suffix("").parts).removesuffix(".__init__")
    everything = sorted(str(test.relative_to(root)) for test in (root / "tests").rglob("test_*.py"))
    package, _, name = module.rpartition(".")
    users = [
        test
        for test in everything
        if f"from {module} import" in (text := (root / test).read_text()) or f"from {package} import {name}\n" in text
    ]
    area = next((AREAS[prefix] for prefix in sorted(AREAS, key=len, reverse=True) if path.startswith(prefix)), ())
    near = [
        test for test in everything if any(test.startswith(f"{each}/") or fnmatch.fnmatch(test, each) for each in area)
    ]
    found, seen = [], set[str]()
    further = ([*users, *WHOLE_RUNS], near) if (root / mirrored[0]).exists() else (users, near, WHOLE_RUNS)
    for stage in (mirrored, *further):
        fresh = [test for test in dict.fromkeys(stage) if test not in seen and (root / test).exists()]
        seen.update(fresh)
        found.append(fresh)
    return [stage for stage in found if stage]


class Workplace:
    """A copy of the working tree, in which one mutant after the other lives."""

    def __init__(self, root: Path, number: int) -> None:
        self.tree = root / f"tree{number}"
        self._cache = root / f"pytest{number}"
        self._failing: dict[str, bool] = {}
        """Tests that caught something, and whether they fail without it, too."""
        self._clock = int(time.time())
        self._left = 0.0
        """Seconds of processor time for the mutant's tests."""
        names = ["ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(["git", *names], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in listed.splitlines():
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self.tree),
            "NUMBA_CACHE_DIR": str(root / f"numba{number}"),
        }

    def outcome(self, mutant: Mutant, limit: float) -> Outcome:
        began, path, self._left = time.monotonic(), self.tree / mutant.path, limit
        source = path.read_bytes()
        assert source == (ROOT / mutant.path).read_bytes(), f"{mutant.path} has changed meanwhile"
        try:
            for stage in stages(mutant.path, self.tree):
                self._write(path, mutant.applied(source))
                while (test := self._failure(stage)) is not None:
                    self._write(path, source)
                    if not self._fails_anyway(test):
                        return Outcome(mutant, test, time.monotonic() - began)
                    self._write(path, mutant.applied(source))
        finally:
            self._write(path, source)
        return Outcome(mutant, None, time.monotonic() - began)

    def _write(self, path: Path, content: bytes) -> None:
        """With a time of its own: Python's caches look at time and size only."""
        path.write_bytes(content)
        self._clock += 1
        os.utime(path, (self._clock, self._clock))

    def _failure(self, tests: Sequence[str]) -> str | None:
        """The first test that fails, or how the process ended, if something does in the time that is left."""
        shutil.rmtree(self._cache, ignore_errors=True)
        shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)
        known = [f"--deselect={test}" for test, fails in self._failing.items() if fails]
        status, seconds = self._pytest([*tests, *known], "not slow", self._left)
        self._left -= seconds
        if status in (0, 5, -signal.SIGXCPU):
            return None
        failed = self._cache / "v/cache/lastfailed"
        return next(iter(json.loads(failed.read_text())), "") if failed.exists() else f"exit status {status}"

    def _fails_anyway(self, test: str) -> bool:
        if "::" not in test and not test.endswith(".py"):
            return False  # the process hung, or crashed
        if test not in self._failing:
            self._failing[test] = self._pytest([test], "", 10 * SECONDS_OF_A_TEST)[0] != 0
        return self._failing[test]

    def _pytest(self, tests: Sequence[str], marks: str, seconds: float) -> tuple[int, float]:
        """Exit status and seconds of processor time, of which there are so many."""
        options = [f"cache_dir={self._cache}", "faulthandler_exit_on_timeout=true"]
        options = [f"--override-ini={each}" for each in (*options, f"faulthandler_timeout={SECONDS_OF_A_TEST}")]
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-m", marks, *options, *tests]
        running = subprocess.Popen(
            ["bash", "-c", f'ulimit -S -t {max(1, round(seconds))}; exec "$@"', "bash", *pytest],
            cwd=self.tree, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        return running.returncode, used.ru_utime + used.ru_stime


def run(chosen: Sequence[Mutant], jobs: int, limit: float, results: Path | None) -> list[Outcome]:
    """The outcomes of mutants, as they come."""
    outcomes = read(results) if results is not None and results.exists() else []
    done = {outcome.mutant for outcome in outcomes}
    outcomes = [outcome for outcome in outcomes if outcome.mutant in set(chosen)]
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in chosen:
        if mutant not in done:
            waiting.put(mutant)
    lock = threading.Lock()

    def work(number: int, folder: Path) -> None:
        workplace = Workplace(folder, number)
        while not waiting.empty():
            outcome = workplace.outcome(waiting.get(), limit)
            with lock:
                outcomes.append(outcome)
                print(f"{len(outcomes):4}/{len(chosen)} {outcome}", flush=True)
                if results is not None:
                    with results.open("a") as file:
                        print(json.dumps(asdict(outcome)), file=file)

    with tempfile.TemporaryDirectory(prefix="crossbow-mutations-") as folder:
        workers = [threading.Thread(target=work, args=(number, Path(folder)), daemon=True) for number in range(jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return outcomes


def read(results: Path) -> list[Outcome]:
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return [Outcome(**{**row, "mutant": Mutant(**row["mutant"])}) for row in rows]


def sources(only: Sequence[str], leave_out: Sequence[str]) -> list[str]:
    """The files that may be mutated, whose paths fit one of these patterns, and none of those."""
    found = []
    for package in PACKAGES:
        for suffix in (".py", ".cu"):
            found += [str(path.relative_to(ROOT)) for path in (ROOT / "crossbow" / package).rglob(f"*{suffix}")]

    def fits(path: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)

    return sorted(path for path in found if fits(path, only) and not fits(path, leave_out))


def moved(mutant: Mutant) -> Mutant | None:
    """The mutant where its file has changed since."""
    same = [each for each in mutants(ROOT, mutant.path) if (each.kind, each.old, each.new) == mutant_change(mutant)]
    return min(same, key=lambda each: abs(each.start - mutant.start), default=None)


def mutant_change(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.kind, mutant.old, mutant.new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=120, help="mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", nargs="+", default=["crossbow/*"], metavar="PATTERN", help="of files")
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="PATTERN", help="of files")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run tests")
    parser.add_argument("--limit", type=float, default=300, help="seconds of processor time for a mutant")
    parser.add_argument("--results", type=Path, help="a file of JSON lines to keep, or to go on from")
    parser.add_argument("--again", type=Path, help="results whose survivors are tried again, instead of a sample")
    parser.add_argument("--list", action="store_true", help="print the sample, and run nothing")
    options = parser.parse_args()
    if options.again is not None:
        survivors = [outcome.mutant for outcome in read(options.again) if outcome.caught_by is None]
        chosen = [now for mutant in survivors if (now := moved(mutant)) is not None]
    else:
        paths = sources(options.only, options.leave_out)
        chosen = sample((mutant for path in paths for mutant in mutants(ROOT, path)), options.sample, options.seed)
    if options.list:
        print(*chosen, sep="\n")
        return
    outcomes = run(chosen, options.jobs, options.limit, options.results)
    kinds = Counter(outcome.mutant.kind for outcome in outcomes)
    caught = Counter(outcome.mutant.kind for outcome in outcomes if outcome.caught_by is not None)
    print(*(f"{kind:12} {caught[kind]:3} of {number:3} caught" for kind, number in sorted(kinds.items())), sep="\n")
    print(f"{caught.total()} of {kinds.total()} caught, {caught.total() / max(1, kinds.total()):.1%}")


if __name__ == "__main__":
    main()
