"""Avoid repeated work of torch while it traces: sizes, graph steps, graph code.

torch computes contiguity and strides again for each tensor, from the same few dynamic
sizes. It writes each step of that computation into the graph, drops these steps at the
end, and generates Python code for graphs that are never called. Within `work_once`,
results of size operations are cached, and graph steps and code are made only when they
are used. The trace stays the same.
"""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch.fx.experimental.proxy_tensor as proxies
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._thunk import Thunk

Compute = Callable[[SymNode, SymNode], SymNode]
Proxy = object
# Operations whose result depends on their operands alone.
_PURE = (
    *("_add", "_sub", "_mul", "_sym_max", "_sym_min"),
    *("_eq", "_ne", "_lt", "_le", "_gt", "_ge", "_and_", "_or_"),
)
# Objects made between two garbage collections (default 700): a trace makes millions
# that stay alive.
_MADE = 100_000


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of an operation on two sizes, valid for one version of a ShapeEnv."""

    operands: tuple[SymNode, SymNode]  # kept alive, so that their ids stay unique
    version: int
    node: SymNode


@dataclass(frozen=True, slots=True)
class _Known:
    """The cached size operations of one trace.

    Attributes:
        by_operands: (operation, ids of its operands) -> result.
        by_meaning: (operation, expressions of its operands) -> node.
        numbers: number -> node of the constant.
        environments: the ShapeEnvs of the sizes, referenced here so that the id of a
            freed ShapeEnv is not reused.
    """

    by_operands: dict[object, _Result] = field(default_factory=dict)
    by_meaning: dict[object, SymNode] = field(default_factory=dict)
    numbers: dict[tuple[int, int], SymNode] = field(default_factory=dict)
    environments: dict[int, ShapeEnv] = field(default_factory=dict)


@contextmanager
def work_once() -> Iterator[None]:
    """Cache torch's operations on sizes; make graph steps and code only on use."""
    known, thresholds = _Known(), gc.get_threshold()
    changed: dict[str, Callable[..., object]] = {
        name: _remembering(name, getattr(SymNode, name), known) for name in _PURE
    }
    changed["wrap_int"] = _numbering(SymNode.wrap_int, known)
    changed["maybe_as_int"] = _constant_first(SymNode.maybe_as_int)
    with ExitStack() as stack:
        for name, method in changed.items():
            stack.enter_context(patch.object(SymNode, name, method))
        stack.enter_context(patch.object(proxies, "thunkify", _when_used))
        stack.enter_context(_use_lazy_graph_module(True))
        if thresholds[0]:  # 0: the caller has disabled collections
            gc.set_threshold(max(_MADE, thresholds[0]), *thresholds[1:])
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)


def _remembering(name: str, compute: Compute, known: _Known) -> Compute:
    """Return an operation on two sizes that computes equal calls only once."""

    @functools.wraps(compute)
    def remembering(one: SymNode, other: SymNode) -> SymNode:
        env = one.shape_env
        if env is None or proxies.get_proxy_mode():  # a proxy mode records the step
            return compute(one, other)
        key, version = (name, id(one), id(other)), env._version_counter
        found = known.by_operands.get(key)
        if found is None or found.version != version:
            node = _by_meaning(name, compute, one, other, known)
            found = _Result((one, other), version, node)
            known.by_operands[key] = found
        return found.node

    return remembering


def _by_meaning(
    name: str, compute: Compute, one: SymNode, other: SymNode, known: _Known
) -> SymNode:
    env = one.shape_env
    assert env is not None
    known.environments[id(env)] = env
    key = (name, id(env), env._version_counter, _meaning(one), _meaning(other))
    node = known.by_meaning.get(key)
    if node is None:
        node = known.by_meaning[key] = compute(one, other)
    return node


def _meaning(node: SymNode) -> tuple[object, ...]:
    """Return the properties of a size that the result of an operation depends on."""
    return node.expr, node.pytype, node.hint, node._optimized_summation


def _numbering(
    wrap: Callable[[SymNode, int], SymNode], known: _Known
) -> Callable[[SymNode, int], SymNode]:
    """Return `wrap_int` changed to make only one node for each number."""

    @functools.wraps(wrap)
    def numbering(node: SymNode, number: int) -> SymNode:
        env = node.shape_env
        if env is None or type(number) is not int:
            return wrap(node, number)
        known.environments[id(env)] = env
        key = (id(env), number)
        if key not in known.numbers:
            known.numbers[key] = wrap(node, number)
        return known.numbers[key]

    return numbering


def _constant_first(
    ask: Callable[[SymNode], int | None],
) -> Callable[[SymNode], int | None]:
    """Return `maybe_as_int` changed to check for a constant node first."""

    @functools.wraps(ask)
    def asking(node: SymNode) -> int | None:
        return node.constant if type(node.constant) is int else ask(node)

    return asking


def _when_used(
    tracer: object, make: Callable[..., Proxy], *args: object, **kwargs: object
) -> Thunk[Proxy]:
    """Delay writing a graph step until its proxy is used."""
    return Thunk(functools.partial(make, *args, **kwargs))
