"""Sizes that differ between branches, in merged decoders.

A merged decoder has two branches. One branch takes no past and returns only the new
rows; the other branch returns the past followed by the new rows. torch makes a new
symbol for the size of the result. A session knows that size, since it takes the first
branch exactly while the past is empty.

In: a traced graph. Out: a definition of each such symbol as the longer of the two
sizes, and changed blocks. A block that returns only the new rows checks that the past
is empty, and appends the new rows to the past.

A cross cache is computed in one branch, and the other branch returns the past cache.
The size of the result is the sum of the computed size and the past size. The branch
that computes the cache checks that the past is empty, and the branch that returns the
past checks that the input of the computation is empty.
"""

from collections.abc import Sequence
from dataclasses import replace

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx

from kvc.compiler.ingest.calls import Unsupported
from kvc.compiler.ingest.control import higher_call
from kvc.compiler.ingest.symbols import SizeReader
from kvc.compiler.ir import Method, Node, Value
from kvc.schema.errors import CaptureError
from kvc.schema.types import TensorType, add_dims, only_symbol


def define_joined_sizes(module: torch.nn.Module, sizes: SizeReader) -> None:
    """Define the symbols for sizes that differ between branches, where possible.

    Raises:
        CaptureError: one branch returns a past that the other branch computes from an
            input that can never be empty, or no call could take one of the branches.
    """
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
    """Return the longer of two branches' sizes, if the sizes differ by one symbol.

    If both sizes are symbols, return their sum, since one of them is 0 in each call.
    Return None for any other sizes.

    Raises:
        CaptureError: no call could have the shorter size.
    """
    try:
        first, second = (sizes.dim(way) for way in ways)
    except CaptureError:
        return None
    parts = [sizes.expression(way) for way in ways]
    dims = (first, second), (second, first)
    for (long, short), whole, part in zip(dims, parts, reversed(parts), strict=True):
        if long == short:
            return whole
        # A past is one symbol, which may be 0.
        if only_symbol(add_dims(long, short, -1)):
            _check_may_lack(whole - part, sizes)
            return whole
    if not (only_symbol(first) and only_symbol(second)):
        return None
    if any(sizes.bounds(part)[0] for part in parts):
        raise sizes.refused(
            "one branch of torch.cond keeps what the other computes, and a call that "
            "keeps it passes an empty input for it: both sizes need a Dim from 0 "
            f"on, and these are {first} and {second}"
        )
    return sum(parts)


def _check_may_lack(lacking: sympy.Expr, sizes: SizeReader) -> None:
    """Check that the rows that only the longer branch returns can be empty.

    `lacking` is the number of these rows.

    Raises:
        CaptureError: the rows are never empty.
    """
    if sizes.bounds(lacking)[0]:
        raise sizes.refused(
            "one branch of torch.cond leaves out rows that the other appends; these "
            f"are never empty ({sizes.dim_of(lacking)}), so no call could take the "
            "shorter branch: append in both branches, or give this size a Dim from 0 "
            "on"
        )


def with_joined_outputs(
    blocks: Sequence[Method], results: Sequence[TensorType]
) -> list[Method]:
    """Return the blocks of a cond; outputs without the past's rows get those rows.

    Raises:
        Unsupported: an output differs from the result in another way.
    """
    made = list(blocks)
    for i, kind in enumerate(results):
        short = [n for n, block in enumerate(made) if block.outputs[i].type != kind]
        if not short:
            continue
        past = _find_past(blocks, i, kind)
        for number in short:
            made[number] = _with_past(made[number], i, kind, past)
    return made


def _find_past(blocks: Sequence[Method], output: int, kind: TensorType) -> int:
    """Return the index of the operand that is the past of an output.

    Raises:
        Unsupported: no operand, or more than one operand, can be the past.
    """
    found = {_joined_input(block, output, kind) for block in blocks} - {None}
    if not found:
        found = {_kept_input(block, output) for block in blocks} - {None}
    if len(found) == 1:
        (past,) = found
        assert past is not None
        return past
    raise Unsupported(
        "branches give tensors of different sizes; only torch.cat([past, new], dim) "
        "and new alone may, or past.clone() and new, where past is passed to "
        "torch.cond and is empty at first"
    )


def _with_past(block: Method, output: int, kind: TensorType, past: int) -> Method:
    """Return a block that checks that the past is empty, and appends an output to it.

    `output` is the index of the output, `past` that of the past among the block's
    inputs, and `kind` is the type of the result. A block that returns the past itself
    appends nothing; it checks that the rows which the other branch would compute are
    empty.

    Raises:
        Unsupported: the output differs from the result along several axes.
    """
    short, given = block.outputs[output], block.inputs[past]
    axes = [
        i
        for i, (a, b) in enumerate(zip(kind.dims, short.type.dims, strict=True))
        if a != b
    ]
    if len(axes) != 1:
        raise Unsupported("branches give tensors that differ along several axes")
    (axis,) = axes
    lacking = add_dims(kind.dims[axis], short.type.dims[axis], -1)
    place = next((n.source for n in reversed(block.nodes) if n.source), "")
    check = Node("kvc::check_size", (lacking, 0), (), place)
    whole, more, added = Value(block.next_id(), kind), short, tuple[Node, ...]()
    if _kept_input(block, output) == past:
        dims = (*kind.dims[:axis], lacking, *kind.dims[axis + 1 :])
        more = Value(whole.id + 1, TensorType(kind.dtype, dims))
        added = (Node("aten::full", (dims, 0, kind.dtype), (more,), place),)
    join = Node("aten::cat", ((given, more), axis), (whole,), place)
    outputs = list(block.outputs)
    outputs[output] = whole
    return replace(
        block, nodes=(check, *block.nodes, *added, join), outputs=tuple(outputs)
    )


def _joined_input(block: Method, output: int, kind: TensorType) -> int | None:
    """Return the index of the input that is the first part of a concatenated output.

    The result is None if the output is no concatenation that starts with an input.
    """
    value = block.outputs[output]
    maker = block.makers().get(value.id)
    if value.type != kind or maker is None or maker.op != "aten::cat":
        return None
    return _input(block, maker.inputs[0])


def _kept_input(block: Method, output: int) -> int | None:
    """Return the index of the input that a block returns unchanged as an output.

    The result is None if the output is no input.
    """
    value = block.outputs[output]
    maker = block.makers().get(value.id)
    if maker is not None and maker.op == "aten::clone":
        value = maker.inputs[0]
    return _input(block, value)


def _input(block: Method, value: Value) -> int | None:
    return block.inputs.index(value) if value in block.inputs else None
