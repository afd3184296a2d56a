"""The command `crossbow` with its subcommands, including `info` and `models`."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
from collections.abc import Sequence

import numpy as np

import crossbow
from crossbow.cluster.output import arrange_output
from crossbow.cluster.process import is_first, leave
from crossbow.console import run_command
from crossbow.kernels import select_library, why_not_compiled, why_not_onednn
from crossbow.kernels.cuda.api import gpus
from crossbow.kernels.cuda.shared_library import CUBLAS, CUDNN, find
from crossbow.runtime.device import available_cores, cores_text, cpu_devices
from crossbow.scripts.command_parser import CommandParser
from crossbow.scripts.compare_command import add_compare_command
from crossbow.scripts.data_command import add_data_command
from crossbow.scripts.export_command import add_export_command
from crossbow.scripts.foreign_command import add_foreign_command
from crossbow.scripts.graph_command import add_graph_command
from crossbow.scripts.launch_command import add_launch_command
from crossbow.scripts.lr_find_command import add_lr_find_command
from crossbow.scripts.plot_command import add_plot_command
from crossbow.scripts.predict_command import add_predict_command
from crossbow.scripts.probe_command import add_probe_command
from crossbow.scripts.report_command import add_report_command
from crossbow.scripts.run_commands import add_run_commands
from crossbow.scripts.test_command import add_test_command
from crossbow.scripts.timeline_command import add_timeline_command
from crossbow.scripts.watch_command import add_watch_command
from crossbow.types import ConfigurationError

EXTRAS = {
    "zoo": {
        "scikit-learn": "the digits, crossbow.sklearn",
        "pooch": "downloads",
        "matplotlib": "pictures",
        "simplejpeg": "JPEG files",
        "pillow": "image files",
    },
    "mpi": {"mpi4py": "training on several machines", "openmpi": "an MPI library"},
    "ray": {"ray": "training on a cluster of Ray"},
    "graph": {"pygraphviz": "pictures of graphs"},
    "tensorboard": {"tensorboard": "TensorBoardMonitor"},
    "wandb": {"wandb": "WandbMonitor"},
}
"""The optional packages of each extra, with the purpose of each package."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status, or exits with 2 if the command line is wrong."""
    arrange_output(is_first)
    return leave(run_command("crossbow", lambda: _run(arguments)))


def _run(arguments: Sequence[str] | None) -> int:
    parser: argparse.ArgumentParser = CommandParser(
        prog="crossbow",
        description="Crossbow trains deep networks with small batches at full hardware speed. "
        "To train a model, run its script, as python -m models.lenet.",
    )
    parser.add_argument("--version", action="version", version=f"crossbow {crossbow.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    info = commands.add_parser(
        "info", help="print version, devices, threads, and which kernel libraries are in use, or why one is not"
    )
    info.set_defaults(run=lambda options: print(information()))
    add_data_command(commands)
    add_run_commands(commands)
    add_foreign_command(commands)
    add_probe_command(commands)
    add_launch_command(commands)
    add_lr_find_command(commands)
    add_predict_command(commands)
    add_test_command(commands)
    add_export_command(commands)
    add_graph_command(commands)
    add_watch_command(commands)
    add_plot_command(commands)
    add_compare_command(commands)
    add_report_command(commands)
    add_timeline_command(commands)
    listing = commands.add_parser(
        "models", help="list the models of the zoo: command, parameters, shape of an example, and paper"
    )
    listing.add_argument("--json", action="store_true", help="print a JSON list of objects (default: a table)")
    listing.set_defaults(run=lambda options: print(_models(options.json)))
    options = parser.parse_args(arguments)
    status: int | None = options.run(options)
    return status or 0


def _models(as_json: bool) -> str:
    """The output of `crossbow models`."""
    from models import listing  # it imports all scripts, which the other commands do not need

    found = listing.descriptions()
    return listing.as_json(found) if as_json else listing.as_table(found)


def information() -> str:
    """The output of `crossbow info`."""
    rows = [
        ("crossbow", crossbow.__version__),
        ("python", f"{platform.python_version()} ({platform.python_implementation()}, {_system()})"),
        *_devices(),
        *_kernels(),
        *_packages(),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:{width}}{text}".rstrip() for name, text in rows)


def _system() -> str:
    return f"{platform.system()} {platform.machine()}"


def _devices() -> list[tuple[str, str]]:
    (device,) = cpu_devices(["cpu"])
    learners = device.learners("auto")
    threads = device.threads(learners, None)
    return [
        ("devices", ""),
        ("  cpu", f"{len(available_cores())} × {_processor()} ({cores_text(device.cores)})"),
        ("", f"learners 'auto': {learners}, with {threads} thread{'' if threads == 1 else 's'} each"),
        *_gpus(),
        *_cuda_libraries(),
    ]


def _gpus() -> list[tuple[str, str]]:
    try:
        return [(f"  cuda:{number}", name) for number, name in enumerate(gpus())]
    except ConfigurationError as error:
        return [("  cuda", f"not in use: {error}")]


def _cuda_libraries() -> list[tuple[str, str]]:
    """The files of cuDNN and cuBLAS, or the reasons why they are not in use. Empty without CuPy, which GPUs need."""
    if importlib.util.find_spec("cupy") is None:
        return []
    rows = []
    for library in (CUDNN, CUBLAS):
        try:
            rows.append((f"  {library.name}", str(find(library))))
        except ConfigurationError as error:
            rows.append((f"  {library.name}", f"not in use: {error}"))
    return rows


def _processor() -> str:
    """The processor's name, as reported by the system."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _kernels() -> list[tuple[str, str]]:
    reference = ("  reference", f"in use with {_in_use('reference')}; NumPy {np.__version__}")
    problem = why_not_compiled()
    if problem is not None:
        return [("kernels", ""), ("  compiled", f"not in use: {problem}"), reference]
    from crossbow.kernels.cpu.simd.processor import VECTORS

    compiled = ("  compiled", f"in use with {_in_use('onednn', 'compiled')}; vectors of {VECTORS.lanes} numbers")
    without = why_not_onednn()
    if without is not None:
        return [("kernels", ""), ("  onednn", f"not in use: {without}"), compiled, reference]
    from crossbow.kernels.cpu.onednn.shared_library import version

    number = ".".join(map(str, version()))
    return [("kernels", ""), ("  onednn", f"in use with {_in_use('onednn')}; oneDNN {number}"), compiled, reference]


def _in_use(*names: str) -> str:
    """The precisions for which `--kernels auto` selects one of these libraries."""
    precisions = [
        precision
        for precision in ("float32", "float64")
        if select_library("auto", np.dtype(precision))[0].name in names
    ]
    return ", ".join(precisions) or "--kernels " + names[0]


def _packages() -> list[tuple[str, str]]:
    rows = [("packages", "")]
    for name in ("numpy", "numba", "rich", "safetensors"):
        rows.append((f"  {name}", _version(name) or "not installed"))
    for extra, packages in EXTRAS.items():
        for name, purpose in packages.items():
            missing = f"not installed ({purpose}): pip install 'crossbow[{extra}]'"
            rows.append((f"  {name}", _version(name) or missing))
    return rows


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
