"""Theano-MPI's rules, with its interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import crossbow.synch
from crossbow import ConfigurationError, CrossbowError, ModelConf, SystemConf, TrainingUnit
from crossbow.cluster.process import join
from crossbow.foreign import BSP, EASGD, GOSGD, ForeignModels, IterationRecorder
from crossbow.foreign.config_file import ForeignConfig
from crossbow.foreign.theano_mpi import RULES, new_training
from crossbow.synch import Gossip, ModelAveraging
from tests.foreign import small_models
from tests.foreign.small_models import Regression

FILE = "tests.foreign.small_models"


def test_the_rules_are_those_of_theano_mpi() -> None:
    assert {name: rule().rule() for name, rule in RULES.items()} == {
        "BSP": ModelAveraging(tau=1),
        "EASGD": crossbow.synch.EASGD(alpha=0.5, tau=10),
        "GOSGD": Gossip(probability=0.01),
    }


@pytest.mark.parametrize("rule", [BSP, EASGD, GOSGD])
def test_init_and_wait(rule: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Regression] = []

    class Kept(Regression):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(config)
            self.n_epochs = 4
            made.append(self)

    monkeypatch.setattr(small_models, "Kept", Kept, raising=False)
    training = rule()
    training.init(devices=["cpu", f"{join().own.host}:cuda0"], modelfile=FILE, modelclass="Kept")
    assert [model.config["device"] for model in made] == ["cpu", "cuda0"]
    assert [model.config["mname"] for model in made] == ["Kept", "Kept"]
    history = training.wait()
    assert history.records[-1].epoch >= 4
    assert history.records[-1].test is not None
    assert [model.events[-1] for model in made] == ["cleanup", "cleanup"]
    with pytest.raises(CrossbowError, match="expected a call of init before wait"):
        training.wait()


def test_bsp_is_the_mean_of_all_updates() -> None:
    """Weights after one iteration are z + mean of what each model alone changes."""
    alone = [Regression({"rank": rank, "size": 2}) for rank in range(2)]
    start = [each.copy() for each in alone[0].params]
    for model in alone:
        for parameter, value in zip(model.params, start, strict=True):
            parameter[...] = value
        model.train_iter(0, IterationRecorder())
    with ForeignModels(Regression, 2) as models:
        exact = SystemConf(precision="float64", kernels="reference")
        with models.context(ModelConf(rule=BSP().rule()), system=exact, monitors=()) as context:
            context.train(2, TrainingUnit.TASKS)
            found = list(context.variables.values())
    for value, first, second in zip(found, alone[0].params, alone[1].params, strict=True):
        np.testing.assert_allclose(value, (first + second) / 2, rtol=0, atol=1e-14)


class Scaled(Regression):
    def scale_lr(self, size: int) -> None:
        self.events.append(f"scale {size}")
        self.rate *= size


@pytest.mark.parametrize(("sync_type", "calls"), [("cdd", 0), ("avg", 1)])
def test_averaging_scales_the_learning_rate(sync_type: str, calls: int) -> None:
    training = BSP()
    training.sync_type = sync_type
    training.init(["cpu", "cpu", "cpu"], __name__, "Scaled")
    assert training._models is not None
    for model in training._models.models:
        assert model.events.count("scale 3") == calls  # type: ignore[attr-defined]
    training.wait()


def test_a_training_from_a_file() -> None:
    config = ForeignConfig("BSP", FILE, "Regression", ("cpu", "cpu"), "avg", "ar")
    training = new_training(config)
    assert isinstance(training, BSP)
    assert (training.sync_type, training.exch_strategy) == ("avg", "ar")
    assert training.wait().records[-1].epoch == 2


FAULTS: list[tuple[ForeignConfig, str]] = [
    (ForeignConfig("ASGD", FILE, "Regression", ("cpu",)), "RULE must be one of BSP, EASGD, GOSGD. Received: ASGD"),
    (ForeignConfig("GOSGD", FILE, "Regression", ("cpu",), "avg"), "BSP_… has no effect with RULE=GOSGD. Received: avg"),
    (
        ForeignConfig("BSP", FILE, "Regression", ("cpu",), "swap"),
        "BSP: sync_type must be one of cdd, avg. Received: 'swap'",
    ),
    (
        ForeignConfig("BSP", FILE, "Regression", ("cpu",), None, "nccl16"),
        "BSP: exch_strategy must be one of ar, nccl32, asa32, copper. Received: 'nccl16'",
    ),
    (ForeignConfig("BSP", FILE, "Nothing", ("cpu",)), f"modelclass must be a class of {FILE}. Received: 'Nothing'"),
    (ForeignConfig("BSP", "", "Regression", ("cpu",)), "modelfile must be a name. Received: ''"),
    (ForeignConfig("BSP", FILE, 3, ("cpu",)), "modelclass must be a name. Received: 3"),  # type: ignore[arg-type]
    (
        ForeignConfig("BSP", ".mm", "Nothing", ("cpu",)),
        "modelfile must be a module that can be imported, as models.cifar10. Received: '.mm' (a relative name)",
    ),
    (
        ForeignConfig("BSP", "no.such", "Nothing", ("cpu",)),
        "modelfile must be a module that can be imported, as models.cifar10. Received: 'no.such' "
        "(No module named 'no')",
    ),
    (
        ForeignConfig("BSP", FILE, "Regression", ("far:cuda0", "cpu")),
        f"devices must be of this host, {join().own.host}; for several hosts, start a process on each with mpirun. "
        "Received: far:cuda0",
    ),
]


@pytest.mark.parametrize(("config", "message"), FAULTS)
def test_what_is_refused(config: ForeignConfig, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        new_training(config)
    assert str(raised.value) == message


def test_calls_in_the_wrong_order() -> None:
    training = BSP()
    training.init(["cpu"], FILE, "Regression")
    with pytest.raises(CrossbowError, match=r"BSP: expected one call of init\. Received: another"):
        training.init(["cpu"], FILE, "Regression")
    training.wait()
    with pytest.raises(ConfigurationError, match=r"devices must be a list of names"):
        BSP().init([1], FILE, "Regression")  # type: ignore[list-item]
