"""The ranks of a run: common decisions, and values gathered from all ranks."""

from __future__ import annotations

import json
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from crossbow.cluster.admission import Admission, CannotJoinError, CommonStep, Joining
from crossbow.cluster.members import Changes, GivenUp, Left, NotJoined, Rank, RankFailedError, View, ViewChangedError
from crossbow.cluster.sums import SECONDS_TO_WAIT, Waiting
from crossbow.cluster.transport import Channel, Transport
from crossbow.console import say
from crossbow.types import CrossbowError

SECONDS_TO_START = 120.0
"""Maximum wait for all ranks before training."""
SECONDS_TO_END = 3.0
"""Time that a failed rank has to print its traceback, and to end all ranks, before another rank ends them."""
SECONDS_AFTER_END = 1.0
"""Time within which the last messages of a rank arrive after its program has ended."""
SECONDS_AFTER_CHANGE = 1.0
"""Time within which an answer arrives that rank 0 sent before it knew of a change of the view."""
SECONDS_TO_CHANGE = 120.0
"""Maximum wait for a view that follows from a decision of the ranks."""
GROWTH_AHEAD = 1.3
"""Growth of the sleep while a rank waits for a decision of rank 0. A decision may be noticed late, because schedulers
are several tasks ahead of the learners."""
CALL = 4
"""Size in bytes of the call's number at the beginning of a message."""
ENDED = 0
"""Instead of a call's number: the program of the rank has ended."""
LEAVE = 0
"""Instead of a signal's number in a request to rank 0: the rank was asked to leave."""
LOSS = -1
"""Instead of a signal's number in a request to rank 0: training cannot continue after a loss."""


class RankFailure(NamedTuple):
    """The failure of a rank."""

    call: int
    """Number of the call in which it failed, or `ENDED`."""
    sentence: str
    arrived: float
    """Time of arrival on the monotonic clock."""


class Ranks:
    """The ranks of a run, from the point of view of one of them. All ranks call `agree`, `agree_on_bytes` and `gather`
    in the same order. A rank that runs alone has no transport, and returns its own values."""

    def __init__(
        self,
        view: View,
        rank: int = 0,
        transport: Transport | None = None,
        *,
        admission: Admission | None = None,
        joining: Joining | None = None,
    ) -> None:
        """admission: given if ranks can join. joining: given on a rank that joins the others."""
        self.view, self.rank, self._transport = view, rank, transport
        self._admission, self._joining = admission, joining
        self.admits = True
        """Whether ranks may join if the launcher allows it; equal on all ranks."""
        self._passed_over = False
        """Whether this rank has skipped a training call before it joined the others."""
        self._kept: dict[tuple[Channel, int], bytes] = {}
        """Messages of later calls, by channel and rank."""
        self._call = 0
        """Number of the current or last call that all ranks make."""
        self.era = 0
        """Number of times that the ranks of this view have forgotten the messages of a failed call."""
        self.failed_calls = 0
        """Number of calls that have failed on this rank."""
        self._forgotten = 0
        """Number of failed calls whose messages were forgotten."""
        self._numbered = 0
        """Number of models that the program has created."""
        self.models: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        """The training calls of the contexts that are in use, by the numbers of their models."""
        self._failures: list[RankFailure] = []
        """Failures of other ranks."""
        self._ended: set[int] = set()
        """The ranks whose programs have ended."""
        self.asked_to_leave = False
        """Whether this rank will leave after its tick, while the others continue."""
        self._asked_to_stop = 0
        """The signal for which the launcher asks rank 0 to end training, or `LOSS`; 0 without such a request."""
        self._check_own: Callable[[], None] | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.view)

    @property
    def several(self) -> bool:
        return self.size > 1

    @property
    def connected(self) -> bool:
        """Whether there are, or were, other ranks."""
        return self._transport is not None

    @property
    def local_rank(self) -> int:
        """The number of this rank among those of its host."""
        return sum(rank.host == self.own.host for rank in self.view.ranks[: self.rank])

    @property
    def elastic(self) -> bool:
        """Whether ranks may join and leave."""
        return self._transport is not None and self._transport.elastic

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which decides, prints, and writes files."""
        return self.rank == 0

    @property
    def own(self) -> Rank:
        """This rank."""
        return self.view.ranks[self.rank]

    def alone(self) -> Ranks:
        """This rank without the others."""
        return Ranks(View(self.view.number, (self.own,)))

    @property
    def joins(self) -> bool:
        """Whether this rank waits to join the others."""
        return self._joining is not None

    @property
    def behind(self) -> bool:
        """Whether this rank waits to join others after it has skipped a training call, so that it lacks the trained
        variables."""
        return self._joining is not None and self._passed_over

    def next_model(self) -> int:
        """The number of the model that the program creates next. Ranks create models in the same order."""
        self._numbered += 1
        return self._numbered - 1

    @property
    def call_number(self) -> int:
        """Number of the current or last call that all ranks make."""
        return self._call

    @property
    def transport(self) -> Transport:
        """The connection to the other ranks, if there are any."""
        assert self._transport is not None
        return self._transport

    # Failures

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call that all ranks make, in the same order. An exception that ends it on one rank ends it on all: the
        other ranks raise RankFailedError, even if the first rank catches its exception."""
        self._call += 1
        try:
            yield
        except RankFailedError as error:
            self.failed_calls += 1
            if ENDED not in {each.call for each in self._failures if each.sentence == str(error)}:
                time.sleep(SECONDS_TO_END)
            raise
        except (ViewChangedError, Left, GivenUp, NotJoined):
            raise
        except BaseException as error:
            self.failed_calls += 1
            if self.several:
                text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                self._to_others(json.dumps([self._call, f"{self.own} failed: {text}"]).encode(), Channel.FAILURE)
            raise

    def forget_failures(self) -> None:
        """Forget the messages of calls that have failed on a rank. Called at the beginning of calls in which ranks
        exchange vectors or results."""
        if not self.several or self.joins:
            return
        with self.unrecorded():
            failed = self._gathered(self.failed_calls > self._forgotten, self._call, SECONDS_TO_WAIT)
        if any(failed):
            self.transport.forget()
            self.era, self._forgotten = self.era + 1, self.failed_calls

    def tell_end(self) -> None:
        """Tell the other ranks that the program of this rank ends. They fail if they wait for it."""
        self._to_others(json.dumps([ENDED, f"the program of {self.own} has ended"]).encode(), Channel.FAILURE)

    def all_have_ended(self) -> bool:
        """Whether the programs of all other ranks have ended."""
        self._hear()
        return len(self._ended) == self.size - 1

    def _hear(self) -> None:
        """Receive the other ranks' reports of failures. Any thread may call this."""
        while (received := self.transport.receive(Channel.FAILURE)) is not None:
            rank, text = received
            call, sentence = json.loads(text)
            self._failures.append(RankFailure(call, sentence, time.monotonic()))
            if call == ENDED:
                self._ended.add(rank)

    # Views

    def check_others(self) -> None:
        """Raise RankFailedError if another rank has failed in this call or has ended, and ViewChangedError if ranks
        have joined or left since the last `regroup`. Called while this rank waits for others."""
        if self._transport is None:
            return
        if self._transport.changed():
            raise ViewChangedError(f"a rank has left the {self.size} ranks that were training")
        self._hear()
        for each in self._failures:
            ended = each.call == ENDED and time.monotonic() > each.arrived + SECONDS_AFTER_END
            if ended or each.call == self._call != ENDED:
                raise RankFailedError(each.sentence)

    def leave(self) -> None:
        """Let this rank leave after its tick. A handler of signals may call this."""
        self.asked_to_leave = True

    def stop(self, signal: int) -> None:
        """Make rank 0, which this rank is or becomes, end training because of this signal or `LOSS`. Any thread may
        call this."""
        self._asked_to_stop = signal

    def await_view(self, seconds: float = SECONDS_TO_CHANGE) -> None:
        """Wait for a newer view. Raises ViewChangedError when there is one."""

        def look() -> bool:
            self.check_others()
            return False

        Waiting(seconds=seconds).until(look, "the launcher to change the view")

    def regroup(self) -> Changes:
        """Continue with the ranks of the newest view. Returns the changes. Raises GivenUp if this rank is not one of
        them."""
        try:
            changes = self.transport.regroup()
        except GivenUp:
            say("error: the other ranks go on without this one, because they could not reach it")
            raise
        self.view, self.rank = self.transport.view, self.transport.rank
        self._kept.clear()
        self.era, self._forgotten = 0, self.failed_calls
        if self._joining is not None and self._admission is not None:
            self._admission.take_over(self._joining)
            self._admission.open(self.view.ranks)
        self._joining = None
        return changes

    # Joining

    def begin_training(self, *, elastic: bool) -> Any:
        """Called at the beginning of a training call. If it is elastic, others can join from now on. Returns None.

        A rank that joins waits until it is in the view, and then raises ViewChangedError. If the others have ended the
        call, it returns the call's result."""
        if self._joining is not None:
            result = json.loads(self._take_over(CommonStep.TRAINING))
            self._passed_over = True
            return result
        if self._admission is not None and elastic:
            self._admission.open(self.view.ranks)
        elif not elastic:
            self.end_joining()
        return None

    def end_training(self, result: Callable[[], Any]) -> None:
        """Called at the end of a training call. A rank that joins later skips the call, and gets the result: a JSON
        value, which is not None."""
        if self._admission is not None and self._joining is None:
            self._admission.end_training(json.dumps(result()).encode())

    def _take_over(self, step: CommonStep) -> bytes:
        """On a rank that joins: the result of the others' step at this point of the program."""
        joining = self._joining
        assert joining is not None

        def look() -> bool:
            self.check_others()
            return joining.has(step)

        try:
            Waiting(seconds=math.inf).until(look, "the other ranks")
            return joining.next(step)
        except CannotJoinError as error:
            self.give_up_joining(str(error))

    def give_up_joining(self, reason: str) -> NoReturn:
        """End the program of this rank, which cannot join the others for this reason."""
        say(f"error: {reason}")
        raise NotJoined

    def end_joining(self) -> None:
        """Let no more ranks join, permanently, because a later rank could not take over the following steps."""
        self.admits = False
        if self._admission is not None:
            self._admission.close()

    @property
    def join_wanted(self) -> bool:
        """Whether a rank waits to join at a tick. Only rank 0 knows."""
        return self._admission is not None and self._admission.wanted

    def admit(self) -> None:
        """Let the launcher add a rank. All ranks have paused."""
        if self._admission is not None and self.is_first:
            self._admission.pause()

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Record no common steps within the context, so that ranks that join later do not take them over."""
        if self._admission is None:
            yield
            return
        recording = self._admission.record(on=False)
        try:
            yield
        finally:
            self._admission.record(on=recording)

    def together(self, work: Callable[[], Any]) -> Any:
        """The JSON value that `work` returns on all ranks, which call this at the same time. A rank that joins later
        gets the value of rank 0."""
        if self._joining is not None:
            return json.loads(self._take_over(CommonStep.WORK))
        if self._admission is None:
            return work()
        with self.unrecorded():
            value = work()
        self._admission.note(CommonStep.WORK, json.dumps(value).encode())
        return value

    # Decisions

    def agree(self, decide: Callable[[], Any]) -> Any:
        """The decision of rank 0, a JSON value. Other ranks wait for it, and do not call `decide`."""
        if not self.several and self._admission is None:
            return decide()
        value = json.dumps(decide()).encode() if self.is_first else b""
        return json.loads(self.agree_on_bytes(value))

    def agree_on_bytes(self, value: bytes, of: int = 0) -> bytes:
        """The bytes that one rank, by default rank 0, passes as `value`."""
        if self._joining is not None:
            return self._take_over(CommonStep.AGREEMENT)
        if self.several and self.rank == of:
            self._to_others(_framed(value, self._call), Channel.AGREEMENT)
        elif self.several:
            value = self._await(Channel.AGREEMENT, of, Waiting(growth=GROWTH_AHEAD))
        if self._admission is not None:
            self._admission.note(CommonStep.AGREEMENT, value)
        return value

    def ask_to_stop(self, signal: int) -> None:
        """Ask rank 0 to decide to stop, because of this signal."""
        self.transport.send(str(signal).encode(), 0, Channel.REQUEST)

    def ask_to_leave(self) -> None:
        """Ask rank 0 to let this rank leave at a tick."""
        self.transport.send(str(LEAVE).encode(), 0, Channel.REQUEST)

    def requests(self) -> list[tuple[int, int]]:
        """The requests of other ranks and of the launcher to rank 0 since the last call: pairs of the rank's number and
        the signal for which it asks to stop, `LEAVE` or `LOSS`."""
        stop, self._asked_to_stop = self._asked_to_stop, 0
        found = [(self.rank, stop)] if stop else []
        while self.connected and (received := self.transport.receive(Channel.REQUEST)) is not None:
            found.append((received[0], int(received[1])))
        return found

    # Values of all ranks

    def check_own(self, check: Callable[[], None] | None) -> None:
        """From now on, call `check` during each wait for a message of another rank. It raises the failure of a task of
        this rank, because the other rank may wait for the task's result. None: call nothing."""
        self._check_own = check

    def gather(self, value: Any, *, any_call: bool = False) -> list[Any]:
        """The JSON values of all ranks, in rank order. any_call: gather them even if the ranks are in different calls.
        Raises CrossbowError that names the ranks whose value does not arrive within `SECONDS_TO_START`."""
        if self._joining is not None:
            hosts, values = json.loads(self._take_over(CommonStep.GATHERING))
            self._stand_beside(hosts)
            return [*values, value]
        values = self._gathered(value, 0 if any_call else self._call, SECONDS_TO_START)
        if self._admission is not None:
            hosts = [rank.host for rank in self.view.ranks]
            self._admission.note(CommonStep.GATHERING, json.dumps([hosts, values]).encode())
        return values

    def _stand_beside(self, hosts: Sequence[str]) -> None:
        """Become the last rank, after the ranks of these hosts."""
        ranks = tuple(Rank(number, host) for number, host in enumerate((*hosts, self.own.host)))
        self.view, self.rank = View(self.view.number, ranks), len(hosts)

    def _gathered(self, value: Any, call: int, seconds: float) -> list[Any]:
        if not self.several:
            return [value]
        if not self.is_first:
            self.transport.send(_framed(json.dumps(value).encode(), call), 0, Channel.GATHERING)
            return list(json.loads(self._await(Channel.GATHERING, 0, Waiting(seconds=2 * seconds))))
        values = {0: value}
        deadline = time.monotonic() + seconds
        for rank in self.view.ranks[1:]:
            try:
                left = max(0.0, deadline - time.monotonic())
                values[rank.number] = json.loads(self._await(Channel.GATHERING, rank.number, Waiting(seconds=left)))
            except CrossbowError as error:
                if type(error) is not CrossbowError:  # for example ViewChangedError, or a failure of this rank
                    raise
                continue  # out of time; messages of the others may have arrived
        missing = [str(rank) for rank in self.view.ranks if rank.number not in values]
        if missing:
            raise CrossbowError(
                f"expected all {self.size} ranks to begin within {seconds:g} s. Missing: {', '.join(missing)}"
            )
        gathered = [values[rank.number] for rank in self.view.ranks]
        self._to_others(_framed(json.dumps(gathered).encode(), call), Channel.GATHERING)
        return gathered

    def end_together(self) -> None:
        """Return when all ranks have called this. Raises ViewChangedError on all of them if one has left before."""
        try:
            self.gather(None)
        except ViewChangedError:
            # Rank 0 may have answered before it knew of the change, and may have continued.
            deadline = time.monotonic() + SECONDS_AFTER_CHANGE
            while self.is_first or self._next(Channel.GATHERING, 0) is None:
                if self.is_first or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _to_others(self, message: bytes, channel: Channel) -> None:
        if self._joining is not None:
            return  # the others do not know this rank
        for rank in self.view.ranks:
            if rank.number != self.rank:
                self.transport.send(message, rank.number, channel)

    def _next(self, channel: Channel, rank: int) -> bytes | None:
        """The next message of this call from a rank; None if none has arrived. Messages of earlier, failed calls are
        dropped. If the rank is in a later call, because this one has failed there, its message is kept."""
        kept = self._kept.pop((channel, rank), None)
        received = self.transport.receive(channel, rank) if kept is None else (rank, kept)
        while received is not None:
            call = int.from_bytes(received[1][:CALL], "big")
            if call in (0, self._call):
                return received[1][CALL:]
            if call > self._call:
                self._kept[channel, rank] = received[1]
                return None
            received = self.transport.receive(channel, rank)
        return None

    def _await(self, channel: Channel, rank: int, wait: Waiting) -> bytes:
        """The next message from a rank."""
        received: list[bytes] = []

        def arrived() -> bool:
            message = self._next(channel, rank)
            if message is not None:
                received.append(message)
            else:
                if self._check_own is not None:
                    self._check_own()
                self.check_others()
            return bool(received)

        wait.until(arrived, str(self.view.ranks[rank]))
        return received[0]


def _framed(message: bytes, call: int) -> bytes:
    """A message with the number of the call that it belongs to; 0 for any call."""
    return call.to_bytes(CALL, "big") + message
