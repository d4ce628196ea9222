"""Turn writes into consecutive slots into `kvc::cache_update`.

`index_copy` and `index_put` along an axis that is not the first are rewritten if their
index is provably `start + arange(count)`, which is what PyTorch's many forms of a cache
write have in common. Both raise if a slot is out of range. `index_put` also takes
negative indices, so its start must be provably non-negative, and values that lack
leading axes of size 1, which are added here. Writes at constant indices stay as they
are: they are no cache writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from kvc.compiler.analysis.index_ranges import index_range, start_of_rows, sums_of
from kvc.compiler.analysis.index_sums import IndexSum, IndexSums
from kvc.compiler.analysis.non_negative import NonNegative
from kvc.compiler.ir import Argument, Method, Program
from kvc.compiler.ir.arguments import arguments_of
from kvc.compiler.ir.rewrite import NodeList, each_method
from kvc.compiler.ir.verify import sample_sizes
from kvc.compiler.passes.axis_writes import AxisWrite, axis_write, whole_source
from kvc.schema.ops import CACHE_UPDATE
from kvc.schema.types import Dim, Symbol, bounds, evaluate


@dataclass(frozen=True, slots=True)
class RecognizeCacheWrites:
    """Make `kvc::cache_update` of writes to consecutive slots."""

    name: ClassVar[str] = "recognize-cache-writes"

    def run(self, program: Program) -> Program:
        """Return the program with its cache writes as such."""
        recognizer = _Recognizer(program.symbols, NonNegative(program))
        return each_method(program, recognizer.rewrite)


class _Recognizer:
    def __init__(self, symbols: Sequence[Symbol], non_negative: NonNegative) -> None:
        self._symbols = {symbol.name: symbol for symbol in symbols}
        self._samples = tuple(sample_sizes(tuple(symbols)))
        self._non_negative = non_negative

    def rewrite(self, method: Method) -> Method:
        """Return the method with its cache writes as such."""
        rebuilt = NodeList(method)
        sums = sums_of(method, rebuilt.makers)
        for node in method.nodes:
            write = axis_write(node, lean=True)
            start = self._start(write, method, sums) if write else None
            if write is None or start is None:
                rebuilt.keep(node)
                continue
            add = partial(rebuilt.add, source=node.source)
            rows = start_of_rows(start, write.target.type.dims[0], add)
            given: dict[str, Argument] = {
                "cache": write.target,
                "update": whole_source(write, add),
                "write_indices": rows,
                "axis": write.axis,
                "mode": "linear",
            }
            arguments = arguments_of(CACHE_UPDATE, given)
            rebuilt.keep(replace(node, op=CACHE_UPDATE, arguments=arguments))
        return replace(method, nodes=tuple(rebuilt.nodes))

    def _start(
        self, write: AxisWrite, method: Method, sums: IndexSums
    ) -> IndexSum | None:
        """Return where a write begins, None where it is no cache write."""
        cache, axis = write.target.type.dims, write.axis
        if axis == 0:
            return None
        count = write.dims[axis]
        found = index_range(write.index, sums)
        if found is None or not found.addends or not self._fits(count, cache[axis]):
            return None
        if write.from_back and not self._is_non_negative(found, method):
            return None
        listed = any(size != 1 for v in found.addends for size in v.type.dims)
        if listed and (count == cache[0] or bounds(count, self._symbols)[0] < 1):
            return None  # a position for each row, or none at all
        return found

    def _fits(self, count: Dim, slots: Dim) -> bool:
        """Tell whether a write of `count` slots can be one, whatever the sizes."""
        return all(evaluate(count, s) <= evaluate(slots, s) for s in self._samples)

    def _is_non_negative(self, found: IndexSum, method: Method) -> bool:
        return bounds(found.constant, self._symbols)[0] >= 0 and all(
            self._non_negative.holds(method, addend) for addend in found.addends
        )
