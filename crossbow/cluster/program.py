"""The program that ranks run: a module or a script, with its arguments."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from crossbow.cluster.failure import FAILED
from crossbow.cluster.fault import VARIABLE
from crossbow.cluster.members import Left, NotJoined, RankFailedError, Terminated
from crossbow.console import say
from crossbow.interruption import INTERRUPTED

LEFT, CANNOT_JOIN, SIGNALLED = -1, -2, -3
"""Results of `run_program` if the rank was asked to leave, cannot join the others, or has ended training because of a
signal. Exit statuses are from 0 to 255."""
BEGUN_AGAIN = "CROSSBOW_BEGUN_AGAIN"
"""An environment variable of ranks whose program a launcher has restarted. The program removes it."""


@dataclass(frozen=True)
class RankProgram:
    """A module, as in `python -m models.lenet`, or a script."""

    name: str
    """Name of the module, or path of the script."""
    arguments: tuple[str, ...]
    is_module: bool = True
    begun_again: bool = False
    """Whether a launcher has restarted it."""

    def command(self) -> list[str]:
        """The Python command that runs it."""
        return [sys.executable, *(["-m"] if self.is_module else []), self.name, *self.arguments]

    def resumed(self) -> RankProgram:
        """The program that continues this one: with --resume, without --overwrite."""
        kept = tuple(each for each in self.arguments if each not in ("--resume", "--overwrite"))
        return replace(self, arguments=(*kept, "--resume"), begun_again=True)


def begun_again(program: RankProgram) -> RankProgram:
    """The program that continues this one after a loss. Faults are not repeated."""
    say("the program begins again, from its newest checkpoint if there is one")
    os.environ.pop(VARIABLE, None)
    return program.resumed()


def run_program(program: RankProgram, before_error: Callable[[], None] = lambda: None) -> int:
    """Run a program in this process. Returns its exit status, `LEFT`, `CANNOT_JOIN` or `SIGNALLED`. The traceback of an
    exception is printed.

    before_error: called before the traceback is printed.
    """
    sys.argv = [program.name, *program.arguments]
    if program.begun_again:
        os.environ[BEGUN_AGAIN] = "1"
    try:
        if program.is_module:
            runpy.run_module(program.name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program.name).parent.absolute()))
            runpy.run_path(program.name, run_name="__main__")
        return 0
    except Left:
        return LEFT
    except NotJoined:
        return CANNOT_JOIN
    except Terminated:
        return SIGNALLED
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF  # as the operating system does
        before_error()
        print(error.code, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except RankFailedError as error:
        before_error()
        say(f"error: {error}")
        return FAILED
    except BaseException as error:
        before_error()
        error.__traceback__ = _frames_of_program(error.__traceback__)
        print("".join(traceback.format_exception(error)), file=sys.stderr, end="", flush=True)
        return FAILED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _frames_of_program(found: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on, as Python prints it; the whole traceback if the program has not
    begun."""
    first = found
    while first is not None and first.tb_frame.f_globals.get("__name__") in (__name__, runpy.__name__):
        first = first.tb_next
    return first or found
