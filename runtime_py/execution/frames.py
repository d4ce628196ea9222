"""Make a `Frame` by binding a graph to sizes and memory; rebind a frame.

In: a graph, sizes of its symbols, memory, code. Out: a frame. View operators run during
binding, once for each set of sizes; operators that compute become steps. When sizes
change, tensors are resized in place, and only the instructions that `dependents.py`
lists are bound again. A graph whose instructions are all delegated is bound without
torch.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import TYPE_CHECKING, cast

import numpy as np

from kvc.runtime.execution.array_views import bind_view
from kvc.runtime.execution.code import Code, import_beside_packing
from kvc.runtime.execution.control import ControlStep, bind_operands, bind_partition
from kvc.runtime.execution.dependents import Dependence
from kvc.runtime.execution.executor import Frame, fail
from kvc.runtime.execution.recording import TimedStep
from kvc.runtime.execution.values import GraphMemory, Values, checks_rows, torch_dtype
from kvc.runtime.kernels.kernel import Kernel
from kvc.runtime.kernels.table import load_kernels, load_preparations, load_row_check
from kvc.runtime.memory.arrays import Array, copy_into
from kvc.runtime.native import NativeCall
from kvc.runtime.states.owner import StateBuffer
from kvc.runtime.threads import settle_threads
from kvc.schema.control import blocks_run, moved, read_control
from kvc.schema.dtypes import DType
from kvc.schema.graph import (
    Alias,
    Argument,
    Constant,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
)
from kvc.schema.left import needs_torch, why_torch
from kvc.schema.ops import (
    APPEND,
    CONTROL_OPS,
    DELEGATE,
    OPS,
    REPLACE,
    Aliasing,
)
from kvc.schema.torch_package import check_torch
from kvc.schema.types import Affine
from kvc.schema.verify.dims import Point
from kvc.schema.verify.signatures import check_at, divided

if TYPE_CHECKING:
    from torch import Tensor


_CHECK_INDEX = "kvc::check_index"


def bind_graph(
    graph: Graph, sizes: Mapping[str, int], memory: GraphMemory, code: Code
) -> Frame:
    """Bind a graph to the sizes of its symbols and to memory.

    Args:
        graph: the graph of a method, or of one of its blocks.
        sizes: the sizes of the symbols.
        memory: the memory of the graph's values.
        code: the code of the method.

    Raises:
        KernelFailed: an instruction cannot be bound.
        MissingPackage: an instruction needs torch, which is not installed.
        DigestMismatch, FileChanged: a constant is damaged.
    """
    return _Binder(graph, sizes, memory, code).bind()


class _Binder:
    """The values and steps of one frame during binding and rebinding.

    The number of steps of an instruction never changes, so steps keep their indices.
    """

    def __init__(
        self, graph: Graph, sizes: Mapping[str, int], memory: GraphMemory, code: Code
    ) -> None:
        self._graph, self._sizes = graph, sizes
        self._memory, self._code = memory, code
        self._makers = {v: i.op for i in graph.instructions for v in i.results}
        self._cursors = [
            (value.storage, i)
            for i, value in enumerate(graph.values)
            if isinstance(value.storage, CursorSlot)
        ]
        self._controls: dict[int, ControlStep] = {}
        self._values = Values(graph, sizes, memory)
        self._types = [value.type for value in graph.values]
        self._divided = divided(graph)
        self._uses_torch = needs_torch(graph, code.blocks)
        self._beside_others = False  # whether other libraries have threads
        self._steps: list[TimedStep] = []
        self._places: list[int] = []
        self._starts: list[int] = []
        self._views: dict[int, tuple[Kernel, tuple[object, ...]]] = {}
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []

    def bind(self) -> Frame:
        """Bind every instruction in order."""
        graph = self._graph
        if self._uses_torch:
            check_torch(f"method {self._code.method}", self._why_torch)
            called = blocks_run(self._graph, DELEGATE)
            import_beside_packing(
                [self._code.partitions[block] for block in called], self._code.delegate
            )
        self._inputs = [self._values.array(i) for i in graph.inputs]
        with self._mode():
            for index in range(len(graph.instructions)):
                self._starts.append(len(self._steps))
                self._steps += self._bind_one(index)
                self._places += [index] * (len(self._steps) - self._starts[index])
        self._outputs = [self._values.array(i) for i in graph.outputs]
        return self._frame()

    def rebind(
        self, sizes: Mapping[str, int], callers: Mapping[int, Array] | None
    ) -> Frame:
        """Bind again the instructions that depend on changed sizes or moved memory.

        `Frame.rebind` documents the arguments.
        """
        graph, values = self._graph, self._values
        before, self._sizes = self._sizes, sizes
        names = frozenset(name for name in sizes if sizes[name] != before[name])
        # By identity: the cached entry keeps the graph alive, so its id stays unique.
        found = self._code.dependence.get(id(self._graph))
        if found is None:
            found = Dependence(self._graph, self._code.blocks, self._uses_torch)
            self._code.dependence[id(self._graph)] = found
        changed = found.of(names, callers is not None)
        with self._mode():
            values.resize(sizes, callers, changed)
            for index in changed.instructions:
                start, steps = self._starts[index], self._bind_one(index)
                self._steps[start : start + len(steps)] = steps
        for i in changed.inputs:
            self._inputs[i] = values.array(graph.inputs[i])
        for i in changed.outputs:
            self._outputs[i] = values.array(graph.outputs[i])
        return self._frame()

    def _why_torch(self) -> str:
        blocks = self._code.blocks
        delegated = any(blocks[block] is self._graph for block in self._code.partitions)
        return why_torch(self._graph, blocks, reference=delegated)

    def _mode(self) -> AbstractContextManager[object]:
        if not self._uses_torch:
            return nullcontext()
        import torch

        return torch.inference_mode()

    def _frame(self) -> Frame:
        steps, places = _merged(self._steps, self._places)
        return Frame(
            method=self._code.method,
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            steps=steps,
            places=places,
            instructions=self._graph.instructions,
            torch_threads=self._torch_threads(),
            cursors=tuple((slot, self._values.array(i)) for slot, i in self._cursors),
            rebind=self.rebind,
        )

    def _torch_threads(self) -> int:
        """Return how many threads torch may use while the steps run; 0 without torch.

        If a delegate of the frame has threads of its own, torch gets one thread.
        Threads of one library still spin, waiting for work, when a kernel of the other
        library begins: on two processors, a second torch thread made each call up to
        ten times slower.
        """
        if not self._uses_torch:
            return 0
        return 1 if self._beside_others else settle_threads()

    def _bind_one(self, index: int) -> Sequence[TimedStep]:
        instruction = self._graph.instructions[index]
        try:
            if instruction.op == DELEGATE:
                inputs, outputs = bind_partition(
                    instruction, self._graph, self._values, self._makers
                )
                (block,) = read_control(instruction.op, instruction.arguments).blocks
                handle = self._code.delegate(self._code.partitions[block])
                self._beside_others |= not handle.runs_torch
                workspace = self._memory.workspace
                assert workspace is not None, "a graph with delegates runs in a context"
                run = handle.prepare(inputs, outputs, workspace, self._sizes)
                owners = {
                    held.owner for held in inputs if isinstance(held, StateBuffer)
                }
                return [(run, ()), *((owner.synchronise, ()) for owner in owners)]
            if instruction.op in CONTROL_OPS:
                return self._bind_control(index, instruction)
            if index in self._divided:
                check_at(instruction, self._types, Point(self._sizes))
            if OPS[instruction.op].aliasing is Aliasing.VIEW:
                self._bind_view(index, instruction)
                return ()
            if not self._uses_torch:  # if so, the operator only moves elements
                return self._bind_move(instruction)
            return self._bind_kernel(instruction)
        except Exception as error:
            fail(self._code.method, index, instruction, error)

    def _bind_move(self, instruction: Instruction) -> Sequence[TimedStep]:
        """Bind an instruction that only moves elements, without torch."""
        source = moved(self._graph, instruction)
        assert source is not None, "other operators need torch"
        if OPS[instruction.op].aliasing is Aliasing.UPDATE:
            target, _ = self._values.updated(instruction)  # all is overwritten
        else:
            target = self._values.written(instruction.results[0])
        elements = np.broadcast_to(self._values.array(source), target.shape)
        return [(copy_into, (target, elements))]

    def _bind_kernel(self, instruction: Instruction) -> Sequence[TimedStep]:
        kernel = self._kernel(instruction)
        match OPS[instruction.op].aliasing:
            case Aliasing.FRESH:
                outs = tuple(self._out(i) for i in instruction.results)
                out = outs[0] if len(outs) == 1 else outs
                return [(kernel, (out, *self._arguments(instruction)))]
            case Aliasing.UPDATE:
                return self._bind_update(instruction, kernel)
            case Aliasing.CHECK:
                return [(kernel, self._arguments(instruction))]
            case Aliasing.VIEW | Aliasing.CONTROL:
                raise AssertionError("views and control operators have no kernels")

    def _kernel(self, instruction: Instruction) -> Kernel:
        checks = instruction.op == _CHECK_INDEX
        if checks and checks_rows(self._graph, instruction, self._sizes):
            return load_row_check()
        return self._prepared(instruction) or load_kernels()[instruction.op]

    def _out(self, result: int) -> "Tensor":
        """Return the tensor into which a kernel writes a new result.

        The tensor may share the memory of a state.
        """
        storage = self._graph.values[result].storage
        if isinstance(storage, Alias):
            self._values.define(result, self._values.tensor(storage.base))
        return self._values.tensor(result)

    def _prepared(self, instruction: Instruction) -> "Kernel | None":
        """Return the kernel prepared from a constant argument of an instruction.

        Return None if the operator has no preparation, or the argument is not a
        constant.
        """
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
        self, instruction: Instruction, kernel: Kernel
    ) -> Sequence[TimedStep]:
        operand, *arguments = instruction.arguments
        result = instruction.results[0]
        assert isinstance(operand, Ref)
        others = tuple(self._argument(argument) for argument in arguments)
        if not isinstance(self._graph.values[result].storage, Alias):
            target = self._values.tensor(result)
            write: TimedStep = (kernel, (target, *others))
            if instruction.op == REPLACE:
                return [write]
            old = self._values.tensor(operand.value)
            start = target[tuple(slice(size) for size in old.shape)]
            return [(start.copy_, (old,)), write]
        if instruction.op not in (APPEND, REPLACE):
            self._values.define(result, self._values.tensor(operand.value))
        return [(kernel, (self._values.tensor(result), *others))]

    def _bind_view(self, index: int, instruction: Instruction) -> None:
        if not self._uses_torch:
            bind_view(instruction, self._values)
            return
        call = self._views.get(index)
        if call is None:
            call = load_kernels()[instruction.op], self._arguments(instruction)
            if not any(_is_symbolic(a) for a in instruction.arguments):
                self._views[index] = call
        kernel, arguments = call
        made = kernel(*arguments)
        views = cast(
            "Sequence[Tensor]", made if isinstance(made, list | tuple) else [made]
        )
        for value, view in zip(instruction.results, views, strict=True):
            declared = self._values.shape(value)
            if view.shape != declared:
                raise ValueError(f"the view is {tuple(view.shape)}, not {declared}")
            self._values.define(value, view)

    def _bind_control(
        self, index: int, instruction: Instruction
    ) -> Sequence[TimedStep]:
        """Bind an instruction that runs blocks, such as a branch or a loop."""
        if index not in self._controls:
            code = self._code
            self._controls[index] = ControlStep(
                instruction, code.blocks, self._bind_block, code.method, code.max_turns
            )
            steps = (step for block in code.blocks for step in block.instructions)
            self._beside_others |= any(step.op == DELEGATE for step in steps)
        bound = bind_operands(
            instruction,
            self._graph,
            self._values,
            self._memory,
            self._sizes,
            self._makers,
        )
        self._controls[index].settle(bound)
        return [(self._controls[index].run, ())]

    def _bind_block(
        self, block: Graph, sizes: Mapping[str, int], memory: GraphMemory
    ) -> Frame:
        return bind_graph(block, sizes, memory, self._code)

    def _arguments(self, instruction: Instruction) -> tuple[object, ...]:
        return tuple(self._argument(argument) for argument in instruction.arguments)

    def _argument(self, argument: Argument) -> object:
        if isinstance(argument, DType):
            return torch_dtype(argument)
        return self._values.argument(argument, self._values.tensor)


def _merged(
    steps: Sequence[TimedStep], places: Sequence[int]
) -> tuple[tuple[TimedStep, ...], tuple[tuple[int, ...], ...]]:
    """Merge adjacent native calls into one step.

    Args:
        steps: the steps of a frame.
        places: for each step, the index of its instruction.

    Returns:
        The steps after the merge; and for each of these steps, the indices of the
        instructions that the step runs.
    """
    merged: list[TimedStep] = []
    found: list[tuple[int, ...]] = []
    pairs = zip(steps, places, strict=True)
    for native, run in groupby(pairs, lambda pair: isinstance(pair[0][0], NativeCall)):
        if native:
            calls, at = zip(*run, strict=True)
            partitions = [
                partition for call, _ in calls for partition in call.partitions
            ]
            merged.append((NativeCall(partitions), ()))
            found.append(at)
        else:
            for step, place in run:
                merged.append(step)
                found.append((place,))
    return tuple(merged), tuple(found)


def _is_symbolic(argument: Argument) -> bool:
    if isinstance(argument, tuple):
        return any(isinstance(item, Affine) for item in argument)
    return isinstance(argument, Affine)
