"""Output and exit status of commands, on a terminal or with output in pipes and files."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import TextIO

from crossbow import interruption
from crossbow.files import reason
from crossbow.types import CrossbowError, DataError, MonitorError, NonFiniteError, NonFiniteLossError, TaskError

FAILED, WRONG, INTERRUPTED, PIPE_CLOSED = 1, 2, interruption.INTERRUPTED, 141
"""Exit statuses: training failed; an option, a file or the graph is invalid; Ctrl-C; the reader of a pipe has ended."""

PLAIN = {"×": "x", "≥": ">=", "≤": "<=", "…": "...", "–": "-", "—": "-", "−": "-", "·": "*", "→": "->", "±": "+-"}
PLAIN |= {"Σ": "sum", "←": "<-", "⌊": "floor(", "⌋": ")", "⌈": "ceil(", "⌉": ")", "Δ": "delta", "ω": "omega"}
PLAIN |= {"α": "alpha", "β": "beta", "γ": "gamma", "η": "eta", "λ": "lambda", "μ": "mu", "τ": "tau"}
PLAIN |= {"’": "'", "“": '"', "”": '"', "²": "^2", "√": "sqrt", "∞": "inf", "‖": "|", "━": "-", "╸": "-", "╺": "-"}
"""Replacements for characters that an encoding, such as ASCII or cp1252, does not have."""


def _in_plain_characters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("crossbow.plain", _in_plain_characters)


def printable(text: str, stream: TextIO) -> str:
    """The text, in which characters that the stream's encoding does not have are replaced.

    >>> printable("2 × 3 ≥ τ", io.TextIOWrapper(io.BytesIO(), "cp1252"))
    '2 × 3 >= tau'
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "crossbow.plain").decode(encoding)


def open_standard_streams() -> None:
    """Ensure that the standard streams exist and accept every character.

    If the parent process has closed them, output is discarded, as intended. Files that are opened later then do not get
    their descriptors, which prevents libraries from writing their output into these files.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = _open_stream(sys.stdout)
    sys.stderr = _open_stream(sys.stderr)


def _open_stream(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8", errors="crossbow.plain")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="crossbow.plain")
    return stream


def say(text: str) -> None:
    """Print a line on standard error. Errors of standard error are ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def run_command(name: str, work: Callable[[], int]) -> int:
    """Run a command's work, and return its exit status. Expected errors are printed as one sentence on stderr."""
    try:
        interruption.restore()
        open_standard_streams()
        with _warnings_in_one_line(name):
            try:
                status = work()
            except SystemExit:  # also after --help
                sys.stdout.flush()
                raise
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        say(f"{name}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return PIPE_CLOSED
    except TaskError as error:
        if isinstance(error.__cause__, NonFiniteError | DataError):
            say(f"{name}: error: {error}")
        else:
            # An operator has failed, and its author needs the traceback of the cause.
            say("".join(traceback.format_exception(error)).rstrip())
        return WRONG if isinstance(error.__cause__, DataError) else FAILED
    except MonitorError as error:
        if isinstance(error.__cause__, OSError):
            say(f"{name}: error: {error}")
            return WRONG
        say("".join(traceback.format_exception(error)).rstrip())  # its author needs the traceback of the cause
        return FAILED
    except CrossbowError as error:
        say(f"{name}: error: {error}")
        return FAILED if isinstance(error, NonFiniteLossError) else WRONG
    except OSError as error:
        say(f"{name}: error: {_where(error)}: {reason(error)}")
        return WRONG


@contextlib.contextmanager
def _warnings_in_one_line(name: str) -> Iterator[None]:
    """Print warnings without the line of code that issues them, which does not help the user."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *where, **more: f"{name}: warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _where(error: OSError) -> str:
    """The name of the file or stream that could not be read or written."""
    if error.filename is not None:
        return str(error.filename)
    try:
        print(flush=True)
    except OSError:
        _silence_stdout()
        return "standard output"
    return "a file or a system call"


def _silence_stdout() -> None:
    """Redirect stdout to the null device: Python flushes it at exit, which must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
