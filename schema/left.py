"""What of a method no backend runs, so that PyTorch has to.

In: the code of a method. Out: its instructions that compute outside of partitions, also
those of the blocks that branches and loops run, and words for them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from kvc.schema.control import blocks_run, left_to_torch
from kvc.schema.graph import Graph, Instruction
from kvc.schema.model import Method
from kvc.schema.ops import CONTROL_OPS, DELEGATE

_RUN_HERE: Final = tuple(sorted(CONTROL_OPS - {DELEGATE}))


def left_within(
    graph: Graph, blocks: Sequence[Graph]
) -> Iterator[tuple[Graph, Instruction]]:
    """Yield what is left of a graph and the blocks it runs, each with its graph.

    Args:
        graph: of a method, or of one of its blocks.
        blocks: the graphs of all of the method's blocks.
    """
    for step in left_to_torch(graph):
        yield graph, step
    for op in _RUN_HERE:
        for block in blocks_run(graph, op):
            yield from left_within(blocks[block], blocks)


def needs_torch(graph: Graph, blocks: Sequence[Graph]) -> bool:
    """Tell whether an instruction computes outside of partitions; as `left_within`."""
    return any(True for _ in left_within(graph, blocks))


def left_of(method: Method) -> dict[str, int]:
    """Count the instructions that no backend runs, by op, most frequent first."""
    steps = left_within(method.graph, method.graphs[1:])
    return dict(Counter(step.op for _, step in steps).most_common())


def why_torch(graph: Graph, blocks: Sequence[Graph], *, reference: bool = False) -> str:
    """Say what of a graph needs PyTorch: the first instruction with its line, how many.

    Args:
        graph: as of `left_within`, which yields something of it.
        blocks: as of `left_within`.
        reference: whether the graph is a backend's, and runs by its reference.
    """
    steps = [step for _, step in left_within(graph, blocks)]
    place = f" at {steps[0].source}" if steps[0].source else ""
    count = len(steps) - 1
    more = f" nor {count:,} more instruction{'s' * (count > 1)}" * (count > 0)
    if reference:
        return f"the reference of a backend computes {steps[0].op}{place} with it"
    return f"no backend runs {steps[0].op}{place}{more}"
