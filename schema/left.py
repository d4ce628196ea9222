"""List the instructions of a method that PyTorch runs, since no backend runs them.

In: the code of a method. Out: the instructions that compute outside of partitions,
including instructions in the blocks of branches and loops; and a sentence that reports
them.
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
    """Yield the instructions that no backend runs, each after the graph that has it.

    The instructions are those of `graph`, and of the blocks that `graph` runs.

    Args:
        graph: the graph of a method, or of one of its blocks.
        blocks: the graphs of all of the method's blocks.
    """
    for step in left_to_torch(graph):
        yield graph, step
    for op in _RUN_HERE:
        for block in blocks_run(graph, op):
            yield from left_within(blocks[block], blocks)


def needs_torch(graph: Graph, blocks: Sequence[Graph]) -> bool:
    """Tell whether a graph, or a block that it runs, has instructions for PyTorch."""
    return any(True for _ in left_within(graph, blocks))


def left_of(method: Method) -> dict[str, int]:
    """Return the number of a method's instructions that no backend runs, by operator.

    The most frequent operator comes first.
    """
    steps = left_within(method.graph, method.graphs[1:])
    return dict(Counter(step.op for _, step in steps).most_common())


def why_torch(graph: Graph, blocks: Sequence[Graph], *, reference: bool = False) -> str:
    """Return why a graph needs PyTorch: the first such instruction, and how many more.

    Args:
        graph: as for `left_within`, which must yield at least one instruction.
        blocks: as for `left_within`.
        reference: whether a backend's reference implementation runs the graph.
    """
    steps = [step for _, step in left_within(graph, blocks)]
    place = f" at {steps[0].source}" if steps[0].source else ""
    count = len(steps) - 1
    more = f" nor {count:,} more instruction{'s' * (count > 1)}" * (count > 0)
    if reference:
        return f"the reference of a backend computes {steps[0].op}{place} with it"
    return f"no backend runs {steps[0].op}{place}{more}"
