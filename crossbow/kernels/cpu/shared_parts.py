"""Work in parts, which several threads take one after the other in compiled code.

The parts of a prediction take between ten microseconds and a second. Passing a part to another thread through Python
takes 10 to 17 µs, and a thread that has been woken may have to wait for a core. So threads *take* parts from one
counter, and no part is assigned to a thread in advance; a late thread finds no part left. After a job, a helper listens
for the next one for about 100 µs before it sleeps.

A helper's mailbox holds the address of a job, or one of three states::

    AWAY ──post, wake──► job ──take──► BUSY ──done──► READY ──post──► job …
      ▲                   └────────withdraw────────────►│
      └─────────────── nothing for a while ─────────────┘

The thread that owns the job also takes parts. It then waits until all taken parts are done, and withdraws the job from
helpers that have not noticed it yet. If there is only one part, its *independent calls* form a job instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from crossbow.kernels.compiled import (
    NativeFunction,
    call_address,
    compare_exchange,
    copy_bytes,
    fetch_add,
    inlined,
    int64_at,
    load_acquire,
    native,
    pause,
    run_row,
    run_rows,
    store_release,
)
from crossbow.kernels.cpu.passes.flags import SLEEP_MICROSECONDS, SPINS, YIELDS, resting_functions
from crossbow.kernels.cpu.threads import team_functions
from crossbow.kernels.native import ARGUMENTS, prototype
from crossbow.kernels.task_list import Table
from crossbow.types import Array, address

AWAY, READY, BUSY = -1, 0, -2
"""States of a mailbox: its thread sleeps (AWAY), listens or is waking up (READY), or computes parts (BUSY)."""
LISTENING = 5000
"""Number of checks of the mailbox before a helper sleeps, which take about 100 µs."""

NEXT, DONE, COUNT, OF_CALLS, ROWS, STATUS, FAILED, WORKER = 0, 8, *range(16, 22)
INPUTS, OUTPUTS, INPUT_BYTES, OUTPUT_BYTES, SCHED_YIELD, USLEEP, GET_THREADS, SET_THREADS, JOB = range(22, 31)
"""Positions in the memory of a job. NEXT, the number of the next part, and DONE have separate cache lines. OF_CALLS:
whether the rows are calls instead of parts. STATUS: status of the failed part or call. FAILED: its number. WORKER:
address of the programs of the thread that computed it. GET_THREADS, SET_THREADS: OpenMP's functions, or 0."""
FIRST, ITEMS, PROGRAM, CALL, PART_ROW = range(5)
"""Positions in the row of a part: its first input, its number of inputs, its program, and the call that failed."""
TABLE, CALLS, TOGETHER, SOURCE, TARGET, PROGRAM_ROW = range(6)
"""Positions in the row of a program: its calls, the numbers of independent ones (`Table.together`), and the addresses
of its inputs and outputs."""
NONE_LEFT = 2**40
"""Value of NEXT in a job that has ended."""


class JobPart(NamedTuple):
    """A part of a job: the inputs first … first + items − 1, and the number of the program that computes them."""

    first: int
    items: int
    program: int


class FailedCall(NamedTuple):
    """A native call of a part that did not return 0."""

    part: int
    worker: Programs
    call: int
    status: int


class Programs:
    """The programs of one thread, each with its own memory."""

    def __init__(self, number: int) -> None:
        """number: number of programs."""
        self._rows = np.zeros((number, PROGRAM_ROW), np.int64)
        self._calls = np.zeros(JOB, np.int64)
        self._calls[NEXT], self._calls[OF_CALLS] = NONE_LEFT, 1
        self._calls[SCHED_YIELD], self._calls[USLEEP] = resting_functions()
        self.address = address(self._rows)
        self.calls = address(self._calls)
        """Address of the memory of a job of independent calls of one of these programs."""
        self._references: dict[int, tuple[object, ...]] = {}

    def __contains__(self, number: int) -> bool:
        """Whether the program has been set."""
        return number in self._references

    def set(self, number: int, table: Table, source: Array, target: Array) -> None:
        """Define a program. source, target: the contiguous arrays of its inputs and outputs."""
        self._references[number] = table, source, target
        self._rows[number] = (table.rows, table.calls, address(table.together), address(source), address(target))


class JobPlan:
    """The division into parts of the computation of outputs from inputs."""

    def __init__(self, parts: Sequence[JobPart], input_bytes: int, output_bytes: int) -> None:
        """input_bytes, output_bytes: sizes of one item."""
        self.parts = tuple(parts)
        self._memory = memory = np.zeros(JOB + PART_ROW * len(parts), np.int64)
        memory[COUNT], memory[INPUT_BYTES], memory[OUTPUT_BYTES] = len(parts), input_bytes, output_bytes
        memory[SCHED_YIELD], memory[USLEEP] = resting_functions()
        memory[GET_THREADS], memory[SET_THREADS] = team_functions()
        memory[JOB:].reshape(-1, PART_ROW)[:, : len(JobPart._fields)] = parts

    def job(self, inputs: Array, outputs: Array) -> Job:
        """The job that computes these outputs. Both are contiguous arrays."""
        return Job(self._memory.copy(), inputs, outputs)


class Job:
    """Inputs and outputs, and the parts of the computation."""

    def __init__(self, memory: Array, inputs: Array, outputs: Array) -> None:
        """memory: memory from a plan, which this job may change."""
        self._references = inputs, outputs
        self._memory, self.address = memory, address(memory)
        memory[ROWS], memory[INPUTS], memory[OUTPUTS] = self.address + 8 * JOB, address(inputs), address(outputs)

    def again(self) -> Job:
        """The same job, to be run again. No helper may have worked on it, as in a job with a single part."""
        self._memory[NEXT] = self._memory[DONE] = 0
        return self

    def run(self, own: Programs, helpers: Sequence[Helper] = ()) -> FailedCall | None:
        """Compute all parts on this thread and on the helpers' threads. If there is only one part, the first helper
        takes some of its independent calls. Returns a failure, after which no further part is begun. own: this thread's
        programs."""
        if self._memory[COUNT] == 1:
            mailbox = helpers[0].prepare(own) if helpers else 0
            status = _function(compute_alone)(self.address, own.address, own.calls, mailbox)
        else:
            mailboxes = np.array([helper.mailbox for helper in helpers if helper.post(self)], np.int64)
            status = _function(compute_parts)(self.address, own.address, address(mailboxes), len(mailboxes))
        return self._failure((own, *(helper.programs for helper in helpers))) if status else None

    def _failure(self, programs: Sequence[Programs]) -> FailedCall:
        memory = self._memory
        part = int(memory[FAILED])
        call = int(memory[JOB + PART_ROW * part + CALL])
        worker = next(each for each in programs if each.address == memory[WORKER])
        return FailedCall(part, worker, call, int(memory[STATUS]))


class Helper:
    """A thread that takes parts of the jobs that are posted to it. Only one thread at a time may post."""

    def __init__(self, programs: Programs, submit: Callable[[Callable[[], None]], object]) -> None:
        """programs: programs of this thread. submit: runs a function on the thread."""
        self.programs = programs
        self._submit = submit
        self._memory = np.full(1, AWAY, np.int64)
        self.mailbox = address(self._memory)
        self._posted: object = None
        """The job that was posted last, or the programs whose calls were posted. It must live until the thread has
        finished with it."""

    def post(self, job: Job) -> bool:
        """Offer a job to the thread, and wake it if it sleeps. Returns whether the thread may help."""
        return self._put(job, job.address)

    def prepare(self, programs: Programs) -> int:
        """Wake the thread if it sleeps, for independent calls of these programs. Returns the address of the mailbox; 0
        if the thread cannot help."""
        return self.mailbox if self._put(programs, READY) else 0

    def _put(self, references: object, content: int) -> bool:
        if self._memory[0] == BUSY:
            return False
        before, self._posted = self._posted, references
        state = _function(post_job)(self.mailbox, content, 0, 0)
        if state == BUSY:
            self._posted = before
        elif state == AWAY:
            self._submit(self._serve)
        return state != BUSY

    def _serve(self) -> None:
        _function(serve)(self.mailbox, self.programs.address, LISTENING, 0)


@functools.cache
def _function(compiled: NativeFunction) -> Callable[..., int]:
    return prototype()(compiled.address)


@inlined
def _begin_part(job: Any, part: Any, program: Any) -> None:
    """Copy a part's inputs to the memory of its program, unless they are already there."""
    memory = int64_at(job)
    source = memory[INPUTS] + part[FIRST] * memory[INPUT_BYTES]
    if source != program[SOURCE]:
        copy_bytes(program[SOURCE], source, part[ITEMS] * memory[INPUT_BYTES])


@inlined
def _end_part(job: Any, part: Any, program: Any) -> None:
    """Copy a part's outputs from the memory of its program, unless they are already in place."""
    memory = int64_at(job)
    target = memory[OUTPUTS] + part[FIRST] * memory[OUTPUT_BYTES]
    if target != program[TARGET]:
        copy_bytes(target, program[TARGET], part[ITEMS] * memory[OUTPUT_BYTES])


@inlined
def _take(job: Any, programs: Any) -> None:
    """Compute parts, or make calls, until none is left. After a failure, no further one is begun."""
    memory = int64_at(job)
    while True:
        number = fetch_add(job + 8 * NEXT, 1)
        if number >= memory[COUNT]:
            return
        if memory[OF_CALLS] != 0:
            status = run_row(memory[ROWS], number * (1 + ARGUMENTS))
        else:
            place = memory[ROWS] + 8 * PART_ROW * number
            part = int64_at(place)
            program = int64_at(programs + 8 * PROGRAM_ROW * part[PROGRAM])
            _begin_part(job, part, program)
            status = run_rows(program[TABLE], program[CALLS], place + 8 * CALL)
            if status == 0:
                _end_part(job, part, program)
        done = np.int64(1)
        if status != 0:
            # The parts that no thread has taken count as done.
            done += max(np.int64(0), memory[COUNT] - fetch_add(job + 8 * NEXT, memory[COUNT]))
            memory[STATUS], memory[FAILED], memory[WORKER] = status, number, programs
        fetch_add(job + 8 * DONE, done)


@inlined
def _wait(job: Any) -> None:
    """Wait until all parts are done."""
    memory, rounds = int64_at(job), 0
    while load_acquire(job + 8 * DONE) < memory[COUNT]:
        rounds += 1
        if rounds <= SPINS:
            pause()
        elif rounds <= SPINS + YIELDS:
            call_address(memory[SCHED_YIELD], 0, 0, 0, 0)
        else:
            call_address(memory[USLEEP], SLEEP_MICROSECONDS, 0, 0, 0)


@inlined
def _use_threads(job: Any, threads: Any) -> Any:
    """Set this thread's team size to that for which the programs were compiled. Returns the previous size."""
    memory = int64_at(job)
    if memory[GET_THREADS] == 0:
        return np.int64(threads)
    before = np.int64(call_address(memory[GET_THREADS], 0, 0, 0, 0))
    if before != threads:
        call_address(memory[SET_THREADS], threads, 0, 0, 0)
    return before


@native
def compute_parts(job_address: int, programs: int, mailboxes: int, helpers: int) -> int:
    """Compute parts, wait for the parts that helpers have taken, and withdraw the job. Returns the status of a
    failure."""
    job = np.int64(job_address)
    before = _use_threads(job, np.int64(1))
    _take(job, np.int64(programs))
    _use_threads(job, before)
    _wait(job)
    for index in range(np.int64(helpers)):
        compare_exchange(int64_at(mailboxes)[index], job, np.int64(READY))
    status: int = int64_at(job)[STATUS]
    return status


@inlined
def _call_together(calls: Any, rows: Any, count: Any, mailbox: Any) -> Any:
    """Make independent calls, with a helper if it listens. Returns the status of a failure."""
    memory = int64_at(calls)
    memory[ROWS], memory[COUNT], memory[DONE], memory[STATUS] = rows, count, 0, 0
    store_release(calls + 8 * NEXT, np.int64(0))
    compare_exchange(mailbox, np.int64(READY), calls)
    _take(calls, np.int64(0))
    _wait(calls)
    store_release(calls + 8 * NEXT, np.int64(NONE_LEFT))  # for a helper that is late, while the next calls are entered
    compare_exchange(mailbox, calls, np.int64(READY))
    return memory[STATUS]


@inlined
def _run_rows_together(program: Any, calls: Any, mailbox: Any, failed: int) -> Any:
    """Make the calls of a program, with a helper for independent calls. Returns the status of a failure; the number of
    the failed call is at the address `failed`."""
    together = int64_at(program[TOGETHER])
    index = np.int64(0)
    while index < program[CALLS]:
        rows, count = program[TABLE] + 8 * (1 + ARGUMENTS) * index, together[index]
        if count == 1:
            status, number = np.int64(run_row(rows, 0)), index
        else:
            status = _call_together(calls, rows, count, mailbox)
            number = index + int64_at(calls)[FAILED]
        if status != 0:
            int64_at(failed)[0] = number
            return status
        index += count
    return np.int64(0)


@native
def compute_alone(job_address: int, programs: int, calls: int, mailbox: int) -> int:
    """Compute the only part. Returns the status of a failure."""
    job = np.int64(job_address)
    memory = int64_at(job)
    part = int64_at(memory[ROWS])
    program = int64_at(np.int64(programs) + 8 * PROGRAM_ROW * part[PROGRAM])
    failed = memory[ROWS] + 8 * CALL
    before = _use_threads(job, np.int64(1))
    _begin_part(job, part, program)
    status: int = 0
    if mailbox == 0:
        status = run_rows(program[TABLE], program[CALLS], failed)
    else:
        status = _run_rows_together(program, np.int64(calls), np.int64(mailbox), failed)
    if status == 0:
        _end_part(job, part, program)
    memory[STATUS], memory[FAILED], memory[WORKER] = status, 0, np.int64(programs)
    _use_threads(job, before)
    return status


@native
def post_job(mailbox_address: int, job: int, _2: int, _3: int) -> int:
    """Put a job into a mailbox that is READY or AWAY. Returns the previous state; BUSY if it was another one."""
    mailbox = np.int64(mailbox_address)
    if compare_exchange(mailbox, np.int64(READY), np.int64(job)):
        return READY
    if compare_exchange(mailbox, np.int64(AWAY), np.int64(job)):
        return AWAY
    return BUSY


@native
def serve(mailbox_address: int, programs: int, checks: int, _3: int) -> int:
    """Take parts of every job that is posted, until none has been posted for a number of checks."""
    mailbox, idle = np.int64(mailbox_address), 0
    while True:
        job = load_acquire(mailbox)
        if job > 0:
            if compare_exchange(mailbox, job, np.int64(BUSY)):
                _take(job, np.int64(programs))
                store_release(mailbox, np.int64(READY))
                idle = 0
            continue
        idle += 1
        if idle >= np.int64(checks) and compare_exchange(mailbox, np.int64(READY), np.int64(AWAY)):
            return 0
        pause()
