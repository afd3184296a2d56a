"""Handling of Ctrl-C while a command imports its modules: it exits with one line instead of a traceback of a package.

Imports take most of a command's first second. `crossbow` imports this module first. The module itself imports little,
because Ctrl-C causes a traceback until it has been imported.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

IMPORTING = ("importlib._bootstrap", "_frozen_importlib")
"""Names of the module that imports others; it has the second one until the package `importlib` has been imported."""
INTERRUPTED = 130
"""Exit status of an interrupted command."""
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""Signals that end training after its tick. Windows has no SIGUSR1."""


def command_name() -> str | None:
    """The command as the user typed it, or None if this process does not run one of this project's commands."""
    arguments = sys.orig_argv
    if "-m" in arguments[:-1]:
        module = arguments[arguments.index("-m") + 1]
        return f"python -m {module}" if module.split(".")[0] in ("crossbow", "models") else None
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return "crossbow" if name in ("crossbow", "crossbow.exe") else None


def end_quietly_while_importing() -> None:
    """In a command, exit with one line on Ctrl-C during imports, until `restore` is called."""
    if command_name() is not None:
        _replace(signal.default_int_handler, _end_if_importing)


def restore() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, also during imports."""
    _replace(_end_if_importing, signal.default_int_handler)


def _replace(before: Handler, after: Handler) -> None:
    """Replace the handler of Ctrl-C, but only if it is `before`: the application may have installed its own."""
    if signal.getsignal(signal.SIGINT) is before:
        try:  # not with contextlib, which would have to be imported first
            signal.signal(signal.SIGINT, after)
        except ValueError:  # not on the main thread, which alone receives Ctrl-C
            return


def package_is_imported() -> None:
    """Call `restore`, unless the command is `crossbow`, which restores the handler when it starts. A package `models`
    need not belong to this project; that of this project calls `end_quietly_while_importing` itself."""
    if "crossbow" not in (command_name() or "").split():
        restore()


def _end_if_importing(number: int, frame: FrameType | None) -> None:
    outer, started = frame, False
    while outer is not None:
        name = outer.f_globals.get("__name__")
        if name in IMPORTING:
            _end()
        started = started or name == "__main__"
        outer = outer.f_back
    if not started:  # `python -m` has imported the package, and is still reading the command's module
        _end()
    signal.default_int_handler(number, frame)


def _end() -> None:
    """End the process. A package that is being imported might catch an exception, and mistake it for another one."""
    try:
        os.write(2, f"{command_name()}: interrupted\n".encode())
    finally:  # even without standard error
        os._exit(INTERRUPTED)


end_quietly_while_importing()
