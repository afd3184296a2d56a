"""Data sets, the order of their examples, and the loader that fills batches ahead of the learners."""

from crossbow.data.cifar import cifar10
from crossbow.data.dataset import Dataset
from crossbow.data.digits import digits
from crossbow.data.idx import read_idx
from crossbow.data.mnist import mnist
from crossbow.data.synthetic import synthetic

__all__ = ["Dataset", "cifar10", "digits", "mnist", "read_idx", "synthetic"]
