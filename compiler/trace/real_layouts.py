"""Find results whose memory layout differs from torch's trace.

While torch traces, a rule gives the strides of the result of each operator; a few rules
are wrong (torch 2.13: `max_unpool2d`, `roll`, `isin`, batch norm of permuted tensors).
Wrong strides matter if a tensor is written through `reshape`, which is a view for some
layouts and a copy for others. In: nodes of a trace that still contains writes. Out: the
nodes whose real layout differs from the layout in the trace, found by running operators
on zeros in the layout of their inputs. Operators on contiguous inputs are not run,
since the rules are right for them. Operators on large tensors, or on sizes known only
at a call, are not run either; for these the layout in the trace is assumed to be right.
"""

import operator
from collections.abc import Mapping, Sequence

import torch
from torch import SymBool, SymFloat, SymInt, Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

Order = Sequence[int]  # axes, the one with the largest stride first
_MOST_NBYTES = 1 << 26  # of all operands and results, so that the run is quick


def wrong_in_trace(seen: Sequence[fx.Node]) -> Mapping[fx.Node, Order | None]:
    """Return node -> order of its axes in memory, for nodes with a wrong traced layout.

    The order is None for a tensor that is not contiguous in any order of its axes.

    Args:
        seen: nodes of a graph; the nodes that they depend on are checked too.
    """
    layouts = _Layouts()
    for node in _with_sources(seen):
        layouts.add(node)
    return {node: _order(layout) for node, layout in layouts.other.items()}


def _with_sources(seen: Sequence[fx.Node]) -> list[fx.Node]:
    """Return `seen` and all nodes that `seen` depends on, in graph order."""
    left, found = [*seen], set[fx.Node]()
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return [node for node in seen[0].graph.nodes if node in found] if seen else []


class _Layouts:
    """The memory layouts of the results of nodes.

    A layout is a tensor without values, or None if it is unknown.

    Attributes:
        other: node -> real layout, for nodes whose layout in the trace differs.
    """

    def __init__(self) -> None:
        self.other: dict[fx.Node, Tensor] = {}
        self._of: dict[fx.Node, object] = {}
        self._ran: dict[str, object] = {}  # call -> layout: equal layers run once

    def add(self, node: fx.Node) -> None:
        """Find the layout of a node's result, from the layouts of the node's inputs."""
        traced = tree_map(_at_example, node.meta.get("val"))
        real = self._of[node] = self._real(node, traced)
        if isinstance(real, Tensor) and not _alike(traced, real):
            self.other[node] = real

    def _real(self, node: fx.Node, traced: object) -> object:
        inputs = node.all_input_nodes
        given = [self._of[each] for each in inputs]
        if node.target is operator.getitem and isinstance(given[0], (list, tuple)):
            return given[0][node.args[1]]  # type: ignore[index]  # a number
        moved = any(each in self.other for each in inputs)
        if not isinstance(node.target, torch._ops.OpOverload):
            return traced
        if not _is_small([*given, traced]) or not (moved or _is_turned(given)):
            return traced
        call = fx.node.map_arg((node.args, node.kwargs), self._of.__getitem__)  # type: ignore[arg-type]  # layouts
        key = f"{node.target} {tree_map(_described, call)}"
        if key not in self._ran:
            self._ran[key] = _run(node.target, call)
        made = self._ran[key]
        return traced if made is None else made


def _is_turned(given: object) -> bool:
    """Tell whether any tensor among `given` is not contiguous."""
    tensors = (each for each in tree_leaves(given) if isinstance(each, Tensor))
    return not all(each.is_contiguous() for each in tensors)


def _is_small(layouts: object) -> bool:
    """Tell whether all layouts are known, and the tensors are small in total."""
    known = tree_leaves(layouts)
    sizes = (
        max(each.untyped_storage().nbytes(), each.nbytes)
        for each in known
        if isinstance(each, Tensor)
    )
    return all(each is not None for each in known) and sum(sizes) <= _MOST_NBYTES


def _run(target: torch._ops.OpOverload, call: object) -> object:
    """Run an operator on zeros; return its results' layouts, None if it raises."""
    try:
        args, kwargs = tree_map_only(Tensor, _zeros, call)
        with torch.random.fork_rng(devices=()):
            made = target(*args, **kwargs)
    except Exception:  # the operator refuses zeros
        return None
    return tree_map_only(Tensor, _without_values, made)


def _zeros(layout: Tensor) -> Tensor:
    sizes, steps = layout.shape, layout.stride()
    return torch.empty_strided(sizes, steps, dtype=layout.dtype).zero_()


def _without_values(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _described(each: object) -> object:
    if isinstance(each, Tensor):
        return tuple(each.shape), each.stride(), each.dtype
    return each


def _at_example(value: object) -> object:
    """Return a traced value with the sizes of the example in place of symbols.

    A tensor becomes a tensor without values. Return None if a size is not known.
    """
    if isinstance(value, SymInt | SymFloat | SymBool):
        return value.node.hint
    if not isinstance(value, Tensor):
        return value
    if value.layout is not torch.strided:
        return None
    sizes = [_at_example(n) for n in value.shape]
    steps = [_at_example(n) for n in value.stride()]
    if None in sizes or None in steps:
        return None
    return torch.empty_strided(sizes, steps, dtype=value.dtype, device="meta")  # type: ignore[arg-type]  # numbers


def _alike(traced: object, real: Tensor) -> bool:
    """Tell whether two layouts are equal, or cannot be compared.

    Layouts of different shapes, and of tensors without elements, are not compared.
    """
    if not isinstance(traced, Tensor) or traced.shape != real.shape or not real.numel():
        return True
    steps = zip(real.shape, traced.stride(), real.stride(), strict=True)
    return all(size < 2 or one == other for size, one, other in steps)


def _order(layout: Tensor) -> Order | None:
    """Return the order of axes in which a tensor is contiguous, None without one."""
    steps = layout.stride()
    order = sorted(range(layout.ndim), key=steps.__getitem__, reverse=True)
    return order if layout.permute(order).is_contiguous() else None
