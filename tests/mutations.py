"""How many small mistakes the tests catch: changes the package, bit by bit, and runs the tests that should fail.

    python -m tests.mutations --sample 120 --seed 1

The tests that mirror a mutant's file run first, then the others of its area, whole training runs, and what else users
do with a context, until one fails; the slow ones come after all others.
With `--coverage FILE`, of the tests that are not slow only those run that execute the mutated line, if any does:

    pytest -n 2 --cov=crossbow --cov-context=test --cov-report= && python -m tests.mutations --coverage .coverage

The file does not show what other processes execute, nor what numba or CUDA compiles; all tests run there. It shows the
first call of a function whose results are cached for the whole process; `--again` without the file then runs all.

What fails without the change, too, does not count. Outcomes are printed as they come; `--results FILE` keeps them, and
the same command goes on from there. `--only` and `--leave-out` choose files; `--again FILE` tries the survivors of an
earlier run once more. Nothing is written into the working tree.

`equivalent_mutants.jsonl` lists mutants that were judged to make no difference: each line has a file, the line of code,
the change and the reason. They run, too, and are counted apart if they survive.

mutmut and Cosmic Ray cannot do this: the one replaces functions, also those that numba compiles, by trampolines; the
other has one test command for all files; neither mutates CUDA C++.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import functools
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants import Mutant, mutants, sample

ROOT = Path(__file__).parent.parent
PACKAGES = ("runtime", "synch", "solver", "compile", "dataflow", "kernels", "data", "ops")
WHOLE_RUNS = ("tests/test_trajectory.py", "tests/runtime/test_engine.py", "tests/test_context.py")
OF_CONTEXTS = tuple(
    f"tests/test_{name}.py"
    for name in (
        "predictor",
        "lifetime",
        "several_contexts",
        "several_losses",
        "solver_trajectory",
        "batch_norm_trajectory",
        "describe",
        "sizes",
        "numpy_numbers",
        "allocation",
    )
)
"""What else uses the whole package. These run last."""
AREAS: dict[str, tuple[str, ...]] = {
    "crossbow/runtime/cuda": ("tests/runtime/cuda", "tests/runtime/test_run.py"),
    "crossbow/runtime": ("tests/runtime", "tests/test_faults.py", "tests/test_collective_faults.py"),
    "crossbow/synch": ("tests/synch", "tests/runtime/test_free.py", "tests/runtime/test_tick.py"),
    "crossbow/solver": ("tests/solver", "tests/synch/test_trajectories.py", "tests/runtime/test_solver.py"),
    "crossbow/kernels/cuda": ("tests/kernels/cuda", "tests/runtime/cuda/test_training.py"),
    "crossbow/kernels/cpu": ("tests/kernels/cpu", "tests/operators", "tests/ops"),
    "crossbow/kernels": ("tests/operators", "tests/kernels/test_*.py", "tests/kernels/reference", "tests/ops"),
    "crossbow/ops": ("tests/ops", "tests/operators"),
    "crossbow/compile": (
        "tests/compile",
        "tests/operators/test_random_combinations.py",
        "tests/test_numerics.py",
        "tests/runtime/cuda/test_precision.py",
    ),
    "crossbow/dataflow": ("tests/dataflow", "tests/compile/test_gradients.py"),
    "crossbow/data": ("tests/data",),
}
"""The other tests of an area; the longest prefix of a file's path says which it is of."""
SECONDS_OF_A_TEST = 300
"""After which a test hangs. On a busy machine, too."""


@dataclass(frozen=True)
class Outcome:
    """Of a mutant: caught by a test, or None, and after how long."""

    mutant: Mutant
    caught_by: str | None
    seconds: float
    no_difference: str = ""
    """Why a mutant that survived makes no difference, if it was judged so."""

    def __str__(self) -> str:
        how = "caught  " if self.caught_by else "the same" if self.no_difference else "SURVIVED"
        return f"{how} {self.seconds:4.0f} s  {self.mutant}" + (f"  by {self.caught_by}" if self.caught_by else "")


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
    for stage in (mirrored, *further, OF_CONTEXTS):
        fresh = [test for test in dict.fromkeys(stage) if test not in seen and (root / test).exists()]
        seen.update(fresh)
        found.append(fresh)
    return [stage for stage in found if stage]


class Coverage:
    """The tests that execute each line, from a file of coverage.py whose contexts are tests."""

    def __init__(self, file: Path) -> None:
        from coverage import CoverageData  # with pytest-cov, which only this option needs

        self._data = CoverageData(str(file))
        self._data.read()
        self._measured = {path.rpartition("/crossbow/")[2]: path for path in self._data.measured_files()}
        if not self._data.measured_contexts() - {""}:
            raise ValueError(f"expected the coverage of each test, by --cov-context=test. Received: {file}")

    def tests(self, mutant: Mutant, code: bytes) -> list[str]:
        """The tests that execute the statement where the mutant begins; none if it is executed outside of tests, as
        when a module is imported. code: that of its file."""
        contexts = self._contexts(mutant.path)
        found = {context for line in statement(code, mutant.line) for context in contexts.get(line, ())}
        return [] if "" in found else sorted({context.rpartition("|")[0] for context in found})

    @functools.cache  # noqa: B019 - there is one object
    def _contexts(self, path: str) -> dict[int, list[str]]:
        measured = self._measured.get(path.removeprefix("crossbow/"))
        return {} if measured is None else self._data.contexts_by_lineno(measured)


def statement(code: bytes, line: int) -> range:
    """The lines of the innermost statement that this line is of. Of a compound one, those before its body."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.stmt):
            body: list[ast.stmt] = getattr(node, "body", [])
            end = max(node.lineno, body[0].lineno - 1 if body else node.end_lineno or node.lineno)
            if node.lineno <= line <= end:
                found = range(node.lineno, end + 1)
    return found


class Worker:
    """Runs tests on one mutant after the other, in a copy of the working tree. Mutants are never written to a disk."""

    def __init__(self, tree: Path, folder: Path, coverage: Coverage | None = None, *, slow: bool = True) -> None:
        """slow: whether slow tests run, too."""
        self._coverage, self._slow = coverage, slow
        self._tree, self._cache, examples = tree, folder / "pytest", folder / "hypothesis"
        self._examples, self._progress = examples, folder / "progress"
        folder.mkdir()
        self._failing: dict[str, bool] = {}
        """Tests that caught something: whether they fail without it, too."""
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.mutated"],
            cwd=tree,
            env={
                **os.environ,
                "PYTHONPATH": str(tree),
                "NUMBA_CACHE_DIR": str(folder / "numba"),
                "HYPOTHESIS_STORAGE_DIRECTORY": str(examples),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

        if self._pytest(["tests/test_types.py"], "", SECONDS_OF_A_TEST)[0] != 0:
            raise RuntimeError("tests/test_types.py fails with nothing changed")

    def outcome(self, mutant: Mutant, limit: float) -> Outcome:
        """limit: seconds of processor time."""
        left, passing = limit, list[str]()
        found = stages(mutant.path, self._tree)
        covering = list[str]()
        if self._coverage is not None and mutant.path.endswith(".py"):
            covering = self._coverage.tests(mutant, (self._tree / mutant.path).read_bytes())
        runs = [("not slow", stage) for stage in (by_stage(covering, found) if covering else found)]
        runs += [("slow", stage) for stage in found if self._slow]
        for marks, stage in runs:
            while left > 0:
                chosen = [*stage, *(f"--deselect={each}" for each in passing)]
                only = covering if marks == "not slow" else []
                test, seconds = self._failure(mutant, chosen, marks, left, only)
                left -= seconds
                if test is None:
                    break
                if not self._fails_anyway(test) and self._fails_again(mutant, test):
                    return Outcome(mutant, test, limit - left)
                passing.append(test)
        return Outcome(mutant, None, limit - left, equivalent(self._tree).get(place(mutant, self._tree), ""))

    def _failure(
        self, mutant: Mutant, tests: Sequence[str], marks: str, seconds: float, only: Sequence[str]
    ) -> tuple[str | None, float]:
        """The first test that fails, or in which the process hung, crashed or used up its time, if any; and the seconds
        that this took. only: the tests of these files that run, if not all."""
        shutil.rmtree(self._cache, ignore_errors=True)
        shutil.rmtree(self._examples, ignore_errors=True)
        self._progress.unlink(missing_ok=True)
        status, used = self._pytest(tests, marks, seconds, mutant, only)
        if status in (0, 5):
            return None, used
        failed = self._cache / "v/cache/lastfailed"
        if failed.exists():
            return next(iter(json.loads(failed.read_text()))), used
        return (self._progress.read_text() if self._progress.exists() else tests[0]), used

    def _fails_again(self, mutant: Mutant, test: str) -> bool:
        """Where the machine is busy, what took too long need not hang."""
        return self._pytest([test], "", 10 * SECONDS_OF_A_TEST, mutant)[0] != 0

    def _fails_anyway(self, test: str) -> bool:
        if test not in self._failing:
            self._failing[test] = self._pytest([test], "", 10 * SECONDS_OF_A_TEST)[0] != 0
        return self._failing[test]

    def _pytest(
        self,
        tests: Sequence[str],
        marks: str,
        seconds: float,
        mutant: Mutant | None = None,
        only: Sequence[str] = (),
    ) -> tuple[int, float]:
        """Exit status and seconds of processor time, of which there are so many."""
        options = [f"cache_dir={self._cache}", "faulthandler_exit_on_timeout=true"]
        options = [f"--override-ini={each}" for each in (*options, f"faulthandler_timeout={SECONDS_OF_A_TEST}")]
        request: dict[str, object] = {
            "path": "",
            "seconds": seconds,
            "progress": str(self._progress),
            "only": list(only),
            "arguments": ["-x", "-m", marks, *options, *tests],
        }
        if mutant is not None:
            content = mutant.applied((self._tree / mutant.path).read_bytes()).decode()
            request |= {"path": mutant.path, "content": content}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        status, used = json.loads(self._server.stdout.readline())
        return status, used

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


Place = tuple[str, str, str, str]
"""File, line of code, what is changed in it, and to what. It stays the same where other lines change."""


def place(mutant: Mutant, root: Path = ROOT) -> Place:
    code = (root / mutant.path).read_text().splitlines()[mutant.line - 1]
    return mutant.path, code.strip(), mutant.old, mutant.new


@functools.cache
def equivalent(root: Path = ROOT) -> dict[Place, str]:
    """The mutants that were judged to make no difference, and why."""
    rows = [json.loads(line) for line in (root / "tests/equivalent_mutants.jsonl").read_text().splitlines()]
    return {(row["path"], row["code"], row["old"], row["new"]): row["why"] for row in rows}


def copy_tree(target: Path) -> None:
    """The files of the working tree that git knows or does not ignore."""
    names = ["ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(["git", *names], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def by_stage(tests: Sequence[str], found: Sequence[Sequence[str]]) -> list[list[str]]:
    """The files of these tests in the order of the stages, and those in no stage last."""
    left = dict.fromkeys(test.partition("::")[0] for test in tests)
    ordered = [[file for file in stage if file in left] for stage in found]
    known = {file for stage in ordered for file in stage}
    return [stage for stage in (*ordered, [file for file in left if file not in known]) if stage]


def run(
    chosen: Sequence[Mutant],
    jobs: int,
    limit: float,
    results: Path | None,
    coverage: Coverage | None = None,
    *,
    slow: bool = True,
) -> list[Outcome]:
    """The outcomes of mutants, as they come."""
    outcomes = read(results) if results is not None and results.exists() else []
    done = {outcome.mutant for outcome in outcomes}
    outcomes = [outcome for outcome in outcomes if outcome.mutant in set(chosen)]
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in chosen:
        if mutant not in done:
            waiting.put(mutant)
    lock = threading.Lock()

    def work(tree: Path, folder: Path) -> None:
        worker = Worker(tree, folder, coverage, slow=slow)
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                worker.close()
                return
            outcome = worker.outcome(mutant, limit)
            with lock:
                outcomes.append(outcome)
                print(f"{len(outcomes):4}/{len(chosen)} {outcome}", flush=True)
                if results is not None:
                    with results.open("a") as file:
                        print(json.dumps(asdict(outcome)), file=file)

    with tempfile.TemporaryDirectory(prefix="crossbow-mutations-") as temporary:
        folder = Path(temporary)
        copy_tree(folder / "tree")
        places = [folder / str(number) for number in range(jobs)]
        workers = [threading.Thread(target=work, args=(folder / "tree", place), daemon=True) for place in places]
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
    parser.add_argument("--coverage", type=Path, metavar="FILE", help="which tests execute which lines")
    parser.add_argument("--no-slow", dest="slow", action="store_false", help="leave out the slow tests")
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
    coverage = None if options.coverage is None else Coverage(options.coverage)
    outcomes = run(chosen, options.jobs, options.limit, options.results, coverage, slow=options.slow)
    kinds = Counter(outcome.mutant.kind for outcome in outcomes)
    caught = Counter(outcome.mutant.kind for outcome in outcomes if outcome.caught_by is not None)
    print(*(f"{kind:12} {caught[kind]:3} of {number:3} caught" for kind, number in sorted(kinds.items())), sep="\n")
    same = sum(bool(outcome.no_difference) for outcome in outcomes)
    different = kinds.total() - same
    survived = different - caught.total()
    print(f"{kinds.total()} mutants: {caught.total()} caught, {survived} survived, {same} make no difference")
    print(f"{caught.total()} of {different} caught, {caught.total() / max(1, different):.1%}")


if __name__ == "__main__":
    main()
