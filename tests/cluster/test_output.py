"""Who prints what."""

from __future__ import annotations

import io
import sys

import pytest

from crossbow.cluster import output
from crossbow.cluster.output import PrefixedLines, arrange_output


def test_every_line_has_the_prefix() -> None:
    stream = io.StringIO()
    lines = PrefixedLines(stream, "[rank 2 b] ")
    print("one\ntwo", "three", file=lines)
    print("four", file=lines, flush=True)
    assert stream.getvalue() == "[rank 2 b] one\n[rank 2 b] two three\n[rank 2 b] four\n"
    assert not lines.isatty()


def test_a_process_alone_keeps_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    before = sys.stdout, sys.stderr
    arrange_output(lambda: True)
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize(
    ("rank", "log_all", "out", "err"),
    [(0, False, "text\n", "error\n"), (1, False, "", "error\n"), (1, True, "text\n", "error\n")],
)
def test_only_rank_0_prints_except_errors(
    monkeypatch: pytest.MonkeyPatch, rank: int, log_all: bool, out: str, err: str
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    monkeypatch.setattr(output.socket, "gethostname", lambda: "b")
    monkeypatch.setattr(output, "open_standard_streams", lambda: None)
    monkeypatch.setattr(output, "SECONDS_BEFORE_ERRORS", 0.0)
    printed, errors = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    monkeypatch.setattr(sys, "stderr", errors)
    arrange_output(lambda: rank == 0, log_all=log_all)
    print("text")
    print("error", file=sys.stderr)
    assert printed.getvalue() == (f"[rank {rank} b] {out}" if log_all else out)
    assert errors.getvalue() == (f"[rank {rank} b] {err}" if rank else err)


def test_a_rank_prints_once_it_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setattr(output, "open_standard_streams", lambda: None)
    printed, first = io.StringIO(), list[bool]()
    monkeypatch.setattr(sys, "stdout", printed)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    arrange_output(lambda: bool(first))
    print("before")
    first.append(True)
    print("after", flush=True)
    assert printed.getvalue() == "after\n"
