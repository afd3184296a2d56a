"""The list of bad examples, which several loaders and threads share."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crossbow.data.bad_examples import BadExamples
from crossbow.data.examples import BadExample
from crossbow.types import DataError


def error(index: int) -> BadExample:
    return BadExample(index, f"file {index}", "expected an image")


def test_each_is_listed_once_in_the_order_of_finding() -> None:
    bad = BadExamples(5)
    assert not bad
    assert bad.take_new() == []
    for index in (3, 1, 3):
        bad.add(error(index))
    assert [str(each) for each in bad.all()] == ["file 3: expected an image", "file 1: expected an image"]
    assert bad.mask.tolist() == [False, True, False, True, False]
    assert [each.index for each in bad.take_new()] == [3, 1]
    bad.add(error(1))
    bad.add(error(0))
    assert [each.index for each in bad.take_new()] == [0]
    assert bad.take_new() == []
    assert len(bad) == 3


def test_another_object_continues_with_what_was_found() -> None:
    """What was given before is not new; what was not is."""
    bad, next_one = BadExamples(5), BadExamples(5)
    bad.add(error(3))
    bad.take_new()
    bad.add(error(1))
    next_one.continue_from(bad)
    assert next_one.mask.tolist() == bad.mask.tolist()
    assert [each.index for each in next_one.all()] == [3, 1]
    assert [each.index for each in next_one.take_new()] == [1]


def test_the_last_good_one_is_never_added() -> None:
    bad = BadExamples(3)
    bad.add(error(2))
    bad.add(error(0))
    with pytest.raises(
        DataError,
        match=r"expected an example that can be decoded. Received: 3 that cannot, the first: file 2: expected",
    ):
        bad.add(error(1))
    assert not bad.mask.all()
    with pytest.raises(DataError, match="Received: 1 that cannot, the first: file 0"):
        BadExamples(1).add(error(0))


def test_a_part_of_a_set_has_the_numbers_of_the_whole() -> None:
    bad = BadExamples(2, np.array([1, 3]))
    bad.add(error(1))
    bad.add_known(error(0))
    bad.add_known(error(3))
    assert [(each.index, each.source) for each in bad.all()] == [(3, "file 1"), (0, "file 0")]
    assert bad.mask.tolist() == [False, True]
    with pytest.raises(DataError, match="Received: 2 that cannot"):
        bad.add_known(error(1))


@pytest.mark.parametrize("several", [True, False])
def test_ranks_share_what_any_of_them_has_found(several: bool) -> None:
    first, second = BadExamples(5), BadExamples(5)
    first.add(error(3))
    second.add(error(1))
    second.add(error(3))

    def gather(own: list[Any]) -> list[Any]:
        return [own, [(each.index, each.source, each.reason) for each in second.all()]]

    ranks: Any = SimpleNamespace(several=several, gather=gather)
    first.share(ranks)
    assert [str(each) for each in first.all()] == [str(error(index)) for index in ((3, 1) if several else (3,))]


def test_several_threads() -> None:
    bad = BadExamples(1001)
    threads = [threading.Thread(target=lambda: [bad.add(error(index)) for index in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.index for each in bad.take_new()] == list(range(1000))
    assert bad.mask.sum() == len(bad) == 1000


def test_a_traceback_is_not_kept() -> None:
    bad = BadExamples(2)
    try:
        raise error(0)
    except BadExample as raised:
        bad.add(raised)
    assert bad.all()[0].__traceback__ is None
