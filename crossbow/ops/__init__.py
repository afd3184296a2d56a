"""The operators: their configurations, shapes, variables, and the kernels that they request from a library."""

from crossbow.ops.accuracy import Accuracy
from crossbow.ops.batch_norm import BatchNorm, BatchNormGradient
from crossbow.ops.broadcast import Broadcast, BroadcastGradient
from crossbow.ops.channel_shuffle import ChannelShuffle, ChannelShuffleGradient
from crossbow.ops.classify import Classify
from crossbow.ops.concat import Concat, ConcatGradient
from crossbow.ops.conv import Conv, ConvGradient
from crossbow.ops.data_transform import DataTransform
from crossbow.ops.dropout import Dropout, DropoutGradient
from crossbow.ops.element_wise import ElementWiseOp, ElementWiseOpGradient
from crossbow.ops.embedding import Embedding, EmbeddingGradient
from crossbow.ops.euclidean_loss import EuclideanLoss, EuclideanLossGradient
from crossbow.ops.flatten import Flatten, FlattenGradient
from crossbow.ops.gelu import GELU, GELUGradient
from crossbow.ops.hard_swish import HardSwish, HardSwishGradient
from crossbow.ops.initialiser import MSRA, Constant, Gaussian, Initialiser, Uniform, Values, Xavier
from crossbow.ops.inner_product import InnerProduct, InnerProductGradient
from crossbow.ops.kernel import ArrayGradient, Gradient, Kernel, Site, VariableSpec
from crossbow.ops.layer_norm import LayerNorm, LayerNormGradient
from crossbow.ops.log_softmax import LogSoftMax, LogSoftMaxGradient
from crossbow.ops.lrn import LRN, LRNGradient
from crossbow.ops.matfact import MatFact, MatFactGradient, MatFactPrediction
from crossbow.ops.matmul import MatMul, MatMulGradient
from crossbow.ops.noop import Noop, NoopGradient
from crossbow.ops.optimiser import GradientDescentOptimiser
from crossbow.ops.pad import Pad, PadGradient
from crossbow.ops.pool import Pool, PoolGradient
from crossbow.ops.prelu import PReLU, PReLUGradient
from crossbow.ops.relu import ReLU, ReLUGradient
from crossbow.ops.reshape import Reshape, ReshapeGradient
from crossbow.ops.scale import Scale, ScaleGradient
from crossbow.ops.self_attention import SelfAttention, SelfAttentionGradient
from crossbow.ops.sigmoid_loss import SigmoidLoss, SigmoidLossGradient
from crossbow.ops.silu import SiLU, SiLUGradient
from crossbow.ops.slice import Slice, SliceGradient
from crossbow.ops.softmax import SoftMax, SoftMaxGradient
from crossbow.ops.softmax_loss import SoftMaxLoss, SoftMaxLossGradient
from crossbow.ops.total_loss import TotalLoss
from crossbow.ops.transpose import Transpose, TransposeGradient
from crossbow.ops.transposed_conv import TransposedConv, TransposedConvGradient
from crossbow.ops.upsample import Upsample, UpsampleGradient

__all__ = [
    "GELU",
    "LRN",
    "MSRA",
    "Accuracy",
    "ArrayGradient",
    "BatchNorm",
    "BatchNormGradient",
    "Broadcast",
    "BroadcastGradient",
    "ChannelShuffle",
    "ChannelShuffleGradient",
    "Classify",
    "Concat",
    "ConcatGradient",
    "Constant",
    "Conv",
    "ConvGradient",
    "DataTransform",
    "Dropout",
    "DropoutGradient",
    "ElementWiseOp",
    "ElementWiseOpGradient",
    "Embedding",
    "EmbeddingGradient",
    "EuclideanLoss",
    "EuclideanLossGradient",
    "Flatten",
    "FlattenGradient",
    "GELUGradient",
    "Gaussian",
    "Gradient",
    "GradientDescentOptimiser",
    "HardSwish",
    "HardSwishGradient",
    "Initialiser",
    "InnerProduct",
    "InnerProductGradient",
    "Kernel",
    "LRNGradient",
    "LayerNorm",
    "LayerNormGradient",
    "LogSoftMax",
    "LogSoftMaxGradient",
    "MatFact",
    "MatFactGradient",
    "MatFactPrediction",
    "MatMul",
    "MatMulGradient",
    "Noop",
    "NoopGradient",
    "PReLU",
    "PReLUGradient",
    "Pad",
    "PadGradient",
    "Pool",
    "PoolGradient",
    "ReLU",
    "ReLUGradient",
    "Reshape",
    "ReshapeGradient",
    "Scale",
    "ScaleGradient",
    "SelfAttention",
    "SelfAttentionGradient",
    "SiLU",
    "SiLUGradient",
    "SigmoidLoss",
    "SigmoidLossGradient",
    "Site",
    "Slice",
    "SliceGradient",
    "SoftMax",
    "SoftMaxGradient",
    "SoftMaxLoss",
    "SoftMaxLossGradient",
    "TotalLoss",
    "Transpose",
    "TransposeGradient",
    "TransposedConv",
    "TransposedConvGradient",
    "Uniform",
    "Upsample",
    "UpsampleGradient",
    "Values",
    "VariableSpec",
    "Xavier",
]
