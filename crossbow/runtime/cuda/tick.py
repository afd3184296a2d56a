"""A tick's parts on a GPU: what `crossbow.runtime.tick` says of slices of processor cores, for a device as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from crossbow.compile import BoundStep
from crossbow.runtime.cuda.coefficients import DeviceCoefficients
from crossbow.runtime.replica import BaseModel, Replica
from crossbow.runtime.tick import Averaging, statistics_after
from crossbow.solver import Update
from crossbow.types import Array


def sum_steps(averaging: Averaging, replicas: Sequence[Replica], base: BaseModel, parity: int) -> list[BoundStep]:
    """Between several devices: the sum of what this device's learners send, and its part of the mean statistics."""
    sent = {f"sent{i}": replica.vectors()[averaging.barrier.sent_vector] for i, replica in enumerate(replicas)}
    update = Update((("mean", averaging.mean("sent", len(replicas))),))
    vectors = {**base.vectors(parity), **sent}
    steps = averaging.combine("sum of the device", update, vectors, averaging.array(update.coefficients))
    if base.statistics_mean is not None and base.statistics_mean.size:
        steps += _mean_statistics(averaging, replicas, parity, base.statistics_mean)
    return steps


def merge_steps(
    averaging: Averaging,
    coefficients: DeviceCoefficients,
    replicas: Sequence[Replica],
    base: BaseModel,
    parity: int,
) -> list[BoundStep]:
    """The next z and its statistics: on a single device from what the learners send, else from the sum of all."""
    single = averaging.devices == 1
    sent = {f"sent{i}": replica.vectors()[averaging.barrier.sent_vector] for i, replica in enumerate(replicas)}
    vectors = {**base.vectors(parity), **(sent if single else {})}
    whole, steps = slice(0, base.buffers[0].size), []
    following = base.statistics[1 - parity]
    if following.size and single:
        steps += _mean_statistics(averaging, replicas, parity, following)
    elif following.size and base.statistics_mean is not None:
        steps += averaging.combine_statistics({"mean": 1.0}, {"statistics": following, "mean": base.statistics_mean})
    if not single:
        steps += averaging.look_through("all-reduce", ("mean",), vectors, whole)
    paced = coefficients.merge
    if averaging.clips == "mean":
        mean = averaging.mean("sent", len(replicas)) if single else {"mean": 1.0}
        squares = averaging.array([0.0])
        clipping, paced = averaging.clip(paced, tuple(mean), squares)
        steps += [*averaging.square(mean, vectors, squares), *clipping]
    return [*steps, *averaging.adjust("average", paced, vectors, whole)]


def _mean_statistics(averaging: Averaging, replicas: Sequence[Replica], parity: int, target: Array) -> list[BoundStep]:
    which = statistics_after(averaging.barrier, parity)
    vectors = {f"observed{i}": replica.statistics[which] for i, replica in enumerate(replicas)}
    terms = averaging.mean("observed", len(replicas))
    return averaging.combine_statistics(terms, {**vectors, "statistics": target})
