"""`ModelConf` and `SystemConf`: batch, rule and tests, and devices and arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossbow.conf import Domain, configuration, refuse, setting
from crossbow.domains import Choice, EnumMember, Flag, Integer, Names, Number
from crossbow.synch import Rule, RuleSequence, TwoLevel
from crossbow.types import TrainingUnit

FILES_TOGETHER = 8
"""Default of `SystemConf.files_together`: ten thousand images of ImageNet, in a thousand files."""


@configuration
class ModelConf:
    """The batch, the rule that combines the learners, and how often to test.

    Fixed from the original: the rule works with any number of learners and devices (SMA and S-SGD needed two GPUs).
    """

    batch_size: int = setting(Integer(at_least=1), default=32)
    """Examples in the batch of one learner."""
    rule: Rule | RuleSequence | TwoLevel | None = None
    """The rule that combines replicas and base model, a sequence of rules, or a rule within ranks and one between them;
    None is SMA(alpha=1/k) with k learners."""
    wpc: int | None = setting(Integer(at_least=1, optional=True), default=None, meaning="k · τ")
    """Tasks in a clock tick, with k learners; a multiple of k under a rule with a barrier."""
    slack: int | None = setting(Integer(at_least=0, optional=True), default=None, meaning="as many as the rule allows")
    """Rules without a barrier: number of ticks by which a task may precede the oldest unfinished one.

    A tick has `wpc` tasks. None or 0 under a rule with a barrier."""
    local_variables: tuple[str, ...] = setting(Names("*norm*"), default=(), meaning="none")
    """Names or patterns, as *norm*, of variables that every learner keeps to itself.

    They are never exchanged, and z has the learners' mean. The rule must let learners apply their own steps."""
    skip: float = setting(Number(at_least=0, below=1), default=0.0)
    """Rules by which learners add to z one by one: probability with which each variable is left out of a merge."""
    restart: bool = setting(Flag(), default=True)
    """step, multistep, lsr: whether learners restart from the base model, with zero velocity, when the learning rate
    steps down."""
    test_interval: int = setting(Integer(at_least=1), default=1)
    """Epochs or tasks between two tests, by `test_interval_unit`."""
    test_interval_unit: TrainingUnit = setting(EnumMember(TrainingUnit), default=TrainingUnit.EPOCHS)
    """Unit of `test_interval`; tasks are rounded up to whole ticks."""
    check_batch_size: int | None = setting(
        Integer(at_least=1, optional=True), default=None, meaning="the larger of the batch size and 64"
    )
    """Examples in a test batch.

    It changes speed, not results."""

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule | RuleSequence | TwoLevel | None):
            raise refuse(self, "rule", self.rule, "a rule of crossbow.synch, as SMA(alpha=0.5), or None")


@dataclass(frozen=True)
class Devices(Domain):
    """Names of devices, in a sequence or in a string that is separated by commas."""

    @property
    def allowed(self) -> str:
        return "'cpu', 'cpu:i/n', 'cuda', 'cuda:i', or several separated by commas"

    @property
    def placeholder(self) -> str:
        return "LIST"

    def canonical(self, value: Any) -> tuple[str, ...]:
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not names:
            raise ValueError(value)
        if not all(isinstance(name, str) and name.strip() for name in names):
            raise ValueError(value)
        return tuple(name.strip() for name in names)

    def read(self, text: str) -> tuple[str, ...]:
        return self.canonical(text)


@configuration
class SystemConf:
    """The devices to run on, the loading of batches, and the arithmetic.

    Fixed from the original: the seed is used, and every accepted option has an effect.
    """

    devices: str | Sequence[str] = setting(Devices(), default="cpu")
    """cpu (all cores), slices of the cores as cpu:0/2,cpu:1/2, or NVIDIA GPUs as cuda:0,cuda:1; cuda is one GPU."""
    learners_per_device: int | str = setting(Integer(at_least=1, word="auto"), default="auto", option="learners")
    """Learners on each device; auto begins with one per core, four per GPU, and finds the fastest number in training.

    Auto needs a single rule, no sequence, and devices with equally many cores, on all ranks. It does not search with
    `deterministic`. Its result depends on timing; to repeat a run, use the numbers
    in `History.decisions`."""
    threads_per_learner: int | None = setting(
        Integer(at_least=1, optional=True), default=None, meaning="their cores, shared among their learners"
    )
    """Threads of a learner on CPU devices; the weights' last bits depend on their number.

    Sums of several threads differ from those of one, and with one thread more convolutions use Winograd's algorithm.
    Set it if runs on machines with different numbers of cores must have the same bits. None on GPUs."""
    kernels: str = setting(Choice(("auto", "reference", "compiled", "onednn")), default="auto")
    """Kernel library; auto: the fastest that works; reference: NumPy; compiled: without oneDNN, one thread per learner;
    onednn: the fast CPU kernels, or an error."""
    precision: str = setting(Choice(("float32", "tf32", "bfloat16", "float16", "float64")), default="float32")
    """Type of weights and arithmetic; float64 needs the reference kernels, on the CPU; tf32, bfloat16 and float16 need
    the tensor cores of a GPU.

    * "tf32": float32, but factors of convolutions and matrix products may be rounded to 10 mantissa bits.
    * "bfloat16" and "float16": tensors between convolutions, matrix products, batch norms, ReLUs, poolings and similar
      operators have 16 bits, with 7 or 10 mantissa bits; so do the gradients of these operators' variables. Sums inside
      an operator, losses, custom operators, the arithmetic of solver and rule, weights and running statistics are
      float32. float16's gradients have a loss scale, which each learner adapts from its first task on; if a task's
      gradient overflows, it counts as zero (momentum and weight decay still apply), and averaging is unchanged."""
    winograd: bool = setting(Flag(), default=True)
    """Whether convolutions may use Winograd's algorithm, whose rounding errors are larger.

    The fast CPU kernels use it for windows of 3×3 and 5×5, in learners with one thread, if it is faster. Its rounding
    errors are five to ten times those of a direct convolution, and depend on whole tiles of the input instead of a
    window (docs/numerics.md). Other kernels, and GPUs, are not affected."""
    deterministic: bool = setting(Flag(), default=False)
    """Whether a GPU computes the same bits in every run with the same seed, under a rule with a barrier.

    Convolution algorithms are then selected in a fixed order of preference instead of by timing. On the CPU this is
    always so, under such a rule and with a fixed number of learners; "auto" then keeps its first number. Model
    scripts then choose one level for ranks."""
    seed: int = setting(Integer(at_least=0), default=0)
    """Seed of all random numbers: initial weights, order of the examples, dropout.

    Under a rule with a barrier, runs with the same seed, learners on each device and threads per learner produce the
    same bits; under a rule without one, weights also depend on timing."""
    sum_order: str = setting(Choice(("auto", "chain", "tree")), default="auto")
    """Order of sums over several CPU devices or ranks; chain: that of the learners, however they are distributed; tree:
    devices and ranks add up their own first; auto: chain for up to 16 ranks.

    A chain passes the unfinished sum from rank to rank, which takes longer the more ranks there are. In a tree, the
    bits depend on the numbers of learners on each device and rank."""
    shared_memory: bool = setting(Flag(), default=True)
    """Whether the ranks of one host combine their learners' vectors in shared memory instead of sending messages.

    It applies to CPUs under MPI, if all ranks run on one host with Linux, each with one device and compiled kernels,
    and the rule has a barrier and one level. They then add up as in a chain, for any `sum_order`."""
    servers: int = setting(Integer(at_least=1), default=1)
    """Rules without a barrier, across ranks: number of servers, the first ranks, each of which has a part of z.

    They share the work of rank 0: each merges its part of every contribution, and replies to all learners. With fewer
    ranks, all of them are servers. The number must be 1 under other rules, and if sent gradients are clipped."""
    loader_threads: int = setting(Integer(at_least=1, at_most=256), default=1)
    """Threads that load batches ahead of the learners; their number does not change results.

    Each fills one batch at a time. Training and testing each have this number of threads, but only one of the two loads
    at a time."""
    order: str = setting(Choice(("examples", "files")), default="examples")
    """Order of the training examples in an epoch; examples: all are shuffled; files: files are shuffled, then the
    examples in groups of `files_together` files, for data larger than memory on slow disks."""
    files_together: int | None = setting(
        Integer(at_least=1, optional=True), default=None, meaning=f"{FILES_TOGETHER}, with order files"
    )
    """order files: number of files whose examples are shuffled together; all of them should fit into memory."""
    on_bad_record: str = setting(Choice(("error", "skip")), default="error")
    """Handling of examples that cannot be decoded; error: training ends; skip: the next example of the epoch's order
    takes the place of a bad one.

    A test leaves bad examples out: they do not count in loss and accuracy. If all examples are bad, training or the
    test ends with an error."""
    graphs: bool = setting(Flag(), default=True)
    """Whether a GPU's work is captured and launched as CUDA graphs; else call by call, with the same results."""
    nvtx: bool = setting(Flag(), default=False)
    """Whether tasks on GPUs are named ranges for NVIDIA's profilers (NVTX); with `graphs=False`, operators, too."""
    check_numerics: bool = setting(Flag(), default=False)
    """Whether to stop with the names of operator or variable, and task, if a number is not finite; slow.

    It checks all results of operators, in training, testing and prediction, every variable that the solver or the rule
    writes, sums over a device's learners, and the mean of running statistics. With "float16", whose gradients may
    overflow, gradients are checked as a whole, at the end of a task."""

    def __post_init__(self) -> None:
        if self.files_together is not None and self.order != "files":
            raise refuse(self, "files_together", self.files_together, "None, except with order='files'")

    @property
    def group_of_files(self) -> int | None:
        """Number of files whose examples are shuffled together; None if all examples are shuffled."""
        return (self.files_together or FILES_TOGETHER) if self.order == "files" else None

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of weights and arithmetic, unless `narrow`."""
        return np.dtype("float64" if self.precision == "float64" else "float32")

    @property
    def narrow(self) -> str | None:
        """The 16-bit type that tensors may have, by name."""
        return self.precision if self.precision in ("bfloat16", "float16") else None
