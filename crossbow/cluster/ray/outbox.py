"""What a rank prints, until the launcher takes it."""

from __future__ import annotations

import io
import itertools
import threading


class Outbox:
    """Texts for the launcher's standard streams. An unfinished line waits for its end or a flush: what several ranks
    print at the same time stays in lines."""

    def __init__(self) -> None:
        # One lock for all, which a thread may take again: what the garbage collector ends prints, at any place.
        self._changed = threading.Condition(threading.RLock())
        self._texts: list[tuple[bool, str]] = []
        self._unfinished = {False: "", True: ""}
        """By whether it is for standard error."""
        self._closed = False

    def write(self, text: str, *, error: bool) -> None:
        """Add a text. error: whether it is for standard error."""
        with self._changed:
            # The line is taken before it is changed, so that what is printed meanwhile stands before it or after it.
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
        """Nothing will be added any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, seconds: float) -> tuple[list[tuple[bool, str]], bool]:
        """The texts that were added, and whether more may follow. Waits up to these seconds until there is one."""
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
