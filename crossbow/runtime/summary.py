"""What a run consists of, in numbers and names: what scripts and benchmarks say of it."""

from __future__ import annotations

from dataclasses import dataclass

from crossbow.synch import Rule, RuleSequence


@dataclass(frozen=True)
class DeviceSummary:
    """A device of a run."""

    name: str
    cores: tuple[int, ...]
    """Of the processor; none for a GPU."""
    learners: int
    threads_per_learner: int | None
    """None on a GPU, where a learner is a stream."""


@dataclass(frozen=True)
class MemorySummary:
    """Bytes that each learner uses."""

    vector: int
    """One vector of all variables: weights, gradient and velocity are one each."""
    arena: int
    """Intermediate results, as planned for training."""
    lower_bound: int
    """Intermediate results in use at the fullest step: no plan needs less."""
    without_reuse: int
    """Intermediate results if no two buffers shared memory."""


@dataclass(frozen=True)
class RunSummary:
    """What trains, on what, and how far it has come. A snapshot: it does not change as training goes on."""

    devices: tuple[DeviceSummary, ...]
    library: str
    """Name of the kernel library."""
    parameters: int
    """Number of trained values in a model."""
    elements: int
    """Length of a vector of all variables: the parameters, and padding between them."""
    memory: MemorySummary
    rule: Rule | RuleSequence
    """As given; the default rule where none was."""
    tasks_per_tick: int
    tasks_per_epoch: float
    """A fraction where the batch size does not divide the number of examples."""
    tick: int
    """Ticks done."""
    tasks: int
    """Tasks done."""
    tuning: bool
    """Whether the auto-tuner is comparing numbers of learners."""

    @property
    def learners(self) -> int:
        """Number of learners on all devices."""
        return sum(device.learners for device in self.devices)
