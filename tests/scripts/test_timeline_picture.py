"""The picture of a timeline: bars of the right colours at the right places."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from crossbow.scripts.timeline_picture import COLOURS, LABEL, WIDTH, timeline_picture
from crossbow.timeline.spans import Kind
from tests.timeline.test_timeline import TASK, timeline

SVG = "{http://www.w3.org/2000/svg}"


def test_bars() -> None:
    spans: list[tuple[str, Kind, str, int, int, dict[str, object]]] = [
        ("learner 0", "task", "task 0", 0, 1000, TASK),
        ("learner 0", "operator", "conv<1>", 0, 250, {}),
        ("learner 0", "wait", "wait merged", 250, 1000, {"for": "learner 1"}),
        ("loader", "event", "fill a batch", 900, 2000, {}),
        ("loader", "event", "fill a batch", 2000, 2100, {}),
    ]
    root = ElementTree.fromstring(timeline_picture(timeline(*spans)))
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None]
    places = [(float(bar.get("x", "")), float(bar.get("width", "")), bar.get("fill")) for bar in bars]
    whole = WIDTH - LABEL
    assert places == [
        (LABEL, pytest.approx(0.25 * whole), COLOURS["operator"]),
        (pytest.approx(LABEL + 0.25 * whole), pytest.approx(0.75 * whole), COLOURS["wait"]),
        (pytest.approx(LABEL + 0.9 * whole), pytest.approx(0.1 * whole), COLOURS["event"]),  # cut at the end
    ]
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles[:2] == ["conv<1>, 0 µs", "wait merged, 1 µs, for learner 1"]
    names = [text.text for text in root.iter(f"{SVG}text")]
    assert {"learner 0", "loader", "waiting"} <= set(names)


def test_the_tasks_in_the_middle() -> None:
    spans: list[tuple[str, Kind, str, int, int, dict[str, object]]] = []
    for number in range(20):
        spans.append(("learner 0", "task", f"task {number}", 10 * number, 10 * number + 10, TASK))
        spans.append(("learner 0", "operator", f"conv{number}", 10 * number, 10 * number + 10, {}))
    root = ElementTree.fromstring(timeline_picture(timeline(*spans)))
    titles = [str(title.text).partition(",")[0] for title in root.iter(f"{SVG}title")]
    assert titles == ["conv8", "conv9", "conv10", "conv11"]


def test_nothing_without_tasks() -> None:
    assert timeline_picture(timeline()) == ""
