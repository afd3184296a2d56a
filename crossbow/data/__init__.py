"""Data sets, the order of their examples, and the loader that fills batches ahead of the learners."""

from crossbow.data.batch_files import BatchFiles
from crossbow.data.cifar import cifar10, cifar100
from crossbow.data.dataset import Dataset
from crossbow.data.digits import digits
from crossbow.data.encoding import write_batch_files
from crossbow.data.idx import read_idx
from crossbow.data.image_folder import image_folder
from crossbow.data.images import decode_image
from crossbow.data.mnist import fashion_mnist, mnist
from crossbow.data.record_sets import records
from crossbow.data.records import Record, RecordFile, write_records
from crossbow.data.sequences import sequence
from crossbow.data.stored import batch_files
from crossbow.data.synthetic import synthetic
from crossbow.data.text import characters, text_files, topics

__all__ = [
    "BatchFiles",
    "Dataset",
    "Record",
    "RecordFile",
    "batch_files",
    "characters",
    "cifar10",
    "cifar100",
    "decode_image",
    "digits",
    "fashion_mnist",
    "image_folder",
    "mnist",
    "read_idx",
    "records",
    "sequence",
    "synthetic",
    "text_files",
    "topics",
    "write_batch_files",
    "write_records",
]
