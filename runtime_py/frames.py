"""Binding: a graph, sizes and memory become a `Frame`.

View ops are run here, once; what computes becomes a step. A graph whose instructions
are all delegated is bound without torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from kvc.runtime.delegates.base import Handle
from kvc.runtime.effects import APPEND, CACHE_UPDATE, REPLACE
from kvc.runtime.executor import Frame, Step, fail
from kvc.runtime.kernels import (
    Kernel,
    load_kernels,
    load_preparations,
    load_row_check,
)
from kvc.runtime.tensors import torch_dtype
from kvc.runtime.values import Memory, Values
from kvc.schema.dtypes import DType
from kvc.schema.model import Alias, Argument, Constant, Graph, Instruction, Ref
from kvc.schema.ops import DELEGATE, OPS, Aliasing
from kvc.schema.types import Affine

if TYPE_CHECKING:
    from torch import Tensor


_CHECK_INDEX = "kvc::check_index"


@dataclass(frozen=True, slots=True)
class Code:
    """What runs a graph's instructions, looked up on first need.

    Attributes:
        delegate: the handle of a delegate, by its number.
        prepared: kernels made for one constant, by op and name; filled as graphs are
            bound, so that every frame of a graph shares them.
    """

    delegate: Callable[[int], Handle]
    prepared: dict[tuple[str, int], Kernel] = field(default_factory=dict)


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
        self._values = Values(graph, sizes, memory)
        self._workspace, self._code = memory.workspace, code
        self._steps: list[Step] = []
        self._places: list[int] = []

    def bind(self) -> Frame:
        """Bind every instruction in order."""
        inputs = tuple(self._values.array(i) for i in self._graph.inputs)
        if any(i.op != DELEGATE for i in self._graph.instructions):
            import torch

            with torch.inference_mode():
                self._bind_all(load_kernels())
                uses_torch = True
        else:
            self._bind_all({})
            uses_torch = False
        return Frame(
            method=self._method,
            inputs=inputs,
            outputs=tuple(self._values.array(i) for i in self._graph.outputs),
            steps=tuple(self._steps),
            places=tuple(self._places),
            instructions=self._graph.instructions,
            uses_torch=uses_torch,
        )

    def _bind_all(self, kernels: Mapping[str, Kernel]) -> None:
        for index, instruction in enumerate(self._graph.instructions):
            try:
                self._bind_one(instruction, kernels)
            except Exception as error:
                fail(self._method, index, instruction, error)
            self._places += [index] * (len(self._steps) - len(self._places))

    def _bind_one(
        self, instruction: Instruction, kernels: Mapping[str, Kernel]
    ) -> None:
        if instruction.op == DELEGATE:
            self._bind_delegate(instruction)
            return
        kernel = self._prepared(instruction) or kernels[instruction.op]
        if instruction.op == _CHECK_INDEX and self._checks_rows(instruction):
            kernel = load_row_check()
        arguments = tuple(self._argument(a) for a in instruction.arguments)
        match OPS[instruction.op].aliasing:
            case Aliasing.FRESH:
                outs = tuple(self._out(i) for i in instruction.results)
                out = outs[0] if len(outs) == 1 else outs
                self._steps.append((kernel, (out, *arguments)))
            case Aliasing.UPDATE:
                self._bind_update(instruction, kernel, arguments)
            case Aliasing.VIEW:
                self._bind_view(instruction, kernel(*arguments))
            case Aliasing.CHECK:
                self._steps.append((kernel, arguments))

    def _checks_rows(self, check: Instruction) -> bool:
        """Tell whether a check is of an index at which rows of a cache are written."""
        writes = (i for i in self._graph.instructions if i.op == CACHE_UPDATE)
        starts = {self._root(write.arguments[2]) for write in writes}
        index, _, count, _ = check.arguments
        return self._root(index) in starts or self._argument(count) != 1

    def _root(self, argument: Argument) -> int | None:
        """Return the value in whose memory an operand lies."""
        if not isinstance(argument, Ref):
            return None
        value = argument.value
        while isinstance(storage := self._graph.values[value].storage, Alias):
            value = storage.base
        return value

    def _out(self, result: int) -> "Tensor":
        """Return what a fresh result is written to: it may be the memory of a state."""
        self._place_result(result)
        return self._values.tensor(result)

    def _place_result(self, result: int) -> None:
        storage = self._graph.values[result].storage
        if isinstance(storage, Alias):
            self._values.share(result, storage.base)

    def _prepared(self, instruction: Instruction) -> "Kernel | None":
        """Return the kernel made for an instruction's constant, None without one."""
        index, prepare = load_preparations().get(instruction.op, (None, None))
        if index is None or prepare is None:
            return None
        argument = instruction.arguments[index]
        assert isinstance(argument, Ref)
        storage = self._graph.values[argument.value].storage
        if not isinstance(storage, Constant):
            return None
        key = (instruction.op, storage.name)
        if key not in self._code.prepared:
            self._code.prepared[key] = prepare(self._values.tensor(argument.value))
        return self._code.prepared[key]

    def _bind_update(
        self, instruction: Instruction, kernel: Kernel, arguments: tuple[object, ...]
    ) -> None:
        operand = cast("Tensor", arguments[0])
        result = instruction.results[0]
        storage = self._graph.values[result].storage
        if isinstance(storage, Alias):
            target = self._updated(instruction.op, result, storage.base)
        else:
            target = self._values.tensor(result)
            if instruction.op != REPLACE:
                start = target[tuple(slice(size) for size in operand.shape)]
                self._steps.append((start.copy_, (operand,)))
        self._steps.append((kernel, (target, *arguments[1:])))

    def _updated(self, op: str, result: int, base: int) -> "Tensor":
        """Return the memory that an update in place writes."""
        if op in (APPEND, REPLACE):
            return self._values.grow(result)
        self._values.define(result, self._values.tensor(base))
        return self._values.tensor(result)

    def _bind_view(self, instruction: Instruction, made: object) -> None:
        views = cast(
            "Sequence[Tensor]", made if isinstance(made, list | tuple) else [made]
        )
        for value, view in zip(instruction.results, views, strict=True):
            declared = self._graph.values[value].type.shape(self._sizes)
            if tuple(view.shape) != declared:
                raise ValueError(f"the view is {tuple(view.shape)}, not {declared}")
            self._values.define(value, view)

    def _bind_delegate(self, instruction: Instruction) -> None:
        delegate, operands = instruction.arguments
        assert isinstance(delegate, int)
        assert isinstance(operands, tuple)
        inputs = [
            self._values.array(ref.value) for ref in operands if isinstance(ref, Ref)
        ]
        for result in instruction.results:
            self._place_result(result)
        outputs = [self._values.array(i) for i in instruction.results]
        handle = self._code.delegate(delegate)
        run = handle.prepare(inputs, outputs, self._workspace)
        self._steps.append((run, ()))

    def _argument(self, argument: Argument) -> object:
        match argument:
            case tuple():
                return tuple(self._argument(item) for item in argument)
            case Ref():
                return self._values.tensor(argument.value)
            case Affine():
                return argument.evaluate(self._sizes)
            case DType():
                return torch_dtype(argument)
            case _:
                return argument
