"""ONNX cases of operators that Crossbow has which it refuses, and why; the operators that it does not have though
something is near, and why; and the comparisons that are not exact."""

from __future__ import annotations

ACROSS = "attribute: repeats one tensor for all examples; our inputs agree in their first dimension"
EXAMPLES = "attribute: axis=0 compares the examples with each other"
INDICES = "attribute: a second output, the places of the maxima; our operators have one"
MASK = "attribute: a second output, the mask, which every implementation draws for itself; our operators have one"
STATISTICS = "attribute: a second output, the running statistics in training; our operators have one"

EXCLUDED: dict[str, str] = {
    "test_add_bcast": ACROSS,
    "test_mul_bcast": ACROSS,
    "test_sub_bcast": ACROSS,
    "test_operator_add_broadcast": ACROSS,
    "test_operator_add_size1_right_broadcast": ACROSS,
    "test_operator_add_size1_singleton_broadcast": ACROSS,
    "test_maxpool_with_argmax_2d_precomputed_pads": INDICES,
    "test_maxpool_with_argmax_2d_precomputed_strides": INDICES,
    "test_training_dropout_default_mask": MASK,
    "test_training_dropout_mask": MASK,
    "test_training_dropout_zero_ratio_mask": MASK,
    "test_batchnorm_example_training_mode": STATISTICS,
    "test_batchnorm_epsilon_training_mode": STATISTICS,
    "test_hardsigmoid_example": "attribute: one dimension; its line is a Scale, which has two or more",
    "test_softmax_axis_0": "attribute: axis=0 sums over the examples",
    "test_logsoftmax_axis_0": "attribute: axis=0 sums over the examples",
    "test_argmin_default_axis_example": EXAMPLES,
    "test_argmin_default_axis_random": EXAMPLES,
    "test_argmin_default_axis_example_select_last_index": EXAMPLES,
    "test_argmin_default_axis_random_select_last_index": EXAMPLES,
    "test_argmax_default_axis_example": EXAMPLES,
    "test_argmax_default_axis_random": EXAMPLES,
    "test_argmax_default_axis_example_select_last_index": EXAMPLES,
    "test_argmax_default_axis_random_select_last_index": EXAMPLES,
}
"""Every one of these raises GraphError."""

LAYER_NORMS: frozenset[str] = frozenset(
    {
        "test_layer_normalization_2d_axis1",
        "test_layer_normalization_2d_axis_negative_1",
        "test_layer_normalization_3d_axis1_epsilon",
        "test_layer_normalization_3d_axis2_epsilon",
        "test_layer_normalization_3d_axis_negative_1_epsilon",
        "test_layer_normalization_3d_axis_negative_2_epsilon",
        "test_layer_normalization_4d_axis1",
        "test_layer_normalization_4d_axis2",
        "test_layer_normalization_4d_axis3",
        "test_layer_normalization_4d_axis_negative_1",
        "test_layer_normalization_4d_axis_negative_2",
        "test_layer_normalization_4d_axis_negative_3",
        "test_layer_normalization_default_axis",
    }
)
"""Within an example."""

FIRST_OUTPUT: frozenset[str] = LAYER_NORMS | {"test_dropout_default_mask", "test_dropout_default_mask_ratio"}
"""Cases with more outputs, a mask of ones or the mean and the deviation, which `load` refuses where a model uses them:
they are compared by their first output alone, and counted as such. With them, more than a quarter of Dropout's cases
would be excluded."""

FORMS: frozenset[str] = LAYER_NORMS | frozenset(
    {
        "test_cast_FLOAT_to_DOUBLE",
        "test_resize_upsample_scales_linear",
        "test_resize_upsample_scales_linear_align_corners",
        "test_resize_downsample_scales_linear",
        "test_resize_upsample_scales_nearest_axes_2_3",
        "test_resize_upsample_scales_nearest_axes_3_2",
        "test_resize_upsample_scales_nearest",
        "test_cast_DOUBLE_to_FLOAT",
        "test_castlike_FLOAT_to_DOUBLE_expanded",
        "test_castlike_DOUBLE_to_FLOAT_expanded",
        "test_clip_default_min",
        "test_clip_default_inbounds",
        "test_expand_dim_unchanged",
        "test_reshape_reduced_dims",
        "test_AvgPool1d",
        "test_AvgPool1d_stride",
        "test_ConstantPad2d",
        "test_GLU",
        "test_GLU_dim",
        "test_PixelShuffle",
        "test_ZeroPad2d",
        "test_constant_pad",
        "test_constant_pad_axes",
        "test_constant_pad_negative_axes",
        "test_operator_index",
        "test_pow_bcast_scalar",
        "test_reshape_extended_dims",
        "test_reshape_negative_dim",
        "test_reshape_reordered_last_dims",
        "test_reshape_zero_and_negative_dim",
        "test_reshape_zero_dim",
        "test_slice_default_axes",
        "test_slice_default_steps",
        "test_slice_end_out_of_bounds",
        "test_slice_neg",
        "test_slice_negative_axes",
        "test_split_2d_uneven_split_opset18",
        "test_split_equal_parts_2d",
        "test_split_equal_parts_2d_opset13",
        "test_split_variable_parts_2d_opset13",
        "test_split_variable_parts_2d_opset18",
        "test_squeeze_negative_axes",
        "test_transpose_all_permutations_1",
        "test_unsqueeze_axis_1",
        "test_unsqueeze_axis_2",
        "test_unsqueeze_negative_axes",
        "test_unsqueeze_three_axes",
        "test_unsqueeze_two_axes",
        "test_unsqueeze_unsorted_axes",
        "test_transpose_all_permutations_0",
        "test_Linear_no_bias",
        "test_operator_permute2",
        "test_operator_reduced_mean_keepdim",
    }
)
"""Cases of ONNX operators that Crossbow has no counterpart of, which nevertheless amount to what it has: they are read
in part. `load` accepts the types of all their inputs."""

NOT_OURS: dict[str, str] = {
    # What is read where it amounts to an operator of ours, or to nothing.
    "Cast": "a network computes in one type: only from float32 or float64 to the same, which is nothing to do",
    "Clip": "ReLU(mode='clipped') begins at 0; a shift before and behind it would round",
    "Div": "by a constant it is a Scale; there is no quotient of two tensors",
    "Expand": "Broadcast repeats within an example, never the examples",
    "LayerNormalization": "within an example; no operator normalises examples together",
    "NegativeLogLikelihoodLoss": "a network is loaded without its loss; tests/onnx/test_losses.py compares SoftMaxLoss",
    "Pad": "one value around an example; no border of reflected or repeated values, none around the examples",
    "ReduceMax": "Pool takes the maximum over spatial dimensions; no operator over channels, or over examples",
    "ReduceMean": "Pool takes the mean over spatial dimensions; no operator over channels, or over examples",
    "Resize": "Upsample has the positions of PyTorch and Keras; no cubic interpolation, means, or other roundings",
    "Reshape": "within an example; no operator takes elements from one example to another",
    "SoftmaxCrossEntropyLoss": "a network is loaded without its loss; tests/onnx/test_losses.py compares SoftMaxLoss",
    "Squeeze": "as Reshape",
    "Transpose": "within an example; no operator moves the dimension of the examples",
    "Unsqueeze": "as Reshape",
    # Types, shapes and constants: what depends on no activation is computed while reading, and is no operator.
    "CastLike": "as Cast",
    "Constant": "a network has an input; what does not depend on it is computed while reading",
    "ConstantOfShape": "as Constant",
    "Shape": "as Constant",
    "Size": "as Constant",
    # Element by element.
    "Celu": "no activation function with an exponential",
    "Elu": "no activation function with an exponential",
    "Erf": "GELU is the only operator with an error function",
    "Mish": "no activation function with a logarithm",
    "Pow": "a small integer is a product, and PyTorch's LocalResponseNorm is an LRN; no operator has other exponents",
    "Reciprocal": "as Div",
    "Selu": "no activation function with an exponential",
    "Softplus": "no activation function with a logarithm",
    "ThresholdedRelu": "ReLU is continuous, this one jumps",
    # Windows and weights.
    "CausalConvWithState": "Conv has no state from one call to the next",
    "CenterCropPad": "DataTransform crops images (N, C, H, W), as the first operator only",
    "ConvInteger": "Conv computes in floating point",
    "DeformConv": "Conv has no offsets",
    "Einsum": "MatMul is one of nine equations here",
    "LpPool": "Pool has no norm",
    "MatMulInteger": "MatMul computes in floating point",
    "MaxUnpool": "the gradient of Pool computes it; no operator does forward, and Pool has no indices",
    "QLinearConv": "Conv computes in floating point",
    "QLinearMatMul": "MatMul computes in floating point",
    # Normalisation.
    "GroupNormalization": "BatchNorm observes a channel over the batch, not an example",
    "InstanceNormalization": "BatchNorm observes a channel over the batch, not an example",
    "LpNormalization": "LRN and BatchNorm divide by no norm of an axis",
    "MeanVarianceNormalization": "BatchNorm in training, but that is no network for testing, and ε stands elsewhere",
    "RMSNormalization": "BatchNorm observes a channel over the batch, not an example",
    # Several tensors, and parts of one.
    "Attention": "MatMul, Scale and SoftMax are its parts; masks and caches there are not",
    "Hardmax": "Classify gives the index, not a 1 at its place",
    "Slice": "within an example, forwards; no operator leaves examples out, or turns their order",
    "Split": "within an example; no operator leaves examples out",
    "Tile": "Broadcast repeats what has size 1",
    "TopK": "Accuracy counts them; operators have one output",
    # Solvers, which are no operators of ours.
    "ai.onnx.preview.training.Adagrad": "SolverConf has no rates of single weights",
    "ai.onnx.preview.training.Adam": "SolverConf has no rates of single weights",
    "ai.onnx.preview.training.Momentum": "SolverConf has it, as the engine's update of all variables: no operator",
}
"""ONNX operators that Crossbow does not have, though it has something near; and why that is not the same. The others
among the cases that are not ours have nothing near: comparisons, logic, bits, strings, sequences, control flow,
recurrence, trigonometry, quantisation, scatter and gather, sampling, signals, trees."""

ROUNDED = {"test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-3}
"""Cases whose expected values were written down with four digits: the relative error allowed."""
