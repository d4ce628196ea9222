"""The checks on one graph: values, single definition, storage, op signatures.

In: a graph, and where its constants and states come from. Out: what each instruction
reads, for the check of memory, or `BadProgram`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from kvc.schema.model import (
    Alias,
    Argument,
    Constant,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
    Storage,
    Value,
)
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import TensorType
from kvc.schema.verify.dims import Sizes
from kvc.schema.verify.faults import Reporter
from kvc.schema.verify.limits import (
    MAX_INSTRUCTIONS,
    MAX_TENSOR_NBYTES,
    MAX_VALUES,
    SCRATCH_ALIGN,
)
from kvc.schema.verify.places import place
from kvc.schema.verify.signatures import Misfit, check_signature

Operands = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a graph may refer to.

    Attributes:
        where: its name in messages.
        constants: type of each named data.
        states: type of each state.
        sizes: of the symbols.
    """

    where: str
    constants: Sequence[TensorType]
    states: Sequence[TensorType]
    sizes: Sizes


class GraphChecker:
    """Checks the graphs of one program; equal instructions are checked once."""

    def __init__(self, report: Reporter) -> None:
        self.report = report
        self._fitting: set[tuple[object, ...]] = set()
        self._lists: dict[
            int, tuple[object, tuple[int, ...], tuple[object, ...] | None]
        ] = {}
        self._types: dict[int, tuple[TensorType, object]] = {}
        self._sources: set[str] = set()

    def check(self, graph: Graph, around: Surroundings) -> Operands:
        """Check a graph, and return the ids that each instruction reads.

        Raises:
            BadProgram, LimitExceeded: something is wrong.
        """
        where = around.where
        self.report.limit(
            f"{where}: the number of values", len(graph.values), MAX_VALUES
        )
        steps = len(graph.instructions)
        self.report.limit(
            f"{where}: the number of instructions", steps, MAX_INSTRUCTIONS
        )
        self._check_arena(graph, where)
        self._check_values(graph, around)
        return self._check_instructions(graph, around)

    def _check_arena(self, graph: Graph, where: str) -> None:
        size, peak = graph.scratch_nbytes, graph.peak_nbytes
        self.report.limit(f"{where}: the scratch arena", size, MAX_TENSOR_NBYTES)
        self.report.require(0 <= peak <= size, where, f"peak {peak} of {size} bytes")

    def _check_values(self, graph: Graph, around: Surroundings) -> None:
        states: set[int] = set()
        arena = graph.scratch_nbytes
        known: dict[int, int] = {}  # id of a type -> bytes
        for i, value in enumerate(graph.values):
            nbytes = known.get(id(value.type))
            if nbytes is None:
                nbytes = around.sizes.check(value.type, around.where)
                known[id(value.type)] = nbytes
            storage = value.storage
            if isinstance(storage, Scratch):
                offset = storage.offset
                if (
                    storage.nbytes != nbytes
                    or offset % SCRATCH_ALIGN
                    or not 0 <= offset <= arena - nbytes
                ):
                    self._fail_scratch(i, value, storage, nbytes, arena, around)
            elif isinstance(storage, Alias):
                if not 0 <= storage.base < len(graph.values):
                    self._fail_value(
                        i, around, f"shares memory with value {storage.base}"
                    )
            else:
                self._check_bound(i, value, storage, states, around)

    def _fail_value(self, value: int, around: Surroundings, what: str) -> NoReturn:
        self.report.fail(f"{around.where}, value {value}", what)

    def _fail_scratch(
        self,
        i: int,
        value: Value,
        storage: Scratch,
        nbytes: int,
        arena: int,
        around: Surroundings,
    ) -> None:
        if storage.nbytes != nbytes:
            what = f"{value.type} takes {nbytes} bytes, it has {storage.nbytes}"
        elif storage.offset % SCRATCH_ALIGN:
            what = f"offset {storage.offset} is no multiple of {SCRATCH_ALIGN}"
        else:
            what = f"{nbytes} bytes at {storage.offset} leave the arena of {arena}"
        self._fail_value(i, around, what)

    def _check_bound(
        self,
        i: int,
        value: Value,
        storage: Constant | StateSlot,
        states: set[int],
        around: Surroundings,
    ) -> None:
        if isinstance(storage, Constant):
            types, number = around.constants, storage.name
        else:
            types, number = around.states, storage.state
            if number in states:
                self._fail_value(i, around, f"state {number} has a value already")
            states.add(number)
        kind = "named data" if isinstance(storage, Constant) else "state"
        if not 0 <= number < len(types):
            self._fail_value(i, around, f"there is no {kind} {number}")
        if types[number] != value.type:
            what = f"{kind} {number} is {types[number]}, the value {value.type}"
            self._fail_value(i, around, what)

    def _check_instructions(self, graph: Graph, around: Surroundings) -> Operands:
        """Check order, storage and signature of each instruction."""
        values = graph.values
        storages = [value.storage for value in values]
        roots = _bound_roots(storages)
        self._define_inputs(graph, roots, around)
        types = [value.type for value in values]
        keys = self._type_keys(types)
        operands: Operands = []
        for index, step in enumerate(graph.instructions):
            key, reads = self._key(step, keys)
            for value in reads:
                if value not in roots:
                    self._fail_step(
                        around, index, step, f"reads value {value} too early"
                    )
            operands.append(reads)
            if step.source not in self._sources:
                self.report.text(step.source, f"{around.where}, instruction {index}")
                self._sources.add(step.source)
            if key not in self._fitting:
                self._check_fit(index, step, types, around)
                self._fitting.add(key)
            self._define_results(index, step, storages, roots, around)
        for value in graph.outputs:
            if value not in roots:
                self.report.fail(around.where, f"the output {value} is never defined")
        if len(roots) != len(values):
            lost = next(i for i in range(len(values)) if i not in roots)
            self._fail_value(lost, around, "is never defined")
        return operands

    def _fail_step(
        self, around: Surroundings, index: int, step: Instruction, what: str
    ) -> NoReturn:
        self.report.fail(place(around.where, index, step), what)

    def _define_inputs(
        self, graph: Graph, roots: dict[int, Storage], around: Surroundings
    ) -> None:
        for value in graph.inputs:
            storage = graph.values[value].storage
            if value in roots or not isinstance(storage, Scratch):
                self._fail_value(value, around, "an input must have scratch of its own")
            roots[value] = storage

    def _define_results(
        self,
        index: int,
        step: Instruction,
        storages: Sequence[Storage],
        roots: dict[int, Storage],
        around: Surroundings,
    ) -> None:
        """Check where results may lie, and note whose memory they are."""
        aliasing = OPS[step.op].aliasing
        base = step.arguments[0] if step.arguments else None
        for value in step.results:
            storage = storages[value]
            if value in roots:
                self._fail_step(around, index, step, f"defines value {value} again")
            if isinstance(storage, Scratch) and aliasing is not Aliasing.VIEW:
                roots[value] = storage
                continue
            if (
                not isinstance(storage, Alias)
                or aliasing is Aliasing.FRESH
                or not isinstance(base, Ref)
                or storage.base != base.value
            ):
                what = f"a result of {aliasing.value} kind may not lie at {storage}"
                self._fail_step(around, index, step, what)
            root = roots[storage.base]
            if aliasing is Aliasing.UPDATE and isinstance(root, Constant):
                self._fail_step(around, index, step, "writes over a constant")
            roots[value] = root

    def _key(
        self, step: Instruction, keys: Sequence[object]
    ) -> tuple[tuple[object, ...], tuple[int, ...]]:
        """Return what a signature's verdict depends on, and the ids that are read."""
        reads: list[int] = []
        parts: list[object] = [step.op]
        for argument in step.arguments:
            kind = type(argument)
            if kind is Ref:
                value = argument.value  # type: ignore[union-attr]
                reads.append(value)
                parts.append(keys[value])
            elif kind is tuple:
                ids, part = self._list_key(argument, keys)  # type: ignore[arg-type]
                reads += ids
                parts.append(part)
            else:
                # The kind, since 1, 1.0 and True are equal.
                parts.append(kind)
                parts.append(argument)
        parts.append(None)
        parts += [keys[value] for value in step.results]
        return tuple(parts), tuple(reads)

    def _list_key(
        self, items: tuple[Argument, ...], keys: Sequence[object]
    ) -> tuple[tuple[int, ...], tuple[object, ...]]:
        found = self._lists.get(id(items))
        if found is None:
            ids = tuple(item.value for item in items if isinstance(item, Ref))
            # A list without operands is keyed once; keeping it keeps its id its own.
            part: tuple[object, ...] | None
            part = None if ids else tuple((type(item), item) for item in items)
            found = self._lists[id(items)] = items, ids, part
        _, ids, part = found
        if part is None:
            part = tuple(
                keys[item.value] if isinstance(item, Ref) else (type(item), item)
                for item in items
            )
        return ids, part

    def _check_fit(
        self,
        index: int,
        step: Instruction,
        types: list[TensorType],
        around: Surroundings,
    ) -> None:
        spec = OPS.get(step.op)
        if spec is None:
            self._fail_step(around, index, step, "there is no such op")
        try:
            check_signature(step, spec, types, around.sizes)
        except Misfit as error:
            self._fail_step(around, index, step, str(error))

    def _type_keys(self, types: list[TensorType]) -> list[object]:
        """Return for each value an object that stands for its type, quick to hash."""
        known = self._types
        for kind in types:
            if id(kind) not in known:
                known[id(kind)] = kind, object()
        return [known[id(kind)][1] for kind in types]


def _bound_roots(storages: Sequence[Storage]) -> dict[int, Storage]:
    """Return the values that are there before the first instruction, but inputs."""
    return {
        i: storage
        for i, storage in enumerate(storages)
        if isinstance(storage, (Constant, StateSlot))
    }
