"""Variables that are added for a while."""

from __future__ import annotations

import os

import pytest

from crossbow.cluster.ray.environment import added_variables, environment_with


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSBOW_A", "1")
    monkeypatch.delenv("CROSSBOW_B", raising=False)
    with added_variables({"CROSSBOW_A": "2", "CROSSBOW_B": "3"}):
        assert (os.environ["CROSSBOW_A"], os.environ["CROSSBOW_B"]) == ("2", "3")
    assert os.environ["CROSSBOW_A"] == "1"
    assert "CROSSBOW_B" not in os.environ


def test_a_token_and_the_mode_that_uses_it() -> None:
    assert environment_with("x") == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x"}
