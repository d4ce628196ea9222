"""Join convolutions with the operators after them.

A batch norm with constant statistics becomes part of the kernels and the bias. A
residual that is added, and an elementwise function of the sum, become part of
`kvc::convolution`, which ends each piece of its result with them while the piece is in
the processor's cache.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import ClassVar, Final, cast

from kvc.compiler.ir import Argument, Constant, Method, Node, Program, Value
from kvc.compiler.ir.pattern import Any, Bindings, Makers, Pattern, op
from kvc.compiler.ir.rewrite import each_method, read_through
from kvc.compiler.passes.weight_book import MethodBuilder
from kvc.compiler.weights.folding import FoldedBias, FoldedKernel
from kvc.compiler.weights.sources import Computed, Make
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType

_PLAIN: Final = "aten::convolution"
_ENDED: Final = "kvc::convolution"

# Batch norms.


@dataclass(frozen=True, slots=True)
class FoldBatchNorms:
    """Make batch norms part of the float32 convolutions before them."""

    name: ClassVar[str] = "fold-batch-norms"

    def run(self, program: Program) -> Program:
        """Return the program with each norm folded whose statistics are constants."""
        folder = _Folder({c.name: c for c in program.constants})
        methods = tuple(map(folder.method, program.methods))
        constants = (*program.constants, *folder.made.values())
        return replace(program, constants=constants, methods=methods)


class _Folder:
    """Folds the norms of methods; `made` has the constants by what they are made of."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self._constants = constants
        self._taken = {*constants}  # names
        self.made: dict[tuple[Make, *tuple[str, ...]], Constant] = {}

    def method(self, method: Method) -> Method:
        """Return a method whose norms are folded."""
        builder, reads = MethodBuilder(method), method.reads()
        found: dict[int, Node] = {}  # convolutions by id of their results

        def stand_in(node: Node) -> Node | tuple[Value, ...]:
            if node.op == _PLAIN:
                found[node.outputs[0].id] = node
            elif node.op == "aten::batch_norm" and reads[node.inputs[0].id] == 1:
                x = node.inputs[0]
                folded = (
                    self._fold(found[x.id], node, builder) if x.id in found else None
                )
                if folded is not None:
                    found[x.id] = folded
                    return (x,)
            return node

        made = read_through(method, stand_in)
        nodes = (found.get(n.outputs[0].id, n) if n.outputs else n for n in made.nodes)
        constants = (*method.constants, *builder.new_bindings)
        return replace(made, nodes=tuple(nodes), constants=constants)

    def _fold(self, conv: Node, norm: Node, builder: MethodBuilder) -> Node | None:
        """Return the convolution with the norm in its weights, None if impossible."""
        x, kernel, bias, *settings = conv.arguments
        _, weight, shift, mean, var, eps = norm.arguments
        given = (kernel, bias, weight, shift, mean, var)
        names = [builder.names.get(v.id) for v in given if isinstance(v, Value)]
        floats = all(
            v.type.dtype is DType.FLOAT32 for v in given if isinstance(v, Value)
        )
        if None in names or not floats or not isinstance(eps, float):
            return None
        assert isinstance(kernel, Value)
        weighted, shifted, biased = (v is not None for v in (weight, shift, bias))
        of_kernel = self._names(builder, kernel, var, weight)
        of_bias = self._names(builder, var, mean, weight, shift, bias)
        name = of_kernel[0]
        kernels = self._constant(
            f"{name}.folded",
            FoldedKernel(eps, weighted),
            of_kernel,
            kernel.type.dims,
        )
        made = self._constant(
            f"{name.removesuffix('.weight')}.bias.folded",
            FoldedBias(eps, weighted, shifted, biased),
            of_bias,
            kernel.type.dims[:1],
        )
        operands = (builder.constant(kernels), builder.constant(made))
        return replace(conv, arguments=(x, *operands, *settings))

    def _names(self, builder: MethodBuilder, *values: Argument) -> list[str]:
        return [builder.names[v.id] for v in values if isinstance(v, Value)]

    def _constant(
        self, name: str, make: Make, bases: list[str], dims: tuple[object, ...]
    ) -> Constant:
        """Return what `make` makes of constants, named `name` or, if taken, alike."""
        if (make, *bases) in self.made:
            return self.made[make, *bases]
        names = chain([name], (f"{name}.{number}" for number in count(1)))
        free = next(each for each in names if each not in self._taken)
        shape = tuple(size for size in dims if isinstance(size, int))
        sources = tuple(self._constants[base].source for base in bases)
        provenance = f"{FoldBatchNorms.name} of {bases[0]}"
        kind = TensorType(DType.FLOAT32, shape)
        made = Constant(free, kind, Computed(make, sources, shape), provenance)
        self.made[make, *bases] = made
        self._taken.add(free)
        return made


# Residuals and elementwise functions.


_X: Final = Any("x")


def _clamped(x: Pattern) -> Pattern:
    at_once = op("aten::clamp", x, 0, 6) | op("aten::hardtanh", x, 0, 6)
    above = Any("above", op("aten::clamp", x, 0, None))
    return Any("clamped", at_once | op("aten::clamp", above, None, 6))


_SIXTH: Final = _clamped(Any("moved", op("aten::add.Scalar", _X, 3, 1)))
_WEIGHTED: Final = Any("weighted", _X * _SIXTH)
# The name of a function -> its formula, and how often the formula reads x.
_FUNCTIONS: Final[Mapping[str, tuple[Pattern, int]]] = {
    "silu": (op("aten::silu", _X), 1),
    "gelu": (op("aten::gelu", _X, "none"), 1),
    "gelu_tanh": (op("aten::gelu", _X, "tanh"), 1),
    "sigmoid": (op("aten::sigmoid", _X), 1),
    "hard_sigmoid": (op("aten::div.Scalar", _SIXTH, 6), 1),
    "hard_swish": (op("aten::div.Scalar", _WEIGHTED, 6), 2),
}
_BOUNDED: Final = (
    op("aten::clamp", _X, Any("low"), Any("high"))
    | op("aten::hardtanh", _X, Any("low"), Any("high"))
    | op("aten::relu", _X)
)


@dataclass(frozen=True, slots=True)
class EndConvolutions:
    """Give convolutions the residual and the function that follow them."""

    name: ClassVar[str] = "end-convolutions"

    def run(self, program: Program) -> Program:
        """Return the program with a `kvc::convolution` for each such sequence."""
        return each_method(program, _end_convolutions)


def _end_convolutions(method: Method) -> Method:
    makers, reads = method.makers(), method.reads()
    ended: dict[int, Node] = {}  # id of a result -> its convolution, ended so far
    nodes = []
    for node in method.nodes:
        made = node
        if node.op == _PLAIN and node.outputs[0].type.dtype is DType.FLOAT32:
            ended[node.outputs[0].id] = _as_ended(node)
        else:
            found = next(_endings(node, ended, makers, reads), None)
            if found is not None:
                made = replace(found, outputs=node.outputs, source=node.source)
                ended[node.outputs[0].id] = made
        nodes.append(made)
    return replace(method, nodes=tuple(nodes))


def _as_ended(node: Node) -> Node:
    x, weight, bias, *settings = node.arguments
    arguments = (x, weight, bias, None, *settings, "identity", None, None)
    return replace(node, op=_ENDED, arguments=arguments)


def _endings(
    node: Node, ended: Mapping[int, Node], makers: Makers, reads: Mapping[int, int]
) -> Iterator[Node]:
    """Yield convolutions, of those `ended` so far, that also compute a node."""
    for x, residual in _sums(node):
        conv = ended.get(x.id)
        if conv is not None and reads[x.id] == 1 and _is_open(conv):
            yield _with(conv, residual, "identity", None, None)
    for name, times, found in _functions(node, makers):
        value = cast("Value", found["x"])
        conv = ended.get(value.id)
        within = [v.id for v in found.values() if isinstance(v, Value) and v != value]
        alone = all(reads[each] == 1 for each in within)
        fits = alone and reads[value.id] == times
        fits = fits and node.outputs[0].type == value.type
        if conv is not None and _is_plain(conv) and fits:
            yield _with(conv, conv.arguments[3], name, *_bounds(found, name, node))


def _sums(node: Node) -> Iterator[tuple[Value, Value]]:
    """Yield the operands of a sum of two tensors of one type, in both orders."""
    if node.op == "aten::add.Tensor" and node.arguments[2] == 1:
        a, b = node.inputs
        if a.type == b.type and a.id != b.id:
            yield a, b
            yield b, a


def _functions(node: Node, makers: Makers) -> Iterator[tuple[str, int, Bindings]]:
    """Yield the name, the reads of x and the bindings of the function of a node."""
    for name, (pattern, times) in _FUNCTIONS.items():
        for found in pattern.matches(node, makers):
            yield name, times, found
    for found in _BOUNDED.matches(node, makers):
        if not any(isinstance(v, float) and math.isnan(v) for v in found.values()):
            yield "clamp", 1, found


def _bounds(
    found: Bindings, name: str, node: Node
) -> tuple[float | None, float | None]:
    if name != "clamp":
        return None, None
    if node.op == "aten::relu":
        return 0.0, None
    low, high = found["low"], found["high"]
    return (
        float(low) if isinstance(low, int | float) else None,
        float(high) if isinstance(high, int | float) else None,
    )


def _is_plain(conv: Node) -> bool:
    return conv.arguments[8] == "identity"


def _is_open(conv: Node) -> bool:
    return _is_plain(conv) and conv.arguments[3] is None


def _with(
    conv: Node,
    residual: Argument,
    ending: str,
    low: float | None,
    high: float | None,
) -> Node:
    start, settings = conv.arguments[:3], conv.arguments[4:8]
    return replace(conv, arguments=(*start, residual, *settings, ending, low, high))
