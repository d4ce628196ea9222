"""The values of a frame: an array or tensor for each, made once, at its fixed address.

In: a graph, the sizes of its symbols, the memory it runs in. Out: on demand, a numpy
array or a torch tensor of exactly a value's size. Views have neither before the
instruction that makes them has been bound.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvc.runtime.arenas import Arena
from kvc.runtime.arrays import Array, prefix
from kvc.runtime.tensors import array_as_tensor, tensor_as_array
from kvc.schema.model import Alias, Caller, Constant, Graph, Scratch, StateSlot

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the values of a graph lie.

    Attributes:
        scratch: the arena of `Scratch` offsets.
        constant: the array of named data, by the id that the graph uses.
        states: arrays by state id; of a state that grows, all of its memory.
        given: arrays of values that lie in somebody else's memory, by value id.
        callers: memory of inputs in the caller's arrays, by value id; it may go on
            behind the input.
        workspace: an arena that delegates of one context share.
    """

    scratch: Arena
    constant: Callable[[int], Array]
    states: Sequence[Array] = ()
    given: Mapping[int, Array] = field(default_factory=dict)
    callers: Mapping[int, Array] = field(default_factory=dict)
    workspace: Arena | None = None


class Values:
    """Arrays and tensors by value id; a value that has both has one memory."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], memory: Memory) -> None:
        self._graph, self._sizes, self._memory = graph, sizes, memory
        self._arrays: dict[int, Array] = dict(memory.given)
        self._tensors: dict[int, Tensor] = {}

    def define(self, value: int, tensor: "Tensor") -> None:
        """Set the tensor of a view, or of an update in place."""
        self._tensors[value] = tensor

    def share(self, value: int, base: int) -> None:
        """Let a value of the same type be the very array or tensor that `base` is."""
        if base in self._tensors:
            self._tensors[value] = self._tensors[base]
        else:
            self._arrays[value] = self.array(base)

    def grow(self, value: int) -> "Tensor":
        """Return the tensor of a value that is longer or shorter than its base.

        It begins where its base begins, in the same memory.
        """
        root = value
        while isinstance(storage := self._graph.values[root].storage, Alias):
            root = storage.base
        shape = self._graph.values[value].type.shape(self._sizes)
        self._arrays[value] = prefix(self._memory_of(root), shape)
        return self.tensor(value)

    def tensor(self, value: int) -> "Tensor":
        """Return a value as a tensor."""
        found = self._tensors.get(value)
        if found is None:
            found = self._tensors[value] = array_as_tensor(self.array(value))
        return found

    def array(self, value: int) -> Array:
        """Return a value as an array."""
        found = self._arrays.get(value)
        if found is None:
            found = self._arrays[value] = self._place(value)
        return found

    def _place(self, value: int) -> Array:
        """Return the array of a value where its storage says it lies."""
        if value in self._tensors:
            return tensor_as_array(self._tensors[value])
        declared = self._graph.values[value].type
        match self._graph.values[value].storage:
            case Scratch(offset):
                shape = declared.shape(self._sizes)
                return self._memory.scratch.array(offset, declared.dtype, shape)
            case Constant(name):
                return self._memory.constant(name)
            case StateSlot() | Caller():
                return prefix(self._memory_of(value), declared.shape(self._sizes))
            case Alias():
                raise AssertionError("a view before the instruction that makes it")

    def _memory_of(self, root: int) -> Array:
        """Return all the memory of a state or of a caller's array."""
        storage = self._graph.values[root].storage
        if isinstance(storage, StateSlot):
            return self._memory.states[storage.state]
        return self._memory.callers[root]
