"""Binding: a graph, sizes and memory become a `Frame`.

Every tensor is made once, at its fixed address, with a storage of exactly its size.
View ops are run here, once; what computes becomes a step. A graph whose instructions
are all delegated is bound without torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from kvc.runtime.arenas import Arena
from kvc.runtime.arrays import Array
from kvc.runtime.delegates.base import Handle
from kvc.runtime.executor import Frame, Step, fail
from kvc.schema.dtypes import DType
from kvc.schema.model import (
    Alias,
    Argument,
    Constant,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
)
from kvc.schema.ops import DELEGATE, OPS, Aliasing
from kvc.schema.types import Affine

if TYPE_CHECKING:
    from torch import Tensor

Kernel = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the values of a graph lie.

    Attributes:
        scratch: the arena of `Scratch` offsets.
        constant: the array of named data, by the id that the graph uses.
        states: arrays by state id.
        given: arrays of values that lie in somebody else's memory, by value id.
        workspace: an arena that delegates of one context share.
    """

    scratch: Arena
    constant: Callable[[int], Array]
    states: Sequence[Array] = ()
    given: Mapping[int, Array] = field(default_factory=dict)
    workspace: Arena | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """What runs a graph's instructions: both are looked up on first need."""

    kernels: Callable[[], Mapping[str, Kernel]]
    delegate: Callable[[int], Handle]


def bind_graph(
    method: str, graph: Graph, sizes: Mapping[str, int], memory: Memory, code: Code
) -> Frame:
    """Bind a graph to the sizes of its symbols and to memory.

    Raises:
        KernelFailed: an instruction cannot be bound.
        DigestMismatch, FileChanged: a constant is damaged.
    """
    return _Binder(method, graph, sizes, memory, code).bind()


class _Binder:
    """The values of one frame while it is being made."""

    def __init__(
        self,
        method: str,
        graph: Graph,
        sizes: Mapping[str, int],
        memory: Memory,
        code: Code,
    ) -> None:
        self._method, self._graph, self._sizes = method, graph, sizes
        self._memory, self._code = memory, code
        self._arrays: dict[int, Array] = dict(memory.given)
        self._tensors: dict[int, Tensor] = {}
        self._steps: list[Step] = []
        self._places: list[int] = []

    def bind(self) -> Frame:
        """Bind every instruction in order."""
        inputs = tuple(self._array(i) for i in self._graph.inputs)
        if any(i.op != DELEGATE for i in self._graph.instructions):
            import torch

            with torch.inference_mode():
                self._bind_all(self._code.kernels())
                uses_torch = True
        else:
            self._bind_all({})
            uses_torch = False
        return Frame(
            method=self._method,
            inputs=inputs,
            outputs=tuple(self._array(i) for i in self._graph.outputs),
            steps=tuple(self._steps),
            places=tuple(self._places),
            instructions=self._graph.instructions,
            uses_torch=uses_torch,
        )

    def _bind_all(self, kernels: Mapping[str, Kernel]) -> None:
        for index, instruction in enumerate(self._graph.instructions):
            try:
                self._bind_one(instruction, kernels)
            except Exception as error:  # noqa: BLE001, RUF100
                fail(self._method, index, instruction, error)
            self._places += [index] * (len(self._steps) - len(self._places))

    def _bind_one(
        self, instruction: Instruction, kernels: Mapping[str, Kernel]
    ) -> None:
        if instruction.op == DELEGATE:
            self._bind_delegate(instruction)
            return
        kernel = kernels[instruction.op]
        arguments = tuple(self._argument(a) for a in instruction.arguments)
        match OPS[instruction.op].aliasing:
            case Aliasing.FRESH:
                outs = tuple(self._tensor(i) for i in instruction.results)
                out = outs[0] if len(outs) == 1 else outs
                self._steps.append((kernel, (out, *arguments)))
            case Aliasing.UPDATE:
                self._bind_update(instruction, kernel, arguments)
            case Aliasing.VIEW:
                self._bind_view(instruction, kernel(*arguments))

    def _bind_update(
        self, instruction: Instruction, kernel: Kernel, arguments: tuple[object, ...]
    ) -> None:
        operand = cast("Tensor", arguments[0])
        result = instruction.results[0]
        if isinstance(self._graph.values[result].storage, Alias):
            target = self._tensors[result] = operand
        else:
            target = self._tensor(result)
            self._steps.append((target.copy_, (operand,)))
        self._steps.append((kernel, (target, *arguments[1:])))

    def _bind_view(self, instruction: Instruction, made: object) -> None:
        views = cast(
            "Sequence[Tensor]", made if isinstance(made, list | tuple) else [made]
        )
        for value, view in zip(instruction.results, views, strict=True):
            declared = self._graph.values[value].type.shape(self._sizes)
            if tuple(view.shape) != declared:
                raise ValueError(f"the view is {tuple(view.shape)}, not {declared}")
            self._tensors[value] = view

    def _bind_delegate(self, instruction: Instruction) -> None:
        delegate, operands = instruction.arguments
        assert isinstance(delegate, int)
        assert isinstance(operands, tuple)
        inputs = [self._array(ref.value) for ref in operands if isinstance(ref, Ref)]
        outputs = [self._array(i) for i in instruction.results]
        handle = self._code.delegate(delegate)
        run = handle.prepare(inputs, outputs, self._memory.workspace)
        self._steps.append((run, ()))

    def _argument(self, argument: Argument) -> object:
        match argument:
            case tuple():
                return tuple(self._argument(item) for item in argument)
            case Ref():
                return self._tensor(argument.value)
            case Affine():
                return argument.evaluate(self._sizes)
            case DType():
                from kvc.runtime.tensors import torch_dtype

                return torch_dtype(argument)
            case _:
                return argument

    def _tensor(self, value: int) -> "Tensor":
        from kvc.runtime.tensors import array_as_tensor

        if value not in self._tensors:
            self._tensors[value] = array_as_tensor(self._array(value))
        return self._tensors[value]

    def _array(self, value: int) -> Array:
        if value not in self._arrays:
            self._arrays[value] = self._place(value)
        return self._arrays[value]

    def _place(self, value: int) -> Array:
        """Return the array of a value where its storage says it lies."""
        if value in self._tensors:
            from kvc.runtime.tensors import tensor_as_array

            return tensor_as_array(self._tensors[value])
        declared, storage = (
            self._graph.values[value].type,
            self._graph.values[value].storage,
        )
        match storage:
            case Constant(name):
                return self._memory.constant(name)
            case StateSlot(state):
                return self._memory.states[state]
            case Scratch(offset):
                shape = declared.shape(self._sizes)
                return self._memory.scratch.array(offset, declared.dtype, shape)
            case Alias():
                raise AssertionError("a view or update in place before its instruction")
