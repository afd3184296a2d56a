"""Choice of the default interval at which ranks average, on Ray and on several hosts. The duration of an exchange is
measured, and the interval is so long that exchanges take only a small part of the time."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from crossbow.cluster.probe import measure_sum
from crossbow.cluster.ranks import Ranks
from crossbow.data import Dataset
from crossbow.dataflow import Dataflow
from crossbow.runtime.changing_engine import FIXED, new_bad_examples, number_to_begin_with
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
"""Fraction of the time that exchanges may take."""
WAITING = 4
"""The time that an exchange costs with two levels, relative to its own duration and that of a tick. The ranks also wait
for the slowest rank, which took about three times as long in measurements."""
SECONDS = 0.5
"""Duration of the measurement of a rank's speed in seconds."""
SECONDS_BETWEEN = 10.0
"""Maximum time in seconds between two exchanges, before it is rounded to parts of an epoch."""
WARM_UP = 0.25
"""Duration of the warm-up, as a fraction of the duration of the measurement."""


class RankPace(NamedTuple):
    """The speed of a rank that trains alone."""

    examples_per_second: float
    tasks_in_a_tick: int
    vectors: tuple[int, ...]
    """Number of elements of each vector that an exchange between ranks adds up."""


def chosen_between(ranks: Ranks, confs: Configurations, dataflow: Dataflow, data: Dataset) -> tuple[ModelConf, str]:
    """The model's configuration, with two levels if the ranks would otherwise spend more than `SHARE` of their time in
    exchanges, and a sentence on the measurement. Nothing is measured, and there is no sentence, with MPI on one host,
    for one rank, without a barrier, for a sequence of rules, with GPUs, and if runs must be deterministic.

    All ranks must call this, and have the same result. A rank that joins receives the result of the others.
    """
    rule = _rule_to_combine(ranks, confs.model)
    if rule is None:
        return confs.model, ""
    return _with_interval(confs.model, rule, *ranks.together(lambda: _measured(ranks, confs, dataflow, data)))


def chosen_later(
    ranks: Ranks, confs: Configurations, dataflow: Dataflow, data: Dataset, tell: Callable[[str], None]
) -> Callable[[], ModelConf] | None:
    """A function for `ExecutionContext.on_new_ranks` that chooses as `chosen_between` does, as soon as there are
    several ranks. Later ranks get the same choice. None if there is no choice. tell: rank 0 calls it with the sentence.

    For runs in which `chosen_between` has measured nothing, for example because there was one rank.
    """
    rule = _rule_to_combine(ranks, confs.model)
    if rule is None:
        return None
    tau, text = 1, ""

    def choose() -> ModelConf:
        nonlocal tau, text
        tau, text = ranks.agree(lambda: (tau, text))  # a rank that has just joined does not know them
        if not text:
            tau, text = _measured(ranks, confs, dataflow, data)
            if text and ranks.is_first:
                tell(_with_interval(confs.model, rule, tau, text)[1])
        return _with_interval(confs.model, rule, tau, text)[0]

    return choose


def _rule_to_combine(ranks: Ranks, model: ModelConf) -> BarrierRule | None:
    """The model's rule, if two levels are possible and may be faster than one."""
    rule = model.rule or SMA()
    one_host = not ranks.elastic and len({rank.host for rank in ranks.view.ranks}) == 1
    return rule if isinstance(rule, BarrierRule) and not one_host else None


def _with_interval(model: ModelConf, rule: BarrierRule, tau: int, text: str) -> tuple[ModelConf, str]:
    """The model's configuration with an average once in `tau` ticks, and the whole sentence on the measurement."""
    if not text:
        return model, ""
    if tau == 1:
        return model, f"{text}: the ranks average at every tick"
    two_levels = replace(model, rule=TwoLevel(rule, ModelAveraging(tau=tau)))
    return two_levels, f"{text}: the ranks average once in {tau} ticks (--between none: at every tick)"


def _measured(ranks: Ranks, confs: Configurations, dataflow: Dataflow, data: Dataset) -> tuple[int, str]:
    """The number of ticks between two averages of the ranks, and a text on the measurement. The text is empty if
    nothing is measured: for example with GPUs, which have one level by default, and if ranks differ in the settings of
    the measurement, a difference that the context reports."""
    if not ranks.several:
        return 1, ""
    model, system = confs.model, confs.system
    on_gpu = isinstance(parse_devices(system.devices)[0], CudaDevice)
    dtype, chained = np.dtype(system.dtype), adds_in_chain(system, ranks.size)
    if _differ(ranks, [on_gpu, model.batch_size, dtype.name, chained, system.deterministic]) or on_gpu:
        return 1, ""
    if system.deterministic:  # τ would depend on timing
        return 1, ""
    pace = pace_of_rank(confs, dataflow, data, SECONDS, ranks)
    if _differ(ranks, pace.vectors):
        return 1, ""
    paces = [RankPace(*each) for each in ranks.gather(pace)]
    exchange = math.fsum(measure_sum(ranks, size, dtype, chained=chained) for size in pace.vectors)
    tick = max(each.tasks_in_a_tick * model.batch_size / each.examples_per_second for each in paces)
    examples = len(data.train) if data.share is None else data.share.whole
    epoch = examples / (sum(each.tasks_in_a_tick for each in paces) * model.batch_size)
    if number_to_begin_with(system, ranks) != FIXED:
        epoch /= 2  # with more learners, a tick has more examples
    nbytes = sum(pace.vectors) * dtype.itemsize
    text = f"between  an exchange of {nbytes / 1e6:,.3g} MB takes {in_words(exchange)}, a tick {in_words(tick)}"
    return ticks_between(exchange, tick, epoch), text


def _differ(ranks: Ranks, values: Sequence[int | str]) -> bool:
    """Whether ranks have different values."""
    return len(set(map(tuple, ranks.gather(values)))) > 1


def in_words(seconds: float) -> str:
    """A duration with its unit.

    >>> in_words(0.00123456), in_words(60.0)
    ('1.23 ms', '60 s')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.0f} s"


def ticks_between(exchange: float, tick: float, epoch: float) -> int:
    """Number of ticks between two exchanges with which these take at most `SHARE` of the time, but at most about the
    number of ticks in an epoch.

    With two levels, an exchange also costs about a tick: all learners of a rank wait for the slowest one, and then
    begin anew. The factor `WAITING` accounts for the time that the ranks wait for each other.

    Training ends, and is tested, after an exchange, so an epoch has a whole number of exchanges, rounded up to ticks.
    If exchanges would then be more than `SECONDS_BETWEEN` apart, they take place more often and take a larger share of
    the time, because ranks also stop, leave and join after an exchange.

    >>> ticks_between(0.0004, 0.01, 1000), ticks_between(0.03, 0.01, 1000), ticks_between(0.03, 0.01, 19.2)
    (1, 334, 20)
    """
    if exchange * (1 - SHARE) <= SHARE * tick:
        return 1
    least = math.ceil(WAITING * (exchange + tick) * (1 - SHARE) / (SHARE * tick))
    least = min(least, int(SECONDS_BETWEEN / tick))
    if least <= 1:
        return 1
    return math.ceil(epoch / max(1, epoch // least))


def pace_of_rank(confs: Configurations, dataflow: Dataflow, data: Dataset, seconds: float, ranks: Ranks) -> RankPace:
    """The speed of this rank when it trains alone. The other ranks measure at the same time. With data sharding, the
    rank uses its own part of the data."""
    check = Dataflow(dataflow.subgraph).set_phase(Phase.CHECK)
    alone = ranks.alone()
    own = copy.copy(data)
    own.share = None
    bad = new_bad_examples(own, alone) if confs.system.on_bad_record == "skip" else None
    engine = Engine(dataflow.graph, check.graph, own, confs.model, confs.solver, confs.system, bad=bad, ranks=alone)
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
