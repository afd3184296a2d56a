"""The training calls of a context, and its engine, which another one replaces after ranks have left or joined."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence

from crossbow.cluster.ranks import Ranks
from crossbow.duties import Duties
from crossbow.monitors.verbosity import Verbosity, add_console
from crossbow.runtime.arguments import Setup
from crossbow.runtime.changing_engine import new_engine
from crossbow.runtime.configuration import ModelConf
from crossbow.runtime.keeper import Resumable, restore, run_state
from crossbow.runtime.limits import Limits, end_of_decay
from crossbow.runtime.monitor import Monitor
from crossbow.runtime.profiling import Profiler
from crossbow.runtime.regrouping import IdleModel
from crossbow.runtime.results import History, restored_history
from crossbow.runtime.run import Renewal, TrainingRun
from crossbow.runtime.stretch import RunState
from crossbow.runtime.training_engine import TrainingEngine
from crossbow.synch import Collective
from crossbow.timeline.recorder import Recorder
from crossbow.types import ConfigurationError, CrossbowError


class TrainingCalls:
    """The engine of a context, and the training calls that train it, one after the other."""

    def __init__(
        self,
        ranks: Ranks,
        setup: Setup,
        duties: Duties,
        recorder: Recorder,
        profiler: Profiler | None,
        collective: Collective | None,
        *,
        given_monitors: Sequence[Monitor] | None,
    ) -> None:
        """Create the engine. All ranks must call this. given_monitors: the monitors that the context was created with;
        see `add_console`."""
        self.model = setup.model
        """The model's configuration, which `on_new_ranks` may replace."""
        self.on_new_ranks: Callable[[], ModelConf] | None = None
        """See `ExecutionContext.on_new_ranks`."""
        self._ranks, self._setup, self._duties, self._given_monitors = ranks, setup, duties, given_monitors
        self._recorder, self._profiler, self._collective = recorder, profiler, collective
        self._number = ranks.next_model()
        self._agrees = True
        """Whether all ranks have the same base model, because no training call has failed."""
        self._run: TrainingRun | None = None
        """The current or last training call."""
        self.unfinished: RunState | None = None
        """After `resume`, the state of the training call to continue."""
        self._begun = False
        """Whether the run has begun to train, here or before it was resumed."""
        self._under_way = False
        """Whether a training call is under way."""
        self._warned = False
        """Whether the user has been warned of a learning rate of 0."""
        self.engine, self._view = self._new_engine(), ranks.view.number
        """The engine, and the number of the view whose ranks it was built for."""
        try:
            duties.begin(self.engine)
        except BaseException:
            self.engine.close()
            raise
        ranks.models[self._number] = self

    def _new_engine(self) -> TrainingEngine:
        setup = self._setup
        return new_engine(
            setup.graph,
            setup.check.graph,
            setup.data,
            self.model,
            setup.solver,
            setup.system,
            self._collective,
            self._recorder,
            self._ranks,
            self._number,
        )

    def close(self) -> None:
        """End the engine's threads."""
        self._ranks.models.pop(self._number, None)
        self.engine.close()

    def resume(self, found: Resumable) -> bool:
        """Continue from a checkpoint. Returns whether the learners were restored, too; otherwise they begin at the base
        model."""
        self.unfinished, self._begun = run_state(found.checkpoint), True
        if self._duties.keeper is None:  # this is not the first rank
            return restore(self.engine, found.checkpoint, str(found.path))
        return self._duties.keeper.resume(found.checkpoint, str(found.path))

    @property
    def history(self) -> History:
        """The history of the current or last training call; after `resume`, that of the call to continue."""
        if self.unfinished is not None:
            return restored_history(self.unfinished.values["history"])
        return History() if self._run is None else self._run.history

    def state(self) -> RunState | None:
        """The state of the current or last training call; after `resume`, that of the call to continue."""
        return self.unfinished or (None if self._run is None else self._run.state())

    def train(self, limits: Limits, verbose: Verbosity, *, test: bool, state: RunState | None = None) -> History:
        """Train until a limit is reached. test: whether to test. state: state of the call to continue. Raises
        CrossbowError if a training call is under way, or if the ranks' base models may differ."""
        if limits.accuracy is not None and not self._setup.has_accuracy:
            raise ConfigurationError("target_accuracy: expected a network with an accuracy. Received: one without")
        self.check_ranks()
        if self._under_way:
            raise CrossbowError(
                "a training call is under way. Neither a monitor nor another thread can begin a second one"
            )
        duties = self._duties
        run = TrainingRun(
            self.engine,
            self.model,
            limits,
            duties.monitors,
            test=test,
            keeper=duties.keeper,
            profiler=self._profiler,
            state=state,
        )
        begins = state is None and duties.leads and not self._warned
        if begins and (text := end_of_decay(limits, self.engine, self._setup.solver, run.start)):
            self._warned = True
            warnings.warn(text, RuntimeWarning, stacklevel=4)  # the caller of the context's method
        self._run, self.unfinished, self._begun = run, None, True
        with contextlib.ExitStack() as consoles:

            def show() -> None:
                if console := add_console(run, verbose, self._given_monitors):
                    consoles.enter_context(console)

            def lead(run: TrainingRun) -> None:
                duties.go_on(self.engine, run.history, begun=True)
                run.monitors, run.keeper = duties.monitors, duties.keeper
                show()

            if duties.leads:
                show()
            failed = self._ranks.failed_calls
            try:
                self._under_way = True
                return run.run(Renewal(self.rebuild, lead, self._idle_models))
            finally:
                self._under_way = False
                self._agrees = not self._ranks.several or self._ranks.failed_calls == failed

    # Ranks that leave and join

    def rebuild(self) -> TrainingEngine:
        """A new engine, after ranks have left or joined and the previous engine has been closed."""
        if self.on_new_ranks is not None:
            self.model = self.on_new_ranks()
        found, self.engine = self.engine.bad_examples, self._new_engine()
        self._view = self._ranks.view.number
        for phase, bad in self.engine.bad_examples.items():
            bad.continue_from(found[phase])
        return self.engine

    def _idle_models(self) -> dict[int, IdleModel]:
        """The models of the program's other contexts, by their numbers."""
        return {
            number: IdleModel(calls.engine, calls.rebuild, calls.go_on)
            for number, calls in self._ranks.models.items()
            if calls is not self
        }

    def go_on(self) -> None:
        """Adapt to the present ranks after another context has trained."""
        self._duties.go_on(self.engine, self.history, begun=self._begun)

    def check_ranks(self) -> None:
        """Raise CrossbowError, on all ranks, if the base model of this rank may differ from that of the others."""
        if self._ranks.joins or (self._agrees and self._view == self._ranks.view.number):
            return
        why = "ranks have left or joined while another context trained, and this one was not in use on all of them"
        if not self._agrees:
            why = "training has failed on a rank, and ranks may have come to different places"
        with self._ranks.call():
            raise CrossbowError(f"{why}, so that the context can only predict. Create another one, and load its model")

    def check_known(self) -> None:
        """End the program of a rank that joins, if it has skipped a training call: it does not have the base model."""
        if self._ranks.behind:
            self._ranks.give_up_joining(
                "a rank cannot join where the program uses the base model between two training calls: it receives the "
                "base model when it joins"
            )
