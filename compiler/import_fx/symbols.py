"""Symbolic sizes: from torch's SymInts to `Dim`s of the IR."""

from collections import Counter
from collections.abc import Mapping

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from kvc.compiler.capture import CapturedMethod
from kvc.compiler.spec import Dim as DeclaredDim
from kvc.compiler.spec import Method
from kvc.schema.dtypes import DType
from kvc.schema.errors import CaptureError
from kvc.schema.types import (
    MAX_MULTIPLIED,
    Affine,
    Dim,
    Symbol,
    TensorType,
    affine,
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


class SizeReader:
    """Reads sizes of one method: knows what each of torch's symbols is called."""

    def __init__(self, method: str, names: Mapping[sympy.Symbol, str]) -> None:
        self._method = method
        self._names = names
        self._defined: dict[sympy.Symbol, sympy.Expr] = {}

    def define(self, symbol: sympy.Symbol, size: sympy.Expr) -> None:
        """Say what a symbol is that torch has made for a size that it did not know."""
        self._defined[symbol] = size

    def expression(self, size: int | torch.SymInt) -> sympy.Expr:
        """Return a size in terms of declared dims alone."""
        if isinstance(size, int):
            return sympy.Integer(size)
        return size.node.expr.subs(self._defined)

    def knows(self, size: int | torch.SymInt) -> bool:
        """Tell whether a size is one of declared dims, and of no values."""
        if isinstance(size, int):
            return True
        return not (free_unbacked_symbols(size) - self._defined.keys())

    def dim(self, size: int | torch.SymInt) -> Dim:
        """Return a size as a dimension.

        Raises:
            CaptureError: it is no sum of declared dims, their products and multiples.
        """
        return size if isinstance(size, int) else self.dim_of(size.node.expr)

    def dim_of(self, expression: sympy.Expr) -> Dim:
        """Return an expression of torch's symbols as a dimension.

        Raises:
            CaptureError: it is no sum of declared dims, their products and multiples.
        """
        expression = sympy.expand(expression.subs(self._defined))
        sums: Counter[tuple[str, ...]] = Counter()
        for part in sympy.Add.make_args(expression):
            coefficient, factors = part.as_coeff_mul()
            names = {self._names.get(factor) for factor in factors}
            whole = coefficient.is_Integer and len(names) == len(factors)
            if not whole or None in names or len(names) > MAX_MULTIPLIED:
                raise self._no_size(expression)
            sums[tuple(sorted(name for name in names if name))] += int(coefficient)
        constant = sums.pop((), 0)
        terms = {names[0]: c for names, c in sums.items() if len(names) == 1}
        products = {names: c for names, c in sums.items() if len(names) > 1}
        size = affine(constant, terms, products)
        if isinstance(size, Affine) and len(size.multiplied) > MAX_MULTIPLIED:
            raise self._no_size(expression)
        return size

    def _no_size(self, expression: sympy.Expr) -> CaptureError:
        reason = (
            f"a size is {expression}; sizes must be sums of declared dims and of "
            "products of different ones, times constants (no powers, no divisions, no "
            "sizes that depend on values)"
        )
        return CaptureError(method=self._method, place="", reason=reason)

    def tensor_type(self, tensor: torch.Tensor) -> TensorType:
        """Return the type of a traced tensor.

        Raises:
            CaptureError: kvc has no such dtype.
        """
        dtype = TORCH_DTYPES.get(tensor.dtype)
        if dtype is None:
            reason = f"a tensor has dtype {tensor.dtype}, which kvc does not have"
            raise CaptureError(method=self._method, place="", reason=reason)
        return TensorType(dtype, tuple(self.dim(size) for size in tensor.shape))


def qualified_names(captured: tuple[CapturedMethod, ...]) -> dict[tuple[str, str], str]:
    """Return (method, Dim name) -> name in the program.

    A Dim keeps its name where all methods give it the same bounds; otherwise each
    method's is qualified by the method's name.
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
    """Return the program's symbols, ordered by name."""
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
    """Return the reader for a method, given its traced inputs by path.

    Raises:
        CaptureError: tracing has narrowed a Dim: the code holds for fewer sizes.
    """
    method = captured.method
    found: dict[sympy.Symbol, str] = {}
    for path, axes in method.dynamic.items():
        for axis, dim in axes.items():
            size: int | torch.SymInt = inputs[path].shape[axis]
            if isinstance(size, int):
                _check_static(method, dim, size)
                continue
            symbol = size.node.expr
            found[symbol] = names[method.name, dim.name]
            limits = captured.exported.range_constraints[symbol]
            if int(limits.lower) > dim.lower or int(limits.upper) < dim.upper:
                reason = (
                    f"Dim {dim.name} is declared {dim.lower}..{dim.upper}, but the "
                    f"code holds only for {limits.lower}..{limits.upper}"
                )
                raise CaptureError(method=method.name, place="", reason=reason)
    return SizeReader(method.name, found)


def _check_static(method: Method, dim: DeclaredDim, size: int) -> None:
    """Check that a size that torch takes for a number can be no other one."""
    if dim.lower < dim.upper:
        reason = (
            f"Dim {dim.name} is declared {dim.lower}..{dim.upper}, but the code holds "
            f"only for {size}"
        )
        raise CaptureError(method=method.name, place="", reason=reason)
