"""Variables of the environment that Ray's processes inherit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def added_variables(more: Mapping[str, str]) -> Iterator[None]:
    """Add variables to the environment within the context."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def environment_with(token: str) -> dict[str, str]:
    """The environment variables with which Ray authenticates by a token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
