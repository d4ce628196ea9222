"""Refuse writes into tensors that a branch or loop may return through a dropout.

In eager mode, dropout outside of training returns its input itself. So `torch.cond(p,
drop, other, (x,))` returns x itself or a new tensor, depending on the value of p, and a
write into the result changes x only in the first case. In: a trace that still contains
writes, in which dropout outside of training is a copy. Out: nothing, or a
`CaptureError` with the line and the remedy.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx
from torch.export import ExportedProgram

from kvc.compiler.trace.body_writes import bodies_of, views_of
from kvc.compiler.trace.idle_dropouts import is_idle
from kvc.compiler.trace.kept_layouts import memory_of, written_by
from kvc.compiler.trace.sources import at_source_of
from kvc.schema.errors import CaptureError

_ops = torch.ops.higher_order
# The arguments that bodies take. The results of `map` lie in new memory.
_TAKEN: Mapping[object, slice] = {
    _ops.cond: slice(3, 4),
    _ops.while_loop: slice(2, 4),
    _ops.scan: slice(1, 4),
}
_REASON = (
    "it writes into an input or a result of a branch or loop; these are one tensor if "
    "the body returns the result of a dropout outside of training; let the body return "
    ".clone() of that result"
)


def refuse_handed_back(method: str, exported: ExportedProgram) -> None:
    """Refuse a write into a tensor that may be identical to a tensor read later.

    Raises:
        CaptureError: there is such a write; the error has its line and a remedy.
    """
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for write in _seen_elsewhere(module):
                raise CaptureError(
                    method=method, place=at_source_of(write.meta), reason=_REASON
                )


def _seen_elsewhere(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the writes into a tensor that may be identical to one read afterwards."""
    nodes, roots = [*module.graph.nodes], _Roots()
    for start, node in enumerate(nodes):
        if node.target in _TAKEN:
            for maybe_one in roots.maybe_one(module, node):
                yield from _writes_seen(nodes[start + 1 :], maybe_one)


def _writes_seen(
    later: Sequence[fx.Node], maybe_one: set[fx.Node]
) -> Iterator[fx.Node]:
    lasting = {memory_of(node) for node in maybe_one if node.op == "placeholder"}
    memories = {memory_of(node) for node in maybe_one} - {None}
    for place, write in enumerate(later if len(memories) > 1 else ()):
        if _changes_nothing(write, maybe_one):
            continue
        for written in memories.intersection(written_by(write)):
            others = memories - {written}
            if others & lasting or others & {*_read_by(later[place + 1 :])}:
                yield write


def _changes_nothing(write: fx.Node, maybe_one: set[fx.Node]) -> bool:
    """Tell whether a write copies a tensor into a tensor that may be the same one."""
    if write.target is not torch.ops.aten.copy_.default:
        return False
    into, given = write.args[:2]
    if into not in maybe_one or given not in maybe_one:
        return False
    assert isinstance(into, fx.Node)
    assert isinstance(given, fx.Node)
    one, other = into.meta["val"], given.meta["val"]
    alike: bool = one.shape == other.shape and one.stride() == other.stride()
    return alike


def _read_by(nodes: Sequence[fx.Node]) -> Iterator[object]:
    for node in nodes:
        yield from map(memory_of, node.all_input_nodes)


class _Roots:
    """Finds the tensors that a traced tensor may be identical to in eager mode."""

    def __init__(self) -> None:
        self._known: dict[fx.Node, set[fx.Node]] = {}

    def maybe_one(
        self, module: fx.GraphModule, call: fx.Node
    ) -> Iterator[set[fx.Node]]:
        """Yield sets of a call's inputs and results that may be the same tensor."""
        results: dict[object, list[fx.Node]] = {}
        for user in call.users:
            if user.target is operator.getitem:
                results.setdefault(user.args[1], []).append(user)
        for body in bodies_of(module, call):
            shared: dict[fx.Node, set[fx.Node]] = {}
            for index, roots in enumerate(self._of_results(body, call)):
                for root in roots:
                    shared.setdefault(root, set()).update(results.get(index, ()))
            for root, given in shared.items():
                yield given | self._taken(module, call, body, root)

    def _of_results(self, body: fx.GraphModule, call: fx.Node) -> list[set[fx.Node]]:
        """Return, for each result of a body, the tensors that result may be a view of.

        The outputs of a `scan` step are left out, since `scan` copies them.
        """
        (given,) = body.graph.output_node().args
        if not isinstance(given, Sequence):
            return []  # the condition of a loop
        first: object = call.args[1]
        carried = isinstance(first, Sequence) and call.target is _ops.scan
        return [self._of(body, one) for one in given[: len(first) if carried else None]]  # type: ignore[arg-type]

    def _of(self, module: fx.GraphModule, node: object) -> set[fx.Node]:
        """Return the tensors that a node's tensor may be, or may be a view of."""
        if not isinstance(node, fx.Node):
            return set()
        if node not in self._known:
            self._known[node] = self._found(module, node)
        return self._known[node]

    def _found(self, module: fx.GraphModule, node: fx.Node) -> set[fx.Node]:
        before = node
        for root in views_of(node):
            if is_idle(root):
                return self._of(module, root.args[0])
            if root.target in _TAKEN and root is not node:
                return {before} | self._handed_back(module, root, before.args[1])
            before = root
        return {before}

    def _handed_back(
        self, module: fx.GraphModule, call: fx.Node, index: object
    ) -> set[fx.Node]:
        """Return the tensors passed to a branch or loop that result `index` may be."""
        found = set[fx.Node]()
        for body in bodies_of(module, call):
            for place, roots in enumerate(self._of_results(body, call)):
                for root in roots if place == index else ():
                    found |= self._taken(module, call, body, root)
        return found

    def _taken(
        self, module: fx.GraphModule, call: fx.Node, body: fx.GraphModule, root: fx.Node
    ) -> set[fx.Node]:
        """Return the tensors that the argument of a call for `root` may be.

        `root` is an input of `body`; the set is empty for any other node.
        """
        if root.op != "placeholder":
            return set()
        inputs = body.graph.find_nodes(op="placeholder")
        taken = call.args[_TAKEN[call.target]]
        passed = [each for part in taken if isinstance(part, Sequence) for each in part]
        return self._of(module, passed[inputs.index(root)])
