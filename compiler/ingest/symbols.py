"""Convert torch's symbolic sizes (SymInt) to `Dim`s of the IR."""

import functools
from collections.abc import Callable, Mapping

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import (
    FloorDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    ToFloat,
    TruncToInt,
)

from kvc.compiler.ingest.calls import Unsupported
from kvc.compiler.request.spec import Dim as DeclaredDim
from kvc.compiler.request.spec import Method
from kvc.compiler.trace import CapturedMethod
from kvc.schema.dtypes import DType
from kvc.schema.errors import CaptureError
from kvc.schema.types import (
    MAX_PARTS,
    Affine,
    Dim,
    Symbol,
    TensorType,
    add_dims,
    affine,
    bounds,
    floor_divide,
    multiply_dims,
)

TORCH_DTYPES: dict[torch.dtype, DType] = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.uint8: DType.UINT8,
    torch.bool: DType.BOOL,
}

# A size times a fraction with at most this denominator is a float without rounding.
_EXACT = 1 << 16


class SizeReader:
    """Converts torch's sizes in one method to `Dim`s."""

    def __init__(self, method: str, found: Mapping[sympy.Symbol, Symbol]) -> None:
        """Store `found`: torch's symbol -> the program's symbol of a declared Dim."""
        self._method = method
        self._names = {one: symbol.name for one, symbol in found.items()}
        self._symbols = {symbol.name: symbol for symbol in found.values()}
        # If a Dim has few sizes, torch may make two symbols for it without merging
        # them.
        first = {name: one for one, name in reversed(self._names.items())}
        self._defined: dict[sympy.Symbol, sympy.Expr] = {
            one: first[name]
            for one, name in self._names.items()
            if first[name] is not one
        }

    def define(self, symbol: sympy.Symbol, size: sympy.Expr) -> None:
        """Record that a symbol that torch made for an unknown size equals `size`."""
        self._defined[symbol] = size

    def expression(self, size: int | torch.SymInt) -> sympy.Expr:
        """Return a size as an expression over the symbols of declared Dims."""
        if isinstance(size, int):
            return sympy.Integer(size)
        return size.node.expr.subs(self._defined)

    def knows(self, size: int | torch.SymInt) -> bool:
        """Tell whether a size depends only on declared Dims, not on tensors' values."""
        if isinstance(size, int):
            return True
        return not (free_unbacked_symbols(size) - self._defined.keys())

    def dim(self, size: int | torch.SymInt) -> Dim:
        """Return a traced size as a `Dim`.

        Raises:
            CaptureError: the size is computed by more than `+`, `-`, `*`, `//` and `%`.
        """
        return size if isinstance(size, int) else self.dim_of(size.node.expr)

    def dim_of(self, expression: sympy.Expr) -> Dim:
        """Return an expression of torch's symbols as a `Dim`.

        Raises:
            CaptureError: the expression has more than `+`, `-`, `*`, `//` and `%`.
        """
        expression = sympy.expand(expression.subs(self._defined))
        size = self._size(expression)
        if size is None or (isinstance(size, Affine) and size.count > MAX_PARTS):
            raise self.refused(
                f"a size is {self.named(expression)}; sizes must be computed from "
                "declared dims by +, -, products of different ones, and // and % by "
                "constants (no powers, no sizes that depend on values)"
            )
        return size

    def _size(self, expression: sympy.Expr) -> Dim | None:
        """Return an expression as a `Dim`, None if a `Dim` cannot express it."""
        if expression.is_Integer:
            return int(expression)
        if expression in self._names:
            return affine(0, {self._names[expression]: 1})
        if expression.is_Add or expression.is_Mul:
            join = add_dims if expression.is_Add else multiply_dims
            sizes = [self._size(each) for each in expression.args]
            return functools.reduce(lambda a, b: _both(join, a, b), sizes)
        if issubclass(expression.func, (Max, Min, sympy.Max, sympy.Min)):
            return self._extreme(expression)
        # A quotient or remainder by a constant.
        kind = expression.func
        if kind is TruncToInt:  # a non-negative size times a float
            factor, scaled = expression.args[0].as_coeff_Mul()
            ratio = sympy.Rational(float(factor))
            exact = scaled.func is ToFloat and ratio > 0 and ratio.q <= _EXACT
            whole = (
                self._size(sympy.expand(ratio.p * scaled.args[0])) if exact else None
            )
            return None if whole is None else floor_divide(whole, int(ratio.q))
        if not issubclass(kind, FloorDiv | Mod | PythonMod):
            return None
        of, by = expression.args
        size = self._size(sympy.expand(of))
        if size is None or not by.is_Integer or by < 1:
            return None
        quotient = floor_divide(size, int(by))
        low, high = bounds(quotient, self._symbols)
        # Torch has replaced it by this number in some places.
        quotient = low if low == high else quotient
        return (
            quotient
            if issubclass(kind, FloorDiv)
            else add_dims(size, quotient, -int(by))
        )

    def _extreme(self, expression: sympy.Expr) -> Dim | None:
        """Return the size that a `Min` or `Max` always equals.

        Return None if different sizes are the minimum or maximum for different values
        of the symbols.
        """
        first, *others = (self._size(sympy.expand(each)) for each in expression.args)
        for other in others:
            if first is None or other is None:
                return None
            low, high = bounds(add_dims(first, other, -1), self._symbols)
            if low < 0 < high:
                return None
            greater = issubclass(expression.func, (Max, sympy.Max))
            first = first if (low >= 0) == greater else other
        return first

    def named(self, expression: sympy.Expr) -> sympy.Expr:
        """Return an expression with the names of Dims in place of torch's symbols."""
        names = {one: sympy.Symbol(name) for one, name in self._names.items()}
        return expression.xreplace(names)

    def refused(self, reason: str) -> CaptureError:
        """Return the error for a size of the method that kvc cannot express."""
        return CaptureError(method=self._method, place="", reason=reason)

    def bounds(self, expression: sympy.Expr) -> tuple[int, int]:
        """Return the least and greatest value of an expression of torch's symbols.

        Raises:
            CaptureError: the expression is no `Dim`; see `dim_of`.
        """
        return bounds(self.dim_of(expression), self._symbols)

    def tensor_type(self, tensor: torch.Tensor) -> TensorType:
        """Return the type of a traced tensor.

        Raises:
            CaptureError: kvc does not have the tensor's dtype.
        """
        dtype = TORCH_DTYPES.get(tensor.dtype)
        if dtype is None:
            reason = f"a tensor has dtype {tensor.dtype}, which kvc does not have"
            raise CaptureError(method=self._method, place="", reason=reason)
        return TensorType(dtype, tuple(self.dim(size) for size in tensor.shape))


def _both(
    join: Callable[[Dim, Dim], Dim | None], a: Dim | None, b: Dim | None
) -> Dim | None:
    return None if a is None or b is None else join(a, b)


def qualified_names(captured: tuple[CapturedMethod, ...]) -> dict[tuple[str, str], str]:
    """Return (method name, Dim name) -> name of the Dim's symbol in the program.

    The symbol has the Dim's name if all methods give the Dim the same bounds; otherwise
    the name is "method.dim".
    """
    limits: dict[str, set[tuple[int, int]]] = {}
    for one in captured:
        for axes in one.method.dynamic.values():
            for dim in axes.values():
                limits.setdefault(dim.name, set()).add((dim.lower, dim.upper))
    return {
        (one.method.name, dim.name): (
            dim.name if len(limits[dim.name]) == 1 else f"{one.method.name}.{dim.name}"
        )
        for one in captured
        for axes in one.method.dynamic.values()
        for dim in axes.values()
    }


def declared_symbols(
    captured: tuple[CapturedMethod, ...], names: Mapping[tuple[str, str], str]
) -> tuple[Symbol, ...]:
    """Return the symbols of the Dims with more than one size, ordered by name."""
    symbols = {
        names[one.method.name, dim.name]: (dim.lower, dim.upper)
        for one in captured
        for axes in one.method.dynamic.values()
        for dim in axes.values()
        if dim.lower < dim.upper
    }
    return tuple(Symbol(name, *ends) for name, ends in sorted(symbols.items()))


def size_reader(
    captured: CapturedMethod,
    inputs: Mapping[str, torch.Tensor],
    names: Mapping[tuple[str, str], str],
) -> SizeReader:
    """Return the converter of torch's sizes for one method.

    Args:
        captured: the method as captured.
        inputs: path of a tensor input -> the traced tensor.
        names: names of the program's symbols; see `qualified_names`.

    Raises:
        CaptureError: the traced code holds for fewer sizes of a Dim than declared.
    """
    method = captured.method
    found: dict[sympy.Symbol, Symbol] = {}
    for path, axes in method.dynamic.items():
        for axis, dim in axes.items():
            size: int | torch.SymInt = inputs[path].shape[axis]
            if isinstance(size, int):
                _check_static(method, dim, size)
                continue
            symbol = size.node.expr
            if symbol.is_number:  # replaced by a number after the trace
                _check_static(method, dim, int(symbol))
                continue
            name = names[method.name, dim.name]
            found[symbol] = Symbol(name, dim.lower, dim.upper)
            limits = captured.exported.range_constraints[symbol]
            if int(limits.lower) > dim.lower or int(limits.upper) < dim.upper:
                reason = (
                    f"Dim {dim.name} is declared {dim.lower}..{dim.upper}, but the "
                    f"code holds only for {limits.lower}..{limits.upper}"
                )
                raise CaptureError(method=method.name, place="", reason=reason)
    return SizeReader(method.name, found)


def _check_static(method: Method, dim: DeclaredDim, size: int) -> None:
    """Check that a Dim is declared with one size only, since torch made it constant."""
    if dim.lower < dim.upper:
        reason = (
            f"Dim {dim.name} is declared {dim.lower}..{dim.upper}, but the code holds "
            f"only for {size}"
        )
        raise CaptureError(method=method.name, place="", reason=reason)


# Sizes of slices whose ends torch cannot order.


def define_slice_size(node: fx.Node, sizes: SizeReader) -> None:
    """Define torch's symbol for the size of a slice, if the slice's ends are sizes.

    Raises:
        Unsupported: it depends on sizes whether a slice end counts from the front or
            from the back of the axis.
    """
    source, dim, start, end, step = _arguments(node)
    made = node.meta["val"]
    if not isinstance(source, Tensor):
        return
    axis = dim % source.dim()
    size, whole = made.shape[axis], source.shape[axis]
    ends = (whole, 0 if start is None else start, whole if end is None else end)
    places = [each for each in ends if isinstance(each, int | torch.SymInt)]
    if sizes.knows(size) or not size.node.expr.is_Symbol or len(places) < len(ends):
        return
    if not all(map(sizes.knows, places)):
        return
    length, first, last = map(sizes.expression, places)
    begin, until = (_placed(place, length, sizes) for place in (first, last))
    if begin is None or until is None:
        place = first if begin is None else last
        raise Unsupported(
            f"a slice has an end at {place}, which counts from the front of its axis "
            "at some sizes and from the back at others; change the bounds of the Dim, "
            "or count from the front"
        )
    count = FloorDiv(until - begin + step - 1, sympy.Integer(step))
    sizes.define(size.node.expr, sympy.Max(0, count))


def _arguments(node: fx.Node) -> tuple[object, int, object, object, int]:
    given = [a.meta.get("val") if isinstance(a, fx.Node) else a for a in node.args]
    usual: list[object] = [None, 0, None, None, 1]
    source, dim, start, end, step = given + usual[len(given) :]
    assert isinstance(dim, int)
    assert isinstance(step, int)
    return source, dim, start, end, step


def _placed(
    place: sympy.Expr, length: sympy.Expr, sizes: SizeReader
) -> sympy.Expr | None:
    """Return a slice's end, counted from the front and clamped to the axis.

    Return None if the end is negative for some sizes and not for others.
    """
    low, high = sizes.bounds(place)
    if low < 0 < high + 1:
        return None
    return sympy.Min(place, length) if low >= 0 else sympy.Max(0, place + length)
