"""Cost of a slow learner: k learners, one of which takes several times as long for a task, under every kind of rule.

    python -m benchmarks.heterogeneous_learners

A task is little more than a delay: a custom operator sleeps in its forward pass, longer on the slow learner. So
learners do not compete for cores, and other programs disturb little. For each rule, two processes take turns: in one
all learners are fast, in the other the last one is slow. Tasks per second are counted when they end.

If no learner waits for another, a learner whose speed is a fraction s of the others' leaves (k − 1 + s) / k of the
tasks: at most its own share, (1 − s) / k, is lost. The targets: async, hogwild, easgd, gossip, and grouping with the
slow learner in a group of its own, given or detected, reach at least 0.95 of that (medians). SSP cannot do so for long:
it lets a fast learner run ahead up to its bound, which is the target there, and then only at the speed of the slow one.
Weed-out has no target: it drops all contributions of such a slow learner. That learner's tasks are counted, but never
merged, so the useful tasks are those of the fast learners, (k − 1) / k.

Grouping by speed (grouping-automatic) counts only after its first regrouping: each process trains until then before the
first turn.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType

import numpy as np

from benchmarks.contest import Contest, Contestant
from benchmarks.machine import describe_machine
from benchmarks.output import write_json
from benchmarks.report import markdown, paired, spread
from crossbow import (
    Dataflow,
    DataflowNode,
    Dataset,
    ExecutionContext,
    History,
    ModelConf,
    Operator,
    SubGraph,
    SystemConf,
    TrainingUnit,
)
from crossbow.conf import configuration
from crossbow.console import run_command
from crossbow.ops import InnerProduct, Kernel, SoftMax, SoftMaxLoss
from crossbow.runtime.speeds import WARMING_TASKS, WINDOW_SECONDS, WINDOW_TASKS, Regrouping
from crossbow.scripts.values import file_to_write, integer, number
from crossbow.synch import (
    EASGD,
    SMA,
    SSGD,
    SSP,
    AsynchronousSGD,
    Gossip,
    Grouping,
    Hogwild,
    PartiallySynchronous,
    Rule,
    WeedOut,
)
from crossbow.synch.grouping import groups_text
from crossbow.types import Array, Shape

SHARE = 0.95
"""Target fraction of the tasks that are possible."""
MOST_WINDOWS, TASKS_MORE = 3, 5
"""Limits until learners are grouped by speed: maximum number of training calls of the length of the measurement, and
additional tasks in each, because results are delivered slightly later."""
BOUND = 4
"""Bound of SSP and of the partially synchronous rule."""
EXAMPLES, FEATURES, CLASSES, BATCH = 80_000, 4, 2, 4
"""Enough examples that no epoch ends in a turn, because all learners wait for each other at its end."""
AUTOMATIC = "grouping-automatic"
"""Label of grouping by measured speed."""
FREE = "async", "hogwild", "easgd", "gossip", "grouping", AUTOMATIC
"""Rules under which no learner waits for the slow one, and all its tasks are useful."""


def rules(learners: int) -> dict[str, Rule]:
    """Measured rules by label. Under "grouping", the slow learner, which is the last one, has a group of its own."""
    groups = (tuple(range(learners - 1)), (learners - 1,))
    named: list[Rule] = [
        AsynchronousSGD(),
        Hogwild(),
        EASGD(),
        WeedOut(),
        Gossip(probability=0.5),
        Grouping(groups),
        SSP(bound=BOUND),
        PartiallySynchronous(max_advance=BOUND),
        SSGD(),
        SMA(),
    ]
    made: dict[str, Rule] = {}
    for rule in named:
        made[rule.name] = rule
        if isinstance(rule, Grouping):
            made[AUTOMATIC] = Grouping()
    return made


class Times:
    """Records the times at which each learner ended a task, and its lead over the slowest when it began one."""

    def __init__(self, delays: Sequence[float]) -> None:
        self.delays = delays
        self.ends: list[tuple[float, int]] = []
        self.done = [0] * len(delays)
        self.ahead = 0
        self._lock = threading.Lock()

    def task(self) -> None:
        """Record a task of the current thread's learner: learner i's thread is named learner-i."""
        learner = int(threading.current_thread().name.rpartition("-")[2])
        with self._lock:
            self.ahead = max(self.ahead, self.done[learner] - min(self.done))
        time.sleep(self.delays[learner])
        with self._lock:
            self.done[learner] += 1
            self.ends.append((time.monotonic(), learner))


@configuration
class Delay(Kernel):
    """y = x, after a delay."""

    times: Times

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, xp: ModuleType, inputs: Sequence[Array], variables: Mapping[str, Array]) -> Array:
        self.times.task()
        return inputs[0]

    def backward(
        self,
        xp: ModuleType,
        inputs: Sequence[Array],
        output: Array,
        variables: Mapping[str, Array],
        output_gradient: Array,
    ) -> tuple[Sequence[Array], Mapping[str, Array]]:
        return [output_gradient], {}


@dataclass(frozen=True)
class Seen:
    """Measurements of a turn."""

    by_learner: list[float]
    """Tasks per second of each learner."""
    ahead: int
    """Maximum number of tasks by which a learner was ahead of the slowest when it began one, since the first turn."""


class DelayedRunner:
    """Learners with individual delays."""

    def __init__(self, rule: Rule, delays: Sequence[float]) -> None:
        self.times = Times(delays)
        nodes = [
            DataflowNode(Operator(name, kernel))
            for name, kernel in {
                "delay": Delay(times=self.times),
                "inner product": InnerProduct(number_of_outputs=CLASSES),
                "softmax": SoftMax(),
                "loss": SoftMaxLoss(),
            }.items()
        ]
        for before, after in itertools.pairwise(nodes):
            before.connect_to(after)
        generator = np.random.default_rng(0)
        images = generator.standard_normal((EXAMPLES, FEATURES)).astype(np.float32)
        self.context = ExecutionContext(
            [Dataflow(SubGraph(nodes[0])), None],
            monitors=(),
            data=Dataset((images, (images[:, 0] > 0).astype(np.intp))),
            model=ModelConf(batch_size=BATCH, rule=rule),
            system=SystemConf(learners_per_device=len(delays), threads_per_learner=1, kernels="reference"),
        )
        self._seen: list[Seen] = []
        self._groups = ""
        if isinstance(rule, Grouping) and rule.groups is None:
            self._find_groups()

    def _find_groups(self) -> None:
        """Train until learners are grouped by speed. Before that, all are in one group and run equally many tasks."""
        learners, fast = len(self.times.delays), min(self.times.delays)
        each = WARMING_TASKS + max(WINDOW_TASKS, math.ceil(WINDOW_SECONDS / fast))
        for _ in range(MOST_WINDOWS):
            self._note(self.context.train(learners * (each + TASKS_MORE), TrainingUnit.TASKS))
            if self._groups:
                return
        raise RuntimeError(f"expected learners to be grouped after {each} tasks of each")

    def _note(self, history: History) -> None:
        """Record the latest groups."""
        for decision in history.decisions:
            if isinstance(decision, Regrouping):
                self._groups = groups_text(decision.groups)

    def groups(self) -> str:
        """Groups formed by speed; "" if there are none."""
        return self._groups

    def run(self, begin: float, end: float) -> float:
        """Train until `end`. Returns the tasks per second of all learners together since `begin`."""
        self.times.ends.clear()  # but not the counts, because SSP continues to count from call to call
        self._note(self.context.train_for_duration(end - time.monotonic()))
        counted = [learner for moment, learner in self.times.ends if begin <= moment < end]
        rates = [counted.count(learner) / (end - begin) for learner in range(len(self.times.delays))]
        self._seen.append(Seen(rates, self.times.ahead))
        return sum(rates)

    def seen(self, turns: int) -> list[Seen]:
        """Measurements of the last turns."""
        return self._seen[-turns:]

    def close(self) -> None:
        self.context.close()


@dataclass(frozen=True)
class Outcome:
    """Measurements of one rule: tasks per second in every round."""

    rule: str
    """Label of the rule."""
    learners: int
    slowness: float
    """Duration of the slow learner's tasks relative to the others'."""
    fast: list[float]
    """Rates with equally fast learners."""
    slowed: list[float]
    """Rates with one slow learner."""
    seen_fast: list[Seen]
    seen_slowed: list[Seen]
    others: float | None = None
    """Processors that other programs kept busy."""
    groups: str = ""
    """Groups formed by speed, with one slow learner."""

    @property
    def possible(self) -> float:
        """The largest possible speed, as a fraction of the speed with equally fast learners."""
        return (self.learners - 1 + 1 / self.slowness) / self.learners

    @property
    def ratios(self) -> list[float]:
        return paired(self.slowed, self.fast)

    @property
    def of_the_possible(self) -> float:
        return statistics.median(self.ratios) / self.possible

    @property
    def of_a_fast_one(self) -> float:
        """Speed of the slowest fast learner relative to the slowest of equally fast learners."""
        return statistics.median(
            min(a / b for a, b in zip(slowed.by_learner[:-1], fast.by_learner[:-1], strict=True))
            for slowed, fast in zip(self.seen_slowed, self.seen_fast, strict=True)
        )

    @property
    def ahead(self) -> int:
        return max(seen.ahead for seen in self.seen_slowed)

    @property
    def verdict(self) -> str:
        if self.rule in FREE:
            return "met" if self.of_the_possible >= SHARE else "MISSED"
        if self.rule == SSP.name:  # neither stopped before the bound, nor allowed to exceed it
            return "met" if self.ahead == BOUND else "MISSED"
        return "–"


def measure(
    label: str, rule: Rule, learners: int, delay: float, slowness: float, rounds: int, seconds: float
) -> Outcome:
    """All measurements of one rule."""
    delays = [delay] * learners
    contestants = [
        Contestant("fast", DelayedRunner, {"rule": rule, "delays": delays}),
        Contestant("slowed", DelayedRunner, {"rule": rule, "delays": [*delays[:-1], delay * slowness]}),
    ]
    with Contest(contestants) as contest:
        rates = contest.rounds(rounds, 2 * delay * slowness, seconds)
        seen = {name: contest.ask(name, "seen", rounds) for name in rates}
        groups = contest.ask("slowed", "groups")
    return Outcome(
        label,
        learners,
        slowness,
        rates["fast"],
        rates["slowed"],
        seen["fast"],
        seen["slowed"],
        contest.others,
        groups,
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each rule."""
    head = ["rule", "target", "of all fast", "of the possible", "a fast learner", "most ahead", "verdict"]
    rows = [
        [
            outcome.rule,
            f"≥ {SHARE}" if outcome.rule in FREE else f"{BOUND} ahead" if outcome.rule == SSP.name else "–",
            spread(outcome.ratios).text(".3f"),
            f"{outcome.of_the_possible:.3f}",
            f"{outcome.of_a_fast_one:.3f}",
            str(outcome.ahead),
            outcome.verdict,
        ]
        for outcome in outcomes
    ]
    return markdown(head, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.heterogeneous_learners", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--learners", type=integer(2), default=4, metavar="K", help="(default: %(default)s)")
    parser.add_argument(
        "--slowness", type=number(1), default=4.0, metavar="X", help="of the slow one (default: 4 times)"
    )
    above = number(0, above=True)
    parser.add_argument("--delay", type=above, default=0.05, metavar="S", help="of a fast task (default: 0.05)")
    parser.add_argument("--rules", nargs="+", choices=rules(2), metavar="RULE", help="(default: all)")
    parser.add_argument("--rounds", type=integer(1), default=5, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=above, default=3.0, metavar="S", help="of a turn (default: 3)")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write everything there too")
    options = parser.parse_args(arguments)
    known = rules(options.learners)
    settings = options.learners, options.delay, options.slowness, options.rounds, options.seconds
    outcomes = []
    for name in options.rules or known:
        outcomes.append(measure(name, known[name], *settings))
        groups = outcomes[-1].groups and f", groups {outcomes[-1].groups}"
        print(f"{name}: {spread(outcomes[-1].ratios).text('.3f')}{groups}", flush=True)
    machine = describe_machine()
    known_others = [outcome.others for outcome in outcomes if outcome.others is not None]
    if known_others:
        machine["other programs"] = (
            f"kept {statistics.mean(known_others):.2f} processors busy, which sleepers do not mind"
        )
    print("\n".join(f"- {name}: {value}" for name, value in machine.items()))
    print(
        f"\n{options.learners} learners, tasks of {1000 * options.delay:g} ms, one learner {options.slowness:g} times "
        f"as slow: {outcomes[0].possible:.4f} of the tasks are possible. {options.rounds} rounds:\n"
    )
    print(table(outcomes))
    if options.json is not None:
        found = [{**asdict(outcome), "verdict": outcome.verdict} for outcome in outcomes]
        write_json(options.json, {"machine": machine, "outcomes": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("python -m benchmarks.heterogeneous_learners", main))
