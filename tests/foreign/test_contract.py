"""The checker of foreign models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crossbow import ConfigurationError
from crossbow.foreign import check_model
from crossbow.foreign.contract import METHODS, takes
from tests.foreign.small_models import GradientRegression, Regression

CONFIG = {"rank": 0, "size": 1}


def changed(**members: Any) -> Regression:
    """A model with other members; None removes one."""
    model = Regression(CONFIG)
    for name, value in members.items():
        setattr(model, name, value)
    return model


def test_models_that_follow_the_contract() -> None:
    check_model(Regression(CONFIG))
    check_model(GradientRegression(CONFIG))
    check_model(changed(params=tuple(Regression(CONFIG).params)))
    check_model(changed(compile_iter_fns=lambda: None))  # sync_type is optional


@pytest.mark.parametrize("name", METHODS)
def test_each_method_is_needed(name: str) -> None:
    count = METHODS[name]
    expected = f"Regression: expected a method `{name}` of {count} argument{'s' * (count != 1)}. Received: "
    with pytest.raises(ConfigurationError) as raised:
        check_model(changed(**{name: None}))
    assert str(raised.value) == f"{expected}none"
    with pytest.raises(ConfigurationError) as raised:
        check_model(changed(**{name: 3}))
    assert str(raised.value) == f"{expected}3"


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"train_iter": lambda count: None}, "a method `train_iter` of 2 arguments. Received: train_iter(count)"),
    ({"gradients": lambda: None}, "a method `gradients` of 2 arguments. Received: gradients()"),
    ({"scale_lr": 1}, "a method `scale_lr` of 1 argument. Received: 1"),
    ({"epoch": -1}, "an attribute `epoch`, an integer ≥ 0. Received: -1"),
    ({"n_epochs": 0}, "an attribute `n_epochs`, an integer ≥ 1. Received: 0"),
    ({"n_subb": 1.5}, "an attribute `n_subb`, an integer ≥ 1. Received: 1.5"),
    ({"data": None}, "an attribute `data` with n_batch_train and n_batch_val. Received: none"),
    ({"data": object()}, "an attribute `data.n_batch_train`, an integer ≥ 1. Received: none"),
    ({"params": None}, "an attribute `params`, a list of arrays that is not empty. Received: none"),
    ({"params": []}, "an attribute `params`, a list of arrays that is not empty. Received: []"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "message"), FAULTS)
def test_members_that_are_missing_or_wrong(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_model(changed(**members))
    assert str(raised.value) == f"Regression: expected {message}"


def test_parameters_that_cannot_be_overwritten() -> None:
    with pytest.raises(ConfigurationError, match=r"params\[0\] to be a floating-point array .* Received: int64"):
        check_model(changed(params=[np.zeros(2, np.int64)]))
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    with pytest.raises(ConfigurationError, match=r"params\[1\] to be .* Received: an array that is read-only"):
        check_model(changed(params=[np.zeros(2), fixed]))
    with pytest.raises(
        ConfigurationError, match=r"params\[0\] to be an array in the host's memory. Received: str, which"
    ):
        check_model(changed(params=["w"]))


def test_whether_a_method_takes_an_argument() -> None:
    assert takes(lambda sync_type: None, "sync_type")
    assert takes(lambda **more: None, "sync_type")
    assert not takes(lambda count: None, "sync_type")
