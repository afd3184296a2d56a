"""How often ranks on several hosts average by default: so that an exchange, which is measured, costs little."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from crossbow.cluster.probe import measure_sum
from crossbow.cluster.ranks import Ranks
from crossbow.data import Dataset
from crossbow.dataflow import Dataflow
from crossbow.runtime.configuration import ModelConf
from crossbow.runtime.device import CudaDevice, parse_devices
from crossbow.runtime.engine import Engine
from crossbow.runtime.limits import Limits
from crossbow.runtime.run import TrainingRun
from crossbow.runtime.setting import adds_in_chain
from crossbow.scripts.parser import Configurations
from crossbow.synch import SMA, BarrierRule, ModelAveraging, TwoLevel
from crossbow.types import Phase, TrainingUnit

SHARE = 0.05
"""Part of the time that the exchange may take."""
SECONDS = 0.5
"""Duration of the measurement of a rank's speed."""
WARM_UP = 0.25
"""Seconds of training that do not count, as a share of those that do."""


class RankPace(NamedTuple):
    """How fast a rank trains alone."""

    examples_per_second: float
    tasks_in_a_tick: int
    vectors: tuple[int, ...] = ()
    """Elements of the vectors that an exchange between ranks adds up."""


def chosen_between(ranks: Ranks, confs: Configurations, dataflow: Dataflow, data: Dataset) -> tuple[ModelConf, str]:
    """The model's configuration, with two levels if ranks on several hosts would otherwise spend more than `SHARE` of
    their time in exchanges, and a sentence on what was measured; no sentence on one host, where nothing is. All ranks
    must call this, and have the same result."""
    if len({rank.host for rank in ranks.view.ranks}) == 1:
        return confs.model, ""
    return measured_between(ranks, confs, dataflow, data)


def measured_between(ranks: Ranks, confs: Configurations, dataflow: Dataflow, data: Dataset) -> tuple[ModelConf, str]:
    """As `chosen_between`, also on one host."""
    model = confs.model
    rule = model.rule or SMA()
    if not isinstance(rule, BarrierRule):
        return model, ""
    tau, text = ranks.together(lambda: _measured(ranks, confs, dataflow, data))
    if not text:
        return model, ""
    if tau == 1:
        return model, f"{text}: the ranks average at every tick"
    two_levels = replace(model, rule=TwoLevel(rule, ModelAveraging(tau=tau)))
    return two_levels, f"{text}: the ranks average once in {tau} ticks (--between none: at every tick)"


def _measured(ranks: Ranks, confs: Configurations, dataflow: Dataflow, data: Dataset) -> tuple[int, str]:
    """In how many ticks ranks average, and what was measured; no text with GPUs, which have one level by default."""
    model, on_gpu = confs.model, isinstance(parse_devices(confs.system.devices)[0], CudaDevice)
    found = ranks.gather(None if on_gpu else pace_of_rank(confs, dataflow, data, SECONDS, ranks))
    if None in found:
        return 1, ""
    paces = [RankPace(*each) for each in found]
    chained = adds_in_chain(confs.system, ranks.size)
    dtype, sizes = np.dtype(confs.system.dtype), paces[0].vectors
    exchange = math.fsum(measure_sum(ranks, size, dtype, chained=chained) for size in sizes)
    tick = max(each.tasks_in_a_tick * model.batch_size / each.examples_per_second for each in paces)
    most = len(data.train) // (sum(each.tasks_in_a_tick for each in paces) * model.batch_size)
    if confs.system.learners_per_device == "auto":
        most = most // 2  # the ticks of more learners have more examples
    size = sum(sizes) * dtype.itemsize
    text = f"hosts    an exchange of {size / 1e6:,.3g} MB takes {exchange * 1e3:,.3g} ms, a tick {tick * 1e3:,.3g} ms"
    return ticks_between(exchange, tick, most), text


def ticks_between(exchange: float, tick: float, most: int) -> int:
    """Number of ticks after which an exchange takes at most `SHARE` of the time; at most `most`, those of an epoch.

    >>> ticks_between(0.0004, 0.01, 1000), ticks_between(0.03, 0.01, 1000), ticks_between(0.03, 0.01, 20)
    (1, 57, 20)
    """
    return max(1, min(most, math.ceil(exchange * (1 - SHARE) / (SHARE * tick))))


def pace_of_rank(confs: Configurations, dataflow: Dataflow, data: Dataset, seconds: float, ranks: Ranks) -> RankPace:
    """How fast this rank trains without the others, which measure at the same time."""
    check = Dataflow(dataflow.subgraph).set_phase(Phase.CHECK)
    alone = ranks.alone()
    engine = Engine(dataflow.graph, check.graph, data, confs.model, confs.solver, confs.system, ranks=alone)
    try:
        ranks.gather(None)  # all begin together
        tick, tasks_per_second = engine.clock.tasks_per_tick, 0.0
        for duration in (0.0, WARM_UP * seconds, seconds):
            tasks = max(1, round(duration * tasks_per_second / tick)) * tick
            began, limits = time.perf_counter(), Limits(count=tasks, unit=TrainingUnit.TASKS)
            TrainingRun(engine, confs.model, limits, (), test=False, ranks=alone).run()
            tasks_per_second = tasks / (time.perf_counter() - began)
        layouts = engine.program.model, engine.program.statistics
        vectors = tuple(layout.elements for layout in layouts if layout.elements)
        return RankPace(tasks_per_second * confs.model.batch_size, tick, vectors)
    finally:
        engine.close()
