"""Who uses which data: constants of graphs, methods of blobs; what is packed."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from kvc.schema.model import Constant, Graph, Program

PLAIN: Final = "plain"  # the format of data that is as its type says
PACKED: Final = "packed/"  # what names of packed data begin with


def count_plain(program: Program) -> int:
    """Return how many names come before those of packed data, which are the last."""
    for index, named in enumerate(program.names):
        if named.format != PLAIN:
            return index
    return len(program.names)


def constants_of(graph: Graph) -> set[int]:
    """Return the ids of the named data that a graph's values are."""
    return {
        value.storage.name
        for value in graph.values
        if isinstance(value.storage, Constant)
    }


def methods_of_blobs(program: Program) -> Mapping[int, tuple[str, ...]]:
    """Return for each blob the methods that use it, themselves or by a delegate."""
    found: dict[int, set[int]] = defaultdict(set)
    for index, method in enumerate(program.methods):
        names = set().union(*map(constants_of, method.graphs))
        for delegate in program.delegates:
            if delegate.method == index:
                names |= set(delegate.names)
        for name in names:
            found[program.names[name].blob].add(index)
    return {
        blob: tuple(program.methods[i].name for i in sorted(found[blob]))
        for blob in range(len(program.blobs))
    }
