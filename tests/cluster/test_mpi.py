"""Ranks that MPI connects: processes that mpirun starts."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.cluster import namespaces
from tests.support import same_weights

ROOT = Path(__file__).parents[2]
FOUND = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
MISSING = [name for name, there in (("mpi4py", importlib.util.find_spec("mpi4py")), ("mpirun", FOUND)) if not there]
NEEDS_MPI = pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}: pip install 'crossbow[mpi]'")


def environment() -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))},
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def mpirun(ranks: int, *command: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command of Python on this many ranks."""
    assert FOUND is not None
    line = [FOUND, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), sys.executable, *command]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=seconds, env=environment(), cwd=ROOT, check=False
    )


IN_TURN = """
import importlib, shlex, sys
for line in sys.argv[1:]:
    module, *arguments = shlex.split(line)
    assert importlib.import_module(module).main(arguments) == 0, line
"""
"""Runs several commands in one process, because processes take longer to start than the commands to run."""


def in_turn(ranks: int, *lines: str) -> str:
    """The output of several commands, such as "models.lenet --epochs 1", on the same ranks."""
    done = mpirun(ranks, "-c", IN_TURN, *lines, seconds=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def small_run(directory: Path, *more: str) -> list[str]:
    """A module and its arguments: 94 tasks an epoch of a model that trains in no time, on kernels that import
    nothing."""
    model = ["models.logistic_regression", "--kernels", "reference", "--batch-size", "16"]
    options = ["--dataset", "digits", "--learners", "1", "--epochs", "1"]
    return [*model, *options, "--output-directory", str(directory), *more]


EXCHANGE = """
import numpy as np
from crossbow import cluster
from crossbow.cluster.transport import Channel
from crossbow.cluster.sums import Waiting, tree
from tests.cluster.test_transport import check_messages
ranks = cluster.join()
transport = ranks.transport
assert ranks.gather(ranks.rank) == [0, 1]
assert ranks.agree(lambda: "first") == "first"
values = np.full(100_000, ranks.rank + 1, np.float32)
tree(transport, values, Waiting(seconds=20))
assert (values == 3).all()
received = np.zeros(100_000, np.float16)
pending = transport.receive_array(received, 1 - ranks.rank, Channel.PARTIAL)
sent = np.arange(100_000).astype(np.float16)
going = transport.send_array(sent, 1 - ranks.rank, Channel.PARTIAL)
Waiting(seconds=20).until(lambda: pending.done() and going.done(), "an array")
assert received.tobytes() == sent.tobytes()
if ranks.rank == 0:
    transport.send(b"hello", 1, Channel.REQUEST)
else:
    def arrived():
        global message
        message = transport.receive(Channel.REQUEST)
        return message is not None
    Waiting(seconds=20).until(arrived, "a message")
    assert message == (0, b"hello")
print(f"rank {cluster.rank} of {cluster.size}")
"""


def test_doctests() -> None:
    assert doctest.testmod(importlib.import_module("crossbow.cluster.mpi")).failed == 0


@NEEDS_MPI
def test_messages_arrays_and_sums() -> None:
    done = mpirun(2, "-c", EXCHANGE)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 of 2", "rank 1 of 2"]


@NEEDS_MPI
@pytest.mark.slow
def test_another_mpi_library_than_that_of_mpirun_is_noticed() -> None:
    """A process that finds no others, although its environment says that there are."""
    code = "from crossbow import cluster; cluster.join()"
    environment = {**os.environ, "PMI_RANK": "0", "PMI_SIZE": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    assert "expected an MPI library that finds the 7 processes that were started. Received: Open MPI" in done.stderr


ABSENT = """
import os, time
from crossbow import cluster
from crossbow.cluster import launch, mpi
if launch.launch_of(os.environ).rank == 1:
    time.sleep(100)
mpi.SECONDS_TO_START = 1.5
cluster.join()
"""


@NEEDS_MPI
@pytest.mark.slow
def test_a_rank_that_does_not_connect_is_not_awaited_for_ever() -> None:
    done = mpirun(3, "-c", ABSENT)
    assert done.returncode == 2
    assert ") waited 1.5 s for the other 2 of 3 ranks to connect" in done.stderr


FAILING = """
import os, signal, sys
from crossbow import cluster
ranks = cluster.join()
ranks.gather(0)
if ranks.rank == 1:
    print("begins", flush=True)
    if sys.argv[1] == "raise":
        raise ValueError("on purpose")
    os.kill(os.getpid(), signal.SIGKILL)
ranks.agree(lambda: ranks.gather(1))
"""


@NEEDS_MPI
@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [("raise", 1), ("kill", 137)])
def test_a_rank_that_fails_ends_all(how: str, status: int) -> None:
    began = time.monotonic()
    done = mpirun(3, "-c", FAILING, how)
    assert done.returncode == status
    assert done.stderr.count("ValueError: on purpose") == (how == "raise")
    assert time.monotonic() - began < 30


ENDING = """
import sys, time
from pathlib import Path
from crossbow import ExecutionContext, ModelConf, Monitor, Sequential, SystemConf, TrainingUnit, cluster
from crossbow.data import digits
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
from crossbow.synch import EASGD, SMA, DiLoCo, TwoLevel

how, path, rule = sys.argv[1], Path(sys.argv[3]), sys.argv[4]
here = cluster.rank == int(sys.argv[2])

def fail(*given):
    path.write_text(str(time.time()))
    ends = {"exit": SystemExit(5), "end": SystemExit(), "interrupt": KeyboardInterrupt()}
    raise ends.get(how, ValueError("on purpose"))

class Failing(Monitor):
    record = fail

data = digits()
if how == "before" and here:
    fail()
if how.startswith("data") and here:
    object.__setattr__(data.train, "write_images", fail)
network = Sequential(InnerProduct(10), SoftMax(), SoftMaxLoss())
rules = {"one": SMA(), "messages": SMA(), "two": TwoLevel(SMA(), DiLoCo(tau=5)), "free": EASGD()}
model = ModelConf(rule=rules[rule])
kernels = "auto" if how.startswith("data") else "reference"  # these import nothing
system = SystemConf(learners_per_device=1, shared_memory=rule != "messages", kernels=kernels)
monitors = [Failing()] if how == "monitor" else []
with ExecutionContext(network, data=data, model=model, system=system, monitors=monitors) as context:
    try:
        context.train(1)
    except Exception:
        if how != "data, caught" or not here:
            raise
        time.sleep(60)
    if how in ("after", "exit", "end", "interrupt") and here:
        fail()
    context.train(10**9, TrainingUnit.TASKS)
"""


@NEEDS_MPI
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "rank", "rule"),
    [
        ("before", 1, "one"),
        ("after", 2, "one"),
        ("exit", 1, "one"),
        ("end", 0, "one"),
        ("end", 1, "two"),
        ("end", 2, "free"),
        ("interrupt", 1, "one"),
        ("monitor", 0, "one"),
        ("data", 0, "one"),
        ("data", 1, "messages"),
        ("data", 1, "two"),
        ("data", 2, "free"),
        ("data, caught", 0, "free"),
        ("data, caught", 1, "one"),
        ("data, caught", 2, "two"),
    ],
)
def test_an_exception_anywhere_in_a_rank_ends_all(how: str, rank: int, rule: str, tmp_path: Path) -> None:
    """Within 5 seconds on an idle machine; the limit only catches a hang."""
    failed = tmp_path / "failed"
    done = mpirun(3, "-c", ENDING, how, str(rank), str(failed), rule)
    ended = time.time()
    assert failed.exists(), done.stderr
    seconds = ended - float(failed.read_text())
    print(f"ended {seconds:.2f} s after {how!r} on rank {rank} of 3")
    assert done.returncode == 1
    if how in ("before", "after", "monitor", "data"):
        mark = f"[rank {rank} {socket.gethostname()}] " if rank else ""
        assert done.stderr.count(f"\n{mark}ValueError: on purpose") == 1
    if how == "data, caught":
        assert "Traceback" not in done.stderr
        assert f"error: rank {rank} (" in done.stderr
        assert "failed: ValueError: on purpose" in done.stderr
    if how in ("exit", "end"):
        assert f"error: the program of rank {rank} " in done.stderr
    assert seconds < 50


GOING_ON = """
import sys
import numpy as np
from crossbow import ExecutionContext, ModelConf, Sequential, SystemConf, TrainingUnit, cluster
from crossbow.cluster.members import RankFailedError
from crossbow.data import digits
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
from crossbow.synch import EASGD, SMA, DiLoCo, Gossip, TwoLevel

rules = {
    "one": SMA(),
    "messages": SMA(),
    "two": TwoLevel(SMA(), DiLoCo(tau=5)),
    "free": EASGD(),
    "gossip": Gossip(),
}
for name, rule in rules.items():
    data, written, fails = digits(), [], True
    write = data.train.write_images

    def fail(*given):
        written.append(given)
        if fails and len(written) > 20 and cluster.rank == 1:
            raise ValueError("on purpose")
        return write(*given)

    object.__setattr__(data.train, "write_images", fail)
    network = Sequential(InnerProduct(10), SoftMax(), SoftMaxLoss())
    system = SystemConf(learners_per_device=1, shared_memory=name != "messages")
    for again in (False, True):
        with ExecutionContext(network, data=data, model=ModelConf(rule=rule), system=system) as context:
            try:
                context.train(2, verbose=0)
                assert again
            except (RankFailedError, ValueError, RuntimeError) as error:
                assert "on purpose" in str(error), error
                fails = False
            if again:
                sums = [float(each.sum()) for each in context.variables.values()]
                found = cluster.join().gather(sums)
                assert found[0] == found[1], found
                print(f"{name}: rank {cluster.rank} tested {context.test().examples}")
"""


@NEEDS_MPI
@pytest.mark.slow
def test_another_context_trains_after_a_failure_that_was_caught() -> None:
    """What was on its way between the ranks does not reach it."""
    done = mpirun(2, "-c", GOING_ON)
    assert done.returncode == 0, done.stderr
    for name in ("one", "messages", "two", "free", "gossip"):
        assert [done.stdout.count(f"{name}: rank {rank} tested 296\n") for rank in range(2)] == [1, 1], name


LOADING = """
import sys
from pathlib import Path
from crossbow import DataError, ExecutionContext, Sequential, SystemConf, cluster
from crossbow.cluster.members import RankFailedError
from crossbow.data import digits
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss

path = Path(sys.argv[1]) / f"{cluster.rank}.safetensors"
network, system = Sequential(InnerProduct(10), SoftMax(), SoftMaxLoss()), SystemConf(learners_per_device=1)
with ExecutionContext(network, data=digits(), system=system) as context:
    context.train(1, verbose=0)
    context.save(path)
    context.train(1, verbose=0)
    try:
        context.load(path if cluster.rank == 0 else path.with_name("missing"))
        raise AssertionError
    except (DataError, RankFailedError) as error:
        print(f"rank {cluster.rank}: {type(error).__name__}", flush=True)
    context.load(path)
    context.set_variables({name: value / 2 for name, value in context.variables.items()})
    context.train(1, verbose=0)
    sums = [float(each.sum()) for each in context.variables.values()]
    first, second = cluster.join().gather(sums)
    assert first == second
"""


@NEEDS_MPI
@pytest.mark.slow
def test_a_rank_that_cannot_load_a_model_fails_on_all(tmp_path: Path) -> None:
    done = mpirun(2, "-c", LOADING, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(text) for text in ("rank 0: RankFailedError", "rank 1: DataError")] == [1, 1]


KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
from crossbow import ExecutionContext, ModelConf, Sequential, SystemConf, TrainingUnit, cluster
from crossbow.data import digits
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
from crossbow.synch import EASGD, SMA, DiLoCo, TwoLevel

def die():
    while context.engine.tasks < 50:
        time.sleep(0.005)
    Path(sys.argv[2]).write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)

network = Sequential(InnerProduct(10), SoftMax(), SoftMaxLoss())
rule = {"one": SMA(), "two": TwoLevel(SMA(), DiLoCo(tau=5)), "free": EASGD()}[sys.argv[3]]
model, system = ModelConf(rule=rule), SystemConf(learners_per_device=1)
with ExecutionContext(network, data=digits(), model=model, system=system) as context:
    if cluster.rank == int(sys.argv[1]):
        threading.Thread(target=die, daemon=True).start()
    context.train(10**9, TrainingUnit.TASKS)
"""


@NEEDS_MPI
@pytest.mark.slow
@pytest.mark.parametrize(("rank", "levels"), [(0, "one"), (2, "one"), (1, "two"), (0, "free"), (1, "free")])
def test_a_rank_killed_in_training_ends_the_job(rank: int, levels: str, tmp_path: Path) -> None:
    """Within 5 seconds on an idle machine; the limit only catches a hang."""
    killed = tmp_path / "killed"
    done = mpirun(3, "-c", KILLED, str(rank), str(killed), levels)
    ended = time.time()
    assert killed.exists(), done.stderr
    seconds = ended - float(killed.read_text())
    assert done.returncode == 137
    print(f"ended {seconds:.2f} s after rank {rank} of 3 was killed")
    assert seconds < 60


@NEEDS_MPI
@pytest.mark.slow
def test_a_script_trains_on_two_ranks_and_resumes_on_three(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    done = mpirun(2, "-m", *small_run(directory))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 1/1") == 1
    assert "ranks    2 on" in done.stdout
    names = {path.name for path in directory.iterdir()}
    assert {"run.json", "log.jsonl", "model.safetensors", "checkpoints"} <= names
    done = mpirun(3, "-m", "crossbow", "resume", str(directory), "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert "after 94 tasks" in done.stdout
    assert "all learners begin at the base model" in done.stdout
    assert done.stdout.count("epoch 2/2") == 1


def lenet(directory: Path, learners: int) -> list[str]:
    """A module and its arguments: an epoch, whose bits depend on the number of all learners only."""
    options = ["--dataset", "digits", "--epochs", "1", "--threads-per-learner", "1", "--learners", str(learners)]
    return ["models.lenet", *options, "--output-directory", str(directory)]


def weights_in(directory: Path) -> dict[str, Any]:
    return load_file(directory / "model.safetensors")


@pytest.fixture(scope="module")
def of_one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """The weights of `lenet` in a single process, by its number of learners."""
    root = tmp_path_factory.mktemp("one")
    in_turn(1, *(shlex.join(lenet(root / str(learners), learners)) for learners in (2, 4)))
    return {learners: weights_in(root / str(learners)) for learners in (2, 4)}


@NEEDS_MPI
@pytest.mark.slow
def test_ranks_have_the_bits_of_one_process(of_one_process: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    kinds = {"shared": "", "sent": " --no-shared-memory"}
    lines = [
        shlex.join(lenet(tmp_path / f"{kind}-{learners}", learners)) + more
        for learners in (1, 2)
        for kind, more in kinds.items()
    ]
    text = in_turn(2, *lines)
    assert text.count("with shared memory") == 2
    for learners in (1, 2):
        assert f", with shared memory, sums in a chain; {2 * learners} learners together" in text
        for kind in kinds:
            assert same_weights(of_one_process[2 * learners], weights_in(tmp_path / f"{kind}-{learners}"))


@NEEDS_MPI
@pytest.mark.slow
def test_hosts_with_networks_of_their_own_have_the_bits_of_one_process(
    of_one_process: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    crossbow = [sys.executable, "-m", "crossbow", "launch", "--engine", "mpi"]
    with namespaces.hosts(2) as found:
        file, agent = tmp_path / "hosts", {"PRTE_MCA_plm_ssh_agent": namespaces.agent_for(found, tmp_path)}
        file.write_text("".join(f"{host.address} slots=1\n" for host in found))
        on_hosts = [*crossbow, "--hosts", str(file), "-m", *lenet(tmp_path / "run", 1), "--between", "none"]
        several = subprocess.run(
            on_hosts, capture_output=True, text=True, timeout=240, env=environment() | agent, cwd=ROOT, check=False
        )
    assert several.returncode == 0, several.stderr
    assert f"ranks    2 on {found[0].namespace}, {found[1].namespace}" in several.stdout
    assert same_weights(of_one_process[2], weights_in(tmp_path / "run"))


TUNED = """
import hashlib, sys
from crossbow import DurationUnit, ExecutionContext, ModelConf, Sequential, SystemConf, cluster
from crossbow.data import digits
from crossbow.ops import InnerProduct, SoftMax, SoftMaxLoss
from crossbow.runtime import tuner
from crossbow.synch import EASGD, SMA

tuner.WINDOW_SECONDS, tuner.WATCHED_SECONDS = 0.05, 1e9
network, system = Sequential(InnerProduct(10), SoftMax(), SoftMaxLoss()), SystemConf(threads_per_learner=1)
for name, rule in {"one": SMA(), "free": EASGD()}.items():
    decisions = []
    with ExecutionContext(network, data=digits(), model=ModelConf(rule=rule), system=system) as context:
        while context.summary().tuning:
            decisions += context.train_for_duration(0.5, DurationUnit.SECONDS, verbose=0).decisions
        context.train(1, verbose=0)
        assert context.summary().learners == 2 * decisions[-1].chosen
        weights = hashlib.sha256(b"".join(each.tobytes() for each in context.variables.values())).hexdigest()
        first, second = cluster.join().gather([list(map(str, decisions)), weights])
        assert first == second
        if cluster.rank == 0:
            print(f"{name}: {decisions[-1]}")
"""


@NEEDS_MPI
@pytest.mark.slow
def test_the_ranks_find_one_number_of_learners() -> None:
    done = mpirun(2, "-c", TUNED)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+): \d+ learners on each of 2 devices: ", done.stdout, re.MULTILINE) == ["one", "free"]


@NEEDS_MPI
@pytest.mark.slow
def test_rules_without_a_barrier_and_with_two_levels(tmp_path: Path) -> None:
    """Their runs, and the continuation of those without a barrier on another number of ranks."""
    rules = ("async", "easgd", "ssp", "hogwild", "gossip")
    more = ("--epochs", "2", "--learning-rate", "0.01")
    runs = [small_run(tmp_path / rule, *more, "--rule", rule) for rule in rules]
    two_levels = small_run(tmp_path / "two", *more, "--between", "model-averaging:tau=8")
    text = in_turn(2, *map(shlex.join, [*runs, two_levels]))
    assert text.count("epoch 2/2") == text.count("with 2 learners") == len(rules) + 1
    assert "between ranks model-averaging, tau 8, an average every 16 tasks" in text
    for rule in rules:
        records = [json.loads(line) for line in (tmp_path / rule / "log.jsonl").read_text().splitlines()]
        first, last = (record["loss"] for record in records if "loss" in record)
        assert last < first, rule
    resumed = (["crossbow.cli", "resume", str(tmp_path / rule), "--epochs", "3"] for rule in rules)
    text = in_turn(3, *map(shlex.join, resumed))
    assert text.count("all learners begin at the base model") == text.count("epoch 3/3") == len(rules)


@NEEDS_MPI
@pytest.mark.slow
@pytest.mark.parametrize("name", ["seed", "--epochs"])
def test_a_difference_between_ranks_is_one_sentence(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from crossbow import cluster\n"
        "from models import lenet\n"
        "number = '5' if cluster.rank else '4'\n"
        "sys.exit(lenet.main(['--dataset', 'digits', '--output-directory', sys.argv[1], sys.argv[2], number]))\n"
    )
    done = mpirun(2, str(script), str(tmp_path / "run"), f"--{name.removeprefix('--')}")
    assert done.returncode == 2
    expected = f"{name} must be the same on all ranks: expected 4, as on rank 0"
    assert done.stderr.count(expected) == 1
    assert not list((tmp_path / "run").glob("checkpoints/*"))


@NEEDS_MPI
@pytest.mark.slow
@pytest.mark.parametrize("interval", ["10tasks", "1000tasks"])
def test_after_a_loss_a_launcher_begins_again(interval: str, tmp_path: Path) -> None:
    """From the newest checkpoint or, before the first one, from the beginning."""
    launch = ["crossbow", "launch", "--engine", "mpi", "-n", "2", "--restarts", "1", "-m"]
    done = subprocess.run(
        [sys.executable, "-m", *launch, *small_run(tmp_path / "run", "--checkpoint-interval", interval)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment(), "CROSSBOW_FAULT": "kill:1@20"},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the program begins again, from its newest checkpoint if there is one") == 1
    assert ("no checkpoint, so the run begins again" in done.stdout) == (interval == "1000tasks")
    assert ("resumed from" in done.stdout) == (interval == "10tasks")
    assert done.stdout.count("epoch 1/1") == 1
