"""Monitors that show progress, write records, also in the formats of other tools, and end training.

The base class is in `crossbow.runtime.monitor`.
"""

from crossbow.monitors.console import ConsoleMonitor
from crossbow.monitors.csv_file import CsvMonitor
from crossbow.monitors.early_stopping import EarlyStopping
from crossbow.monitors.json_lines import JsonLinesMonitor
from crossbow.monitors.status import StatusMonitor
from crossbow.monitors.tensorboard import TensorBoardMonitor
from crossbow.monitors.wandb import WandbMonitor

__all__ = [
    "ConsoleMonitor",
    "CsvMonitor",
    "EarlyStopping",
    "JsonLinesMonitor",
    "StatusMonitor",
    "TensorBoardMonitor",
    "WandbMonitor",
]
