"""Refuse writes in the bodies of branches and loops to memory outside of them.

torch traces `torch.cond(p, f, g, (x,))` where f writes into a buffer, but has no
functional form for it, and its message names neither the line nor a remedy. In: a
trace, or torch's error. Out: nothing, or a `CaptureError` with the code to write
instead.
"""

import operator
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx import node as fx_node

from kvc.compiler.trace.kept_layouts import CONVERSIONS, memory_of, written_into
from kvc.compiler.trace.sources import at_source_of, place_of_failure, source_of
from kvc.schema.errors import CaptureError

_COMPLAINTS = ("input mutation", "Mutating a variable from outside the scope")
_BUFFER = re.compile(r"buffers_(\w+?)_\b")
_REMEDY = (
    "let it give the new value back, and keep that outside: new = torch.cond(p, lambda "
    "old: old.index_copy(...), lambda old: old.clone(), (self.cache,)), then "
    "self.cache.copy_(new); this is done in place"
)


def refuse_body_writes(method: str, exported: ExportedProgram) -> None:
    """Refuse bodies that write into tensors passed to them or captured from outside.

    Raises:
        CaptureError: a body writes into such a tensor; the error has the line and a
            remedy.
    """
    module = exported.graph_module
    named = exported.graph_signature.inputs_to_buffers
    names = {n: named.get(n.name, "") for n in module.graph.nodes}
    for node, name in _writes_in_bodies(module, names):
        raise _refusal(method, at_source_of(node.meta), name)


def body_write_of(method: str, error: Exception) -> CaptureError | None:
    """Translate torch's error about a write in a body; return None for other errors."""
    text = str(error)
    if not any(part in text for part in _COMPLAINTS):
        return None
    buffer = _BUFFER.search(text)
    return _refusal(method, place_of_failure(error), buffer[1] if buffer else "")


def _refusal(method: str, place: str, buffer: str) -> CaptureError:
    what = f"buffer {buffer}" if buffer else "a tensor that is made outside of it"
    reason = f"the body of a branch or loop changes {what}; {_REMEDY}"
    return CaptureError(method=method, place=place, reason=reason)


def _writes_in_bodies(
    module: fx.GraphModule, names: dict[fx.Node, str]
) -> Iterator[tuple[fx.Node, str]]:
    """Yield (node, buffer name) for each node of a body that writes into an input.

    The name is "" if the input is no buffer.

    Args:
        module: the module that runs the bodies.
        names: node of the module -> the name of its buffer, "" for other nodes.
    """
    for node in module.graph.nodes:
        if not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        passed = [n for part in node.args if isinstance(part, Sequence) for n in part]
        for body in bodies_of(module, node):
            inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
            inside = {
                taken: names.get(given, "") if isinstance(given, fx.Node) else ""
                for taken, given in zip(inputs, passed, strict=False)
            }
            yield from _writes(body, inside)
            yield from _writes_in_bodies(body, inside)


def bodies_of(module: fx.GraphModule, node: fx.Node) -> Iterator[fx.GraphModule]:
    """Yield the bodies that a node of a module runs."""
    for source in node.all_input_nodes:
        if source.op == "get_attr":
            held = getattr(module, str(source.target), None)
            if isinstance(held, fx.GraphModule):
                yield held


def _writes(
    body: fx.GraphModule, names: dict[fx.Node, str]
) -> Iterator[tuple[fx.Node, str]]:
    inputs = {memory_of(node): node for node in names}
    inputs.pop(None, None)
    for node in body.graph.nodes:
        for into in written_into(node):
            *_, root = views_of(into)
            known = root if root in names else inputs.get(memory_of(into))
            if known is not None:
                yield node, names[known]


def views_of(node: object) -> Iterator[fx.Node]:
    """Yield a node, then the tensor that the node is a view of, and so on."""
    while isinstance(node, fx.Node):
        yield node
        # An item of the list of views that split returns.
        if node.target is operator.getitem:
            node = node.args[0]
        elif isinstance(node.target, torch._ops.OpOverload):
            node = _seen_through(node, node.target._schema)
        else:
            return


def _seen_through(node: fx.Node, schema: torch.FunctionSchema) -> object:
    """Return the argument that a call returns or views, None if there is none."""
    if not schema.returns or (view := schema.returns[0].alias_info) is None:
        return None
    for place, argument in enumerate(schema.arguments):
        of = argument.alias_info
        listed = not view.before_set  # a list of views, as split returns
        if of is not None and (listed or of.before_set == view.before_set):
            given = [*node.args[place : place + 1], node.kwargs.get(argument.name)][0]
            return None if _is_converted(node, given) else given
    return None


def _is_converted(node: fx.Node, given: object) -> bool:
    """Tell whether a call converts its argument `given` to another dtype, as a copy."""
    if node.target not in CONVERSIONS or not isinstance(given, fx.Node):
        return False
    return node.meta["val"].dtype is not given.meta["val"].dtype


# Refuse cache updates whose result is unused, also in branches and loops.


_REASON = (
    "the result of cache_update is unused, and it changes none of its arguments; "
    "write it back: cache.copy_(torch.ops.kvc.cache_update(cache, ...))"
)
_IN_BODY = (
    "the result of cache_update is unused in the body of a branch or loop, and it "
    "changes none of its arguments; let the body return it, and write it back outside: "
    "new = torch.cond(pred, lambda c, x: torch.ops.kvc.cache_update(c, x, ...), "
    "lambda c, x: c.clone(), (self.cache, x)); self.cache.copy_(new)"
)


@contextmanager
def unused_kept() -> Iterator[None]:
    """Keep torch from dropping unused nodes that have an effect.

    Otherwise torch drops unused cache updates and norms in training mode from bodies,
    and drops checks without a message from methods and bodies.
    """
    kept = fx_node._side_effectful_functions
    update, check = torch.ops.kvc.cache_update, torch.ops.aten._assert_async.default
    norms = torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default
    every = update, update.default, check, *norms
    added = [one for one in every if one not in kept]
    kept.update(added)
    try:
        yield
    finally:
        kept.difference_update(added)


def refuse_lost_updates(method: str, exported: ExportedProgram) -> None:
    """Check that the result of each `kvc::cache_update` is used.

    Raises:
        CaptureError: a result is unused.
    """
    for place, reason in _lost(exported.graph_module, "", _REASON):
        raise CaptureError(method=method, place=f" at {place}", reason=reason)


def _lost(
    module: fx.GraphModule, caller: str, reason: str
) -> Iterator[tuple[str, str]]:
    """Yield (source line, reason to refuse) for each unused cache update.

    Args:
        module: a method or a body, with the bodies that it runs.
        caller: the source line that runs the module; used in bodies, of which torch
            keeps no source lines.
        reason: the reason to refuse updates in the module itself; updates in its bodies
            have another reason.
    """
    for node in module.graph.nodes:
        place = source_of(node.meta) or caller
        if _is_update(node) and not node.users:
            yield place, reason
        if not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        for body in bodies_of(module, node):
            yield from _lost(body, place, _IN_BODY)
            if node.target is torch.ops.higher_order.cond and _leaves(node, body):
                yield place, _IN_BODY


def _leaves(cond: fx.Node, body: fx.GraphModule) -> bool:
    """Tell whether a branch returns an update that nothing else uses, and is dropped.

    The caller of the branch drops such a result if no node reads it.
    """
    taken = {
        user.args[1]
        for user in cond.users
        if user.target is operator.getitem and user.users
    }
    (results,) = body.graph.output_node().args
    assert isinstance(results, Sequence)
    return any(
        i not in taken and _is_update(result) and len(result.users) == 1
        for i, result in enumerate(results)
    )


def _is_update(node: object) -> TypeGuard[fx.Node]:
    update = torch.ops.kvc.cache_update.default
    return isinstance(node, fx.Node) and node.target == update
