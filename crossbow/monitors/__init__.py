"""Monitors that write records in the formats of other tools, and one that ends training.

The base class, the log in JSON Lines and the console are in `crossbow.runtime.monitor`.
"""

from crossbow.monitors.csv_file import CsvMonitor
from crossbow.monitors.early_stopping import EarlyStopping
from crossbow.monitors.tensorboard import TensorBoardMonitor
from crossbow.monitors.wandb import WandbMonitor

__all__ = ["CsvMonitor", "EarlyStopping", "TensorBoardMonitor", "WandbMonitor"]
