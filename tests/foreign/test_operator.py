"""The network of a foreign model."""

from __future__ import annotations

import numpy as np

from crossbow import ExecutionContext, ModelConf, Phase, SystemConf
from crossbow.foreign import ForeignModels
from crossbow.foreign.learners import ForeignLearners
from crossbow.foreign.operator import foreign_dataflow, initial_parameters
from crossbow.runtime.resumption import describe_network
from tests.foreign.small_models import Regression


def test_parameters_are_variables_with_the_values_of_the_first_model() -> None:
    with ForeignModels(Regression, 2) as models:
        expected = [each.copy() for each in models.models[0].params]
        with models.context(system=SystemConf(precision="float64", kernels="reference"), monitors=()) as context:
            assert list(context.variables) == ["model.params0", "model.params1"]
            for found, wanted in zip(context.variables.values(), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
            kernels = context.describe()
    assert [kernels.count(name) for name in ("foreign train_iter", "foreign gradient", "foreign val_iter")] == [1, 1, 1]


def test_local_variables_stay_with_their_learners() -> None:
    with ForeignModels(Regression, 2) as models:
        conf = ModelConf(local_variables=("model.params1",))
        with models.context(conf, monitors=()) as context:
            context.train(2)
            assert isinstance(context, ExecutionContext)
        biases = [model.params[1] for model in models.models]
    assert not np.allclose(biases[0], biases[1])


def test_the_description_of_the_network_names_the_model_and_its_shapes() -> None:
    learners = ForeignLearners([Regression({"rank": 0, "size": 1})], 1, 0, by_gradients=False)
    dataflow = foreign_dataflow(learners, initial_parameters(learners))
    assert dataflow.phase is Phase.TRAIN
    first, *others = describe_network(dataflow.graph)
    assert first == (
        "model: ForeignModel(learners=Regression by train_iter, "
        "initial=(Values(float64 (3, 6)), Values(float64 (3,)))) of batch"
    )
    assert [each.split(":")[0] for each in others] == ["cost", "accuracy", "optimiser"]
