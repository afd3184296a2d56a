"""Validation of the arguments of `simulate`. Each invalid argument raises one ConfigurationError."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer, is_number, refuse, shown
from crossbow.solver import SolverConf
from crossbow.synch.rule import Rule
from crossbow.synch.sequence import RuleSequence
from crossbow.synch.two_level import TwoLevel
from crossbow.types import ConfigurationError

Vector = NDArray[Any]
GradientOf = Callable[[Vector, int, int], Any]
"""Gradient as a function of weights, the learner's number and the task's number."""


def hosts_of(hosts: object, learners: int, *, two_level: bool) -> list[range]:
    """The learners of each host. Raises ConfigurationError."""
    if not two_level:
        if hosts is not None:
            raise refused("hosts", hosts, "None with one level")
        return []
    sizes = listed(hosts)
    if sizes is None or not all(is_integer(size) and size >= 1 for size in sizes) or sum(sizes) != learners:
        raise refused("hosts", hosts, f"numbers of learners ≥ 1, {learners} together")
    return [range(end - size, end) for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]


def check_kinds(rule: object, gradient: object, solver: object, restart: object) -> None:
    """Raises ConfigurationError."""
    if not isinstance(rule, Rule | RuleSequence | TwoLevel):
        raise refused("rule", rule, "one of crossbow.synch, as SMA()")
    if not callable(gradient):
        raise refused("gradient", gradient, "a function of weights, the learner's number and the task's")
    if not isinstance(solver, SolverConf | None):
        raise refused("solver", solver, "a SolverConf or None")
    if not isinstance(restart, bool):
        raise refused("restart", restart, "True or False")


def delay_of(latency: object, bandwidth: object, size: object, elements: int) -> float:
    """Duration of a message, latency + bytes / bandwidth. Raises ConfigurationError."""
    if not is_number(latency) or latency < 0:  # type: ignore[operator]
        raise refused("latency", latency, "a finite number ≥ 0")
    if bandwidth is not None and (not is_number(bandwidth) or bandwidth <= 0):  # type: ignore[operator]
        raise refused("bandwidth", bandwidth, "a finite number > 0 or None")
    if size is not None and (not is_number(size) or size < 0):  # type: ignore[operator]
        raise refused("bytes", size, "a finite number ≥ 0 or None")
    sent = 4 * elements if size is None else size
    return float(latency + (0 if bandwidth is None else sent / bandwidth))  # type: ignore[operator]


def check_numbers(learners: object, tasks_per_epoch: object, skip: object, seed: object) -> None:
    """Raises ConfigurationError."""
    if not is_integer(learners) or learners < 1:  # type: ignore[operator]
        raise refused("learners", learners, "an integer ≥ 1")
    if not is_number(tasks_per_epoch) or tasks_per_epoch <= 0:  # type: ignore[operator]
        raise refused("tasks_per_epoch", tasks_per_epoch, "a finite number > 0")
    if not is_number(skip) or not 0 <= skip < 1:  # type: ignore[operator]
        raise refused("skip", skip, "a finite number ≥ 0 and < 1")
    if not is_integer(seed) or seed < 0:  # type: ignore[operator]
        raise refused("seed", seed, "an integer ≥ 0")


def start_of(initial: object) -> Vector:
    """The initial weights of all learners. Raises ConfigurationError."""
    start = vector_of(initial)
    if start is None or not start.size:
        raise refused("initial", initial, "a vector of numbers, at least one")
    return start


def checked(gradient: GradientOf, elements: int) -> Callable[[Vector, int, int], Vector]:
    """The function, wrapped to raise ConfigurationError unless it returns a vector of the given number of elements."""

    def checked_gradient(weights: Vector, learner: int, task: int) -> Vector:
        returned = gradient(weights, learner, task)
        vector = vector_of(returned)
        if vector is None or vector.size != elements:
            raise ConfigurationError(
                f"simulate: gradient must return a vector of as many numbers as initial, {elements}. "
                f"Received: {shown(returned)}, for learner {learner}'s task {task}"
            )
        return vector

    return checked_gradient


def vector_of(value: object) -> Vector | None:
    """The value as a vector of real numbers in double precision, or None if it is not one."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    numbers = array.dtype.kind in "iuf" or all(map(is_number, array.flat))
    return array.astype(np.float64) if numbers and array.ndim == 1 else None


def places_of(elements: int, variables: Iterable[int] | None) -> list[slice]:
    """Slices of the variables. Raises ConfigurationError unless their sizes add up to the number of elements."""
    if variables is None:
        return [slice(0, elements)]
    sizes = listed(variables)
    if sizes is None or not all(is_integer(size) and size >= 1 for size in sizes) or sum(sizes) != elements:
        raise refused("variables", variables, f"integers ≥ 1, {elements} together")
    return [slice(end - size, end) for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]


def local_of(local_variables: Iterable[int], variables: int) -> tuple[int, ...]:
    """Numbers of local variables. Raises ConfigurationError if one is not the number of a variable."""
    numbers = listed(local_variables)
    if numbers is None or not all(is_integer(number) and 0 <= number < variables for number in numbers):
        raise refused("local_variables", local_variables, f"numbers of variables, 0 to {variables - 1}")
    return tuple(numbers)


def listed(values: object) -> list[Any] | None:
    """The values as a list, or None if they are not iterable."""
    try:
        return list(values)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return None


def refused(name: str, value: object, allowed: str) -> ConfigurationError:
    """The error for an invalid argument of `simulate`."""
    return refuse("simulate", name, value, allowed)
