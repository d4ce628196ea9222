"""Tell which index checks are of the slots at which a cache is written."""

from collections.abc import Mapping

from kvc.schema.graph import Argument, Graph, Instruction, Ref
from kvc.schema.ops import CACHE_UPDATE
from kvc.schema.types import Affine


def checks_rows(graph: Graph, check: Instruction, sizes: Mapping[str, int]) -> bool:
    """Tell whether a `kvc::check_index` checks the first slot of a cache write.

    If so, its failure means a full cache; otherwise an index out of range.
    """
    writes = (i for i in graph.instructions if i.op == CACHE_UPDATE)
    starts = {_root(graph, write.arguments[2]) for write in writes}
    index, _, count, _ = check.arguments
    if isinstance(count, Affine):
        count = count.evaluate(sizes)
    return _root(graph, index) in starts or count != 1


def _root(graph: Graph, argument: Argument) -> int | None:
    """Return the value in whose memory an operand lies."""
    return graph.root_of(argument.value) if isinstance(argument, Ref) else None
