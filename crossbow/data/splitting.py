"""The division of examples into training and check examples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossbow.conf import is_integer, is_number, shown
from crossbow.data.examples import Indices
from crossbow.types import Array, DataError


def split_indices(
    labels: Array, check_fraction: object, *, stratified: bool, seed: object, classes: bool
) -> tuple[Indices, Indices]:
    """Random indices of training and check examples, each in ascending order.

    labels: (N, …). classes: whether labels are classes. stratified: whether each class has the same fraction of check
    examples, up to rounding. This needs one class per example; otherwise all examples are drawn with equal probability.
    Raises DataError if an argument is out of range.
    """
    count = len(labels)
    if not is_number(check_fraction) or not 0 < float(check_fraction) < 1:  # type: ignore[arg-type]
        expected = "expected check_fraction to be a number > 0 and < 1"
        raise DataError(f"split: {expected}. Received: {shown(check_fraction)}")
    if not isinstance(stratified, bool | np.bool_):
        raise DataError(f"split: expected stratified to be True or False. Received: {shown(stratified)}")
    if not is_integer(seed) or int(seed) < 0:  # type: ignore[call-overload]
        raise DataError(f"split: expected a seed that is an integer ≥ 0. Received: {shown(seed)}")
    wanted = round(float(check_fraction) * count)  # type: ignore[arg-type]
    if not 0 < wanted < count:
        raise DataError(
            f"split: expected at least one training and one check example. Received: {count - wanted} and {wanted}, "
            f"with check_fraction={check_fraction} of {count}"
        )
    generator = np.random.default_rng(int(seed))  # type: ignore[call-overload]
    grouped = labels if stratified and classes and labels.ndim == 1 else np.zeros(count, np.int32)
    chosen = np.zeros(count, bool)
    values, members = np.unique(grouped, return_inverse=True)
    for value, number in enumerate(_shares(np.bincount(members, minlength=len(values)), wanted)):
        (places,) = np.nonzero(members == value)
        chosen[generator.choice(places, number, replace=False)] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _shares(sizes: NDArray[np.intp], wanted: int) -> NDArray[np.intp]:
    """The number of examples of each group, in proportion to its size and `wanted` in total. The largest remainders are
    rounded up.

    >>> _shares(np.array([10, 10, 5]), 8).tolist()
    [3, 3, 2]
    """
    exact: NDArray[Any] = sizes * (wanted / sizes.sum())
    shares: NDArray[np.intp] = np.floor(exact).astype(np.intp)
    last = np.argsort(shares - exact, kind="stable")[: wanted - shares.sum()]
    shares[last] += 1
    return shares
