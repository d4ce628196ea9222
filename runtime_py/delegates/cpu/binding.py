"""Bind a block to sizes and memory: the result is a list of native steps.

One call runs the whole list. View operators run during binding, on numpy arrays. All
other operators become steps with fixed addresses. If a kernel needs contiguous
operands, earlier steps copy the operands that are not contiguous.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NoReturn

import numpy as np

from kvc.runtime.delegates.cpu.arguments import (
    INDEXED,
    PACKED,
    PACKED_PARTS,
    STRIDED,
    TEXTS,
    write_argument,
)
from kvc.runtime.delegates.cpu.failures import error_of
from kvc.runtime.delegates.cpu.operand_dtypes import Kind, cast_to
from kvc.runtime.delegates.partition_memory import partition_memory
from kvc.runtime.execution.array_views import bind_view
from kvc.runtime.execution.delegate import first_write
from kvc.runtime.execution.executor import Unbegun, fail
from kvc.runtime.execution.values import GraphMemory, Values, checks_rows
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, lies_over
from kvc.runtime.native import (
    NO_MEMORY,
    Failure,
    NativeCall,
    NativePartition,
    Steps,
)
from kvc.runtime.native.library import Library
from kvc.schema.backends.cpu_rows import BLOCKS, GLU, LINEARS, NORM, products_of_rows
from kvc.schema.backends.cpu_rules import attends_as_to_cache
from kvc.schema.backends.operands import arguments_of
from kvc.schema.errors import BranchMismatch, KvcError
from kvc.schema.graph import Graph, Instruction
from kvc.schema.model import Block
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.ops.spec import Param, ParamKind
from kvc.schema.verify.dims import Point
from kvc.schema.verify.signatures import check_at, sized_together

_COPY = "aten::copy"
_PRODUCTS = "linears_of_rows"  # products of quantized rows, see row_products.py
_CAST = "aten::_to_copy"
_CHECK_INDEX = "kvc::check_index"
_CHECK_SIZE = "kvc::check_size"
_ATTENTION = "kvc::attention"
_ATTENTION_PRODUCT = "aten::scaled_dot_product_attention"


def bind_steps(
    method: str,
    block: Block,
    sizes: Mapping[str, int],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    arena: Arena,
    constant: Callable[[int], Array],
    library: Library,
    threads: int,
) -> NativeCall:
    """Return a callable that runs a block as native steps.

    Args:
        method: name of the block's method, for messages.
        block: the code, of supported operators only.
        sizes: the sizes of the program's symbols.
        inputs: arrays of the inputs, as passed to `Handle.prepare`.
        outputs: arrays of the outputs, as passed to `Handle.prepare`.
        arena: memory for intermediate values.
        constant: returns named data by id.
        library: the library that runs the steps.
        threads: the number of threads.

    Raises:
        KernelFailed: a view is impossible.
        DigestMismatch, FileChanged: a constant is damaged.
    """
    graph = block.graph
    memory = partition_memory(graph, sizes, inputs, outputs, arena, constant)
    steps, writes = Steps(library, threads), first_write(block)
    return _Binder(method, graph, sizes, memory, steps, writes).bind(outputs)


class _Binder:
    """The values of a block at some sizes, and the steps recorded so far."""

    def __init__(
        self,
        method: str,
        graph: Graph,
        sizes: Mapping[str, int],
        memory: GraphMemory,
        steps: Steps,
        first_write: int,
    ) -> None:
        self._first_write = first_write
        self._method, self._graph, self._sizes = method, graph, sizes
        self._values = Values(graph, sizes, memory)
        self._types = [value.type for value in graph.values]
        self._steps = steps
        # Per step: the index of its instruction; its instruction, the last of merged
        # ones.
        self._owners: list[int] = []
        self._told: list[Instruction] = []

    def bind(self, outputs: Sequence[Array]) -> NativeCall:
        """Bind all instructions, then copy results to `outputs` that lie elsewhere."""
        index, instructions = 0, self._graph.instructions
        together, point = sized_together(self._graph), Point(self._sizes)
        groups = products_of_rows(self._graph)
        merged = {i for group in groups.values() for i in group}
        for index, instruction in enumerate(instructions):
            group = groups.get(index, ())
            try:
                if index in together:
                    check_at(instruction, self._types, point)
                if group:
                    self._bind_products(*(instructions[i] for i in group))
                elif index not in merged:
                    self._bind(instruction)
            except Exception as error:
                fail(self._method, index, instruction, error)
            owner = min(group, default=index)
            self._note(owner, instructions[max(group, default=index)])
        for value, target in zip(self._graph.outputs, outputs, strict=True):
            made = self._values.array(value)
            if not lies_over(made, target):
                self._add(_COPY, [target, made])
        if instructions:
            self._note(index, instructions[index])
        partition = NativePartition(
            self._steps, self._fail, backend="cpu", instructions=self._told
        )
        return NativeCall([partition])

    def _note(self, owner: int, told: Instruction) -> None:
        """Record for the steps that were added last which instruction they belong to.

        Args:
            owner: index of the instruction that errors of the steps name.
            told: the instruction that profiles of the steps name.
        """
        count = len(self._steps) - len(self._owners)
        self._owners += [owner] * count
        self._told += [told] * count

    def _fail(self, failure: Failure) -> NoReturn:
        index = self._owners[failure.step]
        instruction = self._graph.instructions[index]
        checks = instruction.op == _CHECK_INDEX
        is_index = checks and not checks_rows(self._graph, instruction, self._sizes)
        error = error_of(failure, instruction, is_index)
        try:
            fail(self._method, index, instruction, error)
        except KvcError as told:
            if index < self._first_write + (failure.fault != NO_MEMORY):
                raise Unbegun from told
            raise

    def _bind(self, instruction: Instruction) -> None:
        match OPS[instruction.op].aliasing:
            case Aliasing.VIEW:
                bind_view(instruction, self._values)
            case Aliasing.UPDATE:
                self._bind_update(instruction)
            case Aliasing.CHECK if instruction.op == _CHECK_SIZE:
                size, expected = self._arguments(instruction)
                assert isinstance(size, int)
                assert isinstance(expected, int)
                if size != expected:
                    raise BranchMismatch(size=size, expected=expected)
            case Aliasing.CHECK:
                self._add_call(instruction, [])
            case Aliasing.FRESH:
                self._bind_fresh(instruction)
            case Aliasing.CONTROL:
                raise AssertionError("control flow stays outside")

    @cached_property
    def _read(self) -> frozenset[int]:
        return self._graph.read()

    def _bind_fresh(self, instruction: Instruction) -> None:
        outs = [self._values.written(value) for value in instruction.results]
        op = instruction.op
        made = outs if OPS[op].pointwise or op in STRIDED else _side_by_side(outs)
        if op in INDEXED and instruction.results[1] not in self._read:
            self._add_call(instruction, [made[0], None])
            self._hand_over(outs[:1], made[:1])
            return
        if op == _ATTENTION_PRODUCT and attends_as_to_cache(
            arguments_of(self._graph, instruction),
            [self._types[value] for value in instruction.results],
        ):
            self._add_attention(made[0], *self._arguments(instruction))  # type: ignore[arg-type]
        else:
            self._add_call(instruction, made)
        self._hand_over(outs, made)

    def _arguments(self, instruction: Instruction, first: int = 0) -> list[object]:
        read, given = self._values.argument, instruction.arguments[first:]
        return [read(each, self._values.array) for each in given]

    def _bind_products(self, *group: Instruction) -> None:
        """Add one step that quantizes rows and computes all products of these rows."""
        at = next(i for i, each in enumerate(group) if each.op in LINEARS)
        products, rows = group[at + 1 :], len(group[at].results)
        outs = [self._values.written(v) for each in products for v in each.results]
        made = _side_by_side(outs)
        read, source, numbers = self._rows(group[at - 1] if at else group[at])
        source.append(int(group[at].op == BLOCKS))
        # Only int4 products have minimums; others list None in their place.
        operands = [[*self._arguments(each)[rows:], None][:4] for each in products]
        arrays = [self._packed(array) for each in operands for array in each]  # type: ignore[arg-type]  # arrays or None
        self._steps.add(_PRODUCTS, [*made, *read, *arrays], source, numbers)
        self._hand_over(outs, made)

    def _rows(
        self, source: Instruction
    ) -> tuple[list[Array | None], list[int], list[float]]:
        """Return the parts of a step that computes rows and quantizes them.

        Args:
            source: the instruction that computes the rows.

        Returns:
            The step's tensors, its integer settings, and its float settings.
        """
        arguments = self._arguments(source)
        match source.op, arguments:
            case op, [gate, up, str(activation)] if op == GLU:
                return [gate, up], [1, TEXTS[activation]], []  # type: ignore[list-item]  # arrays
            case op, [x, _, weight, eps] if op == NORM:
                given = math.nan if eps is None else float(eps)  # type: ignore[arg-type]  # a number
                return [x, self._packed(weight)], [2, 0], [given]  # type: ignore[list-item, arg-type]  # arrays
            case _, [x]:
                return [x], [0, 0], []  # type: ignore[list-item]  # an array
        raise AssertionError(source.op)

    def _hand_over(self, outs: list[Array], made: list[Array]) -> None:
        """Add a step that copies each result whose kernel wrote to another array."""
        for out, array in zip(outs, made, strict=True):
            if out is not array:
                self._add(_COPY, [out, array])

    def _bind_update(self, instruction: Instruction) -> None:
        target, copy = self._values.updated(instruction)
        if copy is not None:
            self._add(_COPY, [*copy])
        self._add_call(instruction, [target], 1)

    def _add_call(
        self,
        instruction: Instruction,
        results: Sequence[Array | None],
        first: int = 0,
    ) -> None:
        """Add the step of an instruction's kernel, with arguments from `first` on."""
        params, given = OPS[instruction.op].params, self._arguments(instruction, first)
        named = [*zip(params[first:], given, strict=True)]
        self._add_op(instruction.op, results, named)

    def _add_op(
        self,
        op: str,
        results: Sequence[Array | None],
        arguments: Sequence[tuple[Param, object]],
    ) -> None:
        """Add a step for the operator `op`.

        Args:
            op: name of the operator.
            results: arrays that the step writes; None for a result that nobody reads.
            arguments: each parameter with its argument, in order.
        """
        tensors: list[Array | None] = []
        integers: list[int] = []
        numbers: list[float] = []
        for param, given in arguments:
            if param.kind is not ParamKind.TENSOR:
                write_argument(param, given, integers, numbers)
            elif isinstance(given, tuple):
                integers.append(len(given))
                tensors += given
            else:
                tensors.append(given)  # type: ignore[arg-type]  # an array or None
        scalars = [given for _, given in arguments if isinstance(given, int | float)]
        if results and results[0] is not None:
            dtypes = cast_to(op, results[0], tensors, scalars)
            tensors = [*map(self._cast, tensors, dtypes)]
        for index in PACKED.get(op, ()):
            tensors[index] = self._packed(tensors[index])
        for index in PACKED_PARTS.get(op, ()):
            given = tensors[index]
            if given is not None and not given[:1].flags.c_contiguous:
                tensors[index] = self._packed(given)
        self._steps.add(op, [*results, *tensors], integers, numbers)

    def _add_attention(
        self,
        out: Array,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None,
        causal: bool,
        scale: float | None,
        _grouped: bool,
    ) -> None:
        """Add attention to all keys; if `causal`, query 0 sees only key 0."""
        out = _with_axes(out)
        batch, heads, seq, _ = out.shape
        q = np.broadcast_to(_with_axes(q), (batch, heads, seq, q.shape[-1]))
        k, v = (
            np.broadcast_to(a, (batch, *a.shape[1:])) for a in map(_with_axes, (k, v))
        )
        slots = k.shape[2]
        if mask is not None:
            mask = np.broadcast_to(mask, (batch, heads, seq, slots))
        valid = np.full(batch, seq if causal else slots, np.int64)
        valid.flags.writeable = False  # tells bound lists that no step writes it
        given: dict[str, object] = {"q": q, "k": k, "v": v, "valid_length": valid}
        given |= {"mask": mask, "scale": scale, "causal": causal, "layout": "linear"}
        params = OPS[_ATTENTION].params
        self._add_op(
            _ATTENTION, [out], [(p, given.get(p.name, p.default)) for p in params]
        )

    def _cast(self, array: Array | None, dtype: Kind | None) -> Array | None:
        """Return an array in a dtype, converted by a step if needed; None: as it is."""
        if array is None or dtype is None or array.dtype == dtype:
            return array
        made = np.empty(array.shape, dtype)
        self._add(_CAST, [made, array])
        return made

    def _packed(self, array: Array | None) -> Array | None:
        """Return a contiguous array, copied by a step if needed."""
        if array is None or array.flags.c_contiguous:
            return array
        copy = np.empty(array.shape, array.dtype)
        self._add(_COPY, [copy, array])
        return copy

    def _add(self, kernel: str, tensors: list[Array | None]) -> None:
        self._steps.add(kernel, tensors, [], [])


def _side_by_side(outs: list[Array]) -> list[Array]:
    """Return contiguous arrays; those of `outs` that are not are replaced.

    Kernels that cannot write strided results write to these arrays.
    """
    return [
        out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        for out in outs
    ]


def _with_axes(array: Array) -> Array:
    """Return a view with four axes for attention: [batch, heads, seq, width]."""
    return array.reshape((1,) * (4 - array.ndim) + array.shape)
