"""Find the streams of a program that an orthogonal matrix may rotate.

A stream is a set of values of equal width, such as the residual stream of a
transformer: linear layers and embedding tables compute the values, additions combine
them, and norms read them for other linear layers. If all producers of a stream are
rotated by R, and all readers by the transpose of R, the program computes the same. In:
a program. Out: `Streams`: the rotated values, the rotated sides of constants, and the
norms whose weights must be multiplied into the layers after them. At first, each value
and each side of a constant is a class of its own. An operator that commutes with R
unites the classes of its operands and results. Any other operator excludes these
classes from rotation; so do inputs and outputs of methods, and states. All methods and
blocks are read, since they share constants.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from kvc.compiler.ir import Argument, Constant, Method, Node, Program, Value
from kvc.compiler.weights.rotation import LEAST_BLOCK, block_of
from kvc.schema.dtypes import DType


@dataclass(frozen=True, slots=True)
class Side:
    """An axis of a constant that may be rotated.

    `of` is "reads" for the constant's last axis, "makes" for the rows of a matrix.
    """

    constant: str
    of: Literal["reads", "makes"]


@dataclass(frozen=True, slots=True)
class Norm:
    """The names of a norm's weight and bias; None for a part that the norm lacks."""

    weight: str | None
    bias: str | None


NodePlace = tuple[str, int]  # name of a method, id of a value
PLAIN: Final = Norm(None, None)


@dataclass(frozen=True, slots=True)
class Streams:
    """The values and constants to rotate.

    Attributes:
        values: the rotated values, as (method name, value id).
        sides: the rotated sides of constants.
        norms: value -> the norm that computed it. For a view, the norm that computed
            the viewed value.
        folded: name of a matrix -> the only norm whose results the matrix multiplies.
    """

    values: frozenset[NodePlace]
    sides: frozenset[Side]
    norms: dict[NodePlace, Norm]
    folded: dict[str, Norm]


def find_streams(program: Program, done: frozenset[str]) -> Streams:
    """Return the streams of a program that contain no constant in `done`."""
    classes = _Classes()
    for method in program.methods:
        _Reading(method, classes).read()
    for name in done:
        classes.forbid(Side(name, "reads"))
        classes.forbid(Side(name, "makes"))
    for constant in program.constants:
        norms = classes.uses.get(constant.name, set())
        if len(norms) > 1 and not _is_long(constant):
            classes.forbid(Side(constant.name, "reads"))
    members = classes.rotated()
    folded = {
        w: next(iter(norms)) for w, norms in classes.uses.items() if len(norms) == 1
    }
    return Streams(
        frozenset(m for m in members if isinstance(m, tuple)),
        frozenset(m for m in members if isinstance(m, Side)),
        classes.norms,
        folded,
    )


def _is_long(matrix: Constant) -> bool:
    """Tell whether a [width, width] product is cheap compared with a matrix.

    This is so if the matrix has many more rows than columns, like the matrix of an
    output layer, which can also be the embedding's table.
    """
    rows, width = matrix.type.dims
    return isinstance(rows, int) and isinstance(width, int) and rows >= 8 * width


Key = NodePlace | Side


class _Classes:
    """Values and sides of constants in classes; a class is rotated as a whole or not.

    Attributes:
        norms: value -> the norm that computed it.
        uses: name of a constant -> the norms whose results it multiplies; `PLAIN` for
            values that no norm computed.
    """

    def __init__(self) -> None:
        self._parents: dict[Key, Key] = {}
        self._forbidden: set[Key] = set()
        self._seen: dict[str, set[Key]] = defaultdict(set)
        self.norms: dict[NodePlace, Norm] = {}
        self.uses: dict[str, set[Norm]] = defaultdict(set)

    def root(self, key: Key) -> Key:
        """Return the representative of a key's class."""
        while (parent := self._parents.setdefault(key, key)) != key:
            self._parents[key] = self._parents[parent]
            key = parent
        return key

    def unite(self, *keys: Key) -> None:
        """Unite the classes of several keys."""
        for key in keys[1:]:
            self._parents[self.root(key)] = self.root(keys[0])

    def forbid(self, key: Key) -> None:
        """Exclude the class of a key from rotation."""
        self._forbidden.add(key)

    def mark(self, key: Key, what: Literal["norm", "sum"]) -> None:
        """Record that a norm or a sum reads the value of a key."""
        self._seen[what].add(key)

    def rotated(self) -> set[Key]:
        """Return the keys of the allowed classes that both a norm and a sum read."""
        roots = {self.root(key) for key in self._seen["norm"]}
        roots &= {self.root(key) for key in self._seen["sum"]}
        roots -= {self.root(key) for key in self._forbidden}
        return {key for key in self._parents if self.root(key) in roots}


class _Reading:
    """Reads the nodes of one method, in order."""

    def __init__(self, method: Method, classes: _Classes) -> None:
        self._method, self._classes = method, classes
        self._constants = {value.id: name for value, name in method.constants}
        self._makers = method.makers()

    def read(self) -> None:
        """Unite or exclude classes, as the operator of each node demands."""
        method = self._method
        states = (v for v, _ in method.state_in + method.cursor_in)
        for value in (*method.inputs, *method.results, *states):
            self._forbid(value)
        for node in method.nodes:
            rule = _RULES.get(node.op)
            if rule is None or not rule(self, node):
                for value in (*node.inputs, *node.outputs):
                    self._forbid(value)

    def linear(self, node: Node) -> bool:
        """Unite the sides of a linear layer's weight with the layer's input and result.

        The result is False if the node does not fit this rule.
        """
        x, weight, bias = node.arguments
        name = self._matrix(weight)
        if name is None or not isinstance(x, Value):
            return False
        if isinstance(bias, Value) and bias.id not in self._constants:
            return False
        self._classes.unite(self._key(x), Side(name, "reads"))
        self._classes.uses[name].add(self._norm_of(x))
        (made,) = node.outputs
        self._classes.unite(self._key(made), Side(name, "makes"))
        if isinstance(bias, Value):
            self._classes.unite(self._key(made), self._key(bias))
        return True

    def embedding(self, node: Node) -> bool:
        """Unite the rows of an embedding's table with the result."""
        name = self._matrix(node.arguments[0])
        if name is None:
            return False
        self._classes.uses[name].add(PLAIN)
        self._classes.forbid(Side(name, "makes"))
        self._classes.unite(self._key(node.outputs[0]), Side(name, "reads"))
        return True

    def norm(self, node: Node) -> bool:
        """Record a norm of rows and the norm's constants."""
        x, shape, *rest = node.arguments
        assert isinstance(x, Value)
        weights = [v for v in rest if isinstance(v, Value)]
        names = [self._constants.get(v.id) for v in weights]
        if None in names or not _is_row(x) or shape != x.type.dims[-1:]:
            return False
        if self._norm_of(x) != PLAIN:
            return False
        weight = self._constants[weights[0].id] if rest[0] is not None else None
        bias = None
        if node.op == "aten::layer_norm" and isinstance(rest[1], Value):
            bias = self._constants[rest[1].id]
        (made,) = node.outputs
        self._classes.norms[self._place(made)] = Norm(weight, bias)
        self._classes.unite(self._key(x), self._key(made))
        self._classes.mark(self._key(x), "norm")
        return True

    def added(self, node: Node) -> bool:
        """Unite the operands and the result of a sum or difference."""
        (made,) = node.outputs
        if len(node.inputs) != 2:
            return False
        if not all(_is_row(v) and _width(v) == _width(made) for v in node.inputs):
            return False
        if any(self._norm_of(v) != PLAIN for v in node.inputs):
            return False
        self._classes.unite(self._key(made), *map(self._key, node.inputs))
        self._classes.mark(self._key(made), "sum")
        return True

    def scaled(self, node: Node) -> bool:
        """Unite rows with the rows multiplied by one number, or by a number per row."""
        (made,) = node.outputs
        rows = [v for v in node.inputs if _is_row(v) and _width(v) == _width(made)]
        if len(rows) != 1 or self._norm_of(rows[0]) != PLAIN:
            return False
        for value in node.inputs:
            if value is not rows[0]:
                if value.type.dims and _width(value) != 1:
                    return False
                self._forbid(value)
        self._classes.unite(self._key(made), self._key(rows[0]))
        return True

    def viewed(self, node: Node) -> bool:
        """Unite rows with the result of an operator that selects or moves rows."""
        x, (made,) = node.arguments[0], node.outputs
        if not isinstance(x, Value) or not _is_row(x) or _width(x) != _width(made):
            return False
        if x.type.dtype is not made.type.dtype or not self._keeps_rows(node):
            return False
        for value in node.inputs[1:]:
            self._forbid(value)
        self._classes.unite(self._key(x), self._key(made))
        self._classes.norms[self._place(made)] = self._norm_of(x)
        return True

    def _keeps_rows(self, node: Node) -> bool:
        x = node.arguments[0]
        assert isinstance(x, Value)
        axes = range(len(x.type.dims) - 1)
        if node.op == "aten::permute":
            order = node.arguments[1]
            assert isinstance(order, tuple)
            return order[-1] in (-1, len(axes))
        if node.op == "aten::index.Tensor":
            indices = node.arguments[1]
            if not isinstance(indices, tuple) or not 0 < len(indices) <= len(axes):
                return False
            return all(
                isinstance(index, Value) and index.type.dtype is DType.INT64
                for index in indices
            )
        if node.op not in _ALONG_AXES:
            return True
        named = node.arguments[1 : 1 + _ALONG_AXES[node.op]]
        if not all(isinstance(a, int) and a % len(x.type.dims) in axes for a in named):
            return False
        return node.op != "aten::gather" or self._is_of_rows(node.arguments[2])

    def _is_of_rows(self, index: Argument) -> bool:
        """Tell whether an index does not vary along the last axis."""
        assert isinstance(index, Value)
        maker = self._makers.get(index.id)
        return (
            maker is not None
            and maker.op == "aten::expand"
            and _width(maker.inputs[0]) == 1
        )

    def _matrix(self, weight: Argument) -> str | None:
        """Return the name of a constant matrix that can be rotated, else None."""
        if not isinstance(weight, Value) or len(weight.type.dims) != 2:
            return None
        if weight.type.dtype is not DType.FLOAT32:
            return None
        return self._constants.get(weight.id)

    def _norm_of(self, value: Value) -> Norm:
        return self._classes.norms.get(self._place(value), PLAIN)

    def _place(self, value: Value) -> NodePlace:
        return self._method.name, value.id

    def _key(self, value: Value) -> Key:
        """Return the key of a value; for a constant, the key of its last axis.

        If a node reads a constant as a value, no norm's weight can be multiplied into
        that constant.
        """
        name = self._constants.get(value.id)
        if name is None:
            return self._place(value)
        self._classes.forbid(Side(name, "makes"))
        self._classes.uses[name].add(PLAIN)
        return Side(name, "reads")

    def _forbid(self, value: Value) -> None:
        self._classes.forbid(self._key(value))
        if value.id in self._constants:
            self._classes.forbid(Side(self._constants[value.id], "makes"))


def _width(value: Value) -> object:
    return value.type.dims[-1] if value.type.dims else None


def _is_row(value: Value) -> bool:
    """Tell whether a value has a last axis that can be rotated."""
    width = _width(value)
    floats = value.type.dtype is DType.FLOAT32
    return floats and isinstance(width, int) and block_of(width) >= LEAST_BLOCK


# Operator -> the number of its next arguments that name an axis, but not the last axis.
_ALONG_AXES: Final = {
    "aten::slice.Tensor": 1,
    "aten::select.int": 1,
    "aten::transpose.int": 2,
    "aten::gather": 1,
    "aten::index_select": 1,
}
_ROWS: Final = (
    "alias", "clone", "expand", "index.Tensor", "permute", "reshape", "squeeze.dims",
    "unsqueeze", "view",
)  # fmt: skip
_RULES: Final[dict[str, Callable[[_Reading, Node], bool]]] = {
    "aten::linear": _Reading.linear,
    "aten::embedding": _Reading.embedding,
    "aten::rms_norm": _Reading.norm,
    "aten::layer_norm": _Reading.norm,
    "aten::add.Tensor": _Reading.added,
    "aten::sub.Tensor": _Reading.added,
    "aten::mul.Tensor": _Reading.scaled,
    "aten::mul.Scalar": _Reading.scaled,
    "aten::div.Scalar": _Reading.scaled,
    **{f"aten::{name}": _Reading.viewed for name in _ROWS},
    **dict.fromkeys(_ALONG_AXES, _Reading.viewed),
}
