"""Theano-MPI's rules with its interface: `BSP`, `EASGD` and `GOSGD`, each with `init` and `wait`."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import crossbow.synch
from crossbow.cluster.process import join
from crossbow.conf import shown
from crossbow.context import ExecutionContext
from crossbow.foreign.config_file import ForeignConfig, devices_of
from crossbow.foreign.contract import ModelClass
from crossbow.foreign.models import ForeignModels
from crossbow.runtime.configuration import ModelConf
from crossbow.runtime.results import History
from crossbow.synch import Gossip, ModelAveraging, Rule
from crossbow.types import ConfigurationError, CrossbowError

SYNC_TYPES = ("cdd", "avg")
EXCH_STRATEGIES = ("ar", "nccl32", "asa32", "copper")
"""Theano-MPI's strategies that sum without rounding to 16 bits. They have no effect: the sum does not depend on the
strategy, and Crossbow's engine has its own way to compute it."""


class TheanoMpiTraining(ABC):
    """Trains foreign models under one of Theano-MPI's rules. `init` creates the models, and `wait` trains them.

    >>> training = BSP()
    >>> training.init(devices=["cuda0", "cuda1"], modelfile="my_models", modelclass="Cifar10")  # doctest: +SKIP
    >>> history = training.wait()  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._models: ForeignModels | None = None
        self._context: ExecutionContext | None = None

    @abstractmethod
    def rule(self) -> Rule:
        """The equivalent rule of Crossbow. Raises ConfigurationError for a setting that Crossbow does not have."""

    @property
    def scales_learning_rate(self) -> bool:
        """Whether the models' `scale_lr(size)` is called, if they have it."""
        return False

    def init(self, devices: Sequence[str], modelfile: str, modelclass: str) -> None:
        """Create a model for each device, with `config["device"]`, and prepare the training.

        devices: a device for each learner, such as "cuda0" or "cpu". Only the model uses it, because Crossbow needs the
        parameters in the host's memory. Under mpirun or srun, a device with a host, such as "node1:cuda0", belongs to
        the rank on that host, and a device without a host to every rank. modelfile: the module of the model.
        modelclass: the name of its class, which follows the contract of `ModelClass`.

        Raises ConfigurationError if an argument is invalid, or if a model does not follow the contract.
        """
        if self._models is not None:
            raise CrossbowError(f"{type(self).__name__}: expected one call of init. Received: another")
        rule, own = self.rule(), _own_devices(devices)
        made = _model_class(modelfile, modelclass)

        def model(config: dict[str, Any]) -> ModelClass:
            return made({**config, "device": own[config["rank"] % len(own)]})

        model.__name__ = modelclass
        models = ForeignModels(model, len(own))
        try:
            for each in models.models if self.scales_learning_rate else ():
                scale: Callable[[int], object] | None = getattr(each, "scale_lr", None)
                if scale is not None:
                    scale(models.size)
            self._context = models.context(ModelConf(rule=rule))
        except BaseException:
            models.close()
            raise
        self._models = models

    def wait(self, save: Path | None = None) -> History:
        """Train for the models' number of epochs, with a test after each, and release everything. Returns the history.

        save: path to which the base model is written (safetensors); None does not save it. Raises TaskError if a model
        fails.
        """
        if self._models is None or self._context is None:
            raise CrossbowError(f"{type(self).__name__}: expected a call of init before wait. Received: none")
        models, context = self._models, self._context
        self._models = self._context = None
        with models, context:
            history = context.train_and_test(models.epochs)
            if save is not None and join().is_first:
                context.save(save)
            return history


class BSP(TheanoMpiTraining):
    """Synchronous training: after every iteration, all learners have the mean of their parameters.

    sync_type: "cdd", the mean of the updates, or "avg", the mean of the weights. Both give the same result, because all
    learners begin each iteration with the same weights. With "avg", the models' `scale_lr(size)` is called first, if
    they have it. exch_strategy: Theano-MPI's method of summation; it has no effect.
    """

    sync_type: str = "cdd"
    exch_strategy: str = "nccl32"

    def rule(self) -> Rule:
        for name, value, allowed in (
            ("sync_type", self.sync_type, SYNC_TYPES),
            ("exch_strategy", self.exch_strategy, EXCH_STRATEGIES),
        ):
            if value not in allowed:
                raise ConfigurationError(f"BSP: {name} must be one of {', '.join(allowed)}. Received: {shown(value)}")
        return ModelAveraging(tau=1)

    @property
    def scales_learning_rate(self) -> bool:
        return self.sync_type == "avg"


class _EASGD(TheanoMpiTraining):
    """Elastic averaging without a barrier: α = 0.5, after every 10 iterations of a learner. All devices have learners,
    including the first one, which Theano-MPI uses as a server."""

    def rule(self) -> Rule:
        return crossbow.synch.EASGD(alpha=0.5, tau=10)


EASGD = _EASGD
"""The rule under its name in Theano-MPI. It is not `crossbow.synch.EASGD`, Crossbow's rule."""


class GOSGD(TheanoMpiTraining):
    """Gossip: after each iteration, a learner sends its parameters with probability 0.01 to a random other learner."""

    def rule(self) -> Rule:
        return Gossip(probability=0.01)


RULES: dict[str, type[TheanoMpiTraining]] = {"BSP": BSP, "EASGD": EASGD, "GOSGD": GOSGD}


def new_training(config: ForeignConfig) -> TheanoMpiTraining:
    """The training that a file describes. Its models have been created; call `wait` to train them. Raises
    ConfigurationError."""
    if config.rule not in RULES:
        raise ConfigurationError(f"RULE must be one of {', '.join(RULES)}. Received: {config.rule}")
    training = RULES[config.rule]()
    if isinstance(training, BSP):
        training.sync_type = config.sync_type or BSP.sync_type
        training.exch_strategy = config.exch_strategy or BSP.exch_strategy
    elif idle := config.sync_type or config.exch_strategy:
        raise ConfigurationError(f"BSP_… has no effect with RULE={config.rule}. Received: {idle}")
    training.init(config.devices, config.modelfile, config.modelclass)
    return training


def _own_devices(devices: Sequence[str]) -> list[str]:
    """The devices of this rank, without their host. Raises ConfigurationError if there are none."""
    if isinstance(devices, str):
        devices = [devices]
    if not isinstance(devices, list | tuple) or not all(isinstance(each, str) for each in devices):
        raise ConfigurationError(f"devices must be a list of names, as ['cuda0', 'cuda1']. Received: {shown(devices)}")
    ranks = join()
    own: list[str] = []
    elsewhere: list[str] = []
    for device in devices_of(tuple(devices)):
        host, _, name = device.rpartition(":")
        here = host in ("", ranks.own.host)
        (own if here else elsewhere).append(name if here else device)
    if elsewhere and not ranks.several:
        raise ConfigurationError(
            f"devices must be of this host, {ranks.own.host}; for several hosts, start a process on each with mpirun. "
            f"Received: {', '.join(elsewhere)}"
        )
    if not own:
        raise ConfigurationError(f"devices must have one of each host. Received: none of {ranks.own.host}")
    return own


def _model_class(modelfile: str, modelclass: str) -> Callable[[dict[str, Any]], ModelClass]:
    for name, text in (("modelfile", modelfile), ("modelclass", modelclass)):
        if not isinstance(text, str) or not text:
            raise ConfigurationError(f"{name} must be a name. Received: {shown(text)}")
    try:
        if modelfile.startswith("."):
            raise ImportError("a relative name")
        module = importlib.import_module(modelfile)
    except ImportError as error:
        raise ConfigurationError(
            f"modelfile must be a module that can be imported, as models.cifar10. Received: {modelfile!r} ({error})"
        ) from error
    found: Callable[[dict[str, Any]], ModelClass] | None = getattr(module, modelclass, None)
    if not isinstance(found, type):
        raise ConfigurationError(f"modelclass must be a class of {modelfile}. Received: {modelclass!r}")
    return found
