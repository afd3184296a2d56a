"""Optional packages that are and are not there."""

from __future__ import annotations

import sys

import pytest

from crossbow import ConfigurationError
from crossbow.extras import optional_module


def test_a_module_of_an_installed_package() -> None:
    assert optional_module("json.decoder", "a test", "zoo") is sys.modules["json.decoder"]


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match=r"^WandbMonitor needs .* wandb: pip install 'crossbow\[wandb\]'\. "):
        optional_module("wandb", "WandbMonitor", "wandb")
