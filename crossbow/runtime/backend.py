"""What a kind of device provides to a run: memory, streams, loaders, and learners bound to all of it.

`runtime/cpu` and `runtime/cuda` implement these protocols, file by file. Nothing else in the runtime knows which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from crossbow.compile import BatchSource, BoundStep
from crossbow.data.examples import Examples
from crossbow.data.loader import Loader
from crossbow.data.order import Order
from crossbow.kernels.library import KernelLibrary
from crossbow.runtime.assembly import Assembly, Needs
from crossbow.runtime.coefficients import About, BoundUpdate, Formula, Formulas
from crossbow.runtime.device import Device
from crossbow.runtime.merging import Merging
from crossbow.runtime.replica import Zeros
from crossbow.runtime.reports import Reports
from crossbow.runtime.task import Finished, Report, Task
from crossbow.solver import Pace
from crossbow.synch import Collective
from crossbow.types import Array, Tensor

T = TypeVar("T")


class Learner(Protocol):
    """Runs tasks in order, and reports each; or ends ticks, where that is not done by the learners."""

    @property
    def number(self) -> int: ...

    def submit(self, task: Task) -> None:
        """Run a task after those submitted before. Returns at once. What goes wrong is reported, not raised."""

    def wait(self, timeout: float) -> bool:
        """Wait until everything submitted before is done; whether it was within `timeout` seconds."""

    def stop(self, timeout: float) -> None:
        """End the learner's thread after its current task, within `timeout` seconds if possible."""

    def close(self, timeout: float) -> None:
        """Give back what only this learner uses. It was stopped."""


class TickLearners(NamedTuple):
    """The learners of a tick, and the synchroniser that ends it, where the learners do not do so themselves."""

    learners: Sequence[Learner]
    synchroniser: Learner | None


AboutIn = TypeVar("AboutIn", contravariant=True)


class Combination(Protocol[AboutIn]):
    """An update that is bound to vectors, at every pace."""

    def run(self, pace: Pace, about: AboutIn) -> None:
        """Do it with the coefficients at this pace. about: see `Formula`."""


Bind = Callable[[BoundUpdate], list[BoundStep]]
"""Gives the calls of an update whose coefficients lie in arrays that kernels read."""


class Meeting(Protocol):
    """Where learners without a barrier exchange: which calls do it, and after what. On their own threads."""

    def combination(self, formula: Formula[About], bind: Bind) -> Combination[About]:
        """The update, bound to vectors."""

    def exchange(self, learner: int, arrive: Callable[[], list[int]]) -> list[int]:
        """Do what follows from the learner's arrival. Returns the learners that may go on, as `arrive` does."""

    def settle(self, work: Callable[[], None]) -> None:
        """Do the work after everything that learners have done; return when it is done."""


class Backend(Protocol):
    """The devices of a run."""

    @property
    def devices(self) -> Sequence[Device]: ...

    @property
    def device_of(self) -> Sequence[int]:
        """The number of each learner's device."""

    @property
    def threads(self) -> Sequence[int]:
        """Threads of a learner, for each device; 0 on GPUs."""

    @property
    def library(self) -> KernelLibrary: ...

    @property
    def to_device(self) -> Callable[[Array], Array] | None:
        """Puts numbers where kernels read them, where that is not the host's memory."""

    @property
    def times_tasks(self) -> bool:
        """Whether reports say how long a learner's task took."""

    @property
    def runs_ahead(self) -> bool:
        """Whether ticks that were submitted are done even if a task before them fails: z may be lost then."""

    def open(self) -> None:
        """Make the learners' streams. Raises ConfigurationError."""

    def call(self, work: Callable[[], T]) -> T:
        """Do work on the first learner's stream, and wait for its result. Kernels are prepared this way: for as many
        threads as the learner has, or on its GPU."""

    def zeros(self, device: int) -> Zeros:
        """Gives a device's memory."""

    def synchronise(self) -> None:
        """Return once what was assigned to a device's arrays (`memory.assign`) is there."""

    def new_loader(self, examples: Examples, order: Order, name: str, *, in_turn: bool) -> Loader:
        """A loader whose slots the learners can read, or copy."""

    def batch_source(self, loader: Loader, scale: float) -> BatchSource:
        """What programs read batches from."""

    def check_plan(self, needs: Needs, beside: Mapping[str, int]) -> None:
        """Refuse what does not fit, before any of it is there. beside: bytes of the machine's memory that other runs
        have. Raises ConfigurationError."""

    def host_memory(self, needs: Needs) -> dict[str, int]:
        """Bytes of the machine's memory, by what they are for."""

    def tick(
        self,
        assembly: Assembly,
        merging: Merging,
        formulas: Formulas,
        reports: Reports,
        collective: Collective | None,
    ) -> TickLearners:
        """Learners that work in ticks. Raises ConfigurationError."""

    def meeting(self, assembly: Assembly) -> Meeting:
        """Where learners without a barrier exchange."""

    def exchanging(
        self, assembly: Assembly, formulas: Formulas, number: int, report: Report, finished: Finished
    ) -> Learner:
        """A learner without a barrier."""

    def close(self, timeout: float) -> None:
        """Give back the streams, each after its current work, for which it waits `timeout` seconds at most."""


def batch_source(images: Array, labels: Array, scale: float) -> BatchSource:
    """The slots of a ring, as the compiler wants them described."""
    return BatchSource(Tensor(images.shape, images.dtype), Tensor(labels.shape, labels.dtype), scale)
