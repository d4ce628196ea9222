"""Sizes that differ between branches, in merged decoders.

A merged decoder has one branch without a past, which returns what is new, and one that
returns the past and what is new. torch makes a new symbol for each such size; a session
knows it: it takes the first branch while the past is empty. In: a traced graph. Out:
its symbols for such sizes defined as the longer of the two, and blocks whose shorter
output is appended to the past, after a check that the past is empty.
"""

from collections.abc import Sequence
from dataclasses import replace

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx

from kvc.compiler.import_fx.calls import Unsupported
from kvc.compiler.import_fx.control import higher_call
from kvc.compiler.import_fx.symbols import SizeReader
from kvc.compiler.ir import Method, Node, Value
from kvc.schema.errors import CaptureError
from kvc.schema.types import TensorType, add_dims, only_symbol


def define_joined_sizes(module: torch.nn.Module, sizes: SizeReader) -> None:
    """Define the symbols for sizes that differ between branches, where that can be."""
    graph = getattr(module, "graph", None)
    for node in graph.nodes if isinstance(graph, fx.Graph) else ():
        if not _is_cond(node):
            continue
        bodies = [
            getattr(module, str(body.target)) for body in higher_call(node).bodies
        ]
        for body in bodies:
            define_joined_sizes(body, sizes)
        ways = [_outputs(body) for body in bodies]
        for result, *given in zip(node.meta["val"], *ways, strict=True):
            _define(result, given, sizes)


def _is_cond(node: fx.Node) -> bool:
    higher = isinstance(node.target, torch._ops.HigherOrderOperator)
    return higher and str(node.target) == "cond"


def _outputs(body: fx.GraphModule) -> list[object]:
    (left,) = next(n for n in body.graph.nodes if n.op == "output").args
    nodes = left if isinstance(left, tuple | list) else (left,)
    return [n.meta.get("val") if isinstance(n, fx.Node) else n for n in nodes]


def _define(result: object, given: Sequence[object], sizes: SizeReader) -> None:
    shapes = [one.shape for one in given if isinstance(one, Tensor)]
    if not isinstance(result, Tensor) or len(shapes) != len(given):
        return
    for size, *ways in zip(result.shape, *shapes, strict=True):
        if sizes.knows(size) or not isinstance(size.node.expr, sympy.Symbol):
            continue
        longest = _longest(ways, sizes)
        if longest is not None:
            sizes.define(size.node.expr, longest)


def _longest(
    ways: Sequence[int | torch.SymInt], sizes: SizeReader
) -> sympy.Expr | None:
    """Return the size that is longer than the other by one symbol, if one is."""
    try:
        first, second = (sizes.dim(way) for way in ways)
    except CaptureError:
        return None
    for way, long, short in ((ways[0], first, second), (ways[1], second, first)):
        # A past is one symbol, which may be 0.
        if long == short or only_symbol(add_dims(long, short, -1)):
            return sizes.expression(way)
    return None


def with_joined_outputs(
    blocks: Sequence[Method], results: Sequence[TensorType]
) -> list[Method]:
    """Return the blocks of a cond with shorter outputs put after what they lack.

    Raises:
        Unsupported: an output differs from the result in another way.
    """
    made = list(blocks)
    for i, kind in enumerate(results):
        for number, block in enumerate(made):
            if block.outputs[i].type != kind:
                made[number] = _with_past(block, i, kind, blocks)
    return made


def _with_past(
    block: Method, output: int, kind: TensorType, blocks: Sequence[Method]
) -> Method:
    """Return a block that puts an output after an input, which must be empty."""
    short = block.outputs[output]
    axes = [
        i
        for i, (a, b) in enumerate(zip(kind.dims, short.type.dims, strict=True))
        if a != b
    ]
    pasts = [_joined_input(one, output, kind) for one in blocks if one is not block]
    if len(axes) != 1 or None in pasts:
        raise Unsupported(
            "branches give tensors of different sizes; only torch.cat([past, new], "
            "dim) and new alone may, where past is passed to torch.cond and is empty "
            "at first"
        )
    (axis,), past = axes, block.inputs[pasts[0] or 0]
    lacking = add_dims(kind.dims[axis], short.type.dims[axis], -1)
    count = block.next_id()
    whole = Value(count, kind)
    place = next((n.source for n in reversed(block.nodes) if n.source), "")
    check = Node("kvc::check_size", (lacking, 0), (), place)
    join = Node("aten::cat", ((past, short), axis), (whole,), place)
    outputs = list(block.outputs)
    outputs[output] = whole
    return replace(block, nodes=(check, *block.nodes, join), outputs=tuple(outputs))


def _joined_input(block: Method, output: int, kind: TensorType) -> int | None:
    """Return the input that a block's output begins with, None where it does not."""
    value = block.outputs[output]
    maker = block.makers().get(value.id)
    if value.type != kind or maker is None or maker.op != "aten::cat":
        return None
    first = maker.inputs[0]
    return block.inputs.index(first) if first in block.inputs else None
