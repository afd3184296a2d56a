"""The operators: configuration, shapes, variables, and which kernels they ask a library for."""

from crossbow.ops.accuracy import Accuracy
from crossbow.ops.array import ArrayGradient
from crossbow.ops.batch_norm import BatchNorm, BatchNormGradient
from crossbow.ops.conv import Conv, ConvGradient
from crossbow.ops.dropout import Dropout, DropoutGradient
from crossbow.ops.element_wise import ElementWiseOp, ElementWiseOpGradient
from crossbow.ops.euclidean_loss import EuclideanLoss, EuclideanLossGradient
from crossbow.ops.initialiser import MSRA, Constant, Gaussian, Initialiser, Uniform, Values, Xavier
from crossbow.ops.inner_product import InnerProduct, InnerProductGradient
from crossbow.ops.kernel import Gradient, Kernel, Site, VariableSpec
from crossbow.ops.optimiser import GradientDescentOptimiser
from crossbow.ops.pool import Pool, PoolGradient
from crossbow.ops.relu import ReLU, ReLUGradient
from crossbow.ops.softmax import SoftMax, SoftMaxGradient
from crossbow.ops.softmax_loss import SoftMaxLoss, SoftMaxLossGradient

__all__ = [
    "MSRA",
    "Accuracy",
    "ArrayGradient",
    "BatchNorm",
    "BatchNormGradient",
    "Constant",
    "Conv",
    "ConvGradient",
    "Dropout",
    "DropoutGradient",
    "ElementWiseOp",
    "ElementWiseOpGradient",
    "EuclideanLoss",
    "EuclideanLossGradient",
    "Gaussian",
    "Gradient",
    "GradientDescentOptimiser",
    "Initialiser",
    "InnerProduct",
    "InnerProductGradient",
    "Kernel",
    "Pool",
    "PoolGradient",
    "ReLU",
    "ReLUGradient",
    "Site",
    "SoftMax",
    "SoftMaxGradient",
    "SoftMaxLoss",
    "SoftMaxLossGradient",
    "Uniform",
    "Values",
    "VariableSpec",
    "Xavier",
]
