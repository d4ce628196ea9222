"""A fixed-point backend for tests of calibration; kvc's reference runs its partitions.

Its options are `bits`, the bits of activations (8 or 16, or 32 for float32), and
`symmetric`. Weights are int8, symmetric, with a scale for each output channel. The
payload of a partition is its grids. `SEEN` has the partitions that the backend has
lowered.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from greedy_backends import ByReference, Greedy, register

from kvc.compiler.backends import Lowered, Partition
from kvc.compiler.emit.graph import value_numbers
from kvc.compiler.ir import Method, Value
from kvc.recipes import Option
from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.fixed_point import FixedPointHandle
from kvc.runtime.execution.delegate import Handle
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.grids import (
    Grid,
    Stored,
    asymmetric,
    channels_rounded,
    read_grids,
    symmetric,
    write_grids,
)
from kvc.schema.dtypes import DType
from kvc.schema.graph import Graph, Ref
from kvc.schema.model import Delegate

NAME = "fixed_point"
SEEN: list[Partition] = []
_BY_CHANNEL = ("aten::linear", "aten::embedding", "aten::convolution")


class FixedPoint(Greedy):
    """Backend that takes all instructions, and rounds float32 values to grids."""

    name: ClassVar[str] = NAME
    calibrated = True

    def __init__(self, options: Mapping[str, Option]) -> None:
        self._bits = options.get("bits", 8)
        self._stored = Stored.INT16 if self._bits == 16 else Stored.INT8
        self._grid = symmetric if options.get("symmetric") else asymmetric

    def lower(self, partitions, constants, symbols):
        SEEN.extend(one for some in partitions.values() for one in some)
        return {
            name: [Lowered(payload=self._payload(one)) for one in some]
            for name, some in partitions.items()
        }

    def _payload(self, partition: Partition) -> bytes:
        if self._bits == 32:
            return b""
        numbers = value_numbers(partition.graph)
        known = partition.ranges
        grids = {
            numbers[value.id]: self._grid(known[value.id], self._stored)
            for value in values(partition.graph)
            if value.id in known and value.type.dtype is DType.FLOAT32
        }
        return write_grids(grids)


def values(graph: Method) -> Iterator[Value]:
    yield from (*graph.inputs, *graph.bound)
    for node in graph.nodes:
        yield from node.outputs


class FixedPointDelegate(ByReference):
    def init(self, partition: Delegate, data: Mapping[str, FreeableBuffer]) -> Handle:
        program = self._program
        graph = program.methods[partition.method].blocks[partition.block].graph
        grids = read_grids(partition.payload, graph, self._path, "a delegate")
        store = partial(store_weight, graph, grids)
        return FixedPointHandle(program, partition, data, grids, store)


def store_weight(
    graph: Graph, grids: Mapping[int, Grid], value: int, weight: Array
) -> Array:
    """Return a weight as the backend stores it.

    A weight of a product is rounded by channels; other weights are rounded to their
    grids.
    """
    readers = {
        step.op for step in graph.instructions if Ref(value) in step.arguments[:2]
    }
    if weight.ndim > 1 and readers & set(_BY_CHANNEL):
        whole, scale = channels_rounded(weight.astype(np.float32), 0)
        shape = (-1,) + (1,) * (weight.ndim - 1)
        return (whole.astype(np.float32) * scale.reshape(shape)).astype(np.float32)
    return grids[value].rounded(weight) if value in grids else weight


def register_fixed_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the backend for the duration of one test."""
    register(monkeypatch, FixedPoint, FixedPointDelegate)
    SEEN.clear()


def recipe(folder: Path, bits: int = 8, symmetric: bool = False) -> str:
    path = folder / f"a{bits}{'s' * symmetric}.toml"
    options = f"bits = {bits}\nsymmetric = {str(symmetric).lower()}\n"
    path.write_text(f'[backend]\nname = "{NAME}"\n[backend.options]\n{options}')
    return str(path)
