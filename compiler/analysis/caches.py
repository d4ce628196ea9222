"""Find the caches of a program, and check that they can be int8 or float16.

A cache is a float state that `kvc::cache_update` alone writes, or that `kvc::attention`
reads. A cache that any other operator reads or writes cannot be stored in another
dtype; the error names that operator and the line of the user's model.
"""

from collections.abc import Iterator, Mapping

from kvc.compiler.analysis.cache_flow import CacheFlow, Values, passed_inputs
from kvc.compiler.analysis.whole_views import axis_order
from kvc.compiler.ir import Method, Node, Program, State, Value
from kvc.compiler.ir.control import blocks_by_number, blocks_of, control_of, entries
from kvc.schema.control import Control
from kvc.schema.dtypes import DType
from kvc.schema.errors import CacheDtypeRefused
from kvc.schema.ops import OPS, PERMUTING, Aliasing

CACHE_UPDATE, ATTENTION = "kvc::cache_update", "kvc::attention"
_SLICE = "aten::slice.Tensor"
_CACHES, _SCALES = slice(1, 3), slice(13, 15)  # among the arguments of attention
_LEADS_ON = (Aliasing.VIEW, Aliasing.UPDATE)
Blocks = Mapping[int, Method]


def find_caches(program: Program, dtype: DType) -> tuple[str, ...]:
    """Return the names of a program's caches, after a check that they can have `dtype`.

    Args:
        program: the program; caches that already have `dtype` are not returned.
        dtype: INT8, for rows with scales, or FLOAT16, for float32 caches.

    Raises:
        CacheDtypeRefused: a cache cannot have `dtype`, or a program with states has no
            cache at all.
    """
    blocks = blocks_by_number(program)
    others = (s for s in program.states if s.type.dtype is not dtype)
    caches = {s.name: s for s in others if _is_cache(s, program)}
    read: dict[str, set[int]] = {method.name: set() for method in program.methods}
    for state in caches.values():
        if dtype is DType.FLOAT16 and state.type.dtype is not DType.FLOAT32:
            raise _refusal(f"state {state.name}", f"it is {state.type.dtype.label}")
        if state.grows is not None:
            raise _refusal(f"state {state.name}", "its size changes from call to call")
        if state.initial is not None:
            raise _refusal(f"state {state.name}", "it does not begin as zeros")
        for method in entries(program):
            versions = _versions(method, state.name, blocks)
            uses = _UseOfState(state.name, method, method, versions, {}, blocks)
            for name, ids in uses.check():
                read[name] |= ids
    for method in program.methods:
        _check_pairs(method, read[method.name])
    if program.states and not caches and not _has_caches_of(program, dtype):
        reason = "none is written by kvc::cache_update and read by kvc::attention"
        raise _refusal("any state of this model", reason)
    return tuple(caches)


def is_part_of_rows(node: Node) -> bool:
    """Tell whether a node slices its input along the last axis."""
    if node.op != _SLICE:
        return False
    last = len(node.inputs[0].type.dims) - 1
    return node.arguments[1] in (-1, last)


def _is_cache(state: State, program: Program) -> bool:
    methods, blocks, name = entries(program), blocks_by_number(program), state.name
    if not state.type.dtype.is_floating:
        return False
    if any(_is_attended(m, name, _SCALES, blocks) for m in methods):
        return False  # the scale of an int8 cache
    written = [made for m in methods for made in _written(m, name, blocks)]
    if written and all(written):
        return True
    return any(_is_attended(m, name, _CACHES, blocks) for m in methods)


def _written(method: Method, state: str, blocks: Blocks) -> Iterator[bool]:
    """Yield, if a method writes a state, whether only cache updates write it."""
    versions = _versions(method, state, blocks)[method.name]
    for value, name in method.state_out:
        if name == state:
            yield value.id in versions


def _versions(method: Method, state: str, blocks: Blocks) -> dict[str, Values]:
    """Return the values that are a state: the old content, or cache updates of it.

    Returns:
        name of a method or block -> such values in that method or block.
    """
    flow = CacheFlow(blocks, lambda node: node.op == CACHE_UPDATE, every=True)
    return flow.values(method, _begin(method, state))


def _begin(method: Method, state: str) -> Iterator[Value]:
    return (value for value, name in method.state_in if name == state)


def _is_attended(method: Method, state: str, places: slice, blocks: Blocks) -> bool:
    """Tell whether attention reads a state, through views, cache updates or blocks.

    `places` selects the arguments of attention that count: caches, or their scales.
    """
    flow = CacheFlow(
        blocks, lambda node: OPS[node.op].aliasing in _LEADS_ON, every=False
    )
    derived = flow.values(method, _begin(method, state))
    return any(
        isinstance(value, Value) and value.id in derived[one.name]
        for one in (method, *blocks_of(method, blocks))
        for node in one.nodes
        if node.op == ATTENTION
        for value in node.arguments[places]
    )


def _has_caches_of(program: Program, dtype: DType) -> bool:
    nodes = (node for method in program.methods for node in method.nodes)
    attended = (v for n in nodes if n.op == ATTENTION for v in n.arguments[_CACHES])
    return any(isinstance(v, Value) and v.type.dtype is dtype for v in attended)


def _check_pairs(method: Method, read: set[int]) -> None:
    """Check that no attention reads only its keys, or only its values, from a cache."""
    for node in method.nodes:
        if node.op == ATTENTION:
            keys, values = (value.id in read for value in node.inputs[1:3])
            if keys != values:
                one, other = ("keys", "values") if keys else ("values", "keys")
                reason = f"reads its {one} beside {other} that are not in a cache"
                raise _refusal("a state", reason, method, node)


class _UseOfState:
    """The uses of one state in a method or a block.

    `versions`: name of a method or block -> the values that are the state, before or
    after cache updates.
    `swapped`: the inputs of the block that hold the state, a view of the state with
    permuted axes, or a view of parts of its rows.
    """

    def __init__(
        self,
        state: str,
        entry: Method,
        method: Method,
        versions: Mapping[str, Values],
        swapped: Values,
        blocks: Blocks,
    ) -> None:
        self._state, self._entry, self._method = state, entry, method
        self._blocks, self._every = blocks, versions
        self._versions = versions[method.name]
        self._read: dict[int, Value] = {**self._versions, **swapped}

    def check(self) -> Iterator[tuple[str, set[int]]]:
        """Yield (name, ids) for the method and its blocks.

        The ids are those of the values that are the state, or views of the state, and
        that attention may read.

        Raises:
            CacheDtypeRefused: an operator other than a cache update or attention reads
                or writes the state.
        """
        makers = self._method.makers()
        for value, name in self._method.state_out:
            if name == self._state and value.id not in self._versions:
                raise self._refusal("overwrites it", makers.get(value.id))
            if name != self._state and value.id in self._read:
                raise self._refusal(f"copies it to {name}", None)
        for node in self._method.nodes:
            control = control_of(node)
            if control is None:
                self._check_node(node)
            else:
                yield from self._check_control(node, control)
        outputs = () if self._method is not self._entry else self._method.outputs
        handed = (*outputs, *(v for v, _ in self._method.input_out))
        if any(value.id in self._read for value in handed):
            raise self._refusal("returns it", None)
        yield self._method.name, set(self._read)

    def _check_control(
        self, node: Node, control: Control[Value]
    ) -> Iterator[tuple[str, set[int]]]:
        """Check the blocks of a control node, and the results that hold the state.

        Yields what `check` yields for each block.
        """
        if self._reads(control.pred) or any(
            self._reads(v) for i, v in enumerate(control.operands)
            if control.is_scanned(i)
        ):  # fmt: skip
            raise self._refusal("reads it", node)
        for which, number in enumerate(control.blocks):
            block = self._blocks[number]
            passed = passed_inputs(control, block, self._read)
            inside = _UseOfState(
                self._state, self._entry, block, self._every,
                {value.id: value for value in passed}, self._blocks,
            )  # fmt: skip
            yield from inside.check()
            given = () if control.tests(which) else block.outputs
            for j, value in enumerate(given):
                self._check_given(node, control, j, value.id in inside._read)

    def _check_given(
        self, node: Node, control: Control[Value], result: int, is_cache: bool
    ) -> None:
        """Check that either all blocks return the state as a result, or no block does.

        `result` is the index of that result, and `is_cache` tells whether one of the
        blocks returns the state there. A loop that carries the state must return it at
        the same index.
        """
        carried = control.is_loop and result < control.carried
        begins = carried and self._reads(control.operands[result])
        ends = node.outputs[result].id in self._versions
        if begins and not ends:
            raise self._refusal("carries it, but overwrites it", node)
        if is_cache and not ends:
            raise self._refusal("returns it in one branch, but not in another", node)

    def _check_node(self, node: Node) -> None:
        places = [i for i, v in enumerate(node.arguments) if self._reads(v)]
        if not places:
            return
        last = len(node.inputs[0].type.dims) - 1
        turned = node.op in PERMUTING and axis_order(node)[-1] == last
        if turned or is_part_of_rows(node):
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

    def _refusal(self, does: str, node: Node | None) -> CacheDtypeRefused:
        return _refusal(f"state {self._state}", does, self._entry, node)


def _refusal(
    what: str, does: str, method: Method | None = None, node: Node | None = None
) -> CacheDtypeRefused:
    """Return the error that says why a state cannot be stored in the wanted dtype."""
    reader, source = ("", "") if node is None else (node.op, node.source)
    name = "" if method is None else method.name
    place = f" at {source}" if source else ""
    by = f"method {name}: {reader}{place} " if reader else f"method {name} "
    return CacheDtypeRefused(
        state=what.removeprefix("state "),
        what=what,
        method=name,
        reader=reader,
        source=source,
        reason=f"{by if name else ''}{does}",
    )
