"""Which instructions of a block run as one step.

In: a block. Out: for the last instruction of each group, all that are in it. Rows that
are quantized for products alone go with these products: they are quantized once, into
the form that products read, and threads share the columns of all products.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from kvc.schema.model import Graph, Instruction, Ref
from kvc.schema.ops import OPS, Aliasing

QUANTIZE: Final = "kvc::quantize_rows"
LINEARS: Final = ("kvc::linear_qd8", "kvc::linear_qb4")
ROWS: Final = 3  # arguments of a product that are results of quantize_rows


def products_of_rows(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """Return groups of instructions, by the index of the last of each.

    Each group is an instruction that quantizes rows and all products that read them,
    with nothing but views in between. So nothing else runs between the first and the
    last of them, and they can run as one where the last is.
    """
    readers: dict[int, list[int]] = defaultdict(list)
    for index, instruction in enumerate(graph.instructions):
        for value in _values_in(instruction):
            readers[value].append(index)
    groups = {}
    for index, instruction in enumerate(graph.instructions):
        if instruction.op != QUANTIZE or set(instruction.results) & set(graph.outputs):
            continue
        products = sorted({i for made in instruction.results for i in readers[made]})
        if products and _go_together(graph, index, products):
            groups[products[-1]] = (index, *products)
    return groups


def _go_together(graph: Graph, first: int, products: list[int]) -> bool:
    rows = tuple(Ref(value) for value in graph.instructions[first].results)
    for index in range(first + 1, products[-1] + 1):
        instruction = graph.instructions[index]
        if index not in products:
            if OPS[instruction.op].aliasing is not Aliasing.VIEW:
                return False
        elif instruction.op not in LINEARS or instruction.arguments[:ROWS] != rows:
            return False
    return True


def _values_in(instruction: Instruction) -> list[int]:
    arguments = instruction.arguments
    items = [i for a in arguments for i in (a if isinstance(a, tuple) else (a,))]
    return [item.value for item in items if isinstance(item, Ref)]
