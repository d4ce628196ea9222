"""The values of a frame: for each value an array or tensor at a fixed address.

In: a graph, the sizes of the graph's symbols, the memory that the graph runs in. Out:
on demand, a numpy array or a torch tensor of exactly a value's size. A view has no
array or tensor until its instruction has been bound.

When sizes change, tensors change their shapes and stay the same objects, so steps that
refer to the tensors stay valid. Therefore a tensor is made over all the memory that its
value can ever need, and shows the beginning of that memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

import numpy as np

from kvc.runtime.execution.delegate import Workspace
from kvc.runtime.execution.dependents import Dependents, Dims
from kvc.runtime.memory.arenas import Arena, Within
from kvc.runtime.memory.arrays import Array, prefix
from kvc.runtime.states.owner import Buffer, StateBuffer
from kvc.schema.frozen import frozen
from kvc.schema.graph import (
    Alias,
    Argument,
    Caller,
    Constant,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
)
from kvc.schema.ops import APPEND, REPLACE
from kvc.schema.types import Affine, evaluate

if TYPE_CHECKING:
    from torch import Tensor

from typing import TYPE_CHECKING

from kvc.runtime.memory.arrays import tensor_as_array
from kvc.schema.dtypes import DType
from kvc.schema.ops import CACHE_UPDATE

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# Conversion between torch tensors and numpy arrays; no other module converts.


__all__ = ["array_as_tensor", "tensor_as_array", "torch_dtype"]


def array_as_tensor(array: Array) -> "Tensor":
    """Return a tensor over a writable array's memory."""
    import torch

    if array.dtype.kind == "V":  # bfloat16, the only dtype that numpy lacks
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch_dtype(dtype: DType) -> "torch.dtype":
    """Return the torch dtype of an element type."""
    import torch

    found: torch.dtype = getattr(torch, dtype.label)
    return found


# Arrays and tensors of values


@frozen
class GraphMemory:
    """The memory of a graph's values.

    Attributes:
        scratch: the arena of `Scratch` offsets.
        constant: returns the array of a constant, by the id that the graph uses.
        states: the memory of each state, by state id; for a growing state, all memory
            that is reserved for the state.
        given: arrays of values whose memory another graph owns, by value id.
        callers: the memory of the inputs that lie in the caller's arrays, by value id.
            The memory of an input may be longer than the input.
        workspace: the resources that delegates store in one execution context.
    """

    scratch: Arena | Within
    constant: Callable[[int], Array]
    states: Sequence[Buffer] = ()
    given: Mapping[int, Array] = field(default_factory=dict)
    callers: Mapping[int, Array] = field(default_factory=dict)
    workspace: Workspace | None = None


class Values:
    """Arrays and tensors by value id; the array and tensor of a value share memory."""

    def __init__(
        self, graph: Graph, sizes: Mapping[str, int], memory: GraphMemory
    ) -> None:
        self._graph, self._memory = graph, memory
        self._sizes = sizes
        self._shapes: dict[Dims, tuple[int, ...]] = {}
        self._arrays: dict[int, Array] = dict(memory.given)
        self._tensors: dict[int, Tensor] = {}
        self._whole: dict[int, Tensor] = {}

    def define(self, value: int, tensor: "Tensor") -> None:
        """Set the tensor of a value whose memory is that of another value.

        The value is the result of a view operator or of an in-place update. If the
        value has a tensor object already, that object is kept and made to show the
        memory of `tensor`.
        """
        found = self._tensors.setdefault(value, tensor)
        if found is not tensor:
            found.set_(tensor)  # type: ignore[call-overload]  # not in torch's stubs

    def place(self, value: int, array: Array) -> None:
        """Set the array of a value that a view operator or an in-place update makes."""
        self._arrays[value] = array

    def share(self, value: int, base: int) -> None:
        """Let `value` use the array or tensor of `base`, a value of equal type."""
        if value in self._tensors or self.buffer(base) is not None:
            return
        if base in self._tensors:
            self._tensors[value] = self._tensors[base]
        else:
            self._arrays[value] = self.array(base)

    def tensor(self, value: int) -> "Tensor":
        """Return a value as a tensor."""
        found = self._tensors.get(value)
        if found is None:
            found = self._tensors[value] = self._make_tensor(value)
        return found

    def array(self, value: int) -> Array:
        """Return a value as an array."""
        found = self._arrays.get(value)
        if found is None:
            found = self._arrays[value] = self._make_array(value)
        return found

    def written(self, result: int) -> Array:
        """Return the array into which a kernel writes a new result.

        The array may share the memory of a state.
        """
        storage = self._graph.values[result].storage
        if isinstance(storage, Alias):
            self.place(result, self.array(storage.base))
        return self.array(result)

    def updated(
        self, instruction: Instruction
    ) -> tuple[Array, tuple[Array, Array] | None]:
        """Return the array that an update writes, and the copy to make before.

        Returns:
            The array of the result; and the copy as a pair of arrays (target, source).
            The copy is None if the update is in place, or replaces all elements.
        """
        operand, (result,) = instruction.arguments[0], instruction.results
        assert isinstance(operand, Ref)
        if isinstance(self._graph.values[result].storage, Alias):
            if instruction.op not in (APPEND, REPLACE):
                self.place(result, self.array(operand.value))
            return self.array(result), None
        target = self.array(result)
        if instruction.op == REPLACE:
            return target, None
        old = self.array(operand.value)
        return target, (target[tuple(slice(n) for n in old.shape)], old)

    def argument(self, argument: Argument, read: Callable[[int], object]) -> object:
        """Return an argument of an instruction as the object that a kernel takes.

        `read` returns the array or tensor of an operand, by value id.
        """
        match argument:
            case Ref():
                return read(argument.value)
            case tuple():
                return tuple([self.argument(item, read) for item in argument])
            case Affine():
                return argument.evaluate(self._sizes)
            case _:
                return argument

    def shape(self, value: int) -> tuple[int, ...]:
        """Return the declared shape of a value."""
        return self._evaluate(self._graph.values[value].type.dims)

    def lent(self, value: int) -> Array:
        """Return the memory of a value, including spare capacity after the value."""
        root = self._graph.root_of(value)
        if isinstance(self._graph.values[root].storage, StateSlot | Caller):
            return self._memory_of(root)
        return self.array(value)

    def buffer(self, value: int) -> StateBuffer | None:
        """Return the buffer of a state that the host does not own.

        Return None if the value is not a state, or the host owns the state.
        """
        storage = self._graph.values[self._graph.root_of(value)].storage
        if not isinstance(storage, StateSlot):
            return None
        held = self._memory.states[storage.state]
        return held if isinstance(held, StateBuffer) else None

    def _evaluate(self, dims: Dims) -> tuple[int, ...]:
        found = self._shapes.get(dims)
        if found is None:
            found = tuple([evaluate(dim, self._sizes) for dim in dims])
            self._shapes[dims] = found
        return found

    def resize(
        self,
        sizes: Mapping[str, int],
        callers: Mapping[int, Array] | None,
        changed: Dependents,
    ) -> None:
        """Set new sizes of symbols, and new memory of inputs if `callers` is not None.

        The tensors of views are out of date until the instructions of the views are
        bound again.

        Args:
            sizes: the new size of each symbol.
            callers: the memory of the inputs in the caller's arrays, by value id.
            changed: the values and instructions that depend on the change.
        """
        self._sizes, self._shapes = sizes, {}
        if callers is not None:
            self._memory = replace(self._memory, callers=callers)
            for root in callers:
                self._whole.pop(root, None)
        for value in changed.values & self._arrays.keys():
            del self._arrays[value]
        for dims, values in changed.resized:
            shape = self._evaluate(dims)
            for value, root in values:
                if value in self._tensors:
                    self._resize(self._tensors[value], root, shape)

    def _resize(self, tensor: "Tensor", root: int, shape: tuple[int, ...]) -> None:
        match self._graph.values[root].storage:
            case Scratch():
                tensor.resize_(shape)
            case Caller():
                tensor.set_(self._part(root, shape))  # type: ignore[call-overload]
            case CursorSlot():
                tensor.set_(array_as_tensor(self.array(root)))  # type: ignore[call-overload]
            case _:
                tensor.as_strided_(shape, self._all_of(root).stride())

    def _make_tensor(self, value: int) -> "Tensor":
        """Return a tensor that can be resized to any size that its value can have."""
        declared, root = self._graph.values[value].type, self._graph.root_of(value)
        match self._graph.values[root].storage:
            case StateSlot() | Caller():
                return self._part(root, self.shape(value))
            case Scratch(offset, nbytes) if not (
                declared.is_static or root in self._memory.given
            ):
                count = nbytes // declared.dtype.itemsize
                run = self._memory.scratch.array(offset, declared.dtype, (count,))
                return array_as_tensor(run).resize_(self.shape(value))
        return array_as_tensor(self.array(value))

    def _make_array(self, value: int) -> Array:
        """Return the array of a value, in the memory that its storage declares."""
        declared = self._graph.values[value].type
        match self._graph.values[value].storage:
            case Scratch(offset):
                shape = self.shape(value)
                return self._memory.scratch.array(offset, declared.dtype, shape)
            case Constant(name):
                return self._memory.constant(name)
            case StateSlot() | Caller():
                return prefix(self._memory_of(value), self.shape(value))
            case CursorSlot():
                return np.zeros(self.shape(value), np.int64)
            case Alias() if value in self._tensors:
                return tensor_as_array(self._tensors[value])
            case Alias():  # its length differs from that of the aliased value
                root = self._graph.root_of(value)
                return prefix(self._memory_of(root), self.shape(value))

    def _part(self, root: int, shape: tuple[int, ...]) -> "Tensor":
        """Return a tensor of `shape` at the start of a state's or a caller's memory."""
        whole = self._all_of(root)
        return whole.as_strided(shape, whole.stride())

    def _all_of(self, root: int) -> "Tensor":
        found = self._whole.get(root)
        if found is None:
            found = self._whole[root] = array_as_tensor(self._memory_of(root))
        return found

    def _memory_of(self, root: int) -> Array:
        """Return all the memory of a state or of a caller's array."""
        storage = self._graph.values[root].storage
        if isinstance(storage, StateSlot):
            held = self._memory.states[storage.state]
            assert isinstance(held, np.ndarray), "the host owns the states it reads"
            return held
        return self._memory.callers[root]


# Index checks of cache writes


def checks_rows(graph: Graph, check: Instruction, sizes: Mapping[str, int]) -> bool:
    """Tell whether a `kvc::check_index` checks where the write to a cache begins.

    If so, a failed check means that the cache is full. If not, a failed check means
    that an index is out of range.
    """
    writes = (i for i in graph.instructions if i.op == CACHE_UPDATE)
    starts = {_root(graph, write.arguments[2]) for write in writes}
    index, _, count, _ = check.arguments
    if isinstance(count, Affine):
        count = count.evaluate(sizes)
    return _root(graph, index) in starts or count != 1


def _root(graph: Graph, argument: Argument) -> int | None:
    """Return the value that owns the memory of an operand."""
    return graph.root_of(argument.value) if isinstance(argument, Ref) else None
