"""Parts of the training examples that ranks keep to themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import SSGD, ConfigurationError, DataError, Dataflow, Dataset, ModelConf, Phase, SolverConf, SystemConf
from crossbow.cluster.placement import Placement
from crossbow.cluster.ranks import Ranks
from crossbow.data.fingerprint import fingerprint
from crossbow.data.order import TrainingOrder
from crossbow.data.rank_shares import ShareOrder, share_of_rank
from crossbow.data.shards import RankShare, Sharding
from crossbow.ops import InnerProduct
from crossbow.runtime.changing_engine import new_engine
from crossbow.runtime.limits import Limits
from crossbow.runtime.run import TrainingRun
from models.logistic_regression import main as logistic_regression
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.cluster.test_mpi import NEEDS_MPI, mpirun
from tests.support import blobs, training

DATA = Dataset((np.arange(10, dtype=np.float32)[:, None], np.arange(10)), (np.zeros((3, 1), np.float32), np.arange(3)))


def shares(sharding: Sharding, ranks: int, data: Dataset = DATA) -> list[Dataset]:
    return [share_of_rank(data, sharding, each) for each in FakeNetwork(ranks).ranks()]


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("stride", [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]),
        ([(0.5, 1.0), (0.0, 0.2), (0.2, 0.5)], [[5, 6, 7, 8, 9], [0, 1], [2, 3, 4]]),
    ],
)
def test_parts_of_ranks(sharding: Sharding, expected: list[list[int]]) -> None:
    parts = shares(sharding, 3)
    assert [part.train.labels.tolist() for part in parts] == expected
    for part in parts:
        assert part.share is not None
        assert part.share.sizes == tuple(map(len, expected))
        assert part.share.is_equal == (sharding == "stride")
        assert part.check is DATA.check
        images: Any = part.train.images  # type: ignore[attr-defined]
        assert not np.shares_memory(images, DATA.train.images)  # type: ignore[attr-defined]
    assert DATA.share is None


def test_the_fingerprint_is_that_of_the_whole_and_of_its_division() -> None:
    whole = fingerprint(DATA)
    first, second = (fingerprint(part) for part in shares("stride", 2))
    assert first == second == {**whole, "sharding": "stride"}
    (fractions, _) = (fingerprint(part) for part in shares([(0, 0.5), (0.5, 1)], 2))
    assert fractions == {**whole, "sharding": [[0, 0.5], [0.5, 1]]}


def test_divisions_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match=r"expected begin and end for each of 3 ranks\. Received: 2"):
        shares([(0, 0.5), (0.5, 1)], 3)
    for wrong in ("foo", None, 3, [1, 2], [None], [(0, "x")], [(0, 0.5, 1)], np.zeros((3, 2))):
        with pytest.raises(ConfigurationError, match=r"expected 'stride', or begin and end for each rank\. Received: "):
            shares(wrong, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"expected a Dataset\. Received: None"):
        share_of_rank(None, "stride")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"at least one of 10 examples\. Received: none, with fraction="):
        shares([(0, 0.01), (0.01, 1)], 2)
    for parts, fault in (
        ([(0, 0.5)], "5 is in none"),
        ([(0, 0.6), (0.5, 1)], "5 is in 2"),
        ([(0.2, 1)], "0 is in none"),
    ):
        with pytest.raises(ConfigurationError, match=rf"that adjoin, from 0 to 1\. .*, where example {fault} of them$"):
            shares(parts, len(parts))
    assert len(shares([(n * 0.1, n * 0.1 + 0.1) for n in range(10)], 10)) == 10  # up to rounding


def test_each_rank_shuffles_its_own_part() -> None:
    """Two ranks with two learners each: of tasks 0, 1, 4, 5, … of rank 0, the m-th has its m-th batch."""
    share, out, expected = RankShare(23, (12, 11), "stride", ""), np.empty(4, np.intp), np.empty(4, np.intp)
    for first, own in ((0, 12), (2, 11)):
        order = ShareOrder(share, 4, 7, Placement(learners=4, first=first, own=2))
        alone = TrainingOrder(own, 4, 7)
        assert order.tasks_per_epoch == 23 / 4
        assert order.tasks_in_epochs(3) == TrainingOrder(23, 4, 7).tasks_in_epochs(3)
        for index in range(8):
            task = 4 * (index // 2) + first + index % 2
            assert order.indices(task, out) == alone.indices(index, expected) == 4
            np.testing.assert_array_equal(out, expected)
            bad = np.zeros(own, np.bool_)
            bad[out[1]] = True
            steps, steps_expected = np.zeros(4, np.intp), np.zeros(4, np.intp)
            order.leave_out(bad, task, out, steps)
            alone.leave_out(bad, index, expected, steps_expected)
            np.testing.assert_array_equal(out, expected)


def test_the_order_of_a_part_does_not_depend_on_the_number_of_learners() -> None:
    """Of two ranks, rank 1 does three of six tasks, then two of four with two learners, then others with three."""
    share, out, expected = RankShare(20, (10, 10), "stride", ""), np.empty(2, np.intp), np.empty(2, np.intp)
    part, number = TrainingOrder(10, 2, 7), 0
    for own, begin, tasks in ((1, 0, (1, 3, 5)), (2, 6, (8, 9)), (3, 10, (13, 14, 15, 19))):
        order = ShareOrder(share, 2, 7, Placement(learners=2 * own, first=own, own=own))
        order.begin(begin)
        for task in tasks:
            order.indices(task, out)
            part.indices(number, expected)
            np.testing.assert_array_equal(out, expected)
            number += 1


SYSTEM = SystemConf(precision="float64", kernels="reference", seed=3, threads_per_learner=1, learners_per_device=1)
SOLVER = SolverConf(learning_rate=0.1)


def train_on_ranks(sharding: Sharding, data: Dataset, own: tuple[int, ...] = (1, 1)) -> list[dict[str, Any]]:
    """The weights of all ranks before and after two epochs of S-SGD on softmax regression."""

    def of(ranks: Ranks, learners: int) -> Callable[[], list[dict[str, Any]]]:
        def work() -> list[dict[str, Any]]:
            part, model = share_of_rank(data, sharding, ranks), ModelConf(batch_size=4, rule=SSGD())
            flow = training(InnerProduct(number_of_outputs=3))
            check = Dataflow(flow.subgraph).set_phase(Phase.CHECK)
            system = SYSTEM if learners == 1 else SystemConf(learners_per_device=learners)
            engine = new_engine(flow.graph, check.graph, part, model, SOLVER, system, ranks=ranks)
            try:
                before = engine.weights
                TrainingRun(engine, model, Limits(count=2), (), test=False, ranks=ranks).run()
                return [before, engine.weights]
            finally:
                engine.close()

        return work

    network = FakeNetwork(len(own)).ranks()
    pairs = at_once([of(ranks, learners) for ranks, learners in zip(network, own, strict=True)])
    return [weights for pair in pairs for weights in pair]


def test_ranks_train_on_their_parts() -> None:
    """The weights are those of S-SGD in NumPy, whose two gradients come from the two halves."""
    data = blobs(24, 5)
    before, after, _, of_other = train_on_ranks([(0, 0.5), (0.5, 1)], data)
    weights, bias = (before[name].astype(np.float64) for name in before)
    x, y = np.asarray(data.train.images, np.float64), data.train.labels.astype(np.intp)  # type: ignore[attr-defined]
    order, chosen = TrainingOrder(12, 4, SYSTEM.seed), np.empty(4, np.intp)
    for tick in range(6):  # two epochs of six tasks
        order.indices(tick, chosen)
        both = np.concatenate([chosen, 12 + chosen])
        scores = x[both] @ weights.reshape(3, -1).T + bias
        slope = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        slope[np.arange(8), y[both]] -= 1
        weights = weights - 0.1 * (slope.T @ x[both] / 8).reshape(weights.shape)
        bias = bias - 0.1 * slope.mean(axis=0)
    for found, same, expected in zip(after.values(), of_other.values(), (weights, bias), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(found, same)


def test_parts_of_different_sizes_are_refused_under_a_barrier() -> None:
    with pytest.raises(ConfigurationError, match=r"expected equal shares .* Received: shares of 6, 18 examples"):
        train_on_ranks([(0, 0.25), (0.25, 1)], blobs(24, 5))


def test_ranks_with_different_numbers_of_learners_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"as many learners on each of 2 ranks\. Received: [12] of 3 on one"):
        train_on_ranks("stride", blobs(24, 5), (2, 1))


def test_a_part_of_other_ranks_is_refused() -> None:
    part = shares("stride", 2, blobs(24, 5))[0]
    flow = training(InnerProduct(number_of_outputs=3))
    check = Dataflow(flow.subgraph).set_phase(Phase.CHECK)
    with pytest.raises(ConfigurationError, match=r"expected the data set of this rank, one of 1\. Received: 12 "):
        new_engine(flow.graph, check.graph, part, ModelConf(batch_size=4), SOLVER, SYSTEM)


def small_run(directory: Path, *sharding: str) -> list[str]:
    sizes = ["--training-examples", "32", "--test-examples", "8", "--batch-size", "4", "--epochs", "1"]
    system = ["--learners", "1", "--kernels", "reference", "--output-directory", str(directory)]
    return ["--dataset", "synthetic", "--classes", "3", *sizes, *system, "--data-sharding", *sharding]


@pytest.mark.slow
def test_the_option_of_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "data_sharding"
    file.write_text("0 1\n")
    assert logistic_regression(small_run(tmp_path / "run", str(file))) == 0
    described = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert described["data"]["sharding"] == [[0, 1]]
    file.write_text("0 0.5\n0.5 1\n")
    assert logistic_regression(small_run(tmp_path / "other", str(file))) == 2
    assert "error: data sharding: expected begin and end for each of 1 ranks. Received: 2" in capsys.readouterr().err


@NEEDS_MPI
@pytest.mark.slow
def test_ranks_of_mpi_keep_their_parts(tmp_path: Path) -> None:
    done = mpirun(2, "-m", "models.logistic_regression", *small_run(tmp_path / "run", "stride"))
    assert done.returncode == 0, done.stderr
    described = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert described["data"]["training_examples"] == 32
    assert described["data"]["sharding"] == "stride"
    file = tmp_path / "data_sharding"
    file.write_text("0 0.25\n0.25 1\n")
    done = mpirun(2, "-m", "models.logistic_regression", *small_run(tmp_path / "other", str(file)))
    assert done.returncode == 2
    expected = "expected equal shares under a rule with a barrier. Received: shares of 8, 24 examples"
    assert expected in done.stderr
