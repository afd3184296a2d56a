"""A test bench for one operator. Kernels are prepared and bound as by the compiler, on buffers that reveal errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from crossbow.kernels.interface import Call, PlainStorage, PreparedKernel, State, Storage, Variable
from crossbow.kernels.library import KernelLibrary
from crossbow.ops.kernel import Gradient, Kernel, Site, VariableSpec
from crossbow.testing.arguments import Numbers, check_array, infer, name_of, refuse_argument
from crossbow.testing.bench_device import BenchCpu, BenchDevice
from crossbow.tracebacks import users_error
from crossbow.types import ConfigurationError, Phase, Shape, Tensor

_GUARD = 64
"""Guard bytes before and after every buffer, and the alignment of buffers, as in the compiler's arena."""
_UNTOUCHED = 0xA5
"""Content of the guards."""
_SLOTS = 2
"""Number of slots of the batch ring; the last one contains the batch."""
_UNWRITTEN: dict[int, Any] = {2: np.uint16(0x7FEF), 4: np.uint32(0x7FC0BEEF), 8: np.uint64(0x7FF8BEEFBEEFBEEF)}
"""A specific NaN, with which buffers are filled, by the size of an element in bytes. Arithmetic propagates it, so it
also reveals a kernel that adds to a buffer instead of overwriting it."""


class _Buffers:
    """The memory of each role, between two guards, in one block."""

    def __init__(self, device: BenchDevice, tensors: Mapping[str, Tensor]) -> None:
        self._bench_device, self._tensors = device, dict(tensors)
        self._spans: dict[str, tuple[int, int, int]] = {}
        """Beginning and end of the memory allocated for a role, and end of the guard after it."""
        end = 0
        for role, tensor in tensors.items():
            start = end + _GUARD
            end = start + -(-tensor.nbytes // _GUARD) * _GUARD + _GUARD
            self._spans[role] = (start, start + tensor.nbytes, end)
        self._host, self._device = device.allocate(end)
        self._host[...] = _UNTOUCHED
        self.arrays: dict[str, Numbers] = {}
        """Arrays in host memory."""
        self.bound: dict[str, Any] = {}
        """Arrays for kernels."""
        self._where: dict[str, str] = {}
        """For each role, the role whose memory it uses."""
        for role in tensors:
            self._lay(role, role)
            self.arrays[role][...] = 0

    def share(self, role: str, other: str) -> Any:
        """Put the tensor of one role into the memory of another. Returns the array for kernels."""
        self._lay(role, self._where[other])
        return self.bound[role]

    def _lay(self, role: str, where: str) -> None:
        (start, stop, _), tensor = self._spans[where], self._tensors[role]
        self.arrays[role], self.bound[role] = (tensor.view(memory[start:stop]) for memory in (self._host, self._device))
        self._where[role] = where

    def run(self, calls: Sequence[Call]) -> None:
        """Make calls that have been bound to the arrays. Afterwards, the host's arrays have the results."""
        with self._bench_device.current():
            self._bench_device.run(calls, self._host, self._device)

    def damaged(self) -> list[str]:
        """The roles whose guards have been overwritten."""
        host = self._host
        return [
            role
            for role, (start, stop, end) in self._spans.items()
            if np.any(host[start - _GUARD : start] != _UNTOUCHED) or np.any(host[stop:end] != _UNTOUCHED)
        ]


@dataclass(frozen=True)
class _Group:
    """The bound kernels of an operator, or of one of its gradients."""

    calls: list[Call]
    written: set[str]
    """Roles that the kernels write."""
    scratch: set[str]
    """Workspaces of the kernels."""


def _workspace(kernel: PreparedKernel) -> str:
    """The role of a kernel's workspace among the bench's buffers."""
    return f"workspace of {kernel.name}, {kernel.workspace} bytes"


class Bench:
    """One operator with prepared kernels, bound to its own buffers."""

    def __init__(
        self,
        kernel: Kernel,
        library: KernelLibrary,
        dtype: np.dtype[Any],
        shapes: Sequence[Shape],
        labels: Numbers | None,
        *,
        phase: Phase = Phase.TRAIN,
        seed: int = 0,
        in_place: bool = False,
        device: BenchDevice | None = None,
    ) -> None:
        """device: the device on which the library's kernels run; None is the CPU."""
        self.kernel, self.dtype, self.seed, self.in_place = kernel, dtype, seed, in_place
        narrow = library.mixed is not None and dtype == library.mixed.dtype
        self.wide_dtype = library.dtypes[0] if narrow else dtype
        """Type of statistics and results."""
        self.variable_dtype = dtype if not narrow or kernel.narrow_variables else self.wide_dtype
        output, self.specs, self.statistics = infer(kernel, shapes, labels, phase)
        self.batch = shapes[0][0] if shapes[0] else 1
        *inputs, y = (Tensor(shape, dtype, library.layout(shape)) for shape in (*shapes, output))
        self.site = Site(
            library=library,
            phase=phase,
            inputs=tuple(inputs),
            output=y,
            labels=None if labels is None else Tensor(labels.shape, labels.dtype),
            variables={spec.name: Variable(spec.shape, self.variable_dtype) for spec in self.specs},
            seed=seed,
            key=0,
            needs_input_gradient=not kernel.takes_indices,
        )
        where = device or BenchCpu()
        with where.current():
            self._prepare(
                where, labels, [kernel.gradient(n) for n in range(len(shapes))] if phase is Phase.TRAIN else []
            )

    def _prepare(self, device: BenchDevice, labels: Numbers | None, peers: Sequence[Gradient | None]) -> None:
        """Prepare the kernels, allocate their memory, and bind them. peers: the gradient operator of each input."""
        kernel = self.kernel
        forward = kernel.prepare(self.site)
        chosen = {name: storage for prepared in forward for name, storage in prepared.storages.items()}
        self.storages = {spec.name: chosen.get(spec.name, PlainStorage(spec.shape)) for spec in self.specs}
        settled = {
            spec.name: Variable(spec.shape, self.variable_dtype, self.storages[spec.name]) for spec in self.specs
        }
        self.site = replace(self.site, variables=settled)
        gradients = [None if peer is None else peer.prepare(kernel, self.site) for peer in peers]
        later = [prepared for group in gradients for prepared in group or ()]
        self.buffers = _Buffers(device, self._tensors([*forward, *later]))
        if labels is not None:
            self.buffers.arrays["labels"][...] = labels
        for prepared in (*forward, *later):
            if prepared.workspace:
                self.buffers.arrays[_workspace(prepared)][...] = 0xFF
        self.shared: set[str] = set()
        self.forward_group = self._bind(forward, later, "")
        self.gradient_groups = [
            None if kernels is None else self._bind(kernels, (), str(number))
            for number, kernels in enumerate(gradients)
        ]

    def _tensors(self, kernels: Sequence[PreparedKernel]) -> dict[str, Tensor]:
        """All tensors that need memory, by role."""
        site, numbers, memory = self.site, np.dtype(np.int64), np.dtype(np.uint8)
        tensors: dict[str, Tensor] = {}
        for number, tensor in enumerate(site.inputs):
            tensors[f"input{number}"] = tensors[f"input_gradient{number}"] = tensor
        tensors["output"] = tensors["output_gradient"] = site.output
        tensors["state"] = Tensor((State.SIZE,), numbers)
        tensors["slot_positions"] = Tensor((_SLOTS, self.batch, 2), numbers)
        tensors["kept"] = Tensor((max((kernel.kept for kernel in kernels), default=0),), memory)
        if site.labels is not None:
            tensors["labels"] = site.labels
        for spec in self.specs:
            storage = self.storages[spec.name]
            shape = spec.shape if isinstance(storage, PlainStorage) else (storage.elements,)
            tensors[spec.name] = tensors[f"{spec.name}_gradient"] = Tensor(shape, self.variable_dtype)
        for spec in self.statistics:
            tensors[spec.name] = tensors[f"{spec.name}_next"] = Tensor(spec.shape, self.wide_dtype)
        for kernel in kernels:
            if kernel.workspace:
                tensors[_workspace(kernel)] = Tensor((kernel.workspace,), memory)
        return tensors

    def _bind(self, kernels: Sequence[PreparedKernel], later: Sequence[PreparedKernel], suffix: str) -> _Group:
        """Bind kernels, each only to the roles that it declares.

        `later` are the other kernels that use the same buffers; `suffix` is the suffix of the `input_gradient` buffer.
        """
        group = _Group([], set(), set())
        names = {"input_gradient": f"input_gradient{suffix}"} if suffix else {}
        bound = self.buffers.bound
        known = {**bound, **{role: bound[name] for role, name in names.items()}}
        for position, kernel in enumerate(kernels):
            if self.in_place and kernel.in_place is not None:
                source, target = kernel.in_place
                read_again = any(source in user.reads for user in (*kernels[position + 1 :], *later))
                written_before = any(target in user.writes for user in kernels[:position])
                if not read_again and not written_before and known[source].nbytes == known[target].nbytes:
                    known[target] = self.buffers.share(names.get(target, target), names.get(source, source))
                    self.shared |= {source, names.get(target, target)}
            roles = [role for role in dict.fromkeys((*kernel.reads, *kernel.writes)) if role != "workspace"]
            if unknown := [role for role in roles if role not in known]:
                raise AssertionError(
                    f"{name_of(self.kernel)}: expected kernel {kernel.name!r} to use roles among {', '.join(known)}. "
                    f"Received: {', '.join(unknown)}"
                )
            given = {role: known[role] for role in roles}
            if kernel.workspace:
                given["workspace"] = bound[_workspace(kernel)]
                group.scratch.add(_workspace(kernel))
            group.calls.extend(kernel.bind(given))
            group.written.update(names.get(role, role) for role in kernel.writes)
        return group

    def initial_variables(self, given: Mapping[str, ArrayLike]) -> dict[str, Numbers]:
        """The given values, and initial values for all other variables."""
        return self._initial("variable", self.specs, given)

    def initial_statistics(self, given: Mapping[str, ArrayLike]) -> dict[str, Numbers]:
        """The given values, and initial values for all other statistics."""
        return self._initial("statistic", self.statistics, given)

    def _initial(self, kind: str, specs: Sequence[VariableSpec], given: Mapping[str, ArrayLike]) -> dict[str, Numbers]:
        names = [spec.name for spec in specs]
        if unknown := [name for name in given if name not in names]:
            raise refuse_argument(self.kernel, f"{kind}s", f"names among {names}", f"{unknown}")
        values = {}
        for index, spec in enumerate(specs):
            generator = np.random.default_rng([self.seed, index])
            try:
                value = given[spec.name] if spec.name in given else spec.initial_values(generator)
            except ValueError as error:
                raise ConfigurationError(f"{name_of(self.kernel)}: {spec.name}: {error}") from users_error(error)
            values[spec.name] = check_array(self.kernel, f"{kind} {spec.name!r}", value, spec.shape, self.wide_dtype)
        return values

    def load(
        self,
        inputs: Sequence[Numbers],
        variables: Mapping[str, Numbers],
        task: int,
        examples: int,
        statistics: Mapping[str, Numbers] | None = None,
        positions: Numbers | None = None,
    ) -> None:
        """Set everything that the kernels read. positions: (epoch, index) of each example; None is epoch 0 and
        consecutive indices."""
        arrays = self.buffers.arrays
        for number, value in enumerate(inputs):
            arrays[f"input{number}"][...] = value
        for name, value in variables.items():
            self.storages[name].pack(value, arrays[name].reshape(-1))
        known = self.initial_statistics({}) if statistics is None else statistics
        for name, value in known.items():
            arrays[name][...] = value
        arrays["state"][...] = 0
        arrays["state"][State.TASK], arrays["state"][State.EXAMPLES] = task, examples
        arrays["state"][State.SLOT] = _SLOTS - 1
        arrays["slot_positions"][...] = -1
        if positions is None:
            positions = np.stack([np.zeros(self.batch), task * self.batch + np.arange(self.batch)], axis=1)
        arrays["slot_positions"][_SLOTS - 1] = positions

    def forward(self) -> Numbers:
        """Run forward, and return the output."""
        self.buffers.arrays["kept"][...] = 0xFF
        self._mark("output")
        for spec in self.statistics:
            self._mark(f"{spec.name}_next")
        self._run(self.forward_group)
        return self._result("output", self.buffers.arrays["output"])

    def observed(self) -> dict[str, Numbers]:
        """The statistics after `forward` in training."""
        roles = {spec.name: f"{spec.name}_next" for spec in self.statistics}
        return {name: self._result(role, self.buffers.arrays[role]) for name, role in roles.items()}

    def backward(self, output_gradient: Numbers | None) -> tuple[list[Numbers], dict[str, Numbers]]:
        """The gradients of the inputs and of the variables, after `forward`."""
        arrays = self.buffers.arrays
        input_gradients: list[Numbers] = []
        variable_gradients: dict[str, Numbers] = {}
        if all(group is None for group in self.gradient_groups):
            return input_gradients, variable_gradients
        for number, group in enumerate(self.gradient_groups):
            role = f"input_gradient{number}"
            if group is None:
                input_gradients.append(np.zeros(self.site.inputs[number].shape, self.wide_dtype))
                continue
            self._mark(role)
            if self.kernel.is_loss:
                self._mark("output_gradient")  # a loss has none, and a kernel must not read it
            else:
                arrays["output_gradient"][...] = 1 if output_gradient is None else output_gradient
            for name in self.storages if number == 0 else ():
                self._mark(f"{name}_gradient", self.storages[name])
            self._run(group)
            if self.kernel.takes_indices:
                input_gradients.append(np.zeros(self.site.inputs[number].shape, self.wide_dtype))
            else:
                input_gradients.append(self._result(role, arrays[role]))
            for spec in self.specs if number == 0 else ():
                variable_gradients[spec.name] = self._variable_gradient(spec.name)
        return input_gradients, variable_gradients

    def _mark(self, role: str, storage: Storage | None = None) -> None:
        """Fill an array that kernels will write with the specific NaN. The padding of a storage stays zero."""
        array = self.buffers.arrays[role]
        if role in self.shared:
            return
        if storage is None or isinstance(storage, PlainStorage):
            array.view(_UNWRITTEN[array.itemsize].dtype)[...] = _UNWRITTEN[array.itemsize]
            return
        marked: Numbers = np.full(self.site.variables[role.removesuffix("_gradient")].shape, _UNWRITTEN[array.itemsize])
        array[...] = 0
        storage.pack(marked.view(array.dtype), array)

    def _result(self, role: str, array: Numbers) -> Numbers:
        """A copy of a result. Raises AssertionError unless every element has been written."""
        result = array.copy(order="C")
        mark = _UNWRITTEN[result.itemsize]
        sign = mark.dtype.type(1 << (8 * result.itemsize - 1))
        unwritten = int(np.count_nonzero((result.view(mark.dtype) & ~sign) == mark))
        if unwritten:
            raise AssertionError(
                f"{name_of(self.kernel)}: expected kernels to write every element of {role!r}, and to read only "
                f"written elements. Received: {unwritten} of {result.size} elements unwritten, or computed from such"
            )
        return result.astype(self.wide_dtype, copy=False)

    def _variable_gradient(self, name: str) -> Numbers:
        role, storage = f"{name}_gradient", self.storages[name]
        flat = self.buffers.arrays[role].reshape(-1)
        plain: Numbers = np.empty(self.site.variables[name].shape, self.variable_dtype)
        storage.unpack(flat, plain)
        result = self._result(role, plain)
        packed = np.zeros_like(flat)
        storage.pack(result, packed)
        # If a gradient is NaN, oneDNN may turn the zeros next to it into NaN.
        if np.isfinite(result).all() and not np.array_equal(packed, flat):
            raise AssertionError(
                f"{name_of(self.kernel)}: expected zeros in the padding of {role!r}, stored as {storage}. "
                f"Received: {np.count_nonzero(packed != flat)} other numbers"
            )
        return result

    def _run(self, group: _Group) -> None:
        """Call the kernels. Raises AssertionError if they change anything that they do not declare as written."""
        arrays, free = self.buffers.arrays, self.shared | group.written | group.scratch
        before = {role: array.tobytes() for role, array in arrays.items() if role not in free}
        self.buffers.run(group.calls)
        changed = [role for role, value in before.items() if arrays[role].tobytes() != value]
        changed += [f"memory next to {role}" for role in self.buffers.damaged()]
        if changed:
            raise AssertionError(
                f"{name_of(self.kernel)}: expected kernels to write only what they declare. "
                f"Received: a changed {', '.join(changed)}"
            )
