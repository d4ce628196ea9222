"""Which sizes must not be 0 for the library.

It refuses matrix products without rows, columns, batches or elements to sum over, and
the softmax of empty rows; convolutions of nothing get another shape. With such sizes
kvc's own kernels run a partition, or the reference where they do not take all of it, in
no time: there is next to nothing to compute.
"""

from collections.abc import Iterator
from typing import Final

from kvc.schema.backends.xnnpack import CONVOLUTIONS
from kvc.schema.graph import Constant, Graph, Instruction, Ref
from kvc.schema.types import Affine, Dim

# The index of the first matrix among the arguments; the second comes next.
_PRODUCTS: Final = {"aten::mm": 0, "aten::bmm": 0, "aten::matmul": 0, "aten::addmm": 1}


def dims_that_must_be(graph: Graph) -> tuple[Affine, ...]:
    """Return the symbolic dims of which the library takes none for 0, each once."""
    dims = (dim for step in graph.instructions for dim in _dims_of(graph, step))
    return tuple(dict.fromkeys(dim for dim in dims if isinstance(dim, Affine)))


def _dims_of(graph: Graph, step: Instruction) -> Iterator[Dim]:
    """Yield the dims of an instruction that may not be 0."""
    if step.op == "aten::softmax.int":
        yield from graph.values[step.results[0]].type.dims[-1:]
    elif step.op in CONVOLUTIONS:
        given = step.arguments[0]
        assert isinstance(given, Ref)
        for value in (given.value, step.results[0]):
            yield from graph.values[value].type.dims
    elif step.op in _PRODUCTS:
        first = _PRODUCTS[step.op]
        left, right = step.arguments[first : first + 2]
        assert isinstance(left, Ref)
        assert isinstance(right, Ref)
        x, y = graph.values[left.value], graph.values[right.value]
        # A constant matrix is the weight of a linear, which may have no rows.
        if not (isinstance(y.storage, Constant) and len(y.type.dims) == 2):
            yield from (*x.type.dims, *y.type.dims)
