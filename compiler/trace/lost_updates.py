"""Refuse cache updates whose result is lost, in branches and loops too.

`kvc::cache_update` returns a new cache and changes none of its arguments, so a call
whose result nothing uses writes nothing. In: an exported method, before dead code is
removed. Out: nothing, or a `CaptureError` with the line and the remedy.
"""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx import node as fx_node

from kvc.compiler.trace.body_writes import bodies_of
from kvc.compiler.trace.sources import source_of
from kvc.schema.errors import CaptureError

_REASON = (
    "nothing uses what cache_update returns, and it changes none of its arguments; "
    "write it back: cache.copy_(torch.ops.kvc.cache_update(cache, ...))"
)
_IN_BODY = (
    "nothing uses what cache_update returns in the body of a branch or loop, and it "
    "changes none of its arguments; let the body return it, and write it back outside: "
    "new = torch.cond(pred, lambda c, x: torch.ops.kvc.cache_update(c, x, ...), "
    "lambda c, x: c.clone(), (self.cache, x)); self.cache.copy_(new)"
)


@contextmanager
def unused_kept() -> Iterator[None]:
    """Let torch keep what nothing uses, but that does something.

    It would drop updates and norms in training from bodies, and checks without a
    message anywhere.
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
    """Check that something uses each `kvc::cache_update`.

    Raises:
        CaptureError: nothing uses one.
    """
    for place, reason in _lost(exported.graph_module, "", _REASON):
        raise CaptureError(method=method, place=f" at {place}", reason=reason)


def _lost(
    module: fx.GraphModule, caller: str, reason: str
) -> Iterator[tuple[str, str]]:
    """Yield where an update is lost, and why that is refused.

    Args:
        module: a method or a body, with the bodies that it runs.
        caller: the line that runs it; torch keeps no lines of bodies.
        reason: for those in the module itself.
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
    """Tell whether a branch returns an update that nothing takes, there or outside."""
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
