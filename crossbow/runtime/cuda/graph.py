"""Work for a GPU that is always the same: captured once as a CUDA graph, then launched with one call."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence

from crossbow.compile import BoundStep
from crossbow.kernels.cuda.api import api
from crossbow.kernels.cuda.launch import current


class Work:
    """The calls of a task, or of a part of one, in order.

    The first time they are made one by one: then libraries load their code, which must not happen while a graph is
    captured. The second time they are captured, and from then on launched as a graph.
    """

    def __init__(self, steps: Sequence[BoundStep], *, graph: bool) -> None:
        self.steps = tuple(steps)
        self._graph = graph and all(getattr(step.call, "capturable", False) for step in steps) and bool(steps)
        self._launched = False
        self._executable = 0
        self.failed: str | None = None
        """The operator whose call raised in the last run."""

    def run(self) -> None:
        """Give the work to the current stream. Returns before it is done; raises what a call raises."""
        self.failed = None
        if self._executable:
            api().runtime.graphLaunch(self._executable, current().pointer)
        elif self._launched and self._graph:
            try:
                self._executable = self._capture()
            except Exception as error:  # none of the calls has been made
                self._graph = False
                warnings.warn(f"a task's work runs without a CUDA graph: {error}", RuntimeWarning, stacklevel=2)
                self._call()
                return
            api().runtime.graphLaunch(self._executable, current().pointer)
        else:
            self._call()
            self._launched = True

    @property
    def is_graph(self) -> bool:
        """Whether it has been captured."""
        return self._executable != 0

    def close(self) -> None:
        """Give the graph back."""
        if self._executable:
            api().runtime.graphExecDestroy(self._executable)
            self._executable = 0

    def _call(self) -> None:
        for step in self.steps:
            try:
                step.call()
            except BaseException:
                self.failed = step.operator
                raise

    def _capture(self) -> int:
        runtime, stream = api().runtime, current().pointer
        graph = 0
        try:
            runtime.streamBeginCapture(stream, runtime.streamCaptureModeRelaxed)
            self._call()
            graph = runtime.streamEndCapture(stream)
            return int(runtime.graphInstantiate(graph))
        except BaseException:
            if not graph:
                with contextlib.suppress(Exception):  # what went wrong before is raised
                    graph = runtime.streamEndCapture(stream)
            raise
        finally:
            if graph:
                runtime.graphDestroy(graph)
