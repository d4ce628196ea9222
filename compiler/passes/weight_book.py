"""Replace weights by quantized or narrowed forms, for the passes of a recipe.

A `WeightBook` names the constants that are derived from weights, such as
`embed.weight.int8`. A `MethodBuilder` binds each derived constant once in the method
that is being rewritten.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from kvc.compiler.ir import Argument, Constant, Method, Node, Program, Value
from kvc.compiler.weights.int4 import Moments
from kvc.compiler.weights.sources import Derived, Divided, Transform, layout_of
from kvc.compiler.weights.stored_layout import StoredLayout
from kvc.schema.dtypes import DType
from kvc.schema.errors import UnmatchedPattern
from kvc.schema.types import TensorType


class WeightBook:
    """The constants of a program, and the constants derived from them, by name."""

    def __init__(self, constants: tuple[Constant, ...], provenance: str) -> None:
        self._originals = {c.name: c for c in constants}
        self._provenance = provenance
        self.derived: dict[str, Constant] = {}

    def derive(
        self,
        name: str,
        transform: Transform,
        kind: TensorType,
        turned: bool = False,
        moments: Moments | None = None,
    ) -> Constant:
        """Return the constant that is the transform of the constant `name`.

        If `turned` is set, the last two axes are exchanged before the transform.
        `moments` are the second moments of the inputs of the weight's layer, if known.
        """
        whole_name = f"{name}.{Transform.TRANSPOSED.value}" if turned else name
        derived_name = f"{whole_name}.{transform.value}"
        if derived_name not in self.derived:
            base = self._originals[name].source
            base = Derived(Transform.TRANSPOSED, base) if turned else base
            source = Derived(transform, base, moments)
            provenance = f"{self._provenance} of {name}"
            self.derived[derived_name] = Constant(
                derived_name, kind, source, provenance
            )
        return self.derived[derived_name]

    def layout(self, name: str) -> StoredLayout | None:
        """Return how a checkpoint has the matrix `name` quantized; None: not at all."""
        return layout_of(self._originals[name].source)

    def divide(self, name: str, kind: TensorType) -> Constant:
        """Return the named matrix as a stack of smaller matrices [count, out, in]."""
        divided_name = f"{name}.divided"
        if divided_name not in self.derived:
            count = kind.dims[0]
            assert isinstance(count, int)
            source = Divided(self._originals[name].source, count)
            provenance = f"{self._provenance} of {name}"
            constant = Constant(divided_name, kind, source, provenance)
            self.derived[divided_name] = constant
        return self.derived[divided_name]

    def all_constants(self) -> tuple[Constant, ...]:
        """Return the original constants and all constants derived from them."""
        return (*self._originals.values(), *self.derived.values())


class MethodBuilder:
    """New values and constant bindings for a method that a pass rewrites.

    Constants with names in `kept` are not changed, so they do not count as weights.
    """

    def __init__(self, method: Method, kept: frozenset[str] = frozenset()) -> None:
        self._next = method.next_id()
        self._bound = {name: value for value, name in method.constants}
        self._method = method
        named = ((v.id, name) for v, name in method.constants if name not in kept)
        self.names = dict(named)
        self.new_bindings: list[tuple[Value, str]] = []

    def value(self, dtype: DType, *dims: object) -> Value:
        """Return a new value of the method, with the given dtype and dims."""
        self._next += 1
        return Value(self._next - 1, TensorType(dtype, tuple(dims)))  # type: ignore[arg-type]

    def constant(self, constant: Constant) -> Value:
        """Return the value that is bound to a constant in the method."""
        if constant.name not in self._bound:
            value = self.value(constant.type.dtype, *constant.type.dims)
            self._bound[constant.name] = value
            self.new_bindings.append((value, constant.name))
        return self._bound[constant.name]

    def method(self, nodes: Iterable[Node]) -> Method:
        """Return the method over other nodes, with the new bindings of constants."""
        constants = (*self._method.constants, *self.new_bindings)
        return replace(self._method, nodes=tuple(nodes), constants=constants)

    def weight_name(self, argument: object, rank: int = 2) -> str | None:
        """Return the name of the weight that an argument is, None if it is no weight.

        A weight is a float32 constant matrix, or a stack of matrices if `rank` is 3.
        """
        if not isinstance(argument, Value) or len(argument.type.dims) != rank:
            return None
        if argument.type.dtype is not DType.FLOAT32:
            return None
        return self.names.get(argument.id)


# Find the weights that a recipe's passes leave float32.


# The index of the selected experts among the arguments of operators with experts.
_CHOICE: Final = {
    "kvc::expert_linear": 2,
    "kvc::expert_linear_qd8": 5,
    "kvc::expert_linear_q8": 6,
}


def kept_weights(program: Program, patterns: Iterable[str]) -> frozenset[str]:
    """Return the names of constants that stay float32.

    Args:
        program: a program whose constants have the names that the bundle uses.
        patterns: paths of modules or weights, or consecutive parts of such paths; `*`
            stands for any text between two dots: `mlp.experts` matches in each layer,
            `layers.0.*` matches all of one layer.

    Raises:
        UnmatchedPattern: a pattern matches no matrix.
    """
    names = _matrices(program)
    kept = {name for method in program.methods for name in _routers(method)}
    for pattern in patterns:
        found = [name for name in names if matches(pattern, name)]
        if not found:
            raise UnmatchedPattern(pattern=pattern, known=tuple(names))
        kept.update(found)
    return frozenset(kept)


def matched_weights(program: Program, patterns: Iterable[str]) -> frozenset[str]:
    """Return the names of constants that match any of the patterns, as `kept_weights`.

    For passes after those that have refused patterns which match nothing.
    """
    wanted = tuple(patterns)
    names = _matrices(program)
    return frozenset(n for n in names if any(matches(each, n) for each in wanted))


def _matrices(program: Program) -> list[str]:
    return [c.name for c in program.constants if len(c.type.dims) > 1]


def matches(pattern: str, name: str) -> bool:
    """Tell whether a pattern matches consecutive parts of a name."""
    wanted, parts = pattern.split("."), name.split(".")
    return any(
        all(map(fnmatchcase, parts[i : i + len(wanted)], wanted))
        for i in range(len(parts) - len(wanted) + 1)
    )


def _routers(method: Method) -> Iterator[str]:
    """Yield the names of the matrices of linear layers that select experts."""
    names = {value.id: name for value, name in method.constants}
    makers = method.makers()
    for node in method.nodes:
        if node.op in _CHOICE:
            for product in _products(node.arguments[_CHOICE[node.op]], makers):
                yield from (names[v.id] for v in product.inputs[1:] if v.id in names)


def _products(choice: Argument, makers: Mapping[int, Node]) -> Iterator[Node]:
    """Yield the nearest linear layers before `choice`, on all paths that lead to it."""
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
