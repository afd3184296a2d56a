"""The memory of a context's engine."""

from __future__ import annotations

from typing import Any

from tests.support import context, engine_of


def taken(**options: Any) -> int:
    """Bytes of memory of a context's engine."""
    with context(**options) as running:
        return sum(engine_of(running).memory.values())
