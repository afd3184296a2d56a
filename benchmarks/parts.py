"""Parts of a benchmark that run in separate processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def run_part(module: str, name: str, options: Sequence[str], *, captured: bool = False) -> str:
    """Run `python -m MODULE OPTION…`. Exits with the status of a process that fails.

    name: name of the part, for the message if it is killed. captured: whether to return the output of the part.
    Otherwise the output goes to this process's standard output, and the result is empty.
    """
    command = [sys.executable, "-m", module, *options]
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE if captured else None, text=True)
    if ended.returncode < 0:  # killed before it could print a message
        raise SystemExit(f"python -m {module}: error: {name}: ended by signal {-ended.returncode}")
    if ended.returncode:  # it has printed the reason
        raise SystemExit(ended.returncode)
    return ended.stdout or ""
