"""Output on its way to the launcher."""

from __future__ import annotations

import gc
import sys
import threading

from crossbow.cluster.ray.outbox import Outbox, OutboxStream


def test_texts_are_taken_once_and_in_order() -> None:
    outbox = Outbox()
    out, err = OutboxStream(outbox, error=False), OutboxStream(outbox, error=True)
    print("one", "two", file=out)
    print("wrong", file=err, end="", flush=True)
    assert outbox.take(60) == ([(False, "one two\n"), (True, "wrong")], True)
    assert outbox.take(0) == ([], True)
    assert (out.encoding, out.isatty()) == ("utf-8", False)


def test_who_waits_is_woken() -> None:
    outbox, found = Outbox(), []
    thread = threading.Thread(target=lambda: found.append(outbox.take(60)))
    thread.start()
    outbox.write("text\n", error=False)
    thread.join(60)
    outbox.close()
    assert (found, outbox.take(60)) == ([([(False, "text\n")], True)], ([], False))


def test_a_finaliser_may_print_at_any_place() -> None:
    """The garbage collector calls it in a thread that prints or takes."""
    outbox, lines, taken = Outbox(), 3_000, []
    stream = OutboxStream(outbox, error=False)

    class Finalised:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            stream.write("finaliser\n")

    def write() -> None:
        for number in range(lines):
            Finalised()
            stream.write(f"{number}\n")
        stream.flush()
        outbox.close()

    def take() -> None:
        more = True
        while more:
            texts, more = outbox.take(0.01)
            taken.extend(text for _, text in texts)

    threads = [threading.Thread(target=work, daemon=True) for work in (write, take)]
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(5)
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
    found = "".join(taken).splitlines()
    assert [line for line in found if line != "finaliser"] == [str(number) for number in range(lines)]
    assert "finaliser" in found


def test_unfinished_lines_wait_for_their_end_or_a_flush() -> None:
    outbox = Outbox()
    stream = OutboxStream(outbox, error=False)
    print("one\ntwo", file=stream, end="")
    assert outbox.take(0) == ([(False, "one\n")], True)
    print(" and half", file=stream)
    assert outbox.take(0) == ([(False, "two and half\n")], True)
    print("three", file=stream, end="")
    stream.flush()
    stream.flush()
    assert outbox.take(0) == ([(False, "three")], True)
