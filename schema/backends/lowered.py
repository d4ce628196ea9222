"""The support list of a device for which graphs are lowered to primitives.

In: the primitives, dtypes and ranks that a device has. Out: a `WhyNot`, for compiler
and runtime. An operator is supported if its primitives are there and the lowering can
express its arguments; a device can limit operators further, and can have forms of its
own, which need no primitives.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    operand,
    operands_of,
    unknown_dtypes,
)
from kvc.schema.backends.primitives import Primitive, usable
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing

ATTENTION: Final = "kvc::attention"
INTEGERS: Final = frozenset({DType.INT64, DType.INT32})
# Exponents that can be computed with products and square roots.
POWERS: Final = (2, 3, 0.5, -0.5, -1)
_POWER, _ANY_POWER = "aten::pow.Tensor_Scalar", "aten::pow.Scalar"
CHECKS: Final = frozenset({"kvc::check_index", "kvc::check_rows", "kvc::check_size"})
INT8_WEIGHTS: Final = frozenset({"kvc::linear_w8", "kvc::embedding_q8"})
STORED: Final = frozenset({DType.FLOAT32, DType.FLOAT16})  # of caches and views


@frozen
class LoweredList:
    """What a device has, from which its support list follows.

    Attributes:
        primitives: the device's primitives.
        floats: dtypes of the floats that the device computes.
        ranks: the numbers of dims that a tensor can have.
        empty: whether tensors can have no elements.
        int8: whether the device has int8 tensors, which it casts to floats.
        integers: whether the device computes integers and truths.
        without: operators that the device leaves although it has their primitives.
        forms: operators of which the device has its own form, with the rule of each.
            The rule checks dtypes, too.
        rules: rules that are wider than those of `RULES`, by operator.
        limits: further limits of the device, by operator.
        number: returns why the device cannot represent a number among the arguments.
    """

    primitives: frozenset[Primitive]
    floats: frozenset[DType] = frozenset({DType.FLOAT32})
    ranks: range = range(1, 6)
    empty: bool = False
    int8: bool = False
    integers: bool = True
    without: frozenset[str] = frozenset()
    forms: Mapping[str, Rule] = MappingProxyType({})
    rules: Mapping[str, Rule] = MappingProxyType({})
    limits: Mapping[str, Rule] = MappingProxyType({})
    number: Callable[[object], str] = lambda _: ""

    def why_not(self, op: str, arguments: Arguments, results: Results) -> str:
        """Return why the device cannot run a node, or ""; see `WhyNot`."""
        is_free = OPS[op].aliasing is Aliasing.VIEW or op in CHECKS
        rule = accepted if is_free else self._rule(op)
        if rule is None or not (is_free or op in self.forms or self._has(op)):
            return f"it does not run {op}"
        types = [*(each.type for each in operands_of(arguments)), *results]
        refused = self._refused(op, types)
        if refused := refused or next(filter(None, map(self.number, arguments)), ""):
            return refused
        is_power = op == _POWER and op not in self.forms
        if is_power and arguments[1] not in POWERS and not self._has(_ANY_POWER):
            return f"exponent {arguments[1]}"
        limit = self.limits.get(op, accepted)
        return rule(arguments, results) or limit(arguments, results)

    def _refused(self, op: str, types: Results) -> str:
        """Return why the device does not take tensors of some types, or ""."""
        for kind in types:
            if len(kind.dims) not in self.ranks:
                few, many = self.ranks[0], self.ranks[-1]
                return f"it takes tensors of {few} to {many} dims, and no {kind}"
            if 0 in kind.dims and not self.empty:
                return f"{kind} has no elements"
        is_view = OPS[op].aliasing is Aliasing.VIEW
        stores = is_view or op in (CACHE_UPDATE, ATTENTION)
        known = self.floats | (STORED if stores else frozenset())
        if self.integers or is_view or op in CHECKS:
            known |= INTEGERS | {DType.BOOL}
        if self.int8 and op in INT8_WEIGHTS:
            known |= {DType.INT8}
        return "" if op in self.forms else unknown_dtypes(types, known)

    def _rule(self, op: str) -> Rule | None:
        return self.forms.get(op) or self.rules.get(op) or RULES.get(op)

    @property
    def operators(self) -> frozenset[str]:
        """Return the operators that the device runs with some arguments."""
        return frozenset(self.forms) | {op for op in RULES if self._has(op)}

    def _has(self, op: str) -> bool:
        """Tell whether the device has the primitives for an operator."""
        has_types = self.int8 or op not in INT8_WEIGHTS
        return (
            has_types
            and op not in self.without
            and usable(self.primitives).issuperset(NEEDS.get(op, ()))
        )


# Rules of the lowering: what it cannot express, whatever primitives there are.


def accepted(arguments: Arguments, results: Results) -> str:
    """Accept all arguments."""
    return ""


def _of_one_kind(arguments: Arguments, results: Results) -> str:
    """Return why tensors and numbers are of several kinds, or ""."""
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
    """Return why two tensors are no matrices of floats, or ""."""
    one, other = (operand(each).type for each in arguments[:2])
    if min(len(one.dims), len(other.dims)) < 2:
        return f"the product of {one} and {other}"
    return floats(arguments, results)


def added_product(arguments: Arguments, results: Results) -> str:
    """Return why `aten::addmm` is no plain sum with a product of floats, or ""."""
    *tensors, beta, alpha = arguments
    if (beta, alpha) != (1, 1):
        return f"beta {beta}, alpha {alpha}"
    return floats(tensors, results)


def weighted(arguments: Arguments, results: Results) -> str:
    """Return why a weight is no matrix of the model, or ""."""
    weight = operand(arguments[1])
    is_matrix = weight.constant and len(weight.type.dims) == 2
    return "" if is_matrix else f"a weight {weight.type} that is no matrix of the model"


def _linear(arguments: Arguments, results: Results) -> str:
    return weighted(arguments, results) or floats(arguments, results)


def in_channels(arguments: Arguments, results: Results) -> str:
    """Return why an int8 matrix has not one scale of the model per row, or ""."""
    scale = operand(arguments[2])
    if not scale.constant or len(scale.type.dims) != 1:
        return f"scales {scale.type} that are no row of the model's"
    return weighted(arguments, results)


def of_table(arguments: Arguments, results: Results) -> str:
    """Return why rows of a table cannot be looked up by an index, or ""."""
    index = operand(arguments[-1])
    return "" if index.type.dtype in INTEGERS else f"an index {index.type}"


def _embedded(arguments: Arguments, results: Results) -> str:
    return floats(arguments[:1], results) or of_table(arguments, results)


def int8_table(arguments: Arguments, results: Results) -> str:
    """Return why an int8 table has not one scale of the model per row, or ""."""
    table, scale = operand(arguments[0]), operand(arguments[1])
    if not (table.constant and scale.constant):
        return "a table that is not of the model"
    if len(scale.type.dims) > 1:
        return f"a table with scales {scale.type}"
    return of_table(arguments, results)


def _indexed(arguments: Arguments, results: Results) -> str:
    """Return why the index is not one tensor of integers for the first axis, or ""."""
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
    """Return why rows are not written along the third axis of four, or ""."""
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
    heads = results[0].dims[1]  # to which queries of one head are repeated
    if not shares_heads(heads, *(operand(each).type.dims[1] for each in (k, v))):
        return f"attention of {operand(q).type} to {operand(k).type}"
    if isinstance(mask, Operand) and len(mask.type.dims) > 4:
        return f"a mask {mask.type}"
    is_bool = isinstance(mask, Operand) and mask.type.dtype is DType.BOOL
    return floats((q, k, v) if is_bool else (q, k, v, mask), results)


def shares_heads(heads: object, groups: object, others: object) -> bool:
    """Tell whether query heads divide into groups, one for each key and value head."""
    if groups != others:
        return False
    if not (isinstance(heads, int) and isinstance(groups, int) and groups):
        return heads == groups
    return heads >= groups and heads % groups == 0


def beyond_32_bits(number: object) -> str:
    """Return why an integer is none of 32 bits, or ""."""
    is_large = isinstance(number, int) and abs(number) >= 2**31
    return f"{number} is no number of 32 bits" if is_large else ""


def _table(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten::{name}": rule for name in names.split()}


_P = Primitive
_ALONE: Final = "exp log sqrt rsqrt reciprocal sin cos tanh sigmoid silu relu gelu erf"
_COMPARISONS: Final = {
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
    **_table(floats, f"{_ALONE} ceil floor softmax.int mean.dim"),
    **_table(_of_one_kind, "sum.dim_IntList amax amin"),
    **_table(_truths, "logical_and logical_or logical_xor logical_not"),
    **_table(_truths, "bitwise_and.Tensor bitwise_or.Tensor"),
    **_table(_truths, "bitwise_xor.Tensor bitwise_not"),
    **_table(_compared, " ".join(f"{op}.Tensor" for op in _COMPARISONS)),
    **_table(_compared, " ".join(f"{op}.Scalar" for op in _COMPARISONS)),
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


def _needed(names: str, *parts: Primitive) -> dict[str, tuple[Primitive, ...]]:
    return {f"aten::{name}": parts for name in names.split()}


_NORM: Final = (_P.MUL, _P.MEAN, _P.ADD, _P.RSQRT)
# An index out of range is replaced and reported.
_INDEX: Final = (
    *(_P.MAXIMUM, _P.MINIMUM, _P.GREATER, _P.OR, _P.WHERE, _P.MAX, _P.MIN, _P.CONCAT),
)
_LOOKUP: Final = (_P.ROWS, *_INDEX)
_ATTENDING: Final = (
    *(_P.MATMUL, _P.SOFTMAX, _P.WHERE, _P.MUL, _P.ADD, _P.SUB, _P.TANH, _P.DIVIDE),
    *(_P.GREATER, _P.EQUAL, _P.AND, _P.OR, _P.MAXIMUM, _P.MINIMUM, _P.MODULO),
    *(_P.BROADCAST, _P.CONCAT, _P.SLICE, _P.TRANSPOSE, _P.RESHAPE, _P.CAST),
)
# The primitives that the lowering of each operator uses.
NEEDS: Final[Mapping[str, tuple[Primitive, ...]]] = {
    **{f"aten::{op}": (Primitive(op),) for op in _ALONE.split()},
    **_needed("ceil", _P.CEIL),
    **_needed("floor", _P.FLOOR),
    **_needed("neg", _P.NEG),
    **_needed("abs", _P.ABS),
    **_needed("add.Tensor add.Scalar", _P.ADD),
    **_needed("sub.Tensor sub.Scalar rsub.Scalar", _P.SUB),
    **_needed("mul.Tensor mul.Scalar", _P.MUL),
    **_needed("div.Tensor div.Scalar", _P.DIVIDE),
    **_needed("maximum", _P.MAXIMUM),
    **_needed("minimum", _P.MINIMUM),
    **_needed("clamp", _P.MAXIMUM, _P.MINIMUM),
    **_needed("pow.Tensor_Scalar", _P.MUL, _P.SQRT, _P.RSQRT, _P.RECIPROCAL),
    **_needed("pow.Scalar", _P.POWER),
    **{
        f"aten::{op}.{kind}": (primitive,)
        for op, primitive in _COMPARISONS.items()
        for kind in ("Tensor", "Scalar")
    },
    **_needed("logical_and bitwise_and.Tensor", _P.AND),
    **_needed("logical_or bitwise_or.Tensor", _P.OR),
    **_needed("logical_xor bitwise_xor.Tensor", _P.XOR),
    **_needed("logical_not bitwise_not", _P.NOT),
    **_needed("where.self masked_fill.Scalar", _P.WHERE),
    **_needed("sum.dim_IntList", _P.SUM),
    **_needed("mean.dim", _P.MEAN),
    **_needed("amax", _P.MAX),
    **_needed("amin", _P.MIN),
    **_needed("softmax.int", _P.SOFTMAX),
    **_needed("rms_norm", *_NORM),
    **_needed("layer_norm", *_NORM, _P.SUB),
    **_needed("linear", _P.MATMUL, _P.TRANSPOSE, _P.ADD),
    **_needed("matmul mm bmm", _P.MATMUL),
    **_needed("addmm", _P.MATMUL, _P.ADD),
    **_needed("embedding", *_LOOKUP),
    **_needed("index_select", *_LOOKUP, _P.TRANSPOSE),
    **_needed("index.Tensor", *_LOOKUP, _P.ADD),
    **_needed("gather", _P.ALONG, _P.SLICE, *_INDEX),
    **_needed("cat stack repeat", _P.CONCAT),
    **_needed("copy full", _P.BROADCAST),
    **_needed("_to_copy", _P.CAST, _P.NOT_EQUAL),
    **_needed("clone reshape", _P.RESHAPE),
    **_needed("scaled_dot_product_attention", *_ATTENDING),
    "kvc::glu": (_P.SILU, _P.GELU, _P.MUL),
    "kvc::rotary_embedding": (_P.MUL, _P.ADD, _P.NEG, _P.CONCAT, _P.SLICE),
    "kvc::after": (_P.ADD,),
    "kvc::linear_w8": (_P.CAST, _P.MATMUL, _P.MUL, _P.TRANSPOSE, _P.ADD),
    "kvc::embedding_q8": (_P.CAST, *_LOOKUP, _P.MUL),
    CACHE_UPDATE: (
        *(_P.WHERE, _P.ALONG, _P.GREATER, _P.AND, _P.MODULO, _P.BROADCAST, _P.CAST),
        *(_P.ADD, _P.SUB, _P.MAXIMUM, _P.MINIMUM),
    ),
    ATTENTION: _ATTENDING,
}
