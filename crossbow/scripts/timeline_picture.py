"""A picture of a few tasks of a timeline, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from crossbow.timeline.spans import Kind, Span, order_of_tracks
from crossbow.timeline.timeline import SHOWN, Timeline

COLOURS: dict[Kind, str] = {
    "operator": "#1f77b4",
    "optimiser": "#2ca02c",
    "averaging": "#9467bd",
    "wait": "#d62728",
    "no task": "#ffbb78",
    "python": "#7f7f7f",
    "event": "#c7c7c7",
}
TASKS = 4
"""Number of tasks of the first learner in a picture."""
WIDTH, ROW, LABEL, LEGEND = 1000, 26, 150, 30
"""Sizes in pixels: width of the picture, height of a track, width of the tracks' names, height of the legend."""


def timeline_picture(timeline: Timeline) -> str:
    """An SVG element that shows the tracks of a timeline during some tasks in its middle; empty without tasks."""
    if not timeline.learners:
        return ""
    tasks = [span for span in timeline.spans if span.kind == "task" and span.track == timeline.learners[0]]
    first = max(0, len(tasks) // 2 - TASKS // 2)
    chosen = tasks[first : first + TASKS]
    begin, end = chosen[0].begin, max(chosen[-1].end, chosen[0].begin + 1)
    tracks = order_of_tracks(timeline.spans)
    height = LEGEND + ROW * len(tracks)
    rows = {track: LEGEND + ROW * number for number, track in enumerate(tracks)}
    parts = [
        *_legend(),
        *(f'<text x="0" y="{y + ROW * 0.6:g}">{escape(track)}</text>' for track, y in rows.items()),
        *_bars(timeline, rows, begin, end),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {WIDTH} {height}" font-size="12" '
        f'role="img" aria-label="{(end - begin) / 1e6:.3g} ms of training">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _legend() -> Iterator[str]:
    for number, (kind, name) in enumerate(SHOWN.items()):
        x = LABEL + 130 * number
        yield f'<rect x="{x}" y="4" width="12" height="12" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 16}" y="14">{escape(name)}</text>'


def _bars(timeline: Timeline, rows: dict[str, int], begin: int, end: int) -> Iterator[str]:
    scale = (WIDTH - LABEL) / (end - begin)
    for span in timeline.spans:
        if span.kind != "task" and span.begin < end and span.end > begin:
            left, right = (LABEL + scale * (min(max(time, begin), end) - begin) for time in (span.begin, span.end))
            yield (
                f'<rect x="{left:.2f}" y="{rows[span.track]}" width="{right - left:.2f}" height="{ROW - 6}" '
                f'fill="{COLOURS[span.kind]}"><title>{escape(_text(span))}</title></rect>'
            )


def _text(span: Span) -> str:
    waited = f", for {span.details['for']}" if "for" in span.details else ""
    return f"{span.name}, {span.duration / 1e3:,.0f} µs{waited}"
