"""Support list of the backend `coreml`: operators and the operands they accept.

The backend computes the inputs of products in float16. Numbers that must be exact are
float32: positions, angles, and tables of positions and angles. Integers are int32;
an operator that makes floats of integers converts the integers. The compiler selects
nodes by this list; the runtime refuses a block with any other node.
"""

from collections.abc import Set as AbstractSet
from typing import Final

from kvc.schema.backends.lowered import LoweredList
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
    INT8_WEIGHTS,
    INTEGERS,
    RULES,
    accepted,
    beyond_32_bits,
    floats,
    int8_table,
    normed,
    of_table,
)
from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    operand,
    operands_of,
    unknown_dtypes,
)
from kvc.schema.backends.primitives import Primitive
from kvc.schema.dtypes import DType

LARGEST: Final = 65504.0  # the greatest float16
# MIL has no NEG, and adds an epsilon to the operands of RSQRT and RECIPROCAL.
PRIMITIVES: Final = frozenset(Primitive) - {
    *(Primitive.NEG, Primitive.RSQRT, Primitive.RECIPROCAL),
}
_FLOATS: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
_DTYPES: Final = _FLOATS | INTEGERS | {DType.BOOL}


def _float_results(arguments: Arguments, results: Results) -> str:
    wrong = sorted({kind.dtype.label for kind in results if kind.dtype not in _FLOATS})
    return f"it makes no {', '.join(wrong)} of it" if wrong else ""


def _numbers(arguments: Arguments, results: Results) -> str:
    """Return "" if no tensor is bool, else why the backend refuses the tensors."""
    types = [*(each.type for each in operands_of(arguments)), *results]
    truth = any(kind.dtype is DType.BOOL for kind in types)
    return "it takes no tensors of bool" if truth else ""


def _sum(arguments: Arguments, results: Results) -> str:
    alpha = arguments[2]
    return f"alpha {alpha}" if alpha != 1 else _numbers(arguments, results)


def _linear(arguments: Arguments, results: Results) -> str:
    """Return "" if weight and bias are constants of the model, else why not.

    Core ML's `linear` takes only constants as weight and bias.
    """
    weight, bias = operand(arguments[1]), arguments[-1]
    if not weight.constant or len(weight.type.dims) != 2:
        return f"a weight {weight.type} that is no matrix of the model"
    if isinstance(bias, Operand) and not bias.constant:
        return "a bias that is not of the model"
    return _float_results(arguments, results)


def _over_int8(arguments: Arguments, results: Results) -> str:
    if not operand(arguments[2]).constant:
        return "scales that are not of the model"
    return _linear(arguments, results)


def _of(known: AbstractSet[DType], rule: Rule) -> Rule:
    """Return a rule that first refuses tensors of dtypes outside of `known`."""

    def refuse(arguments: Arguments, results: Results) -> str:
        types = [*(each.type for each in operands_of(arguments)), *results]
        return unknown_dtypes(types, known) or rule(arguments, results)

    return refuse


# Common rules, and the rules that replace them, since Core ML mixes dtypes.
_MIXED: Final = {
    RULES["aten::add.Tensor"]: _sum,
    RULES["aten::mul.Tensor"]: _numbers,
    floats: _float_results,
    **{RULES[f"aten::{op}"]: accepted for op in ("where.self", "cat")},
    RULES["aten::masked_fill.Scalar"]: accepted,
    RULES["aten::embedding"]: of_table,
}
_INT8: Final = _DTYPES | {DType.INT8}
# The forms that `runtime_py/delegates/coreml/forms.py` has.
FORMS: Final = {
    "aten::log1p": _of(_DTYPES, _float_results),
    "aten::rms_norm": _of(_DTYPES, normed),
    "aten::layer_norm": _of(_DTYPES, normed),
    "aten::linear": _of(_DTYPES, _linear),
    "kvc::linear_w8": _of(_INT8, _over_int8),
    "kvc::embedding_q8": _of(_INT8, int8_table),
}
_INDEXED: Final = ("embedding", "index.Tensor", "index_select", "gather")
LIST: Final = LoweredList(
    PRIMITIVES,
    _FLOATS,
    range(6),
    number=beyond_32_bits,
    forms=FORMS,
    rules={op: _MIXED.get(rule, rule) for op, rule in RULES.items()},
    limits={f"aten::{op}": _numbers for op in _INDEXED},
)
why_not = LIST.why_not
# Operators with float16 results; computation on these results is float16, too.
ANCHORS: Final = frozenset(
    {
        *("aten::linear", "aten::addmm", "aten::embedding", *INT8_WEIGHTS),
        *("aten::rms_norm", "aten::layer_norm"),
        *("aten::scaled_dot_product_attention", ATTENTION),
    }
)
