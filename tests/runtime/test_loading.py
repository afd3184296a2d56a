"""The loading of batches, as training sees it: threads, order by files, bad examples, and waiting for data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from crossbow import Dataset, ExecutionContext, ModelConf, Monitor, SolverConf, SystemConf, TrainingUnit
from crossbow.data.examples import ArrayExamples, BadExample, Examples, Indices, Selection
from crossbow.ops import Kernel
from crossbow.runtime import reports as reporting
from crossbow.runtime.changing_engine import ChangingEngine
from crossbow.runtime.reports import Reports
from crossbow.runtime.scheduler import Callbacks
from crossbow.runtime.task import Completed
from crossbow.types import ConfigurationError, DataError, Phase
from tests.support import Probe, blobs, perceptron, same_weights

TASKS = TrainingUnit.TASKS
GOOD = blobs(examples=40, check=13)


class Files(ArrayExamples):
    """Examples in files of five, some of which are bad."""

    bad: frozenset[int] = frozenset()
    seconds = 0.0

    @property
    def groups(self) -> Indices:
        return np.arange(len(self)) // 5

    def write_images(self, selection: Selection, images: np.ndarray) -> None:
        time.sleep(self.seconds)
        for index in selection.indices.tolist():
            if index in self.bad:
                raise BadExample(
                    index, f"file {index // 5}, record {index % 5}", "expected an image. Received: nothing"
                )
        super().write_images(selection, images)

    def part(self, selected: slice | Indices) -> Examples:  # type: ignore[override]
        return Examples.part(self, selected)

    def with_labels(self, labels: np.ndarray) -> Files:
        return files(self, self.bad, labels)


def files(given: Any, bad: frozenset[int] = frozenset(), labels: np.ndarray | None = None, seconds: float = 0) -> Files:
    made = Files(given.images, given.labels if labels is None else labels)
    object.__setattr__(made, "bad", bad)
    object.__setattr__(made, "seconds", seconds or getattr(given, "seconds", 0.0))
    return made


def dataset(train: Sequence[int] = (), check: Sequence[int] = (), seconds: float = 0.0) -> Dataset:
    """The same points, with bad examples."""
    parts = [files(part, frozenset(bad), seconds=seconds) for part, bad in ((GOOD.train, train), (GOOD.check, check))]
    return Dataset(parts[0], parts[1], number_of_classes=3)


def context(
    data: Dataset, *middle: Kernel, learners: int | str = 2, monitors: Sequence[Monitor] = (), **system: Any
) -> ExecutionContext:
    return ExecutionContext(
        [perceptron(*middle), None],
        data=data,
        model=ModelConf(batch_size=4, check_batch_size=4),
        solver=SolverConf(learning_rate=0.1),
        system=SystemConf(learners_per_device=learners, threads_per_learner=1, kernels="reference", **system),
        monitors=monitors,
    )


def trained(data: Dataset, **system: Any) -> dict[str, np.ndarray]:
    with context(data, **system) as running:
        running.train(30, TASKS)
        return running.variables


# Threads and order


@pytest.mark.slow
@pytest.mark.parametrize("order", ["examples", "files"])
def test_weights_do_not_depend_on_the_number_of_threads(order: str) -> None:
    one = trained(dataset(), order=order)
    for threads in (2, 4):
        same_weights(
            trained(dataset([3, 17, 18]), order=order, loader_threads=1, on_bad_record="skip"),
            trained(dataset([3, 17, 18]), order=order, loader_threads=threads, on_bad_record="skip"),
        )
        same_weights(one, trained(dataset(), order=order, loader_threads=threads))


def test_by_files_it_trains_on_a_group_of_files_at_a_time() -> None:
    class Watched(Files):
        def write_images(self, selection: Selection, images: np.ndarray) -> None:
            seen.extend((selection.indices // 5).tolist())
            super().write_images(selection, images)

        def with_labels(self, labels: np.ndarray) -> Watched:
            return Watched(self.images, labels)

    seen: list[int] = []
    data = Dataset(Watched(GOOD.train.images, GOOD.train.labels), number_of_classes=3)  # type: ignore[attr-defined]
    with context(data, learners=1, order="files", files_together=2) as running:
        running.train(10, TASKS)
    groups = [set(seen[start : start + 10]) for start in range(0, 40, 10)]
    assert all(len(group) == 2 for group in groups)
    assert set.union(*groups) == set(range(8))
    assert len(set(map(tuple, np.reshape(seen[:40], (4, 10)).tolist()))) == 4


def test_a_data_set_without_files() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^SystemConf: order must be 'examples' with a data set that is not st"
    ):
        context(GOOD, order="files")


def test_no_batch_is_loaded_in_vain() -> None:
    """At the end of an epoch, or of a call, which ends with a tick of two tasks."""

    class Counted(Files):
        def write_images(self, selection: Selection, images: np.ndarray) -> None:
            writes.append(len(images))
            super().write_images(selection, images)

        def with_labels(self, labels: np.ndarray) -> Counted:
            return Counted(self.images, labels)

    writes: list[int] = []
    data = Dataset(Counted(GOOD.train.images, GOOD.train.labels), number_of_classes=3)  # type: ignore[attr-defined]
    with context(data, loader_threads=2) as running:
        running.train(2)
        assert len(writes) == running.summary().tasks == 20
        running.train(7, TASKS)
        assert len(writes) == running.summary().tasks == 28


# Bad examples


class Listener(Monitor):
    def __init__(self) -> None:
        self.heard: list[tuple[Phase, int]] = []

    def bad_example(self, phase: Phase, example: BadExample) -> None:
        self.heard.append((phase, example.index))


@pytest.mark.parametrize("phase", [Phase.TRAIN, Phase.CHECK])
def test_a_bad_example_is_an_error_that_names_it(phase: Phase) -> None:
    data = dataset([7]) if phase is Phase.TRAIN else dataset(check=[7])
    with context(data) as running:
        with pytest.raises(BadExample, match=r"^file 1, record 2: expected an image\. Received: nothing\b"):
            running.train_and_test(1)
        assert running.bad_examples(phase) == []


def test_bad_examples_are_told_once_and_listed() -> None:
    listener = Listener()
    with context(dataset([3, 17], [0, 5]), monitors=[listener], on_bad_record="skip", loader_threads=2) as running:
        for _ in range(2):
            running.train_and_test(2)
        assert sorted(listener.heard, key=str) == sorted(
            [(Phase.TRAIN, 3), (Phase.TRAIN, 17), (Phase.CHECK, 0), (Phase.CHECK, 5)], key=str
        )
        assert sorted(example.index for example in running.bad_examples()) == [3, 17]
        assert sorted(example.source for example in running.bad_examples(Phase.CHECK)) == [
            "file 0, record 0",
            "file 1, record 0",
        ]


def test_the_engines_of_the_auto_tuner_share_the_list() -> None:
    with context(dataset([3]), learners="auto", on_bad_record="skip") as running:
        assert isinstance(running.engine, ChangingEngine)
        engines = running.engine.engines
        for _ in range(2):
            engines.now.run(running.engine.tasks + 40, Callbacks())
            assert [example.index for example in running.bad_examples()] == [3]
            other = engines.kind + 1
            engines.add(other)
            engines.go_on_with(other)


@pytest.mark.parametrize("bad", [[0], [4, 5, 6, 7], [1, 5, 12], list(range(12))], ids=str)
def test_a_test_leaves_bad_examples_out(bad: list[int]) -> None:
    """As if the check set did not have them; also if no example of a batch is left."""
    good = np.delete(np.arange(13), bad)
    reduced = Dataset(GOOD.train, GOOD.check.part(good), number_of_classes=3)  # type: ignore[union-attr]
    results = []
    for data in (dataset(check=bad), reduced):
        with context(data, on_bad_record="skip") as running:
            running.train(10, TASKS)
            results.append(running.test())
    found, expected = results
    assert found.examples == expected.examples == len(good)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.accuracy == pytest.approx(expected.accuracy, rel=1e-5)


def test_only_bad_examples_are_an_error() -> None:
    expected = r"^expected an example that can be decoded\. Received: 40 that cannot"
    with context(dataset(range(40)), on_bad_record="skip") as running, pytest.raises(DataError, match=expected):
        running.train(1)


# Waiting for data


@pytest.mark.parametrize(
    ("reports", "since", "pending", "expected"),
    [
        ([], 10.0, 2, 0.0),  # both learners have a task
        ([], 10.0, 1, 10.0),  # one has had none
        ([], 10.0, 0, 20.0),
        ([14.0], 10.0, 2, 6.0),  # one has finished at 14
        ([14.0, 17.0], 10.0, 2, 9.0),
        ([14.0, 17.0], 15.0, 2, 8.0),  # one before it was waited for
        ([14.0, 17.0], 10.0, 4, 0.0),  # each has another task
        ([14.0, 17.0], 10.0, 3, 3.0),
        ([11.0, 12.0, 14.0, 17.0], 10.0, 4, 9.0),
    ],
)
def test_idle_seconds(
    reports: list[float], since: float, pending: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two learners; it is now 20."""
    now = [0.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
    queue = Reports(learners=2)
    for task, now[0] in enumerate(reports):
        queue.put(Completed(task, 0.0, None, 4, 0))
    now[0] = 20.0
    assert queue.idle_seconds(since, pending) == pytest.approx(expected)


def test_learners_wait_for_a_slow_data_set() -> None:
    with context(dataset(seconds=0.01), learners=1) as running:
        slow = running.train(2)
    assert slow.data_wait > 0.5
    assert slow.records[0].data_wait > 0.5


def test_slow_learners_do_not_wait_for_data() -> None:
    """Though the scheduler does, a part of the time: the data set takes half as long as they do."""

    def act(where: str, learner: int, call: int) -> None:
        if where == "forward":
            time.sleep(0.01)

    with context(dataset(seconds=0.005), Probe(action=act), learners=1) as running:
        history = running.train(3)
    assert history.data_wait < 0.5  # on a busy machine; else 0.1, as the first batch of each epoch is waited for
