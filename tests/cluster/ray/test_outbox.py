"""Output on its way to the launcher."""

from __future__ import annotations

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
    outbox.put("text", error=False)
    thread.join(60)
    outbox.close()
    assert (found, outbox.take(60)) == ([([(False, "text")], True)], ([], False))


def test_a_thread_may_print_while_it_prints() -> None:
    """As a finaliser does that the garbage collector calls."""

    class Printing(Outbox):
        prints = True

        def put(self, text: str, *, error: bool) -> None:
            if self.prints:
                self.prints = False
                stream.write("nested\n")
            super().put(text, error=error)

    outbox = Printing()
    stream = OutboxStream(outbox, error=False)

    def write() -> None:
        stream.write("one\n")
        stream.write("two")
        outbox.prints = True
        stream.flush()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert outbox.take(0) == ([(False, "nested\none\nnested\ntwo")], True)


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
