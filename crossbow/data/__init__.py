"""Data sets, the order of their examples, and the loader that fills the learners' batches ahead."""

from crossbow.data.dataset import Dataset
from crossbow.data.digits import digits
from crossbow.data.idx import read_idx
from crossbow.data.mnist import mnist

__all__ = ["Dataset", "digits", "mnist", "read_idx"]
