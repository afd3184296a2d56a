"""The cost of an exchange between hosts under a rule with a barrier: all hosts get the sum of their vectors."""

from __future__ import annotations

import math
from typing import NamedTuple

from crossbow.conf import is_integer, is_number, plain, refuse, shown
from crossbow.types import ConfigurationError

ORDERS = ("chain", "tree", "ring")


class ExchangeCost(NamedTuple):
    """The cost of an exchange."""

    bytes: int
    """Bytes sent by all hosts together."""
    rounds: int
    """Number of transfers, one after the other."""
    seconds: float


def exchange_cost(hosts: int, bytes: int, latency: float, bandwidth: float, order: str = "ring") -> ExchangeCost:
    """The cost of an all-reduce of a vector of this many bytes between hosts.

    A transfer of b bytes takes t(b) = latency + b / bandwidth, with latency in seconds and bandwidth in bytes/s. A host
    can send one message and receive one at the same time; the network itself has no limit. Additions are free. With H
    hosts and a vector of B bytes::

        chain   host 0 sends its vector to host 1, which adds its own, and so on; the sum travels back the same way:
                2 (H − 1) transfers, one after the other:
                bytes 2 (H − 1) B,   rounds 2 (H − 1),   seconds 2 (H − 1) t(B)
        tree    in round r, host i + 2^r sends to host i, for every multiple i of 2^(r + 1); so host 0 has the sum after
                ⌈log₂ H⌉ rounds, and the rounds in reverse spread it. All hosts but one send once and receive once:
                bytes 2 (H − 1) B,   rounds 2 ⌈log₂ H⌉,   seconds 2 ⌈log₂ H⌉ t(B)
        ring    the vector has H parts of at most ⌈B / H⌉ bytes. In each round every host sends a part to the next one:
                H − 1 rounds for the sums, H − 1 to spread them. Every part travels 2 (H − 1) times:
                bytes 2 (H − 1) B,   rounds 2 (H − 1),   seconds 2 (H − 1) t(⌈B / H⌉)

    All three send the same bytes. A chain adds from left to right, in the order of the hosts. A ring uses all links at
    once, and is the fastest for long vectors; a tree has the fewest rounds, and is the fastest for short ones or many
    hosts. See R. Thakur, R. Rabenseifner, W. Gropp, *Optimization of collective communication operations in MPICH*,
    2005.

    Raises ConfigurationError.

    >>> exchange_cost(4, 1000, latency=0.5, bandwidth=1000.0, order="tree")
    ExchangeCost(bytes=6000, rounds=4, seconds=6.0)
    """
    hosts, bytes, latency, bandwidth = plain((hosts, bytes, latency, bandwidth))
    _check(hosts, bytes, latency, bandwidth, order)
    rounds = 2 * (hosts - 1).bit_length() if order == "tree" else 2 * (hosts - 1)
    longest = -(-bytes // hosts) if order == "ring" else bytes
    try:
        seconds = rounds * (latency + longest / bandwidth) if rounds else 0.0
    except OverflowError:  # of integers that no float can represent
        seconds = math.inf
    if math.isinf(seconds):
        given = {"hosts": hosts, "bytes": bytes, "latency": latency, "bandwidth": bandwidth}
        raise ConfigurationError(
            "exchange_cost: the time must be a finite number of seconds. "
            f"Received: {', '.join(f'{name}={shown(value)}' for name, value in given.items())}"
        )
    return ExchangeCost(2 * (hosts - 1) * bytes, rounds, seconds)


def _check(hosts: object, size: object, latency: object, bandwidth: object, order: object) -> None:
    if not is_integer(hosts) or hosts < 1:  # type: ignore[operator]
        raise refuse("exchange_cost", "hosts", hosts, "an integer ≥ 1")
    if not is_integer(size) or size < 0:  # type: ignore[operator]
        raise refuse("exchange_cost", "bytes", size, "an integer ≥ 0")
    if not is_number(latency) or latency < 0:  # type: ignore[operator]
        raise refuse("exchange_cost", "latency", latency, "a finite number ≥ 0")
    if not is_number(bandwidth) or bandwidth <= 0:  # type: ignore[operator]
        raise refuse("exchange_cost", "bandwidth", bandwidth, "a finite number > 0")
    if order not in ORDERS:
        raise refuse("exchange_cost", "order", order, f"one of {', '.join(map(repr, ORDERS))}")
