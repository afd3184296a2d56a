"""What a synchronisation rule is: what learners send, how it is merged into the base model, what they get back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from crossbow.conf import SolverConf, shown
from crossbow.solver import Pace, Update
from crossbow.types import ConfigurationError


class Rule(ABC):
    """A rule with a barrier: small pure parts over flat vectors.

    With k learners and base model z (`base`), a clock tick is τ local steps of every learner, of which the last
    synchronises. Learner i holds `weights`, `gradient`, `velocity`. Every learner contributes ω · `sends` to
    `total`, and `merge` makes the next z of it.
    """

    name: ClassVar[str]
    """On the command line."""
    sends: ClassVar[str]
    """The vector that a learner contributes: "weights" (before its synchronising step) or "gradient"."""
    reads_base: ClassVar[bool]
    """Whether learners compute with z itself and have no weights of their own (w_i = z)."""
    tau: int
    """Local steps in a tick."""

    @abstractmethod
    def weight(self, learners: int) -> float:
        """ω, the weight of each contribution."""

    @abstractmethod
    def local_step(self, solver: SolverConf, pace: Pace, learners: int, *, synchronises: bool) -> Update:
        """A learner's step on `weights`, `gradient`, `velocity`, and `base` where it synchronises. May be empty."""

    @abstractmethod
    def merge(self, solver: SolverConf, pace: Pace, learners: int) -> Update:
        """z: from `base`, `base_previous`, `total`, `base_velocity` to `base_next` (written over `base_previous`)."""

    def check_learners(self, learners: int) -> None:  # noqa: B027 - most rules allow any number
        """Refuse a number of learners for which the rule has no meaning. Raises ConfigurationError."""

    def refuse(self, name: str, value: object, allowed: str) -> ConfigurationError:
        return ConfigurationError(f"{type(self).__name__}: {name} must be {allowed}. Received: {name}={shown(value)}")
