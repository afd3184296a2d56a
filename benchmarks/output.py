"""Output of measurements to files."""

from __future__ import annotations

import json
from pathlib import Path

from crossbow.files import write_whole


def write_json(path: Path, content: object) -> None:
    """Write measurements atomically: an existing file is kept until the new one is complete. Raises DataError."""
    write_whole(path, f"{json.dumps(content, indent=1, ensure_ascii=False, default=str)}\n".encode())
