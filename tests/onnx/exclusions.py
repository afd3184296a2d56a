"""ONNX cases of operators that Crossbow has which it refuses, and why; and the comparisons that are not exact."""

from __future__ import annotations

ACROSS = "attribute: repeats one tensor for all examples; our inputs agree in their first dimension"
EXAMPLES = "attribute: axis=0 compares the examples with each other"
INDICES = "attribute: the places of the maxima as a second output; our operators have one"

EXCLUDED: dict[str, str] = {
    "test_add_bcast": ACROSS,
    "test_mul_bcast": ACROSS,
    "test_sub_bcast": ACROSS,
    "test_operator_add_broadcast": ACROSS,
    "test_operator_add_size1_right_broadcast": ACROSS,
    "test_operator_add_size1_singleton_broadcast": ACROSS,
    "test_maxpool_with_argmax_2d_precomputed_pads": INDICES,
    "test_maxpool_with_argmax_2d_precomputed_strides": INDICES,
    "test_softmax_axis_0": "attribute: axis=0 sums over the examples",
    "test_argmax_default_axis_example": EXAMPLES,
    "test_argmax_default_axis_random": EXAMPLES,
    "test_argmax_default_axis_example_select_last_index": EXAMPLES,
    "test_argmax_default_axis_random_select_last_index": EXAMPLES,
}
"""Every one of these raises GraphError."""

FORMS: frozenset[str] = frozenset(
    {
        "test_castlike_FLOAT_to_DOUBLE_expanded",
        "test_castlike_FLOAT16_to_FLOAT_expanded",
        "test_castlike_FLOAT16_to_DOUBLE_expanded",
        "test_castlike_DOUBLE_to_FLOAT_expanded",
        "test_castlike_BFLOAT16_to_FLOAT_expanded",
        "test_castlike_FLOAT8E4M3FN_to_FLOAT_expanded",
        "test_castlike_FLOAT8E4M3FNUZ_to_FLOAT_expanded",
        "test_castlike_FLOAT8E5M2_to_FLOAT_expanded",
        "test_castlike_FLOAT8E5M2FNUZ_to_FLOAT_expanded",
        "test_castlike_UINT4_to_FLOAT_expanded",
        "test_castlike_INT4_to_FLOAT_expanded",
        "test_castlike_FLOAT4E2M1_to_FLOAT_expanded",
        "test_castlike_UINT2_to_FLOAT_expanded",
        "test_castlike_INT2_to_FLOAT_expanded",
        "test_clip_default_min",
        "test_clip_default_inbounds",
        "test_clip_default_int8_min",
        "test_clip_default_int8_inbounds",
        "test_expand_dim_unchanged",
        "test_reshape_reduced_dims",
        "test_transpose_all_permutations_0",
        "test_Linear_no_bias",
        "test_operator_permute2",
    }
)
"""Cases of ONNX operators that Crossbow has no counterpart of, which nevertheless amount to what it has."""

ROUNDED = {"test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-3}
"""Cases whose expected values were written down with four digits: the relative error allowed."""
