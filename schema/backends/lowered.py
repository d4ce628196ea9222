"""The support list of a device for which graphs are lowered to primitives.

In: the primitives, dtypes and ranks that a device has. Out: a `WhyNot`, for compiler
and runtime. An operator is supported if the device has the primitives that the operator
needs, and the lowering can express the operator's arguments. A device can limit
operators further, and can have its own forms of operators, which need no primitives.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kvc.schema.backends.lowered_rules import (
    ALONE,
    ATTENTION,
    CHECKS,
    COMPARISONS,
    INT8_WEIGHTS,
    INTEGERS,
    RULES,
    STORED,
    accepted,
)
from kvc.schema.backends.operands import (
    Arguments,
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

_P = Primitive
# Exponents that can be computed with products and square roots.
POWERS: Final = (2, 3, 0.5, -0.5, -1)
_POWER, _ANY_POWER = "aten::pow.Tensor_Scalar", "aten::pow.Scalar"


@frozen
class LoweredList:
    """What a device has, from which the device's support list follows.

    Attributes:
        primitives: the device's primitives.
        floats: dtypes of the floats that the device computes.
        ranks: the numbers of dims that a tensor can have.
        empty: whether tensors can have no elements.
        int8: whether the device has int8 tensors, and casts them to floats.
        integers: whether the device computes integers and bools.
        without: operators that the device does not run, although it has their
            primitives.
        forms: the rules of the operators of which the device has its own form, by
            operator. These rules check dtypes, too.
        rules: rules that replace those of `RULES`, by operator.
        limits: further rules, which apply beside the others, by operator.
        number: returns why the device cannot represent an argument that is a number, or
            "".
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
        if op not in self.forms and (refused := self._lacks(op, arguments)):
            return refused
        limit = self.limits.get(op, accepted)
        return rule(arguments, results) or limit(arguments, results)

    def _lacks(self, op: str, arguments: Arguments) -> str:
        """Return what the device lacks for the numbers of a node, or ""."""
        number = arguments[-1]
        if op == _POWER and number not in POWERS and not self._has(_ANY_POWER):
            return f"exponent {number}"
        if op not in _WITH_NUMBER or not isinstance(number, float) or number % 1 == 0:
            return ""
        whole = operand(arguments[0]).type.dtype not in self.floats
        casts = Primitive.CAST in usable(self.primitives)
        return f"{number} beside integers" if whole and not casts else ""

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


def _needed(names: str, *parts: Primitive) -> dict[str, tuple[Primitive, ...]]:
    return {f"aten::{name}": parts for name in names.split()}


_NORM: Final = (_P.MUL, _P.MEAN, _P.ADD, _P.RSQRT)
# The primitives that replace and report indices out of range.
_INDEX: Final = (
    *(_P.MAXIMUM, _P.MINIMUM, _P.GREATER, _P.OR, _P.WHERE, _P.MAX, _P.MIN, _P.CONCAT),
)
_LOOKUP: Final = (_P.ROWS, *_INDEX)
_ATTENDING: Final = (
    *(_P.MATMUL, _P.SOFTMAX, _P.WHERE, _P.MUL, _P.ADD, _P.SUB, _P.TANH, _P.DIVIDE),
    *(_P.GREATER, _P.EQUAL, _P.AND, _P.OR, _P.MAXIMUM, _P.MINIMUM, _P.MODULO),
    *(_P.BROADCAST, _P.CONCAT, _P.SLICE, _P.TRANSPOSE, _P.RESHAPE, _P.CAST),
)
# Comparisons with a number: integers are cast to be compared with a fraction.
_WITH_NUMBER: Final = frozenset(f"aten::{op}.Scalar" for op in COMPARISONS)
# The primitives that the lowering of each operator uses.
NEEDS: Final[Mapping[str, tuple[Primitive, ...]]] = {
    **{f"aten::{op}": (Primitive(op),) for op in ALONE.split()},
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
        for op, primitive in COMPARISONS.items()
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
