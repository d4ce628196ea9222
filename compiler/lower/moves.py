"""Make copies into states explicit, so that a backend can run them.

If no node computes the new content of a state or of a caller's array (it is an input,
another state, a constant, or a part of any value), a copy node is added. Whether
content that a node computes has to be copied is known once writes are proven to be in
place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.place.persistent import with_old_contents
from kvc.schema.ops import OPS, RESHAPING_VIEWS, Aliasing


def with_moves(method: Method, grows: Mapping[str, int]) -> Method:
    """Return a method with a copy for each content that no node makes.

    Not for a state that `grows`, by name: a copy cannot change its length.
    """
    method = with_old_contents(method, grows)
    makers = {value.id: node for node in method.nodes for value in node.outputs}
    states = {name: value for value, name in method.state_in if name not in grows}
    inputs = dict(zip(method.input_names, method.inputs, strict=True))
    moves: list[Node] = []

    def moved(
        pairs: tuple[tuple[Value, str], ...], olds: Mapping[str, Value]
    ) -> Iterator[tuple[Value, str]]:
        for new, name in pairs:
            old, whole = olds.get(name), _whole(makers, new)
            made = whole.id in makers and not _is_view(makers[whole.id])
            if old is None or made or _root(makers, whole).id == old.id:
                yield new, name
                continue
            result = Value(method.next_id() + len(moves), old.type)
            moves.append(Node("aten::copy", (old, new), (result,)))
            yield result, name

    state_out = tuple(moved(method.state_out, states))
    input_out = tuple(moved(method.input_out, inputs))
    nodes = (*method.nodes, *moves)
    return replace(method, nodes=nodes, state_out=state_out, input_out=input_out)


def _whole(makers: Mapping[int, Node], value: Value) -> Value:
    """Return the value that this one is, in another shape at the most."""
    while value.id in makers and makers[value.id].op in RESHAPING_VIEWS:
        value = makers[value.id].inputs[0]
    return value


def _root(makers: Mapping[int, Node], value: Value) -> Value:
    """Return the value that this one is a view of, itself when it is none."""
    while value.id in makers and _is_view(makers[value.id]):
        value = makers[value.id].inputs[0]
    return value


def _is_view(node: Node) -> bool:
    return OPS[node.op].aliasing is Aliasing.VIEW
