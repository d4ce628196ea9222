"""Match the arguments of a call with its operator's parameters; check their kinds."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvc.compiler.ir.graph import Argument, Item, Node, Value
from kvc.compiler.ir.text import argument_text
from kvc.schema.ops import OPS, OpSpec, Param
from kvc.schema.verify.signatures import accepts


def named(node: Node) -> dict[str, Argument]:
    """Return parameter name -> argument for a node."""
    names = (parameter.name for parameter in OPS[node.op].params)
    return dict(zip(names, node.arguments, strict=True))


def arguments_of(op: str, given: Mapping[str, Argument]) -> tuple[Argument, ...]:
    """Return an operator's arguments in order: those in `given`, else the defaults."""
    params = OPS[op].params
    assert given.keys() <= {param.name for param in params}, given
    return tuple(given.get(param.name, param.default) for param in params)


def with_named(node: Node, changes: Mapping[str, Argument]) -> Node:
    """Return a node with some arguments replaced; `changes` is by parameter name."""
    return replace(node, arguments=tuple((named(node) | dict(changes)).values()))


def argument_faults(spec: OpSpec, arguments: tuple[Argument, ...]) -> Iterator[str]:
    """Yield a message for each argument that does not fit its parameter.

    There must be one argument for each parameter.
    """
    for param, argument in zip(spec.params, arguments, strict=True):
        if argument is None and param.optional:
            continue
        if param.is_list != isinstance(argument, tuple):
            wanted = "be" if param.is_list else "not be"
            yield f"{param.name} must {wanted} a list"
            continue
        for item in argument if isinstance(argument, tuple) else (argument,):
            if not _fits(param, item):
                text = argument_text(item)
                yield f"{param.name} must be {param.kind.value}, not {text}"


def _fits(param: Param, item: Item) -> bool:
    if item is None:
        return param.optional_items
    return accepts(param.kind, item, Value)
