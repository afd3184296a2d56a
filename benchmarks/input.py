"""Speed of decoding and preprocessing of images for training, compared with PyTorch.

    python -m benchmarks.input --directory PHOTOGRAPHS

Crossbow reads the same JPEG files from folders and from a record file, with the threads of a loader. PyTorch reads the
folders in worker processes (DataLoader, ImageFolder, torchvision's transforms v2), in two forms: the reference preset
for training (PIL images, then normalised float tensors), and the fastest form that was found (uint8 tensors, not
normalised; Crossbow's slots are uint8 too). All take turns in every round; ratios are computed round by round. CPU time
includes that of the worker processes.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contest import QUIET
from benchmarks.input_files import made_photographs, photographs, resident_bytes, write_folders, write_record_file
from benchmarks.input_runners import FASTEST, PRESET, CrossbowRunner, Runner, TorchRunner, Turn
from benchmarks.machine import describe_machine, has_torch
from benchmarks.report import markdown, paired, spread
from crossbow.console import run_command
from crossbow.data import image_folder, records
from crossbow.scripts.values import expanded_path, integer, number
from crossbow.types import DataError, bytes_text

COMMAND = "python -m benchmarks.input"

Name = tuple[str, int]
"""A contestant: its pipeline, and the number of its threads or worker processes."""

FOLDERS, RECORDS = "Crossbow, folders", "Crossbow, records"
TORCH = {f"PyTorch, {form}": form for form in (PRESET, FASTEST)}
THREADS = (1, 2)
TARGETS = {PRESET: 2.5, FASTEST: 1.8}
"""Target ratios of Crossbow's speed with two threads to PyTorch's with two workers, by PyTorch's pipeline."""
TARGET_OF_TWO = 1.8
"""Target ratio of the speed with two threads to that with one."""


def contestants(folders: Path, record_file: Path, batch: int, size: int, *, torch: bool) -> dict[Name, Runner]:
    """All contestants. PyTorch's come first, because their workers are forked from this process."""
    made: dict[Name, Runner] = {}
    for pipeline, form in TORCH.items() if torch else ():
        made |= {(pipeline, workers): TorchRunner(folders, batch, workers, form, size) for workers in THREADS}
    sets = {
        FOLDERS: image_folder(folders, image_size=size, check_fraction=0),
        RECORDS: records(record_file, image_size=size),
    }
    for pipeline, data in sets.items():
        made |= {(pipeline, threads): CrossbowRunner(data.train, batch, threads) for threads in THREADS}
    return made


@dataclass(frozen=True)
class Round:
    """A turn of every contestant."""

    turns: Mapping[Name, Turn]
    resident: int | None
    """Memory of this process after the round, in bytes; None if unknown."""

    @property
    def others(self) -> float:
        """Number of processors that other programs kept busy."""
        return sum(turn.others for turn in self.turns.values()) / sum(turn.seconds for turn in self.turns.values())


def measure(runners: Mapping[Name, Runner], rounds: int, seconds: float, patience: float) -> list[Round]:
    """Measure rounds. Disturbed ones are repeated for up to `patience` seconds; then the least disturbed ones count."""
    names, made = list(runners), list[Round]()
    for runner in runners.values():
        runner.run(seconds / 4)
    end = time.monotonic() + patience
    while len(made) < rounds or (time.monotonic() < end and sum(one.others <= QUIET for one in made) < rounds):
        first = len(made) % len(names)
        turns = {name: runners[name].run(seconds) for name in names[first:] + names[:first]}
        made.append(Round({name: turns[name] for name in names}, resident_bytes()))
    least = sorted(made, key=lambda one: one.others)[:rounds]
    return [one for one in made if one in least]


def by_contestant(made: Sequence[Round]) -> dict[Name, list[Turn]]:
    return {name: [one.turns[name] for one in made] for name in made[0].turns}


def rows(turns: Mapping[Name, Sequence[Turn]]) -> list[tuple[str, ...]]:
    return [
        (
            pipeline,
            str(threads),
            spread([turn.rate for turn in made]).text(",.0f"),
            f"{1e3 * statistics.median(turn.cost for turn in made):.2f}",
        )
        for (pipeline, threads), made in turns.items()
    ]


def ratios(turns: Mapping[Name, Sequence[Turn]]) -> list[tuple[str, ...]]:
    """Rates with two threads over those of others, round by round, the ratio of CPU times, and the target."""
    found: list[tuple[str, ...]] = []
    for pipeline in (FOLDERS, RECORDS):
        others = {(name, 2): TARGETS[form] for name, form in TORCH.items() if (name, 2) in turns}
        for other, target in {**others, (pipeline, 1): TARGET_OF_TWO}.items():
            ours, theirs = turns[pipeline, 2], turns[other]
            speed = spread(paired([turn.rate for turn in ours], [turn.rate for turn in theirs]))
            cost = spread(paired([turn.cost for turn in theirs], [turn.cost for turn in ours]))
            found.append(
                (f"{pipeline}, 2", f"{other[0]}, {other[1]}", speed.text(".2f"), cost.text(".2f"), f"{target}")
            )
    return found


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[bytes]]:
    """The options, and the contents of the JPEG files that they select."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--directory", type=expanded_path, help="JPEG files (default: random images are made)")
    add("--images", type=integer(1), default=256, help="number of images that are made (default: 256)")
    add("--batch", type=integer(1), default=32, help="images per batch (default: 32)")
    add("--size", type=integer(1), default=224, help="height and width of the results (default: 224)")
    add("--rounds", type=integer(1), default=5, help="turns of each contestant (default: 5)")
    add("--seconds", type=number(0, above=True), default=3.0, help="of a turn (default: 3)")
    add("--patience", type=number(0), default=0.0, help="seconds to repeat disturbed rounds (default: 0)")
    options = parser.parse_args(arguments)
    try:
        contents = made_photographs(options.images) if options.directory is None else photographs(options.directory)
    except DataError as error:
        parser.error(str(error))
    if options.batch > len(contents):
        parser.error(f"--batch: expected at most the number of images, {len(contents):,}. Received: {options.batch:,}")
    return options, contents


def main(arguments: Sequence[str] | None = None) -> int:
    options, contents = parse(arguments)
    for name, value in describe_machine().items():
        print(f"- {name}: {value}")
    mean = sum(map(len, contents)) / len(contents)
    where = "made" if options.directory is None else f"of {options.directory}"
    print(f"- images: {len(contents):,} JPEG files {where}, {mean / 1e3:.0f} KB each, to {options.size}×{options.size}")
    print(f"- measured: {options.rounds} rounds of {options.seconds:g} s, in turns; median (least–most)\n", flush=True)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folders = write_folders(contents, Path(scratch) / "folders")
        record_file = write_record_file(contents, Path(scratch) / "records.1")
        runners = contestants(folders, record_file, options.batch, options.size, torch=has_torch())
        for runner in runners.values():
            stack.callback(runner.close)
        made = measure(runners, options.rounds, options.seconds, options.patience)
    turns = by_contestant(made)
    print(markdown(("pipeline", "threads", "images/s", "CPU ms per image"), rows(turns)))
    print("\n" + markdown(("two threads", "compared with", "images/s", "CPU time", "target"), ratios(turns)))
    others = max(one.others for one in made)
    noise = ": NOT A QUIET MACHINE, measure again" if others > QUIET else ""
    print(f"\nOther programs kept at most {others:.2f} processors busy during a round{noise}")
    if memory := [one.resident for one in made if one.resident is not None]:
        print(f"Memory of this process after each round: {', '.join(map(bytes_text, memory))}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(COMMAND, main))
