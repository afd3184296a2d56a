"""The parser of command lines: it offers the nearest of the possible values."""

from __future__ import annotations

import argparse
from typing import Any

from crossbow.scripts.values import meant


class CommandParser(argparse.ArgumentParser):
    """Offers the most similar choice for a value that is not one of the choices. Its commands' parsers do the same."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            raise argparse.ArgumentError(action, error.message + meant(str(value), action.choices or ())) from None
