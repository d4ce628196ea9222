"""How memory holds the weights of a program: whole, by rows, or packed by a library.

In: a decoded program, its sizes, how many tokens are held. Out: `Held` of each blob
that a method uses, which says what a blob of some bytes takes. Copies of weights in a
backend's form, which a data file may have, do not count: they are read instead of being
packed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from kvc.schema.control import graphs_within
from kvc.schema.graph import Constant, Graph, Ref
from kvc.schema.model import MemoryKind, Method, Program
from kvc.schema.uses import constants_of, is_packed

_NEARBY: Final = 1 << 16  # bytes that Linux maps around a byte of a file that is read
# Operator -> place of what it looks up.
LOOKUPS: Final = {"aten::embedding": 1, "kvc::embedding_q8": 2}


@dataclass(frozen=True, slots=True)
class Held:
    """How memory holds a blob; several of these may be so.

    Attributes:
        whole: pages of all of it are read.
        rows: how many rows of a table are looked up, 0 where none are.
        packed: a backend's library keeps it in a form of its own.
    """

    whole: bool
    rows: int
    packed: bool

    def pages(self, nbytes: int) -> int:
        """Return how many bytes of a file are read, of a blob of so many.

        Of a table in which rows are only looked up that is what is around them.
        """
        return nbytes if self.whole else min(nbytes, self.rows * _NEARBY)

    def own(self, nbytes: int) -> int:
        """Return how many bytes of the process a library packs it into."""
        return nbytes if self.packed else 0


def held_weights(
    program: Program, sizes: Mapping[str, int], tokens: int
) -> Mapping[int, Held]:
    """Return how memory holds each blob that a method uses.

    Args:
        program: of a bundle.
        sizes: of all symbols.
        tokens: that a session holds in each row.
    """
    whole, packed = set[int](), set[int]()
    rows: dict[int, int] = defaultdict(int)
    for method, graph, opaque in _graphs(program):
        names = {
            name: program.names[name].blob
            for name in constants_of(graph)
            if not is_packed(program.names[name])
        }
        if opaque:
            packed |= set(names.values())
            continue
        counts_tokens = program.position is not None and method.role != "encode"
        looked_up = _looked_up(graph, sizes)
        for name, blob in names.items():
            if name not in looked_up:
                whole.add(blob)
            elif counts_tokens:
                rows[blob] = max(rows[blob], tokens * sizes.get("batch", 1))
            else:
                rows[blob] = max(rows[blob], looked_up[name])
    return {
        blob: Held(blob in whole, rows.get(blob, 0), blob in packed)
        for blob in sorted({*whole, *rows, *packed})
    }


def _graphs(program: Program) -> Iterator[tuple[Method, Graph, bool]]:
    """Yield all code, and whether a library runs it that packs weights."""
    for number, method in enumerate(program.methods):
        inside = {
            id(graph)
            for part in program.delegates
            if part.method == number and part.memory is MemoryKind.OPAQUE
            for graph in graphs_within(method, part.block)
        }
        for graph in method.graphs:
            yield method, graph, id(graph) in inside


def _looked_up(graph: Graph, sizes: Mapping[str, int]) -> dict[int, int]:
    """Return the named data of which only rows are read, and how many at most."""
    found: dict[int, int] = {}
    others: set[int] = set()
    for step in graph.instructions:
        place = LOOKUPS.get(step.op)
        count = 0
        if place is not None and isinstance(at := step.arguments[place], Ref):
            count = prod(graph.values[at.value].type.shape(sizes))
        for argument in step.arguments:
            if isinstance(argument, Ref):
                storage = graph.values[graph.root_of(argument.value)].storage
                if isinstance(storage, Constant):
                    name = storage.name
                    found[name] = max(found.get(name, 0), count)
                    others |= set() if place is not None else {name}
    return {name: count for name, count in found.items() if name not in others}
