"""What a rank prints, until the launcher takes it."""

from __future__ import annotations

import io
import threading


class Outbox:
    """Texts for the launcher's standard streams."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._texts: list[tuple[bool, str]] = []
        self._closed = False

    def put(self, text: str, *, error: bool) -> None:
        """Add a text. error: whether it is for standard error."""
        with self._changed:
            if self._texts and self._texts[-1][0] == error:
                text = self._texts.pop()[1] + text
            self._texts.append((error, text))
            self._changed.notify()

    def close(self) -> None:
        """Nothing will be added any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, seconds: float) -> tuple[list[tuple[bool, str]], bool]:
        """The texts that were added, and whether more may follow. Waits up to these seconds until there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self._closed, seconds)
            texts, self._texts = self._texts, []
            return texts, not self._closed


class OutboxStream(io.TextIOBase):
    """A text stream that writes to an outbox. An unfinished line waits for its end or a flush: what several ranks print
    at the same time stays in lines."""

    def __init__(self, outbox: Outbox, *, error: bool) -> None:
        self._outbox, self._error = outbox, error
        # A thread may write while it writes: what the garbage collector ends prints, too.
        self._lock, self._unfinished = threading.RLock(), ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def write(self, text: str) -> int:
        with self._lock:
            lines, end, self._unfinished = (self._unfinished + text).rpartition("\n")
            self._put(lines + end)
        return len(text)

    def flush(self) -> None:
        with self._lock:
            text, self._unfinished = self._unfinished, ""
            self._put(text)

    def _put(self, text: str) -> None:
        if text:
            self._outbox.put(text, error=self._error)
