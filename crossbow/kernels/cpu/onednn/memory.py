"""Descriptors of memory, and how variables lie in the flat vector of a replica."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from crossbow.kernels.cpu.onednn import binding as dnnl
from crossbow.kernels.cpu.storage import BlockedStorage
from crossbow.kernels.interface import Storage, Variable
from crossbow.types import Layout, Shape, Tensor

_PLAIN_TAGS = {
    1: dnnl.TAG_A,
    2: dnnl.TAG_AB,
    3: dnnl.TAG_ABC,
    4: dnnl.TAG_ABCD,
    5: dnnl.TAG_ABCDE,
}


@functools.cache
def engine() -> dnnl.Handle:
    """The engine for the processor: it holds nothing and serves every thread."""
    return dnnl.dnnl_engine_create(dnnl.CPU, 0)


@functools.cache
def attributes() -> dnnl.Handle:
    """Every primitive takes its scratch memory from the caller: learners that run at once never share any."""
    made = dnnl.dnnl_primitive_attr_create()
    dnnl.dnnl_primitive_attr_set_scratchpad_mode(made, dnnl.SCRATCHPAD_MODE_USER)
    return made


def plain(shape: Sequence[int]) -> dnnl.Handle:
    """Row-major float32."""
    if len(shape) in _PLAIN_TAGS:
        return dnnl.dnnl_memory_desc_create_with_tag(shape, dnnl.F32, _PLAIN_TAGS[len(shape)])
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return dnnl.dnnl_memory_desc_create_with_strides(shape, dnnl.F32, strides)


def free(shape: Sequence[int]) -> dnnl.Handle:
    """Any layout: the primitive chooses."""
    return dnnl.dnnl_memory_desc_create_with_tag(shape, dnnl.F32, dnnl.TAG_ANY)


def activation(tensor: Tensor) -> dnnl.Handle:
    """The descriptor of an activation."""
    if tensor.layout is Layout.CHANNELS_LAST:
        return dnnl.dnnl_memory_desc_create_with_tag(tensor.shape, dnnl.F32, dnnl.TAG_ACDB)
    return plain(tensor.shape)


def storage(shape: Shape, descriptor: dnnl.Handle, sizes: Shape) -> BlockedStorage:
    """The storage that a descriptor of these sizes describes, for a variable of this shape."""
    count = dnnl.dnnl_memory_desc_query_s32(descriptor, dnnl.QUERY_INNER_NBLKS_S32)
    blocks = dnnl.dnnl_memory_desc_query_dims(descriptor, dnnl.QUERY_INNER_BLKS, count)
    axes = dnnl.dnnl_memory_desc_query_dims(descriptor, dnnl.QUERY_INNER_IDXS, count)
    return BlockedStorage(
        shape=shape,
        sizes=sizes,
        strides=dnnl.dnnl_memory_desc_query_dims(descriptor, dnnl.QUERY_STRIDES, len(sizes)),
        blocks=tuple(zip(axes, blocks, strict=True)),
        elements=dnnl.dnnl_memory_desc_get_size(descriptor) // 4,
        descriptor=descriptor,
    )


def stored(variable: Variable, sizes: Sequence[int]) -> dnnl.Handle:
    """The descriptor of a variable whose storage is decided (plain if nobody chose), seen with these sizes."""
    chosen: Storage | None = variable.storage
    if isinstance(chosen, BlockedStorage):
        if chosen.sizes == tuple(sizes):
            if chosen.descriptor is None:
                return dnnl.dnnl_memory_desc_create_with_strides(sizes, dnnl.F32, chosen.strides)
            descriptor: dnnl.Handle = chosen.descriptor
            return descriptor
        raise ValueError(f"expected a storage of sizes {tuple(sizes)}. Received: {chosen.sizes} ({chosen})")
    return plain(sizes)


def same(left: dnnl.Handle, right: dnnl.Handle) -> bool:
    return dnnl.dnnl_memory_desc_equal(left, right)


def nbytes(descriptor: dnnl.Handle) -> int:
    return dnnl.dnnl_memory_desc_get_size(descriptor)


def elements(shape: Sequence[int]) -> int:
    return math.prod(shape)
