"""The parser of command lines, which suggests similar options and values for unknown ones."""

from __future__ import annotations

import argparse
import contextlib
import difflib
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from crossbow.scripts.values import meant

MOST_OFFERED = 3


class OuterCommand(NamedTuple):
    """A command whose arguments end with the command line of a model script or of another program."""

    name: str
    options: Collection[str]
    """The command's own options."""
    place: str
    """What its options precede, such as "-m"."""

    @classmethod
    def of(cls, parser: argparse.ArgumentParser, place: str) -> OuterCommand:
        return cls(parser.prog, parser._option_string_actions.keys(), place)

    def hint(self, unknown: Sequence[str]) -> str:
        """A sentence about unknown arguments of the script that are options of the command; "" if none is."""
        own = [name for name in (text.partition("=")[0] for text in unknown) if name in self.options]
        if not own:
            return ""
        return f"Options of {self.name} precede {self.place}. Received after it: {', '.join(dict.fromkeys(own))}"


_OUTER: ContextVar[OuterCommand | None] = ContextVar("outer command", default=None)


@contextlib.contextmanager
def arguments_of(command: OuterCommand) -> Iterator[None]:
    """While this is open, scripts parse the arguments that a command has left to them."""
    before = _OUTER.set(command)
    try:
        yield
    finally:
        _OUTER.reset(before)


class CommandParser(argparse.ArgumentParser):
    """Suggests the most similar options for an unknown option, and the most similar choice for a value that is not one
    of the choices. The parsers of its commands do the same."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        options: argparse.Namespace
        options, unknown = self.parse_known_args(args, namespace)
        self.refuse(unknown, options)
        return options

    def add_subparsers(self, **options: Any) -> Any:
        return super().add_subparsers(parser_class=_Command, **options)

    def refuse(self, unknown: Sequence[str], options: argparse.Namespace) -> None:
        """End the process with an error if arguments are unknown."""
        if not unknown:
            return
        outer = self.outer()
        of_outer = "" if outer is None else outer.hint(unknown)
        received = [text.partition("=")[0] for text in unknown if text.startswith("--")]
        offered = [name for each in received for name in similar_options(each, list(self._option_string_actions))]
        sentences = [f"Did you mean {_either(offered)}?" if offered else "", self.hint(options)]
        more = of_outer or " ".join(sentence for sentence in sentences if sentence)
        self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f". {more}" if more else ""))

    def outer(self) -> OuterCommand | None:
        """The command that has left the arguments to this parser; None if there is none."""
        return _OUTER.get()

    def hint(self, options: argparse.Namespace) -> str:
        """The end of the message about unknown arguments."""
        return ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            raise argparse.ArgumentError(action, error.message + meant(str(value), action.choices or ())) from None


class _Command(CommandParser):
    """The parser of a command. It refuses unknown options itself, because it knows the similar options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = super().parse_known_args(args, namespace)
        self.refuse(unknown, options)
        return options, unknown


def similar_options(received: str, known: Sequence[str]) -> list[str]:
    """The options that the user may have meant: those that begin with the received option, or have it as their
    initials, or else the most similar one.

    >>> similar_options("--batch", ["--batch-size", "--rate"]), similar_options("--lr", ["--learning-rate", "--l"])
    (['--batch-size'], ['--learning-rate'])
    >>> similar_options("--epoch", ["--epochs"]), similar_options("--epcohs", ["--epochs"]), similar_options("--x", [])
    (['--epochs'], ['--epochs'], [])
    """
    begin = [name for name in known if name.startswith(received)]
    initials = [name for name in known if "--" + "".join(word[:1] for word in name[2:].split("-")) == received]
    found = list(dict.fromkeys([*begin, *initials])) or difflib.get_close_matches(received, known, n=1, cutoff=0.75)
    return found[:MOST_OFFERED]


def _either(names: Sequence[str]) -> str:
    """The names in words: "a", "a or b", "a, b or c"."""
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} or {last}" if first else last
