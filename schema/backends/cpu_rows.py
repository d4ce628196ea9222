"""Select the instructions of a block that the backend `cpu` runs as one step.

In: a block. Out: groups of instructions, by the index of a group's last instruction. A
group is an instruction that quantizes rows, and all matrix products that read the
quantized rows. The rows are quantized once, into the form that the products read, and
threads share the columns of all products. If the unquantized rows come from a norm or a
gated unit, that instruction belongs to the group too: the thread that computes a row
also quantizes the row, while the row is in the processor's cache.
"""

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kvc.schema.backends.operands import (
    Arguments,
    Results,
    Rule,
    operand,
    operands_of,
    unknown_dtypes,
)
from kvc.schema.dtypes import DType
from kvc.schema.graph import Constant, Graph, Instruction, Ref, Scratch
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.ops.row_blocks import ROW_ARGUMENTS
from kvc.schema.types import Dim
from kvc.schema.verify.effects import values_in

BLOCKS: Final = "kvc::quantize_blocks"
# Operators that quantize rows, with the products that read their results.
LINEARS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "kvc::quantize_rows": ("kvc::linear_qd8", "kvc::linear_qb4"),
        BLOCKS: ("kvc::linear_q8", "kvc::linear_q4"),
    }
)
GLU: Final = "kvc::glu"
NORM: Final = "aten::rms_norm"


def products_of_rows(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """Return groups of instructions, by the index of each group's last instruction.

    A group is a tuple of indices: an instruction that quantizes rows, then all products
    that read the quantized rows, directly or through views. The products are of one
    operator and have the same number of scales per weight row. All products can run
    together, in any order, at the position of the last product: the weights and scales
    are constant, and the results of the products are in use until after the last
    product, so that no two results share scratch memory.
    If no other instruction reads the unquantized rows, the instruction that computes
    the unquantized rows comes first in the group. All rows are computed before the
    first product is written, so a product's result may overwrite that instruction's
    operands.
    """
    quantizing = [i for i, step in enumerate(graph.instructions) if step.op in LINEARS]
    if not quantizing:
        return {}
    readers: dict[int, set[int]] = defaultdict(set)
    until: dict[int, int] = {}
    roots = graph.roots()
    for index, instruction in enumerate(graph.instructions):
        for value in values_in(instruction.arguments):
            readers[value].add(index)
            until[roots[value]] = index
    until |= {roots[value]: len(graph.instructions) for value in graph.outputs}
    groups = {}
    for index in quantizing:
        results = graph.instructions[index].results
        products = sorted({i for made in results for i in readers[made]})
        if set(results) & set(graph.outputs) or not products:
            continue
        if _go_together(graph, index, products, until):
            groups[products[-1]] = (*_source(graph, index, readers), index, *products)
    return groups


def unwritten(graph: Graph) -> frozenset[int]:
    """Return the ids of the values that no step of the backend `cpu` writes to memory.

    Such a value holds quantized rows, and only the products in the same group read it.
    """
    return frozenset(
        value
        for group in products_of_rows(graph).values()
        for index in group
        if graph.instructions[index].op not in ROW_ARGUMENTS
        for value in graph.instructions[index].results
    )


def _source(
    graph: Graph, quantizing: int, readers: Mapping[int, set[int]]
) -> tuple[int, ...]:
    """Return the index of the instruction that computes the unquantized rows.

    Args:
        graph: the graph that holds the instructions.
        quantizing: the index of the instruction that quantizes the rows.
        readers: for each value id, the indices of the instructions that read the value.

    Returns:
        A tuple of the one index; () if that instruction cannot join the group.
    """
    (rows,) = values_in(graph.instructions[quantizing].arguments)
    for index in reversed(range(quantizing)):
        instruction = graph.instructions[index]
        if rows in instruction.results:
            read = readers[rows] == {quantizing} and rows not in graph.outputs
            home = graph.values[graph.root_of(rows)].storage
            alone = read and isinstance(home, Scratch)
            return (index,) if alone and _makes_rows(instruction) else ()
        if OPS[instruction.op].aliasing is not Aliasing.VIEW:
            break
    return ()


def _makes_rows(instruction: Instruction) -> bool:
    """Tell whether an instruction computes each row independently of other rows."""
    if instruction.op == NORM:
        shape = instruction.arguments[1]
        return isinstance(shape, tuple) and len(shape) == 1
    return instruction.op == GLU


def _go_together(
    graph: Graph, first: int, products: list[int], until: Mapping[int, int]
) -> bool:
    """Tell whether all products of some rows run in one step with their quantization.

    Args:
        graph: the graph that holds the instructions.
        first: the index of the instruction that quantizes the rows.
        products: the indices of all products that read the quantized rows.
        until: for the root of each value, the index of the last instruction that reads
            the value.
    """
    quantizing, last = graph.instructions[first], graph.instructions[products[-1]]
    if last.op not in LINEARS[quantizing.op]:
        return False
    rows = tuple(Ref(value) for value in quantizing.results)
    parts = _parts(graph, last, len(rows))
    written = list(quantizing.results)
    for index in range(first + 1, products[-1] + 1):
        instruction = graph.instructions[index]
        if index not in products:
            if OPS[instruction.op].aliasing is not Aliasing.VIEW:
                return False
            continue
        # Weights of two dtypes, or divided differently, read rows in two forms.
        if (instruction.op, instruction.arguments[: len(rows)]) != (last.op, rows):
            return False
        if _parts(graph, instruction, len(rows)) != parts:
            return False
        others = values_in(instruction.arguments[len(rows) :])
        lie = [graph.values[graph.root_of(value)].storage for value in others]
        if not all(isinstance(storage, Constant) for storage in lie):
            return False
        if any(until.get(made, 0) <= products[-1] for made in instruction.results):
            return False
        written += instruction.results
    return all(isinstance(graph.values[made].storage, Scratch) for made in written)


def _parts(graph: Graph, product: Instruction, rows: int) -> Dim:
    """Return the number of scales per row of an int8 weight, 1 for another weight."""
    if product.op != "kvc::linear_q8":
        return 1
    scale = product.arguments[rows + 1]
    return graph.values[scale.value].type.dims[-1] if isinstance(scale, Ref) else 1


# Rules for quantized rows and the weights that multiply them.


MAX_DEPTH: Final = 65_536  # int8 products whose int32 sum is exact


def quantized_rows(arguments: Arguments, results: Results) -> str:
    """Return why rows to be quantized are not float32 rows, or ""."""
    x = operand(arguments[0]).type
    return unknown_dtypes([x], {DType.FLOAT32}) if x.dims else f"a scalar {x}"


def quantized_linear(first: int) -> Rule:
    """Return the rule for a product of int8 rows and a weight.

    Args:
        first: the index of the argument that is the weight; the scales of the weight
            follow it.
    """

    def rule(arguments: Arguments, results: Results) -> str:
        depth = operand(arguments[0]).type.dims[-1]
        if not isinstance(depth, int) or depth > MAX_DEPTH:
            return f"int8 rows of {depth} elements"
        weights = [each.type for each in operands_of(arguments[first : first + 2])]
        static = all(kind.is_static for kind in weights)
        return "" if static else f"weights {weights[0]} by scales {weights[1]}"

    return rule


def quantized_table(arguments: Arguments, results: Results) -> str:
    """Return why a lookup in a table of int8 rows is not supported, or "".

    A table row has one scale, or one scale for each block of its elements.
    """
    table, scale = (operand(each).type for each in arguments[:2])
    divided = (*table.dims[-1:], *scale.dims[1:])
    if scale.dims[1:] and not all(isinstance(size, int) for size in divided):
        return f"a table {table} with scales {scale}"
    return unknown_dtypes([scale], {DType.FLOAT32})
