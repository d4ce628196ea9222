"""Give each value of a program's scratch memory pages of its own, with guards.

In: a program, whose memory plan may be wrong. Out: the same program with another memory
plan. Each value has pages of its own, and ends right before a page that cannot be
accessed. `guarded` makes execution contexts fill the pages with NaN before each call,
and check that the call before wrote nothing beside a value. The results of a program
must be the same under both plans.
"""

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from kvc.runtime.calls.contexts import ExecutionContext
from kvc.runtime.memory.arenas import Arena
from kvc.schema.control import read_control
from kvc.schema.dtypes import DType
from kvc.schema.graph import Graph, Scratch, Value
from kvc.schema.model import Block, Program
from kvc.schema.ops import CONTROL_OPS, DELEGATE
from kvc.schema.types import TensorType

PAGE = mmap.PAGESIZE
MOST_NBYTES = 1 << 28  # of an arena
POISON = 0xFF  # NaN in every float, -1 in every integer
_ROOM = 64  # bytes after a value that kernels may read


class TooLargeError(Exception):
    """The scratch memory of a program is too large for pages of each value's own."""


class Region(NamedTuple):
    """The pages of one value, `start` to `end`; the value is in them, at `offset`."""

    start: int
    end: int
    offset: int
    nbytes: int


class Apart(NamedTuple):
    program: Program
    # scratch, workspace: the regions of each arena; all other pages are guards
    scratch: tuple[Region, ...]
    workspace: tuple[Region, ...]


def lay_apart(program: Program) -> Apart:
    """Return a program in which each scratch value has pages of its own, and the pages.

    Raises:
        TooLargeError: the pages would take too much memory.
    """
    tail = max((one.tail_nbytes for one in program.delegates), default=0)
    scratch, workspace = _Layout(_ROOM + tail), _Layout(_ROOM + tail)
    methods = []
    delegates = list(program.delegates)
    for number, method in enumerate(program.methods):
        blocks = list(method.blocks)
        graph = scratch.place(method.graph, blocks)
        for which, one in enumerate(delegates):
            if one.method == number:
                placed = workspace.place(blocks[one.block].graph, blocks)
                blocks[one.block] = replace(blocks[one.block], graph=placed)
                most = max(one.workspace_nbytes, placed.scratch_nbytes)
                delegates[which] = replace(one, workspace_nbytes=most)
        methods.append(replace(method, graph=graph, blocks=tuple(blocks)))
    made = replace(program, methods=tuple(methods), delegates=tuple(delegates))
    return Apart(made, tuple(scratch.regions), tuple(workspace.regions))


class _Layout:
    """Places the values of graphs one after the other in one arena."""

    def __init__(self, room: int) -> None:
        self.regions: list[Region] = []
        self._room, self._end = room, PAGE

    def place(self, graph: Graph, blocks: list[Block], begin: int = 0) -> Graph:
        """Return a graph with new offsets for its values and for those of its blocks.

        Args:
            graph: the graph.
            blocks: the blocks of the method; blocks that the graph runs are replaced.
            begin: the offset in the arena that the graph's offset 0 stands for.
        """
        workspaces = {
            step.results[-1]: read_control(step.op, step.arguments).blocks
            for step in graph.instructions
            if step.op in CONTROL_OPS and step.op != DELEGATE
        }
        values = list(graph.values)
        for number, value in enumerate(values):
            if not isinstance(value.storage, Scratch):
                continue
            if number in workspaces:
                values[number] = self._nested(value, workspaces[number], blocks, begin)
            else:
                offset = self._take(value.storage.nbytes) - begin
                storage = Scratch(offset, value.storage.nbytes)
                values[number] = replace(value, storage=storage)
        nbytes = self._end - begin
        return replace(graph, values=tuple(values), scratch_nbytes=nbytes)

    def _nested(self, value, inside, blocks, begin) -> Value:
        start = self._end
        for number in inside:
            graph = self.place(blocks[number].graph, blocks, start)
            blocks[number] = replace(blocks[number], graph=graph)
        nbytes = self._end - start
        self._end += -(-self._room // PAGE) * PAGE
        for number in inside:
            graph = replace(blocks[number].graph, scratch_nbytes=nbytes)
            blocks[number] = replace(blocks[number], graph=graph)
        storage = Scratch(start - begin, nbytes)
        return replace(value, type=TensorType(DType.UINT8, (nbytes,)), storage=storage)

    def _take(self, nbytes: int) -> int:
        """Take pages for a value of `nbytes` bytes; return the value's offset."""
        start = self._end
        end = start + -(-(nbytes + self._room) // PAGE) * PAGE
        if not 0 <= nbytes <= end <= MOST_NBYTES:
            raise TooLargeError
        offset = (end - nbytes - self._room) // 64 * 64
        self.regions.append(Region(start, end, offset, nbytes))
        self._end = end + PAGE
        return offset


class StrayWriteError(Exception):
    """A call wrote to memory beside a value."""


@contextmanager
def guarded(apart: Apart) -> Iterator[None]:
    """Make each execution context that is created in this context check its arenas."""

    class Guarded(ExecutionContext):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            self._arenas = (
                Guard(self.scratch, apart.scratch),
                Guard(self.workspace.arena, apart.workspace),
            )

        def bind(self, *arguments: object) -> object:  # type: ignore[override]
            self.check()
            for arena in self._arenas:
                arena.poison()
            return super().bind(*arguments)  # type: ignore[arg-type]

        def check(self) -> None:
            for arena in self._arenas:
                arena.check()

    with patch("kvc.runtime.sessions.resources.ExecutionContext", Guarded):
        yield


class Guard:
    """Checks one arena for writes beside values."""

    def __init__(self, arena: Arena, regions: Sequence[Region]) -> None:
        self._bytes, self._regions = arena.bytes, regions
        self._arena = arena
        if not regions:
            return
        assert arena.nbytes >= regions[-1].end
        ends = [0, *(region.end for region in regions)]
        starts = [*(region.start for region in regions), len(arena.bytes)]
        for end, start in zip(ends, starts, strict=True):
            _forbid(arena.address + end, start - end)
        self.poison()

    def poison(self) -> None:
        """Fill the pages of all values with NaN."""
        for region in self._regions:
            self._bytes[region.start : region.end] = POISON

    def check(self) -> None:
        """Check that nothing was written beside a value.

        Raises:
            StrayWriteError: something was.
        """
        for region in self._regions:
            behind = region.offset + region.nbytes
            before = self._bytes[region.start : region.offset]
            after = self._bytes[behind : region.end]
            if np.any(before != POISON) or np.any(after != POISON):
                raise StrayWriteError(f"beside the value at {region}")


def _forbid(address: int, nbytes: int) -> None:
    """Forbid all access to `nbytes` bytes of pages at an address."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
