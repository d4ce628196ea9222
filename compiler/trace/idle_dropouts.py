"""Replace dropout outside of training by its input if input or result is written later.

In eager mode, dropout outside of training returns its input itself, so a write into the
result changes the input too; torch's functional form is a copy. In: a trace that still
contains writes. Out: the same trace, in which the result of such a dropout is replaced
by the input if the input or the result is written afterwards. Otherwise the copy stays,
since a body of a branch or loop must not return its input. Such a body must not take or
return one tensor twice either, so a repeated tensor is cloned.
"""

import operator
from collections.abc import Callable, Mapping

import torch
from torch import fx
from torch.export import ExportedProgram

from kvc.compiler.trace.kept_layouts import is_by_layout, memory_of, written_by

_aten = torch.ops.aten
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
_DROPOUTS = (_aten.dropout.default, _aten.dropout_.default)


def hand_on(exported: ExportedProgram) -> None:
    """Let the readers of a dropout that drops nothing read its input instead.

    A dropout is removed only if a later node writes to its input or to its result.
    Bodies of branches and loops are changed too.
    """
    root = exported.graph_module
    for module in root.modules():
        if isinstance(module, fx.GraphModule) and _hand_on(module.graph):
            _clone_repeats(module.graph, is_body=module is not root)
            module.recompile()


def _hand_on(graph: fx.Graph) -> bool:
    idle = [node for node in graph.nodes if is_idle(node)]
    if not idle:
        return False
    last_writes = _last_writes(graph, idle)
    order = {node: index for index, node in enumerate(graph.nodes)}
    moved: dict[fx.Node, object] = {}
    for node in idle:
        given = node.args[0]
        assert isinstance(given, fx.Node)
        if last_writes.get(memory_of(node), -1) >= order[node]:
            moved |= dict.fromkeys(node.users)
            node.replace_all_uses_with(given)
            graph.erase_node(node)
    if moved:
        _trace_again(graph, moved)
    return bool(moved)


def is_idle(node: fx.Node) -> bool:
    """Tell whether a call is a dropout that drops nothing."""
    if node.target not in _DROPOUTS:
        return False
    _, p, train = node.args
    return train is False or bool(p == 0)


def _last_writes(graph: fx.Graph, idle: list[fx.Node]) -> Mapping[object, int]:
    """Return memory -> index of the last write into the memory.

    The keys are the memory of inputs and of results of dropouts. The input and the
    result of a dropout count as one memory. A write into a copy that would be a view
    for some layouts counts as a write into the copied memory too.
    """
    one: dict[object, object] = {}
    for node in idle:
        source = memory_of(node.all_input_nodes[0])
        one[memory_of(node)] = one.get(source, source)
    found: dict[object, int] = {}
    seen: dict[object, object] = {}
    for index, node in enumerate(graph.nodes):
        if is_by_layout(node):
            source = memory_of(node.all_input_nodes[0])
            seen[memory_of(node)] = seen.get(source, one.get(source, source))
        for memory in written_by(node):
            home = one.get(memory, memory)
            found[home] = found[seen.get(memory, home)] = index
    return {memory: found[home] for memory, home in one.items() if home in found}


def _trace_again(graph: fx.Graph, moved: dict[fx.Node, object]) -> None:
    """Recompute the fake values of nodes that are now views of other memory."""
    for node in graph.nodes:
        known = isinstance(node.target, torch._ops.OpOverload)
        if node not in moved or not (known or node.target is operator.getitem):
            continue
        if isinstance(node.meta.get("val"), _NUMBERS):
            continue  # torch would make a new symbol for the number that item() returns
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda each: each.meta.get("val")
        )
        node.meta["val"] = node.target(*args, **kwargs)
        moved |= dict.fromkeys(node.users)


def _clone_repeats(graph: fx.Graph, is_body: bool) -> None:
    """Clone each body argument or result that shares memory with an earlier one."""
    for node in graph.nodes:
        runs_bodies = isinstance(node.target, torch._ops.HigherOrderOperator)
        if runs_bodies or (is_body and node.op == "output"):
            node.args = fx.node.map_arg(node.args, _cloner_of_repeats(node))


def _cloner_of_repeats(node: fx.Node) -> Callable[[fx.Node], fx.Node]:
    """Return a function that clones a tensor whose memory was given to it before."""
    come = set[object]()

    def cloned_if_repeated(given: fx.Node) -> fx.Node:
        memory = memory_of(given)
        if memory is None or memory not in come:
            come.add(memory)
            return given
        with node.graph.inserting_before(node):
            copied = node.graph.call_function(_aten.clone.default, (given,))
        copied.meta |= {**given.meta, "val": given.meta["val"].clone()}
        return copied

    return cloned_if_repeated
