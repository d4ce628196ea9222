"""Numbers that a method reads from tensors at run time: `.item()`, `.tolist()`.

torch traces each number read as a symbol, and arithmetic on the number as an expression
of the symbol. In: these symbols and expressions. Out: a `Number` for each integer and a
`Real` for each float. The rules that translate operators use the numbers as tensors [];
Python's arithmetic on the numbers becomes nodes of the graph. Sizes never depend on
numbers that are read.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from kvc.compiler.ingest.calls import (
    MadeArgument,
    OpCall,
    Tensor,
    Unsupported,
    cast,
    full,
    plus,
    viewed,
)
from kvc.compiler.ingest.symbols import SizeReader
from kvc.compiler.ir import Value
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Dim, TensorType, add_dims

SCALAR = TensorType(DType.INT64, ())
SIZE_FROM_VALUES = (
    "a size that depends on values; attend to the filled part of a cache with "
    "torch.ops.kvc.attention(q, k, v, valid_length), write with index_copy_ at a "
    "tensor of places, or read as many slots as the shapes say"
)
_BY_CONSTANT = {
    FloorDiv: ("aten::div.Scalar_mode", {"rounding_mode": "floor"}),
    PythonMod: ("aten::remainder.Scalar", {}),
    Mod: ("aten::remainder.Scalar", {}),
}
_REAL = {
    operator.add: ("aten::add.Tensor", {"alpha": 1}),
    operator.sub: ("aten::sub.Tensor", {"alpha": 1}),
    operator.mul: ("aten::mul.Tensor", {}),
    operator.truediv: ("aten::div.Tensor", {}),
    operator.pow: ("aten::pow.Tensor_Tensor", {}),
}


@dataclass(frozen=True, slots=True)
class Number:
    """An integer known only at run time.

    Attributes:
        expression: torch's expression of the integer, over numbers read and sizes.
        reader: the reader that knows the tensor of each number in the expression.
    """

    expression: sympy.Expr
    reader: "NumberReader"

    def tensor(self) -> Tensor:
        """Return the number as a tensor int64 [].

        Raises:
            Unsupported: the number is computed by more than `+`, `-`, `*`, `//` and
                `%`.
        """
        return self.reader.tensor(self.expression)

    @property
    def is_non_negative(self) -> bool:
        """Tell whether the trace asserts that the number is not negative."""
        return self.reader.is_non_negative(self.expression)


@dataclass(frozen=True, slots=True)
class Real:
    """A float known only at run time; float64 or of the dtype of the tensor read."""

    value: Tensor

    def tensor(self) -> Tensor:
        """Return the number as a tensor without dims."""
        return self.value


class NumberReader:
    """Maps the numbers that a method reads to the tensors that hold them."""

    def __init__(
        self, sizes: SizeReader, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]
    ) -> None:
        self._sizes = sizes
        self._ranges = dict(ranges)
        self._read: dict[sympy.Symbol, Tensor] = {}
        self._real: dict[fx.Node, Tensor] = {}

    def note(self, node: fx.Node, tensor: Tensor) -> None:
        """Record that `node` reads the one element of `tensor`."""
        number = node.meta.get("val")
        scalar = viewed(tensor)
        if isinstance(number, torch.SymInt):
            self._read[number.node.expr] = cast(scalar, DType.INT64)
        elif isinstance(number, torch.SymFloat):
            self._real[node] = scalar

    def number(self, size: torch.SymInt) -> "Number | Dim":
        """Return a traced integer: a `Dim` if it is a size, or else a `Number`.

        Raises:
            CaptureError: the integer is a size that is computed by more than `+`, `-`,
                `*`, `//` and `%`.
        """
        if not self._sizes.knows(size):
            return Number(size.node.expr, self)
        return self._sizes.dim(size)

    def real(self, node: fx.Node) -> Real:
        """Return the float that `node` computes in the trace.

        Raises:
            Unsupported: the float is computed by more than `+`, `-`, `*`, `/` and `**`.
        """
        return Real(self._real_tensor(node))

    def _real_tensor(self, node: object) -> Tensor:
        if isinstance(node, int | float):
            return full((), node, DType.FLOAT64)
        if isinstance(node, fx.Node) and node in self._real:
            return self._real[node]
        if isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.SymInt):
            number = self.number(node.meta["val"])
            if isinstance(number, Number):
                return cast(number.tensor(), DType.FLOAT64)
            return full((), number, DType.FLOAT64)
        if isinstance(node, fx.Node) and node.target in _REAL:
            op, settings = _REAL[node.target]
            a, b = (cast(self._real_tensor(x), DType.FLOAT64) for x in node.args)
            second = "exponent" if node.target is operator.pow else "other"
            call = OpCall(op, {"self": a, second: b, **settings})
            return MadeArgument(call, TensorType(DType.FLOAT64, ()))
        if isinstance(node, fx.Node) and node.target is torch.sym_float:
            return self._real_tensor(node.args[0])
        raise Unsupported(
            "a number computed from a size or from values by more than + - * / **"
        )

    def is_non_negative(self, expression: sympy.Expr) -> bool:
        """Tell whether the trace asserts that a number is not negative."""
        return bool(bound_sympy(expression, self._ranges).lower >= 0)

    def simplified(self, expression: sympy.Expr) -> "Number | Dim":
        """Return a `Number` if an expression has read numbers, else a `Dim`."""
        expression = sympy.expand(expression)
        if free_unbacked_symbols(expression):
            return Number(expression, self)
        return self._sizes.dim_of(expression)

    def tensor(self, expression: sympy.Expr) -> Tensor:
        """Return the value of an expression as a tensor int64 [].

        Raises:
            Unsupported: the expression has more than `+`, `-`, `*`, `//` and `%`.
        """
        known, total = 0, None
        for part in sympy.Add.make_args(sympy.expand(expression)):
            if not free_unbacked_symbols(part):
                known += part
                continue
            one = self._product(part)
            total = one if total is None else plus(total, one)
        assert total is not None
        return plus(total, self._sizes.dim_of(known) if known != 0 else 0)

    def _product(self, expression: sympy.Expr) -> Tensor:
        factor, rest = expression.as_coeff_Mul()
        tensor = self._atom(rest)
        if factor == 1:
            return tensor
        if not factor.is_Integer:
            raise Unsupported(_hard(self._sizes.named(expression)))
        call = OpCall("aten::mul.Scalar", {"self": tensor, "other": int(factor)})
        return MadeArgument(call, SCALAR)

    def _atom(self, expression: sympy.Expr) -> Tensor:
        if expression in self._read:
            return self._read[expression]
        op, settings = _BY_CONSTANT.get(expression.func, ("", {}))
        if op and expression.args[1].is_Integer and expression.args[1] > 0:
            divisor = int(expression.args[1])
            named = {"self": self.tensor(expression.args[0]), "other": divisor}
            return MadeArgument(OpCall(op, {**named, **settings}), SCALAR)
        raise Unsupported(_hard(self._sizes.named(expression)))


def _hard(expression: sympy.Expr) -> str:
    return (
        f"the number {expression}, which depends on values; with a number from .item() "
        "use only +, -, and *, //, % by constants, or compute with tensors"
    )


def span_checks(
    start: object, end: object, count: Dim, whole: Dim | None = None
) -> tuple[OpCall, ...]:
    """Return the calls that check at run time that a slice has `count` positions.

    Return () if the slice has `count` positions for all values of the numbers read.

    Args:
        start: first position of the slice; a size, or a number known only at run time.
        end: the position after the slice's last; a size, or a number known only at run
            time.
        count: the number of positions of the slice in the trace.
        whole: the size of the sliced axis, if ends greater than that size are clamped
            to it; None if ends are not clamped.

    Raises:
        Unsupported: neither `start` nor `end` is a number known only at run time.
    """
    if isinstance(start, Number) and isinstance(end, Number):
        # In torch a negative start wraps around; here such a write or read raises.
        ahead = end.expression.subs(sympy.Lt(start.expression, 0), sympy.false)
        if end.reader.simplified(ahead - start.expression) == count:
            return ()
    begin, until = _end(start, None), _end(end, whole)
    if isinstance(until, Value | MadeArgument):
        if isinstance(begin, Value | MadeArgument):
            values = {"self": until, "other": begin, "alpha": -1}
            span: Tensor = MadeArgument(OpCall("aten::add.Tensor", values), SCALAR)
        else:
            span = plus(until, add_dims(0, begin, -1))
        missing = plus(span, add_dims(0, count, -1))
    elif isinstance(begin, Value | MadeArgument):
        missing = plus(begin, add_dims(count, until, -1))
    else:
        raise Unsupported(SIZE_FROM_VALUES)
    values = {"index": missing, "least": 0, "count": 0, "slots": 0}
    return (OpCall("kvc::check_index", values),)


def _end(place: object, whole: Dim | None) -> Tensor | Dim:
    """Return an end of a slice: a tensor if known only at run time, else a size."""
    if isinstance(place, int | Affine):
        return place
    if not isinstance(place, Number):
        raise Unsupported(SIZE_FROM_VALUES)
    tensor = place.tensor()
    if whole is None:
        return tensor
    return MadeArgument(
        OpCall("aten::clamp", {"self": tensor, "min": None, "max": whole}), SCALAR
    )
