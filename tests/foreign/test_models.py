"""Foreign models under all kinds of rules, compared with the network that they repeat."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossbow import (
    SMA,
    SSGD,
    ConfigurationError,
    CrossbowError,
    ExecutionContext,
    History,
    ModelConf,
    SolverConf,
    SystemConf,
    TaskError,
)
from crossbow.cluster.admission import Admission
from crossbow.cluster.members import Rank, View
from crossbow.cluster.ranks import Ranks
from crossbow.foreign import ForeignModels, models
from crossbow.runtime.checkpointing import Checkpoints
from crossbow.synch import EASGD, Gossip, ModelAveraging, Rule, RuleSequence
from crossbow.synch.sequence import RulePhase
from tests.cluster.fake_network import FakeNetwork, at_once
from tests.foreign.small_models import BATCH, SEED, GradientRegression, Regression, native_network, small_set

EXACT = SystemConf(precision="float64", kernels="reference", seed=SEED, threads_per_learner=1)
SGD = SolverConf(learning_rate=0.2, momentum=0.9)
EPOCHS = 4


class Unequal(Regression):
    """Its parameters depend on the number of the learner."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.params = [np.zeros(4 + config["rank"] * config.get("longer", 0))] * (1 + config["rank"] * config["more"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"longer": 1, "more": 0},
            r"params\[0\] of learner 1 to have the shape of learner 0's, \(4,\)\. Received: \(5,\)",
        ),
        ({"longer": 0, "more": 1}, r"Unequal: expected 1 params of learner 1, as of learner 0\. Received: 2"),
    ],
)
def test_parameters_of_other_shapes_are_named(config: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ForeignModels(Unequal, learners=2, config=config)


def test_what_is_no_class_of_models_is_refused() -> None:
    given: Any = 42
    with pytest.raises(ConfigurationError, match=r"model_class must be a class of models\. Received: 42"):
        ForeignModels(given, learners=2)


def native(rule: Rule, initial: list[Any]) -> tuple[dict[str, Any], History]:
    """The variables of the native network after training from these parameters, and the records."""
    system = SystemConf(
        precision="float64", kernels="reference", seed=SEED, threads_per_learner=1, learners_per_device=2
    )
    model = ModelConf(batch_size=BATCH, rule=rule)
    with ExecutionContext(native_network(), data=small_set(), model=model, solver=SGD, system=system) as context:
        variables = context.variables
        context.engine.load(dict(zip(variables, initial, strict=True)), "the test")
        history = context.train_and_test(EPOCHS, verbose=0)
        return context.variables, history


def trained(
    models: ForeignModels, rule: Rule | RuleSequence | None, solver: SolverConf | None = None, epochs: int = EPOCHS
) -> tuple[dict[str, Any], History]:
    with models.context(ModelConf(rule=rule), solver, EXACT, monitors=()) as context:
        history = context.train_and_test(epochs)
        return context.variables, history


@pytest.mark.parametrize("rule", [SMA(), SMA(tau=3, base_momentum=0.5), ModelAveraging(tau=2)], ids=str)
def test_a_model_that_makes_its_own_steps_follows_the_native_network(rule: Rule) -> None:
    with ForeignModels(Regression, 2) as models:
        initial = [each.copy() for each in models.models[0].params]
        found, history = trained(models, rule)
    expected, records = native(rule, initial)
    for mine, other in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12)
        assert np.abs(other).max() > 0.1
    for mine, other in zip(history.records, records.records, strict=True):
        assert mine.loss == pytest.approx(other.loss, abs=1e-12)
        assert mine.test is not None
        assert other.test is not None
        assert mine.test.loss == pytest.approx(other.test.loss, abs=1e-12)
        assert mine.test.accuracy == pytest.approx(other.test.accuracy, abs=1e-12)


@pytest.mark.parametrize("rule", [SSGD(), SMA()], ids=str)
def test_a_model_that_computes_gradients_follows_the_native_network(rule: Rule) -> None:
    with ForeignModels(GradientRegression, 2) as models:
        initial = [each.copy() for each in models.models[0].params]
        found, _ = trained(models, rule, SGD)
    expected, _ = native(rule, initial)
    for mine, other in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [EASGD(alpha=0.3), Gossip(probability=0.5), RuleSequence((RulePhase(SMA(), 6), RulePhase(EASGD(), 6)))],
    ids=str,
)
def test_rules_without_a_barrier_learn(rule: Rule | RuleSequence) -> None:
    with ForeignModels(Regression, 2, {"rate": 0.1, "momentum": 0.0}) as models:
        _, history = trained(models, rule, epochs=20)
        tests = [record.test for record in history.records if record.test is not None]
        assert tests[-1].loss < 0.7 * tests[0].loss
        counts = [sum(isinstance(each, int) for each in model.events) for model in models.models]  # type: ignore[attr-defined]
        assert sum(counts) == 20 * 6


def test_the_calls_of_a_model() -> None:
    with ForeignModels(Regression, 2) as models:
        trained(models, SMA(), epochs=2)
        first, second = models.models
        assert [first.config[name] for name in ("rank", "size", "verbose", "mname")] == [0, 2, True, "Regression"]  # type: ignore[attr-defined]
        assert [second.config[name] for name in ("rank", "size", "verbose")] == [1, 2, False]  # type: ignore[attr-defined]
        assert models.epochs == 2
    for model in (first, second):
        expected = ["avg", 0, 1, 2, "val", "train", "adjust 0", 3, 4, 5, "cleanup"]
        assert model.events == expected  # type: ignore[attr-defined]
        assert model.epoch == 1


def test_no_rank_can_join_models_that_have_divided_their_data(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission()
    ranks = Ranks(View(0, (Rank(0, "here"),)), 0, FakeNetwork(1).transports()[0], admission=admission)
    for module in ("foreign.models", "context"):
        monkeypatch.setattr(f"crossbow.{module}.join", lambda: ranks)
    open_in_training: list[bool] = []

    class Watching(Regression):
        def train_iter(self, count: int, recorder: Any) -> None:
            open_in_training.append(admission.journal() is not None)
            super().train_iter(count, recorder)

    with ForeignModels(Watching, 1) as models, models.context(system=EXACT, monitors=()) as context:
        context.train_and_test(2)
    assert open_in_training
    assert not any(open_in_training)
    assert not ranks.admits


def test_a_model_can_end_the_training() -> None:
    with ForeignModels(Regression, 1, {"stops": True}) as models:
        _, history = trained(models, None, epochs=3)
    assert history.stopped == "monitor"
    assert "val_iter returned 'stop'" in history.message
    assert len(history.records) == 1


def test_a_model_of_any_rank_can_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class StopsOnRank1(Regression):
        def val_iter(self, count: int, recorder: Any) -> str | None:
            super().val_iter(count, recorder)
            return "stop" if self.config["rank"] == 1 else None

    here = threading.local()

    def run(ranks: Ranks) -> History:
        here.ranks = ranks
        with ForeignModels(StopsOnRank1, 1) as models, models.context(system=EXACT, monitors=()) as context:
            return context.train_and_test(3)

    for module in ("foreign.models", "context", "runtime.run"):
        monkeypatch.setattr(f"crossbow.{module}.join", lambda: here.ranks)
    for history in at_once([functools.partial(run, ranks) for ranks in FakeNetwork(2).ranks()]):
        assert (history.stopped, len(history.records)) == ("monitor", 1)
        assert history.message == "_EndOnRequest: val_iter returned 'stop'"


def test_training_resumes(tmp_path: Path) -> None:
    model = ModelConf(rule=SMA())
    settings: dict[str, Any] = {"system": EXACT, "monitors": ()}
    with (
        ForeignModels(Regression, 2) as models,
        models.context(model, **settings, checkpoints=Checkpoints(tmp_path)) as context,
    ):
        context.train(1)
        context.checkpoint()
        saved = context.variables
    with ForeignModels(Regression, 2) as models:
        with models.resume(tmp_path, model, **settings) as context:
            for name, values in context.variables.items():
                np.testing.assert_array_equal(values, saved[name])
            context.train(1)
        assert models.models[0].epoch == 1
        assert models.models[0].events[:3] == ["avg", "train", "adjust 0"]  # type: ignore[attr-defined]


class Silent(Regression):
    def train_iter(self, count: int, recorder: Any) -> None:
        pass


def test_a_model_that_reports_nothing() -> None:
    with ForeignModels(Silent, 1) as models, pytest.raises(TaskError) as raised:
        trained(models, None)
    expected = "Silent: expected `train_iter` to call recorder.train_error. Received: no call"
    assert str(raised.value.__cause__) == expected


class TooFew(GradientRegression):
    def gradients(self, count: int, recorder: Any) -> Any:
        return super().gradients(count, recorder)[:1]


def test_gradients_that_do_not_fit() -> None:
    with ForeignModels(TooFew, 1) as models, pytest.raises(TaskError) as raised:
        trained(models, SSGD(), SGD)
    expected = "TooFew: expected `gradients` to return 2 arrays, of the shapes of `params`. Received: 1 arrays"
    assert str(raised.value.__cause__) == expected


def test_gradient_rules_need_gradients() -> None:
    with ForeignModels(Regression, 1) as models:
        with pytest.raises(ConfigurationError, match=r"a solver, and a method `gradients`, under SSGD\(tau=1\), which"):
            models.context(ModelConf(rule=SSGD()))
        with pytest.raises(ConfigurationError, match=r"a method `gradients`, which a solver needs\. Received: none"):
            models.context(solver=SGD)
        with pytest.raises(ConfigurationError, match=r"multiple of the number of devices, 2\. Received: learners=1"):
            models.context(system=SystemConf(devices="cpu:0/2,cpu:1/2"))


def test_foreign_models_cannot_predict() -> None:
    with ForeignModels(Regression, 1) as models, models.context(monitors=()) as context:
        context.train(1)
        with pytest.raises(CrossbowError, match="a foreign model cannot predict: it reads its own data"):
            context.predict(np.zeros((2, 1), np.float32))
        context.train(1)


@pytest.mark.parametrize("learners", [0, 1.5, "auto"])
def test_the_number_of_learners_is_checked(learners: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"learners must be an integer ≥ 1\. Received: learners="):
        ForeignModels(Regression, learners)


@pytest.mark.parametrize(
    ("place", "name", "received"),
    [("data", "n_batch_train", "3, 4"), ("data", "n_batch_val", "2, 3"), ("", "n_subb", "1, 2"), ("", "n_epochs", "")],
)
def test_learners_with_epochs_of_different_lengths(place: str, name: str, received: str) -> None:
    class Uneven(Regression):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(config)
            holder = self.data if place else self
            setattr(holder, name, getattr(holder, name) + config["rank"])

    where = f"{place}.{name}" if place else name
    with pytest.raises(ConfigurationError, match=rf"{where} to be equal for all learners\. Received: {received}"):
        ForeignModels(Uneven, 2)


def test_learners_of_other_ranks_with_longer_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uneven(Regression):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(config)
            self.n_subb = 1 + config["rank"]

    here = threading.local()

    def make(ranks: Ranks) -> None:
        here.ranks = ranks
        with pytest.raises(ConfigurationError, match=r"n_subb to be equal for all learners\. Received: 1, 2"):
            ForeignModels(Uneven, 1)

    monkeypatch.setattr(models, "join", lambda: here.ranks)
    at_once([functools.partial(make, ranks) for ranks in FakeNetwork(2).ranks()])
