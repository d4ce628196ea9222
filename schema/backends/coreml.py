"""Support list of the backend `coreml`: operators and the operands they accept.

The backend computes the inputs of products in float16. Numbers that must be exact are
float32: positions, angles, and tables of positions and angles. Integers are int32. The
compiler selects nodes by this list; the runtime refuses a block with any other node.
"""

from collections.abc import Mapping
from typing import Final

from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    beyond_plain_attention,
    in_blocks,
    operand,
    operands_of,
    unknown_dtypes,
)
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, Aliasing

MAX_RANK: Final = 5
LARGEST: Final = 65504.0  # float16
CACHE_UPDATE, ATTENTION = "kvc::cache_update", "kvc::attention"
CHECKS: Final = frozenset({"kvc::check_index", "kvc::check_rows", "kvc::check_size"})
_FLOATS: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
_WHOLE: Final = frozenset({DType.INT64, DType.INT32})
_DTYPES: Final = _FLOATS | _WHOLE | {DType.BOOL}


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why the backend cannot run a node, or ""; this function is a `WhyNot`."""
    types = [*(each.type for each in operands_of(arguments)), *results]
    for kind in types:
        if len(kind.dims) > MAX_RANK or 0 in kind.dims:
            return f"it takes tensors of up to {MAX_RANK} dims, and no {kind}"
    if op in CHECKS:
        return ""
    rule = _any if OPS[op].aliasing is Aliasing.VIEW else RULES.get(op)
    if rule is None:
        return f"it does not run {op}"
    known = _DTYPES | ({DType.INT8} if op in INT8_WEIGHTS else set())
    return unknown_dtypes(types, known) or rule(arguments, results)


def _any(arguments: Arguments, results: Results) -> str:
    return ""


def _float_results(arguments: Arguments, results: Results) -> str:
    wrong = sorted({kind.dtype.label for kind in results if kind.dtype not in _FLOATS})
    return f"it makes no {', '.join(wrong)} of it" if wrong else ""


def _number_types(arguments: Arguments, results: Results) -> str:
    """Return "" if no tensor is bool, else why the backend refuses the tensors."""
    types = [*(each.type for each in operands_of(arguments)), *results]
    truth = any(kind.dtype is DType.BOOL for kind in types)
    return "it takes no tensors of bool" if truth else ""


def _sum(arguments: Arguments, results: Results) -> str:
    alpha = arguments[2]
    return f"alpha {alpha}" if alpha != 1 else _number_types(arguments, results)


def _truth(arguments: Arguments, results: Results) -> str:
    types = [each.type for each in operands_of(arguments)]
    known = all(kind.dtype is DType.BOOL for kind in types)
    return "" if known else "it takes tensors of bool alone"


def _compared(arguments: Arguments, results: Results) -> str:
    """Return "" if floats are compared with floats, or integers with integers.

    Else return why the backend refuses the comparison.
    """
    kinds = {each.type.dtype in _FLOATS for each in operands_of(arguments)}
    dtypes = {each.type.dtype for each in operands_of(arguments)}
    if len(kinds) > 1 or DType.BOOL in dtypes:
        return "it compares floats with floats and integers with integers"
    return ""


def _over_int8(arguments: Arguments, results: Results) -> str:
    """Return "" if a product with int8 weights can run, else why not.

    The scales, the weights and the bias must be constants of the model.
    """
    (_, _, scale, _) = arguments
    if not operand(scale).constant:
        return "scales that are not of the model"
    return _linear(arguments, results)


def _linear(arguments: Arguments, results: Results) -> str:
    weight, bias = operand(arguments[1]), arguments[-1]
    if not weight.constant or len(weight.type.dims) != 2:
        return f"a weight {weight.type} that is no matrix of the model"
    if isinstance(bias, Operand) and not bias.constant:
        return "a bias that is not of the model"
    return _float_results(arguments, results)


def _product(arguments: Arguments, results: Results) -> str:
    one, other = (operand(each).type for each in arguments)
    if min(len(one.dims), len(other.dims)) < 2:
        return f"the product of {one} and {other}"
    return _float_results(arguments, results)


def _added_product(arguments: Arguments, results: Results) -> str:
    *_, beta, alpha = arguments
    wrong = (beta, alpha) != (1, 1)
    return (
        f"beta {beta}, alpha {alpha}" if wrong else _float_results(arguments, results)
    )


def _normed(arguments: Arguments, results: Results) -> str:
    axes = arguments[1]
    if not isinstance(axes, tuple) or len(axes) != 1:
        return f"it normalises one axis, not {axes}"
    return _float_results(arguments, results)


def _table_lookup(arguments: Arguments, results: Results) -> str:
    *tables, _ = arguments
    if not all(operand(each).constant for each in tables):
        return "a table that is not of the model"
    return in_blocks(tables[1]) if len(tables) > 1 else ""


def _indexed(arguments: Arguments, results: Results) -> str:
    """Return "" if one integer tensor indexes the first axis alone, else why not."""
    indices = arguments[1]
    assert isinstance(indices, tuple)
    (first, *rest) = indices
    if rest and any(each is not None for each in rest):
        return f"{len(indices)} indices"
    if not isinstance(first, Operand) or first.type.dtype not in _WHOLE:
        return "no integers as indices of the first axis"
    return _number_types(arguments, results)


def _gathered(arguments: Arguments, results: Results) -> str:
    """Return "" if elements are gathered along one axis, else why not.

    The indices must have the sizes of the tensor on all other axes.
    """
    (held, axis, at) = arguments
    found, chosen = operand(held).type, operand(at).type
    assert isinstance(axis, int)
    rank = len(found.dims)
    others = [n for n in range(rank) if n != axis % max(1, rank)]
    whole = len(chosen.dims) == rank > 0
    if not whole or any(found.dims[n] != chosen.dims[n] for n in others):
        return f"elements {chosen} of {found}"
    return _number_types(arguments, results)


def _copied(arguments: Arguments, results: Results) -> str:
    one, other = (operand(each).type for each in arguments)
    return "" if one == other else f"a copy of {other} over {one}"


def _written(arguments: Arguments, results: Results) -> str:
    cache, update, _, axis, *_, keep = arguments
    held, new = operand(cache).type, operand(update).type
    if held.dtype not in _FLOATS or new.dtype not in _FLOATS:
        return f"it takes no cache {held} of {new}"
    if len(held.dims) != 4 or axis not in (2, -2):
        return f"axis {axis} of {held}"
    if keep:
        return "a ring that keeps its first positions"
    return ""


def _attention(arguments: Arguments, results: Results) -> str:
    return beyond_plain_attention(arguments) or _float_results(arguments, results)


def _attention_product(arguments: Arguments, results: Results) -> str:
    q, k, v, mask, *_ = arguments
    if any(len(operand(each).type.dims) != 4 for each in (q, k, v)):
        return f"attention of {operand(q).type}"
    if isinstance(mask, Operand) and len(mask.type.dims) > 4:
        return f"a mask {mask.type}"
    return _float_results(arguments, results)


def _reduced(arguments: Arguments, results: Results) -> str:
    return _number_types(arguments[:1], results)


def _table(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten::{name}": rule for name in names.split()}


INT8_WEIGHTS: Final = frozenset({"kvc::linear_w8", "kvc::embedding_q8"})
RULES: Final[Mapping[str, Rule]] = {
    **_table(_sum, "add.Tensor sub.Tensor add.Scalar sub.Scalar rsub.Scalar"),
    **_table(_number_types, "mul.Tensor mul.Scalar maximum minimum neg abs clamp"),
    **_table(
        _float_results,
        "div.Tensor div.Scalar pow.Tensor_Scalar exp sqrt rsqrt reciprocal relu "
        "sigmoid silu tanh gelu sin cos erf floor ceil log log1p pow.Scalar "
        "softmax.int mean.dim",
    ),
    **_table(_reduced, "sum.dim_IntList amax amin"),
    **_table(_truth, "logical_and logical_or logical_xor logical_not"),
    **_table(_truth, "bitwise_and.Tensor bitwise_or.Tensor bitwise_not"),
    **_table(_compared, "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor"),
    **_table(_compared, "eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar"),
    **_table(
        _any,
        "where.self masked_fill.Scalar _to_copy clone reshape cat stack repeat "
        "full arange.start_step",
    ),
    **_table(_product, "matmul mm bmm"),
    **_table(_normed, "rms_norm layer_norm"),
    "aten::addmm": _added_product,
    "aten::linear": _linear,
    "aten::embedding": _table_lookup,
    "aten::index.Tensor": _indexed,
    "aten::gather": _gathered,
    "aten::copy": _copied,
    "aten::scaled_dot_product_attention": _attention_product,
    "kvc::linear_w8": _over_int8,
    "kvc::embedding_q8": _table_lookup,
    "kvc::rotary_embedding": _float_results,
    "kvc::glu": _float_results,
    "kvc::after": _any,
    CACHE_UPDATE: _written,
    ATTENTION: _attention,
}
# Operators with float16 results; computation on these results is float16, too.
ANCHORS: Final = frozenset(
    {
        *("aten::linear", "kvc::linear_w8", "aten::addmm"),
        *("aten::embedding", "kvc::embedding_q8"),
        *("aten::rms_norm", "aten::layer_norm"),
        *("aten::scaled_dot_product_attention", ATTENTION),
    }
)
