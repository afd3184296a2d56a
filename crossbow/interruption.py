"""Ctrl-C while a command still imports its modules ends it with one line, not with a traceback from some package.

Imports take most of a command's first second. `crossbow` imports this module before the others. It imports little
itself, because until then Ctrl-C ends with a traceback after all.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

INTERRUPTED = 130
"""The exit status of a command that was interrupted."""


def command_name() -> str | None:
    """What the user has typed, where this process runs one of this project's commands."""
    arguments = sys.orig_argv
    if "-m" in arguments[:-1]:
        module = arguments[arguments.index("-m") + 1]
        return f"python -m {module}" if module.split(".")[0] in ("crossbow", "models") else None
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return "crossbow" if name in ("crossbow", "crossbow.exe") else None


def end_quietly_while_importing() -> None:
    """From now on, in a command, until `restore`."""
    if command_name() is not None:
        _replace(signal.default_int_handler, _end_if_importing)


def restore() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, whatever is imported."""
    _replace(_end_if_importing, signal.default_int_handler)


def _replace(before: Handler, after: Handler) -> None:
    """Handle Ctrl-C in another way, where it is handled in this way: somebody may want neither."""
    if signal.getsignal(signal.SIGINT) is before:
        try:  # without contextlib, which would have to be imported before
            signal.signal(signal.SIGINT, after)
        except ValueError:  # on a thread that is not the main one, and never gets Ctrl-C
            return


def package_is_imported() -> None:
    """`restore`, unless the command is `crossbow`, which does so when it begins: a package `models` may be another one
    than this project's, which calls `end_quietly_while_importing` itself."""
    if "crossbow" not in (command_name() or "").split():
        restore()


def _end_if_importing(number: int, frame: FrameType | None) -> None:
    outer = frame
    while outer is not None:
        if outer.f_globals.get("__name__") == "importlib._bootstrap":
            # Not an exception: packages may take one that comes while they are imported for another.
            try:
                os.write(2, f"{command_name()}: interrupted\n".encode())
            finally:  # whether there is a standard error or not
                os._exit(INTERRUPTED)
        outer = outer.f_back
    signal.default_int_handler(number, frame)


end_quietly_while_importing()
