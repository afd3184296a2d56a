"""The output of a rank, until the launcher takes it."""

from __future__ import annotations

import io
import itertools
import threading


class Outbox:
    """Texts for the launcher's standard streams. An unfinished line waits for its end or a flush, so that the lines of
    several ranks are not mixed."""

    def __init__(self) -> None:
        # One reentrant lock for all: the garbage collector may run code that prints at any point.
        self._changed = threading.Condition(threading.RLock())
        self._texts: list[tuple[bool, str]] = []
        self._unfinished = {False: "", True: ""}
        """The unfinished line of standard output (False) and of standard error (True)."""
        self._closed = False

    def write(self, text: str, *, error: bool) -> None:
        """Add a text. error: whether it is for standard error."""
        with self._changed:
            # The line is removed before it is changed, so that a text printed meanwhile stands before it or after it.
            begun, self._unfinished[error] = self._unfinished[error], ""
            lines, end, unfinished = (begun + text).rpartition("\n")
            self._add(lines + end, error)
            self._unfinished[error] += unfinished

    def flush(self, *, error: bool) -> None:
        """Add the unfinished line as it is."""
        with self._changed:
            begun, self._unfinished[error] = self._unfinished[error], ""
            self._add(begun, error)

    def close(self) -> None:
        """Record that no more texts will be added."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, seconds: float) -> tuple[list[tuple[bool, str]], bool]:
        """The new texts, and whether more may follow. Waits up to `seconds` for the first one."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self._closed, seconds)
            texts, self._texts = self._texts, []
            more = not self._closed
        streams = itertools.groupby(texts, key=lambda each: each[0])
        return [(error, "".join(text for _, text in group)) for error, group in streams], more

    def _add(self, text: str, error: bool) -> None:
        if text:
            self._texts.append((error, text))
            self._changed.notify()


class OutboxStream(io.TextIOBase):
    """A text stream that writes to an outbox."""

    def __init__(self, outbox: Outbox, *, error: bool) -> None:
        self._outbox, self._error = outbox, error

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def write(self, text: str) -> int:
        self._outbox.write(text, error=self._error)
        return len(text)

    def flush(self) -> None:
        self._outbox.flush(error=self._error)
