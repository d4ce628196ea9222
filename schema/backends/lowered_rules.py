"""Rules: what the lowering cannot express, whatever primitives a device has.

In: the arguments of a node, and the types of its results. Out: why the lowering cannot
express the node, or "". `RULES` has a rule for each operator that is lowered.
"""

from collections.abc import Mapping
from typing import Final

from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    operand,
    operands_of,
)
from kvc.schema.backends.primitives import Primitive
from kvc.schema.dtypes import DType
from kvc.schema.ops import CACHE_UPDATE

ATTENTION: Final = "kvc::attention"
INTEGERS: Final = frozenset({DType.INT64, DType.INT32})
CHECKS: Final = frozenset({"kvc::check_index", "kvc::check_rows", "kvc::check_size"})
INT8_WEIGHTS: Final = frozenset({"kvc::linear_w8", "kvc::embedding_q8"})
STORED: Final = frozenset({DType.FLOAT32, DType.FLOAT16})  # dtypes of caches and views


def accepted(arguments: Arguments, results: Results) -> str:
    """Accept all arguments."""
    return ""


def _of_one_kind(arguments: Arguments, results: Results) -> str:
    """Return why tensors and numbers are not all floats or all integers, or ""."""
    types = [*(each.type for each in operands_of(arguments)), *results]
    kinds = {kind.dtype.is_floating for kind in types}
    dtypes = sorted({kind.dtype.label for kind in types})
    if len(kinds) > 1 or "bool" in dtypes:
        return f"numbers of several kinds: {', '.join(dtypes)}"
    is_float = any(isinstance(each, float) for each in arguments)
    return "an integer tensor and a float" if is_float and kinds == {False} else ""


def floats(arguments: Arguments, results: Results) -> str:
    """Return why tensors are not floats, or ""."""
    types = [*(each.type for each in operands_of(arguments)), *results]
    wrong = sorted({t.dtype.label for t in types if not t.dtype.is_floating})
    return f"it takes no tensors of {', '.join(wrong)}" if wrong else ""


def _sum(arguments: Arguments, results: Results) -> str:
    alpha = arguments[2]
    return f"alpha {alpha}" if alpha != 1 else _of_one_kind(arguments, results)


def _compared(arguments: Arguments, results: Results) -> str:
    return _of_one_kind([*operands_of(arguments)], ())


def _truths(arguments: Arguments, results: Results) -> str:
    types = [each.type for each in operands_of(arguments)]
    wrong = sorted({t.dtype.label for t in types if t.dtype is not DType.BOOL})
    return f"it takes bool, not {', '.join(wrong)}" if wrong else ""


def _chosen(arguments: Arguments, results: Results) -> str:
    """Return why a condition is not bool or the values differ in kind, or ""."""
    condition, *rest = arguments
    if operand(condition).type.dtype is not DType.BOOL:
        return f"a condition {operand(condition).type}"
    return _of_one_kind(rest, results)


def _filled(arguments: Arguments, results: Results) -> str:
    x, mask, value = arguments
    if operand(mask).type.dtype is not DType.BOOL:
        return f"a mask {operand(mask).type}"
    return _of_one_kind((x, value), results)


def normed(arguments: Arguments, results: Results) -> str:
    """Return why a norm is not over one axis of floats, or ""."""
    axes = arguments[1]
    if not isinstance(axes, tuple) or len(axes) != 1:
        return f"it normalises one axis, not {axes}"
    return floats(arguments, results)


def product(arguments: Arguments, results: Results) -> str:
    """Return why two tensors are not floats of two axes or more, or ""."""
    one, other = (operand(each).type for each in arguments[:2])
    if min(len(one.dims), len(other.dims)) < 2:
        return f"the product of {one} and {other}"
    return floats(arguments, results)


def added_product(arguments: Arguments, results: Results) -> str:
    """Return why `aten::addmm` has other factors than 1 or no floats, or ""."""
    *tensors, beta, alpha = arguments
    if (beta, alpha) != (1, 1):
        return f"beta {beta}, alpha {alpha}"
    return floats(tensors, results)


def weighted(arguments: Arguments, results: Results) -> str:
    """Return why a weight is no constant matrix of the model, or ""."""
    weight = operand(arguments[1])
    is_matrix = weight.constant and len(weight.type.dims) == 2
    return "" if is_matrix else f"a weight {weight.type} that is no matrix of the model"


def _linear(arguments: Arguments, results: Results) -> str:
    return weighted(arguments, results) or floats(arguments, results)


def in_channels(arguments: Arguments, results: Results) -> str:
    """Return why weight or scales are no constants of the right shape, or ""."""
    scale = operand(arguments[2])
    if not scale.constant or len(scale.type.dims) != 1:
        return f"scales {scale.type} that are no row of the model's"
    return weighted(arguments, results)


def of_table(arguments: Arguments, results: Results) -> str:
    """Return why the last argument is no index of int32 or int64, or ""."""
    index = operand(arguments[-1])
    return "" if index.type.dtype in INTEGERS else f"an index {index.type}"


def _embedded(arguments: Arguments, results: Results) -> str:
    return floats(arguments[:1], results) or of_table(arguments, results)


def int8_table(arguments: Arguments, results: Results) -> str:
    """Return why table or scales are no constants of the right shape, or ""."""
    table, scale = operand(arguments[0]), operand(arguments[1])
    if not (table.constant and scale.constant):
        return "a table that is not of the model"
    if len(scale.type.dims) > 1:
        return f"a table with scales {scale.type}"
    return of_table(arguments, results)


def _indexed(arguments: Arguments, results: Results) -> str:
    """Return why an index is no single tensor of integers for the first axis, or ""."""
    x, indices = arguments
    if not operand(x).type.dims:
        return "a scalar"
    if not isinstance(indices, tuple) or not isinstance(indices[0], Operand):
        return "no index of the first axis"
    if any(each is not None for each in indices[1:]):
        return "indices of several axes"
    return of_table(indices[:1], results)


def _copied(arguments: Arguments, results: Results) -> str:
    return _of_one_kind([*operands_of(arguments)], results)


def written(arguments: Arguments, results: Results) -> str:
    """Return why a cache update is not of floats along the third of 4 axes, or ""."""
    cache, update, _, axis, *_ = arguments
    held, new = operand(cache).type, operand(update).type
    if not {held.dtype, new.dtype} <= STORED:
        return f"it takes no cache {held} of {new}"
    if len(held.dims) != 4 or axis not in (2, -2):
        return f"axis {axis} of {held}"
    return ""


def attention(arguments: Arguments, results: Results) -> str:
    """Return what of `kvc::attention` the lowering cannot express, or ""."""
    q, k, v = (operand(each).type for each in arguments[:3])
    if not {q.dtype, k.dtype, v.dtype} <= STORED:
        return f"attention of {q} to {k}"
    mask, _, sinks, layout, scales = arguments[9:14]
    if sinks is not None or scales is not None:
        return "attention with sinks" if scales is None else "attention of int8 rows"
    if isinstance(mask, Operand):
        if layout != "linear":
            return "a mask over a ring"
        if mask.type.dtype not in {DType.BOOL, *STORED}:
            return f"a mask {mask.type}"
    return ""


def attention_product(arguments: Arguments, results: Results) -> str:
    """Return what of torch's attention the lowering cannot express, or ""."""
    q, k, v, mask = arguments[:4]
    if any(len(operand(each).type.dims) != 4 for each in (q, k, v)):
        return f"attention of {operand(q).type}"
    heads = results[0].dims[1]  # a single head of queries is repeated
    if not shares_heads(heads, *(operand(each).type.dims[1] for each in (k, v))):
        return f"attention of {operand(q).type} to {operand(k).type}"
    if isinstance(mask, Operand) and len(mask.type.dims) > 4:
        return f"a mask {mask.type}"
    is_bool = isinstance(mask, Operand) and mask.type.dtype is DType.BOOL
    return floats((q, k, v) if is_bool else (q, k, v, mask), results)


def shares_heads(heads: object, groups: object, others: object) -> bool:
    """Tell whether query heads divide into groups that share a key and value head.

    Args:
        heads: the number of query heads, an integer or a symbolic size.
        groups: the number of key heads.
        others: the number of value heads.
    """
    if groups != others:
        return False
    if not (isinstance(heads, int) and isinstance(groups, int) and groups):
        return heads == groups
    return heads >= groups and heads % groups == 0


def beyond_32_bits(number: object) -> str:
    """Return why a number is an integer of size 2**31 or more, or ""."""
    is_large = isinstance(number, int) and abs(number) >= 2**31
    return f"{number} is no number of 32 bits" if is_large else ""


def _table(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten::{name}": rule for name in names.split()}


_P = Primitive
ALONE: Final = "exp log sqrt rsqrt reciprocal sin cos tanh sigmoid silu relu gelu erf"
COMPARISONS: Final = {
    "eq": _P.EQUAL,
    "ne": _P.NOT_EQUAL,
    "lt": _P.LESS,
    "le": _P.LESS_EQUAL,
    "gt": _P.GREATER,
    "ge": _P.GREATER_EQUAL,
}
RULES: Final[Mapping[str, Rule]] = {
    **_table(_sum, "add.Tensor sub.Tensor add.Scalar sub.Scalar rsub.Scalar"),
    **_table(_of_one_kind, "mul.Tensor mul.Scalar maximum minimum neg abs clamp"),
    **_table(floats, "div.Tensor div.Scalar pow.Tensor_Scalar pow.Scalar"),
    **_table(floats, f"{ALONE} ceil floor softmax.int mean.dim"),
    **_table(_of_one_kind, "sum.dim_IntList amax amin"),
    **_table(_truths, "logical_and logical_or logical_xor logical_not"),
    **_table(_truths, "bitwise_and.Tensor bitwise_or.Tensor"),
    **_table(_truths, "bitwise_xor.Tensor bitwise_not"),
    **_table(_compared, " ".join(f"{op}.Tensor" for op in COMPARISONS)),
    **_table(_compared, " ".join(f"{op}.Scalar" for op in COMPARISONS)),
    **_table(accepted, "clone reshape arange.start_step full repeat _to_copy"),
    **_table(_copied, "cat stack copy"),
    **_table(product, "matmul mm bmm"),
    **_table(normed, "rms_norm layer_norm"),
    "aten::where.self": _chosen,
    "aten::masked_fill.Scalar": _filled,
    "aten::linear": _linear,
    "aten::addmm": added_product,
    "aten::embedding": _embedded,
    "aten::index_select": of_table,
    "aten::index.Tensor": _indexed,
    "aten::gather": of_table,
    "aten::scaled_dot_product_attention": attention_product,
    "kvc::glu": floats,
    "kvc::rotary_embedding": floats,
    "kvc::after": accepted,
    "kvc::linear_w8": in_channels,
    "kvc::embedding_q8": int8_table,
    CACHE_UPDATE: written,
    ATTENTION: attention,
}
