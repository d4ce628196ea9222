"""Refuse calls that return a view at some declared sizes and a copy at others.

`x.mT.reshape(n, 4)` is a view for n = 1 and a copy for any other n. A trace contains
either a view or a copy. The difference matters if the input of such a call is written
and the result is read afterwards, or the result is written and the input is read
afterwards. In: a trace that still contains writes. Out: nothing, or a `CaptureError`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map

from kvc.compiler.request.spec import Dim, Method
from kvc.compiler.trace.kept_layouts import (
    is_by_layout,
    made_of,
    memory_of,
    written_into,
)
from kvc.compiler.trace.shape_guards import dims_of, samples
from kvc.compiler.trace.sources import at_source_of
from kvc.schema.errors import CaptureError

Dims = Mapping[sympy.Symbol, Dim]
SymbolSizes = Mapping[sympy.Symbol, int]
OpArguments = tuple[tuple[object, ...], dict[str, object]]
_aten = torch.ops.aten
_ALWAYS_VIEWS = {_aten.view.default, _aten.view_as.default}
_REASON = (
    "the result of {operator} is a view for {view} and a copy for {copy}, so a later "
    "write would differ between sizes; use "
    ".clone(memory_format=torch.contiguous_format) of its operand"
)


def check_views(
    method: Method, arguments: Mapping[str, object], exported: ExportedProgram
) -> None:
    """Check that calls whose aliasing matters return a view at all sizes, or at none.

    Args:
        method: the traced method.
        arguments: the examples of the trace, by parameter name.
        exported: the trace, before it is decomposed.

    Raises:
        CaptureError: a result is a view at one size and a copy at another size; the
            error names both sizes.
    """
    dims = dims_of(method, arguments, exported)
    for module in exported.graph_module.modules():
        if dims and isinstance(module, fx.GraphModule):
            for node in _seen_by_both(module.graph):
                _check(method, node, dims)


def _seen_by_both(graph: fx.Graph) -> Iterator[fx.Node]:
    """Yield the calls for which it matters whether the result is a view.

    The input is written and the result is read later, or the result is written and the
    input is read later.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    writes = [(order[node], into) for node in order for into in written_into(node)]
    last = {memory_of(into): place for place, into in writes}
    if not last:
        return
    held: dict[object, set[fx.Node]] = {}
    for node in order:
        held.setdefault(memory_of(node), set()).add(node)
    for node in order:
        if not is_by_layout(node) or node.target in _ALWAYS_VIEWS:
            continue
        source, here = memory_of(node.all_input_nodes[0]), order[node]
        if max(last.get(source, -1), last.get(memory_of(node), -1)) < here:
            continue
        given = made_of(node)
        taken = held[source] - given
        if any(
            place > here and into in side and _is_seen(other, place, order)
            for place, into in writes
            for side, other in ((given, taken), (taken, given))
        ):
            yield node


def _is_seen(nodes: set[fx.Node], place: int, order: Mapping[fx.Node, int]) -> bool:
    """Tell whether a node among `nodes` is an input, or is read after index `place`."""
    return any(
        node.op == "placeholder" or any(order[user] > place for user in node.users)
        for node in nodes
    )


def _check(method: Method, node: fx.Node, dims: Dims) -> None:
    """Check that a call returns a view at all sizes, or at none."""
    values = cast(OpArguments, tree_map(_value, (node.args, node.kwargs)))
    symbols = sorted(_symbols(values), key=str)
    if not dims.keys() >= set(symbols):
        return
    target, found = cast(Callable[..., Tensor], node.target), dict[bool, SymbolSizes]()
    for numbers in samples([dims[symbol] for symbol in symbols]):
        sizes = dict(zip(symbols, numbers, strict=True))
        way = _is_view(target, _at(values, sizes))
        if way is not None:
            found.setdefault(way, sizes)
    if len(found) == 2:
        named = {
            way: ", ".join(f"{dims[s].name} = {n}" for s, n in sizes.items())
            for way, sizes in found.items()
        }
        operator = getattr(node.target, "_opname", node.name)
        raise CaptureError(
            method=method.name,
            place=at_source_of(node.meta),
            reason=_REASON.format(
                operator=operator, view=named[True], copy=named[False]
            ),
        )


def _value(argument: object) -> object:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def _symbols(values: object) -> set[sympy.Symbol]:
    """Return the symbols in sizes, and in the shapes and strides of tensors."""
    found: set[sympy.Symbol] = set()
    for each in tree_leaves(values):
        sizes = [*each.shape, *each.stride()] if isinstance(each, Tensor) else [each]
        for size in sizes:
            if isinstance(size, torch.SymInt):
                found |= size.node.expr.free_symbols
    return found


def _at(values: OpArguments, sizes: SymbolSizes) -> OpArguments:
    """Return a call's arguments for given sizes; tensors have no content."""

    def number(size: object) -> object:
        if isinstance(size, torch.SymInt):
            return int(size.node.expr.subs(sizes))
        return size

    def at(each: object) -> object:
        if not isinstance(each, Tensor):
            return number(each)
        shape, strides = ([*map(number, x)] for x in (each.shape, each.stride()))
        made: Callable[..., Tensor] = torch.empty_strided
        return made(shape, strides, dtype=each.dtype, device="meta")

    return cast(OpArguments, tree_map(at, values))


def _is_view(target: Callable[..., Tensor], call: OpArguments) -> bool | None:
    """Tell whether a call returns a tensor in the memory of its operand.

    Return None if the operand is empty, or if the call raises an error.
    """
    args, kwargs = call
    whole = args[0]
    assert isinstance(whole, Tensor)
    if not whole.numel():
        return None
    try:
        made = target(*args, **kwargs)
    except RuntimeError:
        return None
    shared: bool = made.untyped_storage()._cdata == whole.untyped_storage()._cdata
    return shared
