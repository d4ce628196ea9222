"""Which states of a program are caches, and whether they can be stored as int8.

A cache is a float state that `kvc::cache_update` alone writes, or that
`kvc::attention` reads. One that anything else reads or writes cannot be int8; the
error names what does, with the user's line.
"""

from collections.abc import Iterator

from kvc.compiler.ir import Method, Node, Program, State, Value
from kvc.schema.errors import CacheNotInt8
from kvc.schema.ops import DELEGATE, OPS, Aliasing

CACHE_UPDATE, ATTENTION = "kvc::cache_update", "kvc::attention"
_CACHES, _SCALES = slice(1, 3), slice(13, 15)  # among the arguments of attention
_LEADS_ON = (Aliasing.VIEW, Aliasing.UPDATE)
SWAPS = ("aten::transpose.int", "aten::permute")


def find_caches(program: Program) -> tuple[str, ...]:
    """Return the names of the caches of a program, all of which can be int8.

    Raises:
        CacheNotInt8: one cannot, or a program with states has no cache at all.
    """
    caches = {s.name: s for s in program.states if _is_cache(s, program)}
    read: dict[str, set[int]] = {method.name: set() for method in program.methods}
    for state in caches.values():
        _check_state(state)
        for method in program.methods:
            read[method.name] |= _UseOfState(state.name, method).check()
    for method in program.methods:
        _check_pairs(method, read[method.name])
    if program.states and not caches and not _has_int8_caches(program):
        reason = "none is written by kvc::cache_update and read by kvc::attention"
        raise _refusal("any state of this model", reason)
    return tuple(caches)


def swapped_axes(node: Node) -> tuple[int, ...]:
    """Return the order in which a node of `SWAPS` puts the axes of its operand."""
    rank = len(node.inputs[0].type.dims)
    if node.op == "aten::permute":
        order = node.arguments[1]
        assert isinstance(order, tuple)
        return tuple(axis % rank for axis in order if isinstance(axis, int))
    axes = list(range(rank))
    a, b = (axis % rank for axis in node.arguments[1:] if isinstance(axis, int))
    axes[a], axes[b] = axes[b], axes[a]
    return tuple(axes)


def _is_cache(state: State, program: Program) -> bool:
    methods, name = program.methods, state.name
    if not state.type.dtype.is_floating:
        return False
    if any(_is_attended(m, name, _SCALES) for m in methods):
        return False  # of a cache that is int8 already
    written = [made for m in methods for made in _written(m, name)]
    if written and all(written):
        return True
    return any(_is_attended(m, name, _CACHES) for m in methods)


def _written(method: Method, state: str) -> Iterator[bool]:
    """Yield, if a method writes a state, whether it is by cache updates alone."""
    versions = _versions(method, state)
    for value, name in method.state_out:
        if name == state:
            yield value.id in versions


def _versions(method: Method, state: str) -> dict[int, Value]:
    """Return a state's old value and what cache updates make of it, by id."""
    found = {value.id: value for value, name in method.state_in if name == state}
    for node in method.nodes:
        if node.op == CACHE_UPDATE and node.inputs[0].id in found:
            found[node.outputs[0].id] = node.outputs[0]
    return found


def _is_attended(method: Method, state: str, places: slice) -> bool:
    """Tell whether arguments of attention lead to a state, by views, writes, blocks."""
    derived = {value.id for value, name in method.state_in if name == state}
    for node in method.nodes:
        if node.op == ATTENTION:
            parts = (v for v in node.arguments[places] if isinstance(v, Value))
            if any(value.id in derived for value in parts):
                return True
        aliasing = None if node.op == DELEGATE else OPS[node.op].aliasing
        if aliasing in _LEADS_ON and node.inputs[0].id in derived:
            derived.update(value.id for value in node.outputs)
        elif aliasing is Aliasing.CONTROL:  # a block may write it, or hand it on
            types = {value.type for value in node.inputs if value.id in derived}
            derived.update(v.id for v in node.outputs if v.type in types)
    return False


def _has_int8_caches(program: Program) -> bool:
    nodes = (node for method in program.methods for node in method.nodes)
    scaled = (n.arguments[_SCALES] for n in nodes if n.op == ATTENTION)
    return any(scales != (None, None) for scales in scaled)


def _check_state(state: State) -> None:
    if state.grows is not None:
        raise _refusal(f"state {state.name}", "its size changes from call to call")
    if state.initial is not None:
        raise _refusal(f"state {state.name}", "it does not begin as zeros")


def _check_pairs(method: Method, read: set[int]) -> None:
    """Check that attention reads keys and values both from caches, or neither."""
    for node in method.nodes:
        if node.op == ATTENTION:
            keys, values = (value.id in read for value in node.inputs[1:3])
            if keys != values:
                one, other = ("keys", "values") if keys else ("values", "keys")
                reason = f"reads its {one} beside {other} that are no cache's"
                raise _refusal("a state", reason, method, node)


class _UseOfState:
    """What a method does with one state."""

    def __init__(self, state: str, method: Method) -> None:
        self._state, self._method = state, method
        self._versions = _versions(method, state)
        self._read: dict[int, Value] = dict(self._versions)

    def check(self) -> set[int]:
        """Return the ids of what attention may read.

        Raises:
            CacheNotInt8: anything else reads or writes the state.
        """
        makers = self._method.makers()
        for value, name in self._method.state_out:
            if name == self._state and value.id not in self._versions:
                raise self._refusal("overwrites it", makers.get(value.id))
            if name != self._state and value.id in self._read:
                raise self._refusal(f"copies it to {name}", None)
        for node in self._method.nodes:
            self._check_node(node)
        handed = (*self._method.outputs, *(v for v, _ in self._method.input_out))
        if any(value.id in self._read for value in handed):
            raise self._refusal("hands it out", None)
        return set(self._read)

    def _check_node(self, node: Node) -> None:
        places = [i for i, v in enumerate(node.arguments) if self._reads(v)]
        if not places:
            return
        last = len(node.inputs[0].type.dims) - 1
        if node.op in SWAPS and swapped_axes(node)[-1] == last:
            self._read[node.outputs[0].id] = node.outputs[0]
        elif node.op == CACHE_UPDATE and places == [0]:
            axis = node.arguments[3]
            assert isinstance(axis, int)
            if node.inputs[0].id not in self._versions or axis in (-1, last):
                raise self._refusal("writes it, but not whole rows of it", node)
        elif node.op != ATTENTION or not set(places) <= {1, 2}:
            raise self._refusal("reads it", node)

    def _reads(self, argument: object) -> bool:
        parts = argument if isinstance(argument, tuple) else (argument,)
        return any(isinstance(v, Value) and v.id in self._read for v in parts)

    def _refusal(self, does: str, node: Node | None) -> CacheNotInt8:
        return _refusal(f"state {self._state}", does, self._method, node)


def _refusal(
    what: str, does: str, method: Method | None = None, node: Node | None = None
) -> CacheNotInt8:
    """Return the error for a state and what is done with it, by whom."""
    reader, source = ("", "") if node is None else (node.op, node.source)
    name = "" if method is None else method.name
    place = f" at {source}" if source else ""
    by = f"method {name}: {reader}{place} " if reader else f"method {name} "
    return CacheNotInt8(
        state=what.removeprefix("state "),
        what=what,
        method=name,
        reader=reader,
        source=source,
        reason=f"{by if name else ''}{does}",
    )
