"""Ranks that differ do not train together."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crossbow import Constant
from crossbow.cluster.admission import Admission, Joining
from crossbow.cluster.members import NotJoined, Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.compile import ModelLayout
from crossbow.compile.model import lay_out
from crossbow.kernels.cpu.storage import strided_storage
from crossbow.kernels.interface import PlainStorage, Storage
from crossbow.ops import VariableSpec
from crossbow.runtime.alike import check_alike, check_equal, differently_stored, same_error
from crossbow.types import ConfigurationError
from tests.cluster.fake_network import FakeNetwork, at_once

ABOUT: dict[str, Any] = {
    "network": ["conv: Conv() of batch", "loss: SoftMaxLoss() of conv"],
    "data": {"training_digest": "ab"},
    "model": {"batch_size": 16},
    "solver": {"learning_rate": 0.1},
    "system": {"seed": 0, "devices": ["cpu"], "learners_per_device": 2},
}


def compare(*abouts: dict[str, Any]) -> list[str]:
    """What each rank raises; "" if nothing."""

    def of(ranks: Ranks, about: dict[str, Any]) -> Callable[[], str]:
        def work() -> str:
            try:
                check_alike(ranks, about)
            except ConfigurationError as error:
                return str(error)
            return ""

        return work

    ranks = FakeNetwork(len(abouts)).ranks()
    return at_once([of(*pair) for pair in zip(ranks, abouts, strict=True)])


def test_devices_and_learners_may_differ() -> None:
    other = {**ABOUT, "system": {"seed": 0, "devices": ["cpu:0/2"], "learners_per_device": 1}}
    assert compare(ABOUT, other) == ["", ""]


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("model", {"batch_size": 8}, "batch_size must be the same on all ranks: expected 16, as on rank 0 (host0). "),
        ("solver", {"learning_rate": 0.2}, "learning_rate must be the same on all ranks: expected 0.1, "),
        ("system", {"seed": 4}, "seed must be the same on all ranks: expected 0, "),
        ("data", {"training_digest": "cd"}, "data, training_digest must be the same on all ranks: expected ab, "),
        ("network", ["conv: Conv() of batch"], "network, operator 1 must be the same on all ranks: expected loss: "),
    ],
)
def test_a_difference_is_one_sentence_on_all_ranks(part: str, value: Any, expected: str) -> None:
    found = compare(ABOUT, ABOUT, {**ABOUT, part: value})
    assert len(set(found)) == 1
    assert found[0].startswith(expected)
    assert found[0].endswith(" on rank 2 (host2)")


def stored(*storages: Storage) -> ModelLayout:
    """A layout of variables a, b, … that are stored like this."""
    spec = VariableSpec("weights", (2, 3), Constant(0))
    variables = {(n, "weights"): ("abc"[n], spec, storage) for n, storage in enumerate(storages)}
    return lay_out(variables, np.dtype(np.float32))


def test_variables_that_ranks_store_differently() -> None:
    plain, last = PlainStorage((2, 3)), strided_storage((2, 3), (2, 3), (1, 2))
    layouts = [stored(plain, last, last), stored(plain, last, last), stored(last, last, plain)]

    def of(ranks: Ranks, layout: ModelLayout) -> Callable[[], frozenset[str]]:
        return lambda: differently_stored(ranks, [layout, stored()])

    found = at_once([of(*pair) for pair in zip(FakeNetwork(3).ranks(), layouts, strict=True)])
    assert found == 3 * [{"a", "c"}]
    same = at_once([of(*pair) for pair in zip(FakeNetwork(2).ranks(), layouts[:2], strict=True)])
    assert same == 2 * [set()]


def fail(*reasons: str) -> list[str]:
    """What each rank raises, or returns, if some have a reason to fail."""

    def of(ranks: Ranks, reason: str) -> Callable[[], str]:
        def work() -> str:
            if reason:
                raise ConfigurationError(reason)
            return "done"

        def told() -> str:
            try:
                return same_error(ranks, work)
            except ConfigurationError as error:
                return str(error)

        return told

    return at_once([of(*pair) for pair in zip(FakeNetwork(len(reasons)).ranks(), reasons, strict=True)])


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (("", "", ""), "done"),
        (("", "too small", ""), "rank 1 (host1): too small"),
        (("a", "b", ""), "rank 0 (host0): a"),
        (("wrong", "wrong", "wrong"), "wrong"),
    ],
)
def test_an_error_of_one_rank_is_that_of_all(reasons: tuple[str, ...], told: str) -> None:
    assert fail(*reasons) == [told] * 3


def test_values_by_name() -> None:
    first, second = FakeNetwork(2).ranks()

    def differ(ranks: Ranks, epochs: int) -> Callable[[], None]:
        def work() -> None:
            check_equal(ranks, {"--seed": 0, "--epochs": 2})
            with pytest.raises(ConfigurationError, match=r"^--epochs must be .* expected 2, .* Received: 1 on rank 1 "):
                check_equal(ranks, {"--seed": 0, "--epochs": epochs})

        return work

    at_once([differ(first, 2), differ(second, 1)])


def test_a_rank_alone_compares_nothing() -> None:
    alone = Ranks(View(0, (Rank(0, "here"),)))
    check_alike(alone, {})
    check_equal(alone, {"--epochs": 2})
    assert differently_stored(alone, [stored(PlainStorage((2, 3)))]) == set()


@pytest.mark.parametrize(("about", "name"), [(ABOUT, ""), ({**ABOUT, "model": {"batch_size": 4}}, "batch_size")])
def test_a_rank_that_joins_is_compared_with_those_that_began(
    about: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admission = Admission()
    first = Ranks(View(0, (Rank(0, "a"),)), 0, FakeNetwork(1).transports()[0], admission=admission)
    check_alike(first, ABOUT)
    admission.open(first.view.ranks)
    journal = admission.journal()
    assert journal is not None
    view = View(0, (*journal.ranks, Rank(1, "b")))
    ranks = Ranks(view, 1, FakeNetwork(2).transports()[1], joining=Joining(journal))
    if not name:
        check_alike(ranks, about)
        return
    with pytest.raises(NotJoined):
        check_alike(ranks, about)
    assert re.fullmatch(rf"error: {name} must be the same .* on rank 1 \(b\)\n", capsys.readouterr().err)
