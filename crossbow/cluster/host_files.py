"""Text files that describe hosts, in the formats of MXNet-G: `hosts`, `groups` and `data_sharding`.

In all of them `#` begins a comment, and empty lines do not count.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crossbow.files import checked_path, file_error
from crossbow.types import ConfigurationError, DataError

NAME = re.compile(r"(?!-)(?=.*\w)[\w.:\[\]-]+", re.ASCII)
"""A host's name or address, which cannot be mistaken for an option of a command."""
SLOTS = re.compile(r"slots=(\d{1,6})")
"""The number of ranks of a host."""
STRIDE: Literal["stride"] = "stride"
PARTS = re.compile(r"[\d.e+-]+:[\d.e+-]+(,[\d.e+-]+:[\d.e+-]+)*", re.ASCII)
"""Parts of ranks in a text, as 0:0.25,0.25:1."""
Fractions = tuple[float, float]


@dataclass(frozen=True)
class Host:
    """A machine, and the number of ranks that it can run."""

    name: str
    """Name or address."""
    slots: int = 1


def read_hosts(path: str | os.PathLike[str]) -> list[Host]:
    """The hosts of a file with one host per line, as "node1" or "node1 slots=2". The slots of a host that is named in
    several lines are added up.

    Raises DataError, with file and line, if a line has another form, and if the file has no host.
    """
    slots: dict[str, int] = {}
    for where, words in _lines(path, "hosts"):
        name, *rest = words
        match = SLOTS.fullmatch(rest[0]) if len(rest) == 1 else None
        count = 1 if not rest else int(match[1]) if match else 0
        if not NAME.fullmatch(name) or count < 1:
            raise DataError(f"{where}: expected a host, as node1 or node1 slots=2. Received: {' '.join(words)!r}")
        slots[name] = slots.get(name, 0) + count
    return [Host(*each) for each in slots.items()]


def name_of_rank(names: Sequence[str], local_rank: int, hostname: str) -> str:
    """The name of this machine's rank in a file of hosts; the machine's own name if the file does not contain it.

    names: the names in the file, each repeated for its slots. local_rank: number of the rank among those of this
    machine.
    hostname: this machine's own name.

    >>> name_of_rank(["node1", "node2", "node2"], 0, "node2.cluster")
    'node2'
    """
    known = (hostname, hostname.partition(".")[0])
    different = list(dict.fromkeys(names))
    here = [name for name in different if name in known or _is_here(name, loopback=False)]
    here = here or [name for name in different if _is_here(name, loopback=True)]
    own = [name for name in names if name in here]
    return own[local_rank % len(own)] if own else hostname


def _is_here(name: str, *, loopback: bool) -> bool:
    """Whether an address of this machine has this name. Every machine has the addresses of its loopback interface."""
    try:
        found = socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, _, _, _, (address, _, *scope) in found:
        if ipaddress.ip_address(str(address).partition("%")[0]).is_loopback == loopback:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address, 0, *scope))  # normally, this succeeds only for own addresses
                return True
    return False


def read_groups(path: str | os.PathLike[str]) -> list[tuple[str, ...]]:
    """The groups of a file with the hosts of one group per line, separated by spaces. A host may be named once for each
    of its ranks.

    Raises DataError, with file and line, if a line has another form, or a host is in two groups.
    """
    groups: list[tuple[str, ...]] = []
    group_of: dict[str, int] = {}
    for where, words in _lines(path, "groups"):
        for name in words:
            if not NAME.fullmatch(name):
                raise DataError(f"{where}: expected the hosts of a group. Received: {name!r}")
            if group_of.setdefault(name, len(groups)) != len(groups):
                raise DataError(f"{where}: expected each host in one group. Received: {name} in two")
        groups.append(tuple(words))
    return groups


def learners_of_groups(
    groups: Sequence[Sequence[str]], hosts: Sequence[str], learners: int, source: object
) -> tuple[tuple[int, ...], ...]:
    """The learners of each group of hosts, for a rule that groups learners.

    hosts: the host of each rank. learners: number of learners of a rank. source: name of the groups' file.

    Raises ConfigurationError unless each rank's host is in a group, and each group has a rank.

    >>> learners_of_groups([("node1", "node2"), ("node3",)], ["node1", "node3", "node2"], 2, "groups")
    ((0, 1, 4, 5), (2, 3))
    """
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    found: list[list[int]] = [[] for _ in groups]
    for rank, host in enumerate(hosts):
        if host not in group_of:
            raise ConfigurationError(f"{source}: expected a group with the host of rank {rank}, {host}. Received: none")
        found[group_of[host]] += range(rank * learners, (rank + 1) * learners)
    for group, members in zip(groups, found, strict=True):
        if not members:
            raise ConfigurationError(f"{source}: expected a rank in each group. Received: none on {', '.join(group)}")
    return tuple(map(tuple, found))


def read_data_sharding(path: str | os.PathLike[str]) -> list[Fractions]:
    """The fractions of a file whose line r has the begin and the end of rank r's part, as "0 0.25", with
    0 ≤ begin < end ≤ 1.

    Raises DataError, with file and line, if a line has another form, and if parts overlap or leave a gap.
    """
    return _adjoining(list(_lines(path, "fractions")))


def sharding_text(parts: Sequence[Fractions]) -> str:
    """The parts of all ranks as the value of an option, which `sharding_of` reads.

    >>> sharding_text([(0, 0.25), (0.25, 1)])
    '0:0.25,0.25:1'
    """
    return ",".join(f"{begin!r}:{end!r}" for begin, end in parts)


def sharding_of(text: str) -> Literal["stride"] | list[Fractions]:
    """The value of an option: "stride", the parts of all ranks, or the name of a file with these parts. Raises
    DataError.

    >>> sharding_of("stride"), sharding_of("0:0.25,0.25:1")
    ('stride', [(0.0, 0.25), (0.25, 1.0)])
    """
    if text == STRIDE:
        return STRIDE
    if is_sharding(text):
        return _adjoining([(f"data sharding, part {n}", part.split(":")) for n, part in enumerate(text.split(","), 1)])
    return read_data_sharding(text)


def is_sharding(text: str) -> bool:
    """Whether a text itself is a data sharding; otherwise it is the name of a file with one."""
    return text == STRIDE or PARTS.fullmatch(text) is not None


def _adjoining(given: Sequence[tuple[str, list[str]]]) -> list[Fractions]:
    """Begin and end of each part, from pairs of its source and its words. Raises DataError for invalid parts, and
    unless they adjoin."""
    parts: list[Fractions] = []
    for where, words in given:
        try:
            begin, end = (float(word) for word in words)
        except ValueError:
            begin, end = 0.0, 0.0
        if not 0 <= begin < end <= 1:
            raise DataError(
                f"{where}: expected begin and end of a part, with 0 ≤ begin < end ≤ 1. Received: {' '.join(words)!r}"
            )
        parts.append((begin, end))
    covered, where = 0.0, ""
    for (begin, end), (where, _) in sorted(zip(parts, given, strict=True)):
        if begin != covered:
            what = "an overlap" if begin < covered else "a gap"
            raise DataError(f"{where}: expected parts that adjoin, from 0 to 1. Received: {what} at {begin:g}")
        covered = end
    if covered != 1:
        raise DataError(f"{where}: expected parts that adjoin, from 0 to 1. Received: a gap at {covered:g}")
    return parts


def _lines(path: str | os.PathLike[str], what: str) -> Iterator[tuple[str, list[str]]]:
    """The words of each line that is not empty, with the file and the line number. Raises DataError if there is no such
    line."""
    file = Path(checked_path(what, path))
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise file_error(error, file, f"a text file with {what}") from error
    none = True
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            none = False
            yield f"{file}, line {number}", words
    if none:
        raise DataError(f"{file}: expected {what}. Received: none")
