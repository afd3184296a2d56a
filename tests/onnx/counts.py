"""The count of ONNX cases at the end of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

PROPERTY = "ONNX cases"
"""Of a test: (suite, kind, number, how they were made to run); kinds are those of `line`."""
LOSS_PROPERTY = "ONNX losses"


def line(suite: str, count: Counter[str], ways: Counter[str]) -> str:
    """What became of a suite's cases.

    "read in part" are those that pass of operators that Crossbow does not have; "refused in part" are the others of
    these. ways: how some of those that passed were made to run, which `load` would have refused.

    >>> line("node", Counter({"passed": 3, "read in part": 1, "refused in part": 4}), Counter({"with lists": 2}))
    'node: 3 passed, of them 2 with lists / 0 excluded / read in part: 1 of 5 / 0 not ours'
    """
    how = "".join(f", {'' if number else 'of them '}{ways[way]} {way}" for number, way in enumerate(sorted(ways)))
    both = count["read in part"] + count["refused in part"]
    parts = [
        f"{count['passed']:,} passed{how}",
        f"{count['excluded']:,} excluded",
        f"read in part: {count['read in part']:,} of {both:,}",
        f"{count['not ours']:,} not ours",
        *([f"{count['failed']:,} failed"] if count["failed"] else []),
    ]
    return f"{suite}: {' / '.join(parts)}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints what the tests recorded about themselves."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    ways: dict[str, Counter[str]] = defaultdict(Counter)
    losses: Counter[str] = Counter()
    for outcome, name, value in _properties(terminalreporter.stats):
        if name == PROPERTY:
            suite, kind, number, way = value
            counts[suite][kind if outcome == "passed" else "failed"] += number
            if way and outcome == "passed":
                ways[suite][way] += number
        elif name == LOSS_PROPERTY:
            losses[outcome] += value
    if counts or losses:
        terminalreporter.section("ONNX cases")
    for suite, count in counts.items():
        terminalreporter.line(line(suite, count, ways[suite]))
    if losses:
        failed = f", {losses['failed']} do not" if losses["failed"] else ""
        terminalreporter.line(f"losses, through SoftMaxLoss: {losses['passed']} agree{failed}")


def _properties(stats: dict[str, Iterable[Any]]) -> Iterator[tuple[str, str, Any]]:
    for outcome in ("passed", "failed"):
        for report in stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if getattr(report, "when", "") == "call":
                    yield outcome, name, value
