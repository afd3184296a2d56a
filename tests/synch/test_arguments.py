"""What `simulate` refuses, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crossbow import SMA, SSGD, ConfigurationError, SolverConf
from crossbow.synch import AsynchronousSGD, Gossip, Grouping, Hogwild, Rule, RuleSequence, TwoLevel, simulate
from tests.synch.test_simulator import noise, run


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"events": [0, 2]},
            r"events must be learners' numbers, 0 to 1, or a count with speeds=. Received: events=\[0, 2\]",
        ),
        ({"events": 3}, "events must be learners' numbers"),
        ({"events": 2.5}, "events must be learners' numbers, 0 to 1, or a count with speeds=. Received: events=2.5"),
        ({"events": None}, "events must be learners' numbers"),
        (
            {"events": None, "speeds": [1, 1]},
            "events must be an integer ≥ 0 with speeds=, or None with speeds= and tasks=",
        ),
        ({"tasks": -1}, "tasks must be an integer ≥ 0 or None. Received: tasks=-1"),
        (
            {"events": [0], "speeds": [1, 1]},
            "events must be an integer ≥ 0 with speeds=, or None with speeds= and tasks=",
        ),
        ({"events": 3, "speeds": [1.0]}, "speeds must be 2 numbers > 0"),
        ({"events": 3, "speeds": [1.0, 0.0]}, "speeds must be 2 numbers > 0"),
        ({"events": 3, "speeds": 1.0}, "speeds must be 2 numbers > 0. Received: speeds=1.0"),
        ({"variables": [2]}, r"variables must be integers ≥ 1, 1 together. Received: variables=\[2\]"),
        ({"variables": 1}, "variables must be integers ≥ 1, 1 together. Received: variables=1"),
        ({"variables": [1.0]}, r"variables must be integers ≥ 1, 1 together. Received: variables=\[1.0\]"),
        ({"variables": [2, -1]}, r"variables must be integers ≥ 1, 1 together. Received: variables=\[2, -1\]"),
        ({"local_variables": [1]}, r"local_variables must be numbers of variables, 0 to 0. Received: local_.*=\[1\]"),
        ({"local_variables": 0}, "local_variables must be numbers of variables, 0 to 0. Received: local_variables=0"),
        ({"local_variables": [[0]]}, "local_variables must be numbers of variables"),
        ({"local_variables": [0.0]}, "local_variables must be numbers of variables"),
        ({"skip": "a"}, "skip must be a finite number ≥ 0 and < 1. Received: skip='a'"),
        ({"rule": Hogwild(), "skip": 2.0}, "skip must be a finite number ≥ 0 and < 1. Received: skip=2.0"),
        ({"rule": Hogwild(), "skip": 1}, "skip must be a finite number ≥ 0 and < 1"),
        ({"rule": Hogwild(), "skip": -1.0}, "skip must be a finite number ≥ 0 and < 1"),
        ({"skip": 0.5}, "skip must be 0 under a rule whose learners do not add to z"),
        ({"tasks_per_epoch": 0}, "tasks_per_epoch must be a finite number > 0. Received: tasks_per_epoch=0"),
        ({"seed": 0.5}, "seed must be an integer ≥ 0. Received: seed=0.5"),
        ({"rule": SSGD(), "local_variables": [0]}, r"local_variables must be \(\) under a rule by which learners send"),
        ({"learners": 0}, "learners must be an integer ≥ 1"),
        ({"initial": [[1.0]]}, r"initial must be a vector of numbers, at least one. Received: initial=\[\[1.0\]\]"),
        ({"initial": "abc"}, "initial must be a vector of numbers, at least one. Received: initial='abc'"),
        ({"initial": []}, r"initial must be a vector of numbers, at least one. Received: initial=\[\]"),
        ({"initial": 1.0}, "initial must be a vector of numbers, at least one. Received: initial=1.0"),
        ({"initial": [1j]}, "initial must be a vector of numbers"),
        ({"initial": np.array([1j])}, r"initial must be .* Received: initial=an array of shape \(1,\), complex128"),
        ({"initial": [None]}, r"initial must be a vector of numbers, at least one. Received: initial=\[None\]"),
        ({"initial": ["1"]}, r"initial must be a vector of numbers, at least one. Received: initial=\['1'\]"),
        ({"initial": [True]}, "initial must be a vector of numbers"),
        ({"initial": [[1.0], [1.0, 2.0]]}, "initial must be a vector of numbers"),
        ({"initial": [10**400]}, "initial must be a vector of numbers"),
        ({"gradient": None}, "gradient must be a function of weights, the learner's .* Received: gradient=None"),
        ({"gradient": [1.0]}, r"gradient must be a function of weights, the learner's .* Received: gradient=\[1.0\]"),
        ({"restart": 1}, "restart must be True or False. Received: restart=1"),
        ({"solver": 0}, "solver must be a SolverConf or None. Received: solver=0"),
        ({"solver": "sgd"}, "solver must be a SolverConf or None. Received: solver='sgd'"),
        ({"solver": SolverConf}, "solver must be a SolverConf or None. Received: solver=<class"),
        ({"latency": -1}, "latency must be a finite number ≥ 0. Received: latency=-1"),
        ({"latency": None}, "latency must be a finite number ≥ 0. Received: latency=None"),
        ({"bandwidth": 0}, "bandwidth must be a finite number > 0 or None. Received: bandwidth=0"),
        ({"bytes": -4}, "bytes must be a finite number ≥ 0 or None. Received: bytes=-4"),
        (
            {"latency": 1.0},
            "speeds must be given with a latency, a bandwidth, or learners that leave or join",
        ),
        ({"bandwidth": 8.0}, "speeds must be given with a latency, a bandwidth, or learners that leave or join"),
        ({"leave": [(1.0, 0)]}, "speeds must be given with a latency, a bandwidth, or learners that leave or join"),
        ({"join": [(1.0, 2)], "speeds": [1, 1], "events": 3}, "speeds must be 3 numbers > 0"),
        ({"leave": 1.0, "speeds": [1, 1], "events": 3}, "leave must be pairs of a time ≥ 0 and a learner's number"),
        (
            {"join": [(1, 2)], "speeds": [1, 1, 1], "events": 3, "rule": RuleSequence(((SSGD(), 1), (SMA(0.6), 1)))},
            "alpha must be < .* with k = 3 learners",
        ),
        (
            {"join": [(1, 2)], "speeds": [1, 1, 1], "events": 3, "rule": TwoLevel(), "hosts": [1, 1]},
            r"hosts must be numbers of learners ≥ 1, 3 together. Received: hosts=\[1, 1\]",
        ),
        (
            {"join": [(1, 2)], "speeds": [1] * 3, "events": 3, "rule": TwoLevel(SMA(0.6)), "hosts": [3]},
            "alpha must be < .* with k = 3 learners",
        ),
        (
            {"join": [(1, 2)], "speeds": [1] * 3, "events": 3, "rule": TwoLevel(SMA(), SMA(0.6)), "hosts": [1, 1, 1]},
            "alpha must be < .* with k = 3 learners",
        ),
        (
            {"leave": [(1, 0)], "speeds": [1, 1], "events": 3, "rule": Grouping(((0,), (1, 2)))},
            "groups must be groups of 2 learners together",
        ),
        (
            {"join": [(1, 2)], "speeds": [1, 1, 1], "events": 3, "rule": SMA(alpha=0.6)},
            "alpha must be < .* with k = 3 learners",
        ),
        ({"hosts": [2]}, r"hosts must be None with one level. Received: hosts=\[2\]"),
        ({"rule": TwoLevel()}, "hosts must be numbers of learners ≥ 1, 2 together. Received: hosts=None"),
        ({"rule": TwoLevel(), "hosts": [1, 2]}, r"hosts must be numbers .*, 2 together. Received: hosts=\[1, 2\]"),
        ({"rule": TwoLevel(), "hosts": [2, 0]}, r"hosts must be numbers of learners ≥ 1"),
        ({"rule": TwoLevel(SSGD()), "hosts": [2], "local_variables": [0]}, "local_variables must be .* send gradients"),
        ({"rule": TwoLevel(), "hosts": [2], "skip": 0.5}, "skip must be 0 under a rule whose"),
        ({"rule": TwoLevel(SMA(0.9)), "hosts": [2]}, "alpha must be < .* with k = 2 learners"),
        ({"rule": TwoLevel(SSGD(), SMA(0.9)), "hosts": [1, 1]}, "alpha must be < .* with k = 2 learners"),
        ({"rule": "sma"}, "rule must be one of crossbow.synch"),
        ({"rule": SMA(alpha=0.9)}, "alpha must be < 2/"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {
        "rule": SMA(), "initial": [1.0], "gradient": noise(0), "learners": 2, "events": [0, 1], **options
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=text):
        simulate(given.pop("rule"), **given)


@pytest.mark.parametrize("rule", [SMA(), AsynchronousSGD(), Gossip()], ids=str)
@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (None, "None"),
        (1.0, "1.0"),
        ([1.0], r"\[1.0\]"),
        ([1.0, 2.0, 3.0], r"\[1.0, 2.0, 3.0\]"),
        ([1.0, None], r"\[1.0, None\]"),
        ([1.0, 2.0j], r"\[1.0, 2j\]"),
        (np.array([1.0, 2.0j]), r"an array of shape \(2,\), complex128"),
        (np.zeros((1, 2)), r"an array of shape \(1, 2\), float64"),
        ("12", "'12'"),
        ([[1.0], 2.0], r"\[\[1.0\], 2.0\]"),
    ],
)
def test_what_is_no_gradient_is_refused(rule: Rule, returned: Any, shown: str) -> None:
    """In the task that it is of: here learner 1's third but for the barrier, under which it is the second."""
    task = 3 if isinstance(rule, SMA) else 2

    def of_task(weights: Any, learner: int, number: int) -> Any:
        return returned if number == task else weights

    text = f"^simulate: gradient must return a vector of as many numbers as initial, 2. Received: {shown}, "
    with pytest.raises(ConfigurationError, match=text + f"for learner 1's task {task}$"):
        simulate(rule, initial=[1.0, 2.0], gradient=of_task, learners=2, events=[1, 0, 1, 0])


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda v: np.array(v, np.float32), lambda v: v.astype(int)])
def test_vectors_of_any_real_numbers(kind: Callable[[Any], Any]) -> None:
    made = simulate(
        SSGD(), initial=kind(np.array([8.0, -4.0])), gradient=lambda w, learner, task: kind(w), learners=1, events=[0],
        solver=SolverConf(learning_rate=0.5),
    )  # fmt: skip
    assert made.base.tolist() == [[4, -2]]


def test_gradients_may_diverge() -> None:
    """Unlike what is given at first, they follow from the learning rate."""
    gradients = iter([[np.inf], np.array([np.nan])])
    made = simulate(SSGD(), initial=[1.0], gradient=lambda *_: next(gradients), learners=1, events=[0, 0])
    assert np.isneginf(made.base[0])
    assert np.isnan(made.base[1])


def test_all_rules_in_turn_are_checked_first() -> None:
    def never(weights: Any, learner: int, task: int) -> Any:
        raise AssertionError("it has begun")

    rules = RuleSequence(((Hogwild(), 1), (SSGD(), 1)))
    for options in ({"skip": 0.5}, {"local_variables": [0]}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(options))} must be"):
            run(rules, 2, [0, 1], gradient=never, **options)
