"""The output of mpirun, as Open MPI 5.0 prints it, without banners about ranks that have ended."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow.cluster.banners import WithoutBanners

DASHES = "-" * 74 + "\n"
STATUS = f"""{DASHES}prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-19791@1,1]
   Exit code:    2
{DASHES}"""
ABORTED = f"""{DASHES}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[6195,1],1]
  Errorcode: 1

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{DASHES}{DASHES}prterun has exited due to process rank 1 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
{DASHES}"""
KILLED = f"""{DASHES}prterun noticed that process rank 1 with PID 20040 on node vm exited on
signal 9 (Killed).
{DASHES}"""
SHORT_DASHES = "-" * 60 + "\n"
UNREACHABLE = f"""{SHORT_DASHES}A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable, or the executable was unable to find its
required supporting libraries. In some cases, the daemon was
able to execute, but was unable to complete a TCP connection
back to prterun:

  Local host:    vm
  Remote host:   node9
  Daemon exit status: 255

This may also be caused by a firewall on the remote host. Please
check that any firewall (e.g., iptables) has been disabled and
try again.
{SHORT_DASHES}"""
OTHER = f"""{DASHES}There are not enough slots available in the system to satisfy the 9
slots that were requested by the application:
{DASHES}"""
NOT_REACHED = "error: mpirun cannot start processes on node9: the remote shell has exit status 255"
LOST = "rank 1 (vm) was lost: its process was ended by signal 9 (Killed)"


def passed(*parts: str) -> tuple[str, list[str]]:
    """What is passed on, and said, of output that comes in these parts."""
    written, said = bytearray(), list[str]()
    banners = WithoutBanners(written.extend, said.append)
    for part in parts:
        banners.feed(part.encode())
    banners.end()
    return written.decode(), said


@pytest.mark.parametrize(
    ("output", "expected", "said"),
    [
        (f"error\n{STATUS}later\n", "error\nlater\n", []),
        (f"Traceback\n{ABORTED}", "Traceback\n", []),
        (KILLED, "", [LOST]),
        (KILLED.replace("node vm", "node\nvm"), "", [LOST]),
        (KILLED.replace("signal", "a signal"), KILLED.replace("signal", "a signal"), []),
        (STATUS, "", ["rank 1 has ended with exit status 2"]),  # nothing else says so
        (STATUS.replace("Exit code", "Code"), STATUS.replace("Exit code", "Code"), []),
        (OTHER, OTHER, []),
        (f"{UNREACHABLE}later\n", "later\n", [NOT_REACHED]),
        (UNREACHABLE.replace("Remote", "Other"), UNREACHABLE.replace("Remote", "Other"), []),
        (f"{DASHES}epoch  loss\n{DASHES}1  2\n", f"{DASHES}epoch  loss\n{DASHES}1  2\n", []),
        (f"progress {STATUS}", f"progress {STATUS}", []),  # not at the beginning of a line
        (STATUS[:-20], STATUS[:-20], []),
        (STATUS.replace("\n\n", "\n" * 20), STATUS.replace("\n\n", "\n" * 20), []),
        ("no end", "no end", []),
        (DASHES[:-1], DASHES[:-1], []),
        (f"error\n{ABORTED}\0", "error\n", []),
    ],
)
def test_banners_about_the_ends_of_ranks_are_left_out(output: str, expected: str, said: list[str]) -> None:
    assert passed(output) == (expected, said)
    assert passed(*output) == (expected, said), "one character at a time"


@given(st.lists(st.integers(0, 2000), max_size=6))
def test_the_parts_in_which_output_comes_do_not_matter(cuts: list[int]) -> None:
    output = f"a\n{STATUS}{OTHER}b\n{KILLED}{ABORTED}c"
    places = [0, *sorted(min(cut, len(output)) for cut in cuts), len(output)]
    assert passed(*(output[begin:end] for begin, end in pairwise(places))) == (f"a\n{OTHER}b\nc", [LOST])


def test_after_a_signal_only_a_loss_is_news() -> None:
    said, signals = list[str](), [15]
    banners = WithoutBanners(lambda output: None, said.append, signals)
    banners.feed(STATUS.encode())
    banners.feed(KILLED.encode())
    assert said == [LOST]
    assert banners.saw_ranks_end


def test_lines_are_passed_on_together() -> None:
    written: list[bytes] = []
    banners = WithoutBanners(written.append, lambda text: None)
    banners.feed(b"a\n" * 1000 + b"- b\nc\n" + STATUS.encode())
    assert written == [b"a\n" * 1000, b"- b\nc\n"]


def test_what_cannot_be_a_banner_is_passed_on_at_once() -> None:
    written = bytearray()
    banners = WithoutBanners(written.extend, lambda text: None)
    for part in ("50 %\r", "100 %\n", "- a list\n", f"{DASHES}a table"):
        banners.feed(part.encode())
    assert written.decode() == "50 %\r100 %\n- a list\n"
    banners.feed(b" of results\n12")
    assert written.decode().endswith(f"\n{DASHES}a table of results\n12")


def test_whether_ranks_have_ended_is_known() -> None:
    for output, seen in ((STATUS, True), (ABORTED, True), (KILLED, True), (OTHER, False), ("error\n", False)):
        banners = WithoutBanners(lambda content: None, lambda text: None)
        banners.feed(output.encode())
        assert banners.saw_ranks_end == seen
        assert not banners.saw_unreachable
    banners.feed(UNREACHABLE.encode())
    assert banners.saw_unreachable
