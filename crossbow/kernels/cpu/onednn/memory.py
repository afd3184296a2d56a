"""Memory descriptors, and the layout of variables in the flat vector of a replica."""

from __future__ import annotations

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


@dnnl.shared
def engine() -> dnnl.Handle:
    """The engine for the processor. It has no state, and all threads share it."""
    return dnnl.create("dnnl_engine_create", dnnl.CPU, 0)


@dnnl.shared
def attributes() -> dnnl.Handle:
    """Attributes of all primitives: the caller provides scratch memory, so that concurrent learners share none."""
    made = dnnl.create("dnnl_primitive_attr_create")
    dnnl.call("dnnl_primitive_attr_set_scratchpad_mode", made, dnnl.SCRATCHPAD_MODE_USER)
    return made


def memory(descriptor: dnnl.Handle, address: int) -> dnnl.Handle:
    """The memory at an address, with a layout."""
    return dnnl.create("dnnl_memory_create", descriptor, engine(), address)


def plain(shape: Sequence[int]) -> dnnl.Handle:
    """Row-major float32."""
    if len(shape) in _PLAIN_TAGS:
        return dnnl.memory_desc(shape, _PLAIN_TAGS[len(shape)])
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return dnnl.strided_memory_desc(shape, strides)


def free(shape: Sequence[int]) -> dnnl.Handle:
    """A layout that the primitive chooses."""
    return dnnl.memory_desc(shape, dnnl.TAG_ANY)


def activation(tensor: Tensor) -> dnnl.Handle:
    """The descriptor of an activation."""
    if tensor.layout is Layout.CHANNELS_LAST:
        return dnnl.memory_desc(tensor.shape, dnnl.TAG_ACDB)
    return plain(tensor.shape)


def storage(shape: Shape, descriptor: dnnl.Handle, sizes: Shape) -> BlockedStorage:
    """The storage that a descriptor of these sizes describes, for a variable of this shape."""
    count = dnnl.query_int(descriptor, dnnl.QUERY_INNER_NBLKS_S32)
    blocks = dnnl.query_dims(descriptor, dnnl.QUERY_INNER_BLKS, count)
    axes = dnnl.query_dims(descriptor, dnnl.QUERY_INNER_IDXS, count)
    return BlockedStorage(
        shape=shape,
        sizes=sizes,
        strides=dnnl.query_dims(descriptor, dnnl.QUERY_STRIDES, len(sizes)),
        blocks=tuple(zip(axes, blocks, strict=True)),
        elements=dnnl.size(descriptor) // 4,
        descriptor=descriptor,
    )


def stored(variable: Variable, sizes: Sequence[int]) -> dnnl.Handle:
    """The descriptor of a variable, viewed with these sizes: that of its storage, or row-major if it has none."""
    chosen: Storage | None = variable.storage
    if isinstance(chosen, BlockedStorage):
        if chosen.sizes == tuple(sizes):
            if chosen.descriptor is None:
                return dnnl.strided_memory_desc(sizes, chosen.strides)
            descriptor: dnnl.Handle = chosen.descriptor
            return descriptor
        raise ValueError(f"expected a storage of sizes {tuple(sizes)}. Received: {chosen.sizes} ({chosen})")
    return plain(sizes)
