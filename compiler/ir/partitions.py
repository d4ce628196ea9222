"""Partitions, the parts of a method that a backend runs, and their run-time data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvc.compiler.ir.graph import Method
from kvc.schema.calibration import Range
from kvc.schema.model import MemoryKind


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a method that a backend runs.

    Attributes:
        graph: the partition as a block. Its inputs are the values that the partition
            reads from the method, its outputs the values that the method reads from the
            partition; constants are bound by name. States are inputs like any other.
            `input_out` has the outputs that lie in the memory of an input, as soon as
            the block's writes are proven.
        sizes: all combinations of sizes of the partition's symbols, if every symbol has
            buckets; None if a symbol can have any size within its bounds.
        ranges: for a `calibrated` backend, value id -> the least and greatest number,
            for each floating-point value, including inputs and constants. A value
            without elements has no range. Values in the memory of one state have one
            range in all methods. Empty for other backends.
        scores: for a `calibrated` backend, id of the result of an attention -> the
            range of the attention's scaled products of queries and keys.
    """

    graph: Method
    sizes: tuple[Mapping[str, int], ...] | None = None
    ranges: Mapping[int, Range] = field(default_factory=dict)
    scores: Mapping[int, Range] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lowered:
    """The data that the runtime needs for a partition in addition to its code.

    Attributes:
        payload: data of the backend, in the backend's own format.
        memory: who lays out the partition's workspace.
        workspace_nbytes: upper bound of the bytes of the partition's workspace, not
            counting the workspace of the reference implementation.
        tail_nbytes: bytes that must be readable after each input and output in the
            method's scratch memory. The memory plan reserves these bytes. It cannot do
            so after states, constants and callers' arrays.
    """

    payload: bytes = b""
    memory: MemoryKind = MemoryKind.PLANNED
    workspace_nbytes: int = 0
    tail_nbytes: int = 0
