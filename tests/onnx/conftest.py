"""The count of ONNX cases at the end of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

PROPERTY = "ONNX cases"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints passed / excluded / not ours for each suite, from what the tests recorded about themselves."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == PROPERTY and getattr(report, "when", "") == "call":
                    suite, kind, number = value
                    counts[suite][kind if outcome == "passed" else "failed"] += number
    if counts:
        terminalreporter.section("ONNX cases")
    for suite, count in counts.items():
        kinds = ("passed", "excluded", "not ours", *(["failed"] if count["failed"] else []))
        terminalreporter.line(f"{suite}: " + " / ".join(f"{count[kind]:,} {kind}" for kind in kinds))
