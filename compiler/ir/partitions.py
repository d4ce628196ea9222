"""Partitions, the parts of a method that a backend runs, and what each needs there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvc.compiler.ir.graph import Method
from kvc.schema.calibration import Range
from kvc.schema.model import MemoryKind


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a method that a backend runs.

    Attributes:
        graph: the partition as a block: its inputs and outputs are what crosses the
            border, its constants are bound by name. States are inputs as anything else
            is; what is left in the memory of an input says `input_out`, once it is
            proven.
        sizes: all sizes of symbols that its values can have together, where each has
            buckets; None where one may be any within its bounds.
        ranges: for a backend that is `calibrated`, the least and the greatest number of
            each floating-point value, by its id; inputs and constants among them. One
            of no elements has none. What lies in the memory of one state has one range
            in all methods. Empty for other backends.
        scores: likewise, of the products of queries and keys of each attention, scaled,
            by the id of its result.
    """

    graph: Method
    sizes: tuple[Mapping[str, int], ...] | None = None
    ranges: Mapping[int, Range] = field(default_factory=dict)
    scores: Mapping[int, Range] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lowered:
    """What the runtime must know about a partition beside its code.

    Attributes:
        payload: what the backend adds to the code, in a form of its own.
        memory: who lays out its workspace.
        workspace_nbytes: bound of what it needs there beside what the reference
            implementation of the code does.
        tail_nbytes: bytes that must be readable after each input and output that
            lies in the method's scratch memory. Who lays it out sees to that; where
            states, constants and callers' arrays end is not known ahead of time.
    """

    payload: bytes = b""
    memory: MemoryKind = MemoryKind.PLANNED
    workspace_nbytes: int = 0
    tail_nbytes: int = 0
