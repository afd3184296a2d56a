"""The interface of a kind of device: memory, streams, loaders, and learners that are bound to these.

`runtime/cpu` and `runtime/cuda` implement these protocols, file by file. The rest of the runtime is independent of the
kind of device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from crossbow.cluster.placement import Placement
from crossbow.compile import BatchSource, BoundStep
from crossbow.data.bad_examples import BadExamples
from crossbow.data.examples import Examples
from crossbow.data.loader import Loader
from crossbow.data.order import Order
from crossbow.host_memory import Zeros
from crossbow.kernels.library import KernelLibrary
from crossbow.runtime.activity import Activity
from crossbow.runtime.assembly import Assembly, Needs
from crossbow.runtime.coefficients import About, BoundUpdate, Formula, Formulas
from crossbow.runtime.device import Device
from crossbow.runtime.merging import Merging
from crossbow.runtime.reports import Reports
from crossbow.runtime.task import Finished, Report, Task
from crossbow.solver import Pace
from crossbow.synch import Collective
from crossbow.timeline.recorder import Recorder
from crossbow.types import Array, Tensor

T = TypeVar("T")


class Learner(Protocol):
    """Runs tasks in order and reports each; or, as a synchroniser, ends ticks."""

    @property
    def scaling(self) -> Array | None:
        """State of the loss scale, if kernels compute with float16; otherwise None."""

    @property
    def activity(self) -> Activity | None:
        """The learner's current activity, and its time by activity; None if these are not measured."""

    def submit(self, task: Task) -> None:
        """Run a task after those submitted before. Returns at once. Errors are reported, not raised."""

    def wait(self, timeout: float) -> bool:
        """Wait until all submitted tasks are done. Returns whether they were within `timeout` seconds."""

    def stop(self, timeout: float) -> None:
        """End the learner's thread after its current task, within `timeout` seconds if possible."""

    def close(self, timeout: float) -> None:
        """Release the resources that only this learner uses. It must have been stopped."""


class TickLearners(NamedTuple):
    """The learners of a tick, and the synchroniser that ends it if the learners do not do so themselves."""

    learners: Sequence[Learner]
    synchroniser: Learner | None
    abandon: Callable[[], bool] = lambda: True
    """After a failure, ends operations that may wait forever. Returns whether the learners can continue."""


AboutIn = TypeVar("AboutIn", contravariant=True)


class Combination(Protocol[AboutIn]):
    """An update that is bound to vectors, for any pace."""

    def run(self, pace: Pace, about: AboutIn) -> None:
        """Apply the update with the coefficients at this pace. about: see `Formula`."""


Bind = Callable[[BoundUpdate], list[BoundStep]]
"""Returns the calls of an update whose coefficients lie in arrays that kernels read."""


class Leaving(NamedTuple):
    """A vector that is sent to another rank."""

    array: Array
    """The vector, or a copy, in the host's memory."""
    wait: Callable[[], None] | None = None
    """Waits until a GPU has copied the vector; None if it is complete."""


class Arriving(NamedTuple):
    """A vector that another rank sends."""

    array: Array
    """The host's memory that receives the vector."""
    store: Callable[[], None] = lambda: None
    """Called when the vector has arrived; copies it to the learners' memory."""


class Meeting(Protocol):
    """The exchanges of learners without a barrier: their calls, and the order of these. Runs on the learners' threads
    and, across ranks, on the thread that receives messages. Vectors are sent and received in the host's memory."""

    def combination(self, formula: Formula[About], bind: Bind) -> Combination[About]:
        """Return the update, bound to vectors."""

    def exchange(self, learner: int | None, arrive: Callable[[], list[int]]) -> list[int]:
        """Handle the arrival of a learner or, with None, of another rank's message. Returns the learners of this rank
        that may continue, as `arrive` does. Raises Aborted on a GPU if learners have failed."""

    def leaving(self, vector: Array, learner: int, *, changes: bool = False) -> Leaving:
        """Return a vector for another rank, with the result of all work so far. learner: the learner that sends or
        receives it, or -1 for none; it does not send or receive this vector again before the message is answered.
        changes: whether the vector may change before the answer. Raises Aborted on a GPU if learners have failed."""

    def arriving(self, vector: Array) -> Arriving:
        """Return the memory that receives another rank's value of a vector. Called again only after the value is stored
        and its message is handled. Work that follows uses the new value."""

    def settle(self, work: Callable[[], None]) -> None:
        """Call the function after all work of the learners. Returns when it is done."""


class Backend(Protocol):
    """The devices of a run."""

    @property
    def devices(self) -> Sequence[Device]: ...

    @property
    def device_of(self) -> Sequence[int]:
        """The number of each learner's device."""

    @property
    def threads(self) -> Sequence[int]:
        """Number of threads of a learner, for each device; 0 on GPUs."""

    @property
    def library(self) -> KernelLibrary: ...

    @property
    def to_device(self) -> Callable[[Array], Array] | None:
        """Copies numbers to the memory that kernels read, if that is not the host's."""

    @property
    def times_tasks(self) -> bool:
        """Whether reports include the duration of a learner's task."""

    @property
    def runs_ahead(self) -> bool:
        """Whether submitted ticks run even if a task before them fails. z may be lost then."""

    @property
    def shares_memory(self) -> bool:
        """Whether learners of several processes can combine vectors in shared memory."""

    def open(self, *, synchroniser: bool = False) -> None:
        """Make the learners' streams. synchroniser: whether a synchroniser will end the ticks. Raises
        ConfigurationError."""

    def call(self, work: Callable[[], T], device: int = 0, *, alone: bool = False) -> T:
        """Call a function on the stream of a device's first learner and return its result. Kernels are prepared in this
        way: for the learner's number of threads, or on its GPU. alone: with one thread."""

    def begin(self, work: Callable[[], T]) -> Callable[[], T]:
        """Begin to run a function on the first learner's stream. Returns a function that waits for its result, or
        raises its exception. On a GPU, the work is done when this returns."""

    def call_here(self, work: Callable[[], T]) -> T:
        """Run native work as on the first learner's stream and return its result. It runs on the calling thread if
        possible, because a change of threads takes as long as a small network."""

    def all_cores(self) -> Backend | None:
        """A backend, with a stream, whose kernels use all cores of the first device; None if this backend's kernels
        already do, and on a GPU. It is closed together with this backend."""

    def zeros(self, device: int) -> Zeros:
        """Return the allocator of a device's memory."""

    def through_host(self, vector: Array, work: Callable[[Array], None]) -> Callable[[], None]:
        """Return a call of `work` with the vector in the host's memory. On a GPU, this is a copy, which is copied back
        afterwards; the call runs in order with those of kernels."""

    def synchronise(self) -> None:
        """Wait until assignments to a device's arrays (`memory.assign`) have arrived."""

    def new_loader(
        self,
        examples: Examples,
        order: Order,
        name: str,
        *,
        in_turn: bool,
        bad: BadExamples | None,
        placement: Placement,
        recorder: Recorder,
    ) -> Loader:
        """Return a loader whose slots the learners can read or copy. Other arguments: see `Loader`."""

    def batch_source(self, loader: Loader, scale: float) -> BatchSource:
        """Return the source that programs read batches from."""

    def check_plan(self, needs: Needs, beside: Mapping[str, int]) -> None:
        """Raise ConfigurationError if the run does not fit into memory, before allocating any. beside: bytes of the
        machine's memory that other runs use."""

    def host_memory(self, needs: Needs) -> dict[str, int]:
        """Bytes of the machine's memory, by purpose."""

    def tick(
        self,
        assembly: Assembly,
        merging: Merging,
        formulas: Formulas,
        reports: Reports,
        collective: Collective | None,
    ) -> TickLearners:
        """Return learners that synchronise in ticks. Raises ConfigurationError."""

    def meeting(self, assembly: Assembly) -> Meeting:
        """Return the meeting point of learners without a barrier."""

    def exchanging(
        self, assembly: Assembly, formulas: Formulas, number: int, report: Report, finished: Finished
    ) -> Learner:
        """Return a learner without a barrier."""

    def close(self, timeout: float) -> None:
        """Release the streams, each after its current work. Waits at most `timeout` seconds for each."""


def batch_source(images: Array, labels: Array, scale: float) -> BatchSource:
    """Describe the slots of a ring to the compiler."""
    return BatchSource(Tensor(images.shape, images.dtype), Tensor(labels.shape, labels.dtype), scale)
