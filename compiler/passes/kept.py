"""Which weights a recipe's passes leave float32.

In: a program, and the patterns of a recipe's `[keep]`. Out: the names of the constants
that are kept: those that a pattern matches, and the matrices of routers, which choose
experts. A choice is no number that may be a little wrong: another expert is another
result, and a router's matrix is small.
"""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.schema.errors import UnmatchedPattern

# The place of chosen experts among the arguments of what multiplies by their matrices.
_CHOICE: Final = {
    "kvc::expert_linear": 2,
    "kvc::expert_linear_qd8": 5,
    "kvc::expert_linear_q8": 6,
}


def kept_weights(program: Program, patterns: Iterable[str]) -> frozenset[str]:
    """Return the names of constants that stay float32.

    Args:
        program: whose constants have the names that a bundle has.
        patterns: paths of modules or weights, or ends or middles of such, in which `*`
            stands for any part of a name between two points: `mlp.experts` is of each
            layer, `layers.0.*` is all of one.

    Raises:
        UnmatchedPattern: no matrix has such a name.
    """
    names = [c.name for c in program.constants if len(c.type.dims) > 1]
    kept = {name for method in program.methods for name in _routers(method)}
    for pattern in patterns:
        found = [name for name in names if matches(pattern, name)]
        if not found:
            raise UnmatchedPattern(pattern=pattern, known=tuple(names))
        kept.update(found)
    return frozenset(kept)


def matches(pattern: str, name: str) -> bool:
    """Tell whether a pattern is of parts of a name that follow one another."""
    wanted, parts = pattern.split("."), name.split(".")
    return any(
        all(map(fnmatchcase, parts[i : i + len(wanted)], wanted))
        for i in range(len(parts) - len(wanted) + 1)
    )


def _routers(method: Method) -> Iterator[str]:
    """Yield the names of matrices whose products choose experts."""
    names = {value.id: name for value, name in method.constants}
    makers = method.makers()
    for node in method.nodes:
        if node.op in _CHOICE:
            for product in _products(node.arguments[_CHOICE[node.op]], makers):
                yield from (names[v.id] for v in product.inputs[1:] if v.id in names)


def _products(choice: Argument, makers: Mapping[int, Node]) -> Iterator[Node]:
    """Yield the linear layers that a value is made of, without others between."""
    assert isinstance(choice, Value)
    waiting, seen = [choice], set[int]()
    while waiting:
        value = waiting.pop()
        node = makers.get(value.id)
        if node is None or value.id in seen:
            continue
        seen.add(value.id)
        if node.op == "aten::linear":
            yield node
        else:
            waiting += node.inputs
