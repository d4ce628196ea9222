"""`FunctionHandle`: a partition whose operators are functions over numpy arrays.

In: a block of supported operators, and a function for each operator. Out: a handle that
binds the block to a list of function calls. Views are numpy views, and results are
written to the caller's memory. All other values get their memory by the memory plan.
A new backend can start with this class, and keep it for operators that its library
lacks.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.operands import taken_block
from kvc.runtime.delegates.partition_memory import partition_memory
from kvc.runtime.execution.array_views import bind_view
from kvc.runtime.execution.delegate import (
    Handle,
    Options,
    Workspace,
    first_write,
    on_host,
)
from kvc.runtime.execution.executor import Unbegun, fail
from kvc.runtime.execution.values import Values
from kvc.runtime.memory.arrays import Array, copy_into, lies_over
from kvc.runtime.states.owner import Buffer
from kvc.schema.backends.operands import Arguments, Results, WhyNot
from kvc.schema.errors import KvcError
from kvc.schema.graph import Graph, Instruction
from kvc.schema.model import Delegate as Partition
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.verify.dims import Point
from kvc.schema.verify.signatures import check_at, sized_together

# A function of the result and the operator's arguments: arrays, numbers, strings, None.
Function = Callable[..., object]
_Call = tuple[int, Callable[[], object]]  # with the index of its instruction


class FunctionHandle(Handle):
    """A partition, run operator by operator."""

    def __init__(
        self,
        options: Options,
        partition: Partition,
        data: Mapping[str, FreeableBuffer],
        functions: Mapping[str, Function],
        why_not: WhyNot,
    ) -> None:
        """Check the partition's code.

        Args:
            options: the options of the delegate.
            partition: a partition of the delegate's backend.
            data: the program's named data.
            functions: a function for each supported operator except views. The function
                writes the whole result. The result can share memory with an operand if
                the operator is pointwise or an update.
            why_not: returns why the backend does not support a node, or "". Not called
                for views: a partition contains the views that its nodes read.

        Raises:
            BadProgram: the backend does not support an operator, or has no function for
                a supported operator.
        """
        program = options.program
        known = partial(_refusal, functions, why_not)
        self._block = taken_block(program, options.path, partition, known)
        self._method = program.methods[partition.method].name
        self._functions = functions
        self._buffers = {i: data[program.names[i].name] for i in partition.names}

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Bind the partition's code to memory; see `Handle.prepare`."""
        graph, targets = self._block.graph, on_host(outputs)
        memory = partition_memory(
            graph,
            sizes,
            on_host(inputs),
            targets,
            workspace.arena,
            lambda name: self._buffers[name].array(),
        )
        values, calls = Values(graph, sizes, memory), list[_Call]()
        together, types = sized_together(graph), [v.type for v in graph.values]
        point = Point(sizes)
        for index, instruction in enumerate(graph.instructions):
            try:
                if index in together:
                    check_at(instruction, types, point)
                calls += [(index, c) for c in self._bind(instruction, values)]
            except Exception as error:
                fail(self._method, index, instruction, error)
        last = max(len(graph.instructions) - 1, 0)
        calls += [(last, copy) for copy in _copies(graph, values, targets)]
        return partial(self._run, calls)

    def _bind(
        self, instruction: Instruction, values: Values
    ) -> Sequence[Callable[[], object]]:
        aliasing = OPS[instruction.op].aliasing
        if aliasing is Aliasing.VIEW:
            bind_view(instruction, values)
            return ()
        function = self._functions[instruction.op]
        arguments = [values.argument(a, values.array) for a in instruction.arguments]
        if aliasing is Aliasing.CHECK:
            return [partial(function, *arguments)]
        if aliasing is Aliasing.UPDATE:
            target, copy = values.updated(instruction)
            before = [] if copy is None else [partial(copy_into, *copy)]
            return [*before, partial(function, target, *arguments[1:])]
        results = [values.written(value) for value in instruction.results]
        return [partial(function, *results, *arguments)]

    def _run(self, calls: Sequence[_Call]) -> None:
        graph, index = self._block.graph, 0
        try:
            for index, call in calls:  # noqa: B007  # the call that failed
                call()
        except Exception as error:
            try:
                fail(self._method, index, graph.instructions[index], error)
            except KvcError as told:
                if index < first_write(self._block):
                    raise Unbegun from told
                raise

    def close(self) -> None:
        """Free the partition's named data."""
        for buffer in self._buffers.values():
            buffer.free()


def _refusal(
    functions: Mapping[str, Function],
    why_not: WhyNot,
    op: str,
    arguments: Arguments,
    results: Results,
) -> str:
    """Return why an instruction cannot be run, or ""."""
    if OPS[op].aliasing is Aliasing.VIEW:
        return ""
    lacking = "" if op in functions else "there is no function for it"
    return why_not(op, arguments, results) or lacking


def _copies(
    graph: Graph, values: Values, targets: Sequence[Array]
) -> Sequence[Callable[[], object]]:
    """Return functions that copy results to their output arrays.

    A result that lies in its output array already needs no copy.
    """
    made = [values.array(value) for value in graph.outputs]
    pairs = zip(targets, made, strict=True)
    return [
        partial(copy_into, target, array)
        for target, array in pairs
        if not lies_over(array, target)
    ]
