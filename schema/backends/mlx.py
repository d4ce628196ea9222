"""Support list of the backend `mlx`: operators and the dtypes they accept.

MLX computes float32, and caches can be float16. MLX casts operands of several dtypes to
the dtype of the result, as PyTorch does. The compiler selects nodes by this list; the
runtime refuses a block with any other node.
"""

from typing import Final

from kvc.schema.backends.lowered import LoweredList
from kvc.schema.backends.lowered_rules import (
    floats,
    of_table,
    shares_heads,
)
from kvc.schema.backends.operands import (
    Arguments,
    Results,
    Rule,
    in_blocks,
    operand,
    operands_of,
)
from kvc.schema.backends.primitives import Primitive
from kvc.schema.dtypes import DType
from kvc.schema.ops import CACHE_UPDATE

_P = Primitive
PRIMITIVES: Final = frozenset(_P) - {_P.GELU, _P.RELU, _P.SILU, _P.XOR}
LINEAR: Final = "kvc::linear_w8"


def _found(arguments: Arguments) -> set[DType]:
    return {each.type.dtype for each in operands_of(arguments)}


def _computed(arguments: Arguments, results: Results) -> str:
    """Return why operands cannot be cast to a result of numbers, or ""."""
    made, found = results[0].dtype, _found(arguments)
    narrowed = not made.is_floating and any(each.is_floating for each in found)
    if narrowed or made is DType.BOOL:
        return f"a result of {made.label}"
    fraction = any(isinstance(each, float) for each in arguments)
    return "a fraction beside integers" if fraction and not made.is_floating else ""


def _to_floats(arguments: Arguments, results: Results) -> str:
    return floats((), results)


def _alike(arguments: Arguments, results: Results) -> str:
    """Return why tensors are of several dtypes, or ""."""
    labels = sorted({each.label for each in _found(arguments)})
    return "" if len(labels) == 1 else f"tensors of {', '.join(labels)}"


def _compared(arguments: Arguments, results: Results) -> str:
    numbers = [each for each in arguments[1:] if isinstance(each, int | float)]
    if _found(arguments) == {DType.BOOL} and not {*numbers} <= {0, 1}:
        return "numbers beside bools"
    return _alike(arguments, results)


def _chosen(arguments: Arguments, results: Results) -> str:
    """Return why a condition is not bool or the values differ in dtype, or ""."""
    condition, *rest = arguments
    if operand(condition).type.dtype is not DType.BOOL:
        return f"a condition {operand(condition).type}"
    return _alike(rest, results)


def _filled(arguments: Arguments, results: Results) -> str:
    x, mask, value = arguments
    if isinstance(value, float) and not operand(x).type.dtype.is_floating:
        return "a fraction among integers"
    return _chosen((mask, x), results)


def _linear(arguments: Arguments, results: Results) -> str:
    x, weight, _ = arguments
    if len(operand(weight).type.dims) != 2 or not operand(x).type.dims:
        return f"a weight {operand(weight).type}"
    return floats(arguments, results)


def _int8_linear(arguments: Arguments, results: Results) -> str:
    if not all(operand(each).constant for each in arguments[1:3]):
        return "a weight that is not of the model"
    return floats(arguments[:1], results) or in_blocks(arguments[2])


def _attention_product(arguments: Arguments, results: Results) -> str:
    q, _, _, mask = arguments[:4]
    if not 2 <= len(operand(q).type.dims) <= 4:
        return f"attention of {operand(q).type}"
    if len(operand(q).type.dims) > 2:
        groups = (operand(each).type.dims[-3] for each in arguments[1:3])
        if not shares_heads(results[0].dims[-3], *groups):
            return f"attention of {operand(q).type} to {operand(arguments[1]).type}"
    is_bool = _found((mask,)) == {DType.BOOL}
    return floats(arguments[:3] if is_bool else arguments[:4], results)


def _written(arguments: Arguments, results: Results) -> str:
    """Return why rows are not written along the third axis of four, or ""."""
    held, axis = operand(arguments[0]).type, arguments[3]
    fits = len(held.dims) == 4 and axis in (2, -2)
    return "" if fits else f"a write along axis {axis} of {held}"


def _along(arguments: Arguments, results: Results) -> str:
    return "" if operand(arguments[0]).type.dims else "a scalar"


def _table(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten::{name}": rule for name in names.split()}


_RULES: Final = {
    **_table(_computed, "add.Tensor sub.Tensor add.Scalar sub.Scalar rsub.Scalar"),
    **_table(_computed, "mul.Tensor mul.Scalar maximum minimum neg abs clamp"),
    **_table(_computed, "sum.dim_IntList amax amin"),
    **_table(_to_floats, "div.Tensor div.Scalar pow.Tensor_Scalar pow.Scalar gelu erf"),
    **_table(_to_floats, "exp log sqrt rsqrt reciprocal sin cos tanh sigmoid silu"),
    **_table(_to_floats, "relu ceil floor mean.dim"),
    **_table(_compared, "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor"),
    **_table(_compared, "eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar"),
    **_table(_compared, "logical_and logical_or logical_xor"),
    **_table(_alike, "cat stack copy"),
    **_table(floats, "matmul mm bmm addmm"),
    "aten::where.self": _chosen,
    "aten::masked_fill.Scalar": _filled,
    "aten::linear": _linear,
    CACHE_UPDATE: _written,
    "aten::embedding": of_table,
    "aten::scaled_dot_product_attention": _attention_product,
}
LIST: Final = LoweredList(
    PRIMITIVES,
    ranks=range(9),
    empty=True,
    int8=True,
    forms={LINEAR: _int8_linear},
    rules=_RULES,
    limits=_table(_along, "index_select gather embedding"),
)
why_not = LIST.why_not
