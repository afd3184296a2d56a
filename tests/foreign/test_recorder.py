"""What models report."""

from __future__ import annotations

import pytest

from crossbow.foreign import IterationRecorder


def test_reports_are_averaged_and_taken_once() -> None:
    recorder = IterationRecorder()
    recorder.train_error(0, 2.0, 0.5)
    recorder.val_error(0, 4, 0.25, 0.1)
    reported = recorder.take()
    assert reported is not None
    assert reported == (3.0, 0.375)
    assert recorder.take() is None


def test_parts_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.5, 20.0, 20.25])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    recorder = IterationRecorder()
    for _ in range(2):
        recorder.start()
        recorder.end("calc")
    assert recorder.seconds == {"calc": 1.75}
    recorder.print_train_info(3)
    assert recorder.take() is None
