"""Optional packages, which are imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from crossbow.types import ConfigurationError


def optional_module(name: str, what: str, extra: str) -> Any:
    """Import a module of an optional package.

    Raises ConfigurationError if the package is not installed. The message begins with `what`, such as
    "TensorBoardMonitor", and states the command that installs the extra.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ConfigurationError(
            f"{what} needs the package {package}: pip install 'crossbow[{extra}]'. Received: {error}"
        ) from error
