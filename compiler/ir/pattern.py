"""Patterns: formulas that are matched with the nodes that compute a value.

    x, eps = Any("x"), Any("eps")
    scale = op("aten::rsqrt", op("aten::add.Scalar", mean, eps, 1))
    norm = x * scale

In: a pattern, a value, the node that computes each value. Out: for each way in which
the value is an instance of the pattern, the arguments by the pattern's names. A name
that occurs several times stands for the same argument each time. Products and sums are
matched with their operands in both orders. The caller checks types and readers.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvc.compiler.ir.graph import Argument, Node, Value

Makers = Mapping[int, Node]  # value id -> the node that computes the value
Bindings = Mapping[str, Argument]
LAST = -1  # among an operator's arguments: the last axis, alone or in a tuple


class Pattern(ABC):
    """A formula: `*`, `+` and `-` build tensor operators, `|` builds a choice."""

    @abstractmethod
    def match(
        self, argument: Argument, makers: Makers, bound: Bindings
    ) -> Iterator[Bindings]:
        """Yield each extension of `bound` that makes `argument` an instance."""

    def matches(self, node: Node, makers: Makers) -> Iterator[Bindings]:
        """Yield each binding of names that makes a node's first result an instance."""
        for result in node.outputs[:1]:  # a check has none
            yield from self.match(result, makers, {})

    def __mul__(self, other: "Pattern") -> "Pattern":
        return Op("aten::mul.Tensor", (self, other), commutes=True)

    def __add__(self, other: "Pattern") -> "Pattern":
        return Op("aten::add.Tensor", (self, other, 1), commutes=True)

    def __sub__(self, other: "Pattern") -> "Pattern":
        return Op("aten::sub.Tensor", (self, other, 1))

    def __neg__(self) -> "Pattern":
        return Op("aten::neg", (self,))

    def __or__(self, other: "Pattern") -> "Pattern":
        return Either((self, other))


@dataclass(frozen=True, slots=True)
class Any(Pattern):
    """A name for an argument: any argument, or an instance of `formula` if given."""

    name: str
    formula: Pattern | None = None

    def match(
        self, argument: Argument, makers: Makers, bound: Bindings
    ) -> Iterator[Bindings]:
        """Bind the name to `argument`, unless the name has a different argument."""
        if bound.get(self.name, argument) != argument:
            return
        bound = {**bound, self.name: argument}
        if self.formula is None:
            yield bound
        else:
            yield from self.formula.match(argument, makers, bound)


@dataclass(frozen=True, slots=True)
class Either(Pattern):
    """A choice of formulas: an instance of any of the formulas is an instance."""

    formulas: tuple[Pattern, ...]

    def match(
        self, argument: Argument, makers: Makers, bound: Bindings
    ) -> Iterator[Bindings]:
        """Match the argument with each formula in turn."""
        for formula in self.formulas:
            yield from formula.match(argument, makers, bound)


@dataclass(frozen=True, slots=True)
class Op(Pattern):
    """A node's first result: the operator, and a pattern or constant per argument."""

    op: str
    arguments: tuple["Pattern | Argument | tuple[Pattern, ...]", ...]
    commutes: bool = False

    def match(
        self, argument: Argument, makers: Makers, bound: Bindings
    ) -> Iterator[Bindings]:
        """Match the arguments of the node that computes a value."""
        node = makers.get(argument.id) if isinstance(argument, Value) else None
        if node is None or node.op != self.op:
            return
        given, last = node.arguments, len(node.outputs[0].type.dims) - 1
        patterns = tuple(
            each if wanted == LAST and each in (last, (last,), (-1,)) else wanted
            for wanted, each in zip(self.arguments, given, strict=False)
        )
        if len(patterns) == len(self.arguments) == len(given):
            yield from _each(patterns, given, makers, bound)
            if self.commutes:
                turned = (given[1], given[0], *given[2:])
                yield from _each(patterns, turned, makers, bound)


def op(name: str, *arguments: "Pattern | Argument | tuple[Pattern, ...]") -> Pattern:
    """Return the pattern of an operator's first result."""
    return Op(name, arguments)


def _each(
    patterns: tuple[object, ...],
    arguments: tuple[Argument, ...],
    makers: Makers,
    bound: Bindings,
) -> Iterator[Bindings]:
    """Yield each extension of `bound` that makes every argument an instance.

    Argument i must be an instance of `patterns[i]`.
    """
    if len(patterns) != len(arguments):
        return
    if not patterns:
        yield bound
        return
    (first, *patterns_left), (argument, *left) = patterns, arguments
    if isinstance(first, Pattern):
        found = first.match(argument, makers, bound)
    elif isinstance(first, tuple) and isinstance(argument, tuple):
        found = _each(first, argument, makers, bound)
    else:
        found = iter([bound] if first == argument else [])
    for bindings in found:
        yield from _each(tuple(patterns_left), tuple(left), makers, bindings)
