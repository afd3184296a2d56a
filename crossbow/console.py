"""Commands on a terminal, or with their output in pipes and files: what they print arrives, and they end in order."""

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
from crossbow.types import CrossbowError, NonFiniteError, NonFiniteLossError, TaskError

FAILED, WRONG, INTERRUPTED, PIPE_CLOSED = 1, 2, interruption.INTERRUPTED, 141
"""Exit statuses: training failed; an option, a file or the graph is wrong; Ctrl-C; nobody reads the output."""

PLAIN = {"×": "x", "≥": ">=", "≤": "<=", "…": "...", "–": "-", "—": "-", "−": "-", "·": "*", "→": "->", "±": "+-"}
PLAIN |= {"α": "alpha", "β": "beta", "γ": "gamma", "η": "eta", "λ": "lambda", "μ": "mu", "τ": "tau"}
PLAIN |= {"’": "'", "“": '"', "”": '"', "²": "^2", "√": "sqrt", "∞": "inf", "━": "-", "╸": "-", "╺": "-"}
"""What is written where an encoding, as ASCII or cp1252, does not have a character."""


def _in_plain_characters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("crossbow.plain", _in_plain_characters)


def printable(text: str, stream: TextIO) -> str:
    """The text in characters that the stream's encoding has.

    >>> printable("2 × 3 ≥ τ", io.TextIOWrapper(io.BytesIO(), "cp1252"))
    '2 × 3 >= tau'
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "crossbow.plain").decode(encoding)


def open_standard_streams() -> None:
    """Make standard output and error streams that take every character, and that are there.

    Where the one who started the process closed them, what is written is lost, as it was meant; a file that is opened
    later does not get their numbers then, and nothing that a library prints gets into it.
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
    """Print a line on standard error. What cannot be said there, cannot be said."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def run_command(name: str, work: Callable[[], int]) -> int:
    """Do the work of a command, and return its exit status. Errors that are expected are one sentence on stderr."""
    try:
        interruption.restore()
        open_standard_streams()
        with _warnings_in_one_line(name):
            try:
                status = work()
            except SystemExit:  # after help that was asked for, too
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
        if isinstance(error.__cause__, NonFiniteError):
            say(f"{name}: error: {error}")
        else:
            # Something is broken in an operator: whoever wrote it needs the traceback, which is that of the cause.
            say("".join(traceback.format_exception(error)).rstrip())
        return FAILED
    except CrossbowError as error:
        say(f"{name}: error: {error}")
        return FAILED if isinstance(error, NonFiniteLossError) else WRONG
    except OSError as error:
        say(f"{name}: error: {_where(error)}: {reason(error)}")
        return WRONG


@contextlib.contextmanager
def _warnings_in_one_line(name: str) -> Iterator[None]:
    """Without the line of code that warns, which tells users nothing."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *where, **more: f"{name}: warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _where(error: OSError) -> str:
    """What could not be read or written."""
    if error.filename is not None:
        return str(error.filename)
    try:
        print(flush=True)
    except OSError:
        _silence_stdout()
        return "standard output"
    return "a file or a call of the system"


def _silence_stdout() -> None:
    """Python flushes stdout once more at exit; that must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
