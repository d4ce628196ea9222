"""A vendor's device that is numpy: both halves of the backend `lowered`, and its list.

It has half of the primitives: nearly all shortcuts of the lowering are computed by
other primitives. It computes float32, and integers as int32. `RAN` has the operations
that it has run, by name.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import numpy_lowering
import pytest
from greedy_backends import register

from kvc.compiler.backends.lowered import LoweredBackend
from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.lowering.context import DeviceTraits
from kvc.runtime.delegates.lowering.function import Weight
from kvc.runtime.delegates.lowering.partition import Names, lower_partition, sizes_of
from kvc.runtime.delegates.lowering.plan import Plan
from kvc.runtime.delegates.lowering.runs import Bound
from kvc.runtime.delegates.operands import refuse_payload, taken_block, where_of
from kvc.runtime.execution.delegate import (
    Delegate,
    Handle,
    Options,
    Workspace,
    on_host,
)
from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.owner import Buffer
from kvc.schema.backends.lowered import LoweredList
from kvc.schema.backends.primitives import SHORTCUTS, Primitive
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Graph
from kvc.schema.model import Delegate as Partition

# What the device has.

OTHERS = {Primitive.POWER, Primitive.LOG, Primitive.SIN, Primitive.COS}
PRIMITIVES = (frozenset(Primitive) - {*SHORTCUTS, *OTHERS}) | {Primitive.RECIPROCAL}


def _too_long(number: object) -> str:
    is_long = isinstance(number, int) and not -(2**31) <= number < 2**31
    return f"{number} has more than 32 bits" if is_long else ""


LIST = LoweredList(PRIMITIVES, number=_too_long)
why_not = LIST.why_not
# Caches can be float16; the device casts their rows.
DTYPES: Mapping[DType, str] = {
    DType.FLOAT32: "float32",
    DType.FLOAT16: "float16",
    DType.INT64: "int32",
    DType.INT32: "int32",
    DType.BOOL: "bool",
}
TRAITS = DeviceTraits(PRIMITIVES, DTYPES)


# What the compiler takes.


class Lowered(LoweredBackend):
    name: ClassVar[str] = "lowered"
    supported = staticmethod(why_not)


# How a function runs.

RAN: Counter[str] = Counter()


def plan_of(graph: Graph, sizes: Mapping[str, int]) -> Plan:
    """Return the plan of a block, with operations of the device's primitives alone."""
    inputs = [f"x{number}" for number, _ in enumerate(graph.inputs)]
    outputs = [f"y{number}" for number, _ in enumerate(graph.outputs)]
    plan = lower_partition(graph, sizes, Names("call", inputs, outputs), TRAITS)
    assert {each.op for each in plan.function.operations} <= PRIMITIVES
    return plan


class Call:
    """A plan with memory for its inputs, states and outputs."""

    def __init__(self, plan: Plan, read: Callable[[Weight], Array]) -> None:
        self.plan, self._read = plan, read
        self.arrays = {
            name: np.zeros(kind.shape, kind.dtype)
            for name, kind in plan.function.passed.items()
        }

    def run(self) -> None:
        function = self.plan.function
        given = [*function.inputs, *(state.name for state in function.states)]
        inputs = {name: self.arrays[name] for name in given}
        found = numpy_lowering.compute(function, inputs, self._read)
        RAN.update(each.op for each in function.operations)
        for name, made in function.outputs.items():
            self.arrays[name][...] = found[made]
        for state in function.states:
            self.arrays[state.name][...] = found[state.after]

    def close(self) -> None:
        self.arrays = {}


class LoweredDelegate(Delegate):
    def __init__(self, options: Options) -> None:
        self._options = options

    def init(self, partition: Partition, data: Mapping[str, FreeableBuffer]) -> Handle:
        return LoweredHandle(self._options, partition, data)

    def packed(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is shared."""


class LoweredHandle(Handle):
    """A partition, with a plan for each set of its sizes."""

    def __init__(
        self,
        options: Options,
        partition: Partition,
        data: Mapping[str, FreeableBuffer],
    ) -> None:
        program, path = options.program, options.path
        self._wrong = partial(BadProgram, path=path, where=where_of(program, partition))
        refuse_payload(program, path, partition)
        self._block = taken_block(program, path, partition, why_not)
        self._method = program.methods[partition.method].name
        self._buffers = {i: data[program.names[i].name] for i in partition.names}
        sizes = sizes_of(self._block.graph, program.symbols)
        if sizes is None:
            raise self._wrong(what="the device runs fixed shapes")
        self._sizes, self._plans = sizes, dict[int, Plan]()
        self._plan(sizes[0])

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        plan = self._plan(sizes)
        call = workspace.own((self, id(plan)), partial(Call, plan, self._read))
        return Bound(
            call,
            self._method,
            self._block,
            sizes,
            on_host(inputs),
            on_host(outputs),
            workspace.arena,
            self._constant,
        ).run

    def close(self) -> None:
        for buffer in self._buffers.values():
            buffer.free()

    def _plan(self, sizes: Mapping[str, int]) -> Plan:
        at = self._sizes.index({name: sizes[name] for name in self._sizes[0]})
        if at not in self._plans:
            try:
                plan = plan_of(self._block.graph, self._sizes[at])
            except NotTaken as error:
                raise self._wrong(
                    what=f"the device does not take it: {error}"
                ) from error
            self._plans.setdefault(at, plan)
        return self._plans[at]

    def _constant(self, data: int) -> Array:
        return self._buffers[data].array()

    def _read(self, weight: Weight) -> Array:
        return self._constant(weight.data).astype(weight.dtype)


def use_lowered_device(patch: pytest.MonkeyPatch) -> None:
    """Register both halves for the duration of a test."""
    register(patch, Lowered, LoweredDelegate)
