"""Support list of the native backend `cpu`: operators and the dtypes they accept.

The compiler selects nodes by this list; the runtime refuses a block with any other
node. Views accept any dtype, since they compute nothing. Operators of control flow are
not in the list.
"""

from typing import Final

from kvc.schema.backends.cpu_rows import (
    quantized_linear,
    quantized_rows,
    quantized_table,
)
from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    operand,
    operands_of,
)
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Dim, TensorType

MAX_RANK: Final = 8
MAX_SHARE: Final = 24  # query heads for one head of keys

_FLOATS: Final = (DType.FLOAT32, DType.FLOAT64)
_INDEX: Final = (DType.INT32, DType.INT64)
_NUMBERS: Final = (*_FLOATS, *_INDEX)
_ALL: Final = (*_NUMBERS, DType.INT16, DType.INT8, DType.UINT8, DType.BOOL)


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why the backend cannot run a node, or ""; this function is a `WhyNot`."""
    for kind in [*(each.type for each in operands_of(arguments)), *results]:
        if len(kind.dims) > MAX_RANK:
            return f"{kind} has more than {MAX_RANK} dims"
    if OPS[op].aliasing is Aliasing.VIEW:
        return ""
    rule = RULES.get(op)
    return f"it has no kernel of {op}" if rule is None else rule(arguments, results)


def _computed(*dtypes: DType) -> Rule:
    """Return a rule for operators whose operands are cast to the result's dtype.

    The rule accepts results of the given dtypes, and operands that can be cast to the
    result's dtype.
    """

    def rule(arguments: Arguments, results: Results) -> str:
        found = {each.type.dtype for each in operands_of(arguments)}
        (made,) = results
        known = made.dtype in dtypes and found <= {*_NUMBERS, DType.BOOL}
        narrowed = made.dtype not in _FLOATS and found & {*_FLOATS}
        if not known or narrowed:
            return _of({*found, made.dtype})
        return _fraction(arguments, made.dtype)

    return rule


def _alike(*dtypes: DType) -> Rule:
    """Return a rule that accepts operands and results of one dtype out of `dtypes`."""

    def rule(arguments: Arguments, results: Results) -> str:
        found = {each.type.dtype for each in operands_of(arguments)}
        found |= {each.dtype for each in results}
        if len(found) != 1 or not found <= {*dtypes}:
            return _of(found)
        return _fraction(arguments, *found)

    return rule


def _fraction(arguments: Arguments, dtype: DType) -> str:
    fraction = any(isinstance(argument, float) for argument in arguments)
    return "a fraction beside integers" if fraction and dtype not in _FLOATS else ""


def _comparison(arguments: Arguments, results: Results) -> str:
    found = {each.type.dtype for each in operands_of(arguments)}
    if len(found) != 1 or not found <= {*_NUMBERS, DType.BOOL}:
        return _of(found)
    (dtype,) = found
    numbers = [each for each in arguments if not isinstance(each, Operand)]
    if dtype is DType.BOOL:
        return "numbers beside bools" if any(n not in (0, 1) for n in numbers) else ""
    return _fraction(arguments, dtype)


def _truth(arguments: Arguments, results: Results) -> str:
    """Return "" if bool tensors are reduced along some axes, else why not.

    An empty tuple of axes is refused.
    """
    empty = len(arguments) > 1 and arguments[1] == ()
    return "no axes" if empty else _alike(DType.BOOL)(arguments, results)


def _choice(arguments: Arguments, results: Results) -> str:
    """Return "" if a bool tensor selects from tensors of one dtype, else why not."""
    condition, *others = operands_of(arguments)
    if condition.type.dtype is not DType.BOOL:
        return _of({condition.type.dtype})
    return _same(others, results)


def _fill(arguments: Arguments, results: Results) -> str:
    x, mask, value = arguments
    condition = operand(mask).type.dtype
    if condition is not DType.BOOL:
        return _of({condition})
    return _filled((x, value), results)


def _filled(arguments: Arguments, results: Results) -> str:
    """Return "" if the number can fill elements of the result's dtype, else why not."""
    x, value = arguments
    if isinstance(value, float) and results[0].dtype not in _FLOATS:
        return "a fraction among integers"
    return _alike(*_ALL)((x,), results)


def _cast(arguments: Arguments, results: Results) -> str:
    found = {operand(arguments[0]).type.dtype, results[0].dtype}
    return "" if found <= {*_NUMBERS, DType.BFLOAT16, DType.BOOL} else _of(found)


def _same(arguments: Arguments, results: Results) -> str:
    """Return "" if all tensors have the same dtype, which can be any, else why not."""
    found = {each.type.dtype for each in operands_of(arguments)}
    found |= {each.dtype for each in results}
    return "" if len(found) == 1 else _of(found)


def _triangle(arguments: Arguments, results: Results) -> str:
    rank = len(results[0].dims)
    return f"{rank} dims" if rank < 2 else _same(arguments, results)


def _made(arguments: Arguments, results: Results) -> str:
    dtype = results[0].dtype
    return "" if dtype in _ALL else _of({dtype})


def _counted(arguments: Arguments, results: Results) -> str:
    dtype, fraction = results[0].dtype, any(isinstance(a, float) for a in arguments)
    known = dtype in _FLOATS or (dtype in _INDEX and not fraction)
    return "" if known else _of({dtype})


def _any(arguments: Arguments, results: Results) -> str:
    return ""


def _along(arguments: Arguments, results: Results) -> str:
    return "" if operand(arguments[0]).type.dims else "a scalar"


def _sum(arguments: Arguments, results: Results) -> str:
    found = operand(arguments[0]).type.dtype, results[0].dtype
    floats = found[0] is found[1] and found[0] in _FLOATS
    whole = (*_INDEX, DType.BOOL, DType.UINT8)
    return (
        "" if floats or (found[0] in whole and found[1] is DType.INT64) else _of(found)
    )


def _rows(arguments: Arguments, results: Results) -> str:
    """Return "" if float32 rows are computed along the last axes, else why not."""
    x, axes, *_ = arguments
    rank = len(operand(x).type.dims)
    if not isinstance(axes, tuple) and axes not in (-1, rank - 1):
        return f"axis {axes} of {rank}"
    if isinstance(axes, tuple) and not all(isinstance(size, int) for size in axes):
        return f"normalising over {axes}"
    return "a scalar" if rank == 0 else _alike(DType.FLOAT32)(arguments, results)


def _linear(arguments: Arguments, results: Results) -> str:
    x, weight, _ = arguments
    if len(operand(weight).type.dims) != 2 or not operand(x).type.dims:
        return f"a weight {operand(weight).type}"
    return _alike(DType.FLOAT32, DType.BFLOAT16)(arguments, results)


def _experts(arguments: Arguments, results: Results) -> str:
    x, weight, _, bias, _ = arguments
    return _alike(DType.FLOAT32, DType.BFLOAT16)((x, weight, bias), results)


def _chosen(*dtypes: DType) -> Rule:
    """Return a rule for operators that select elements by their order, such as topk.

    The rule accepts a first operand of one of the given dtypes. Results after the first
    are indices.
    """

    def rule(arguments: Arguments, results: Results) -> str:
        dtype = operand(arguments[0]).type.dtype
        return "" if dtype in dtypes else _of({dtype})

    return rule


def _indexed(arguments: Arguments, results: Results) -> str:
    indices = arguments[1]
    assert isinstance(indices, tuple)
    types = {each.type.dtype for each in operands_of(indices)}
    return "" if types <= {*_INDEX} else _of(types)


def _put(arguments: Arguments, results: Results) -> str:
    x, _, values, accumulate = arguments
    rule = _NUMERIC if accumulate else _same
    return (
        _indexed(arguments, results)
        or _selected(arguments)
        or rule((x, values), results)
    )


def _selected(arguments: Arguments) -> str:
    """Return why the result of an index operation has too many dims, or ""."""
    x, indices = operand(arguments[0]).type, arguments[1]
    assert isinstance(indices, tuple)
    given = [*operands_of(indices)]
    widest = max(len(each.type.dims) for each in given)
    rank = len(x.dims) - len(given) + widest
    return f"{rank} dims are selected" if rank > MAX_RANK else ""


def _written(rule: Rule) -> Rule:
    """Return a rule for operators that write values at indices along an axis.

    `rule` checks the dtypes of the tensor and the values. A tensor without axes is
    refused.
    """

    def both(arguments: Arguments, results: Results) -> str:
        x, _, _, *values = arguments
        return _along(arguments, results) or rule((x, *values), results)

    return both


def _attention(arguments: Arguments, results: Results) -> str:
    q, k, v = (operand(each).type for each in arguments[:3])
    mask = arguments[9]
    scaled = isinstance(arguments[13], Operand)
    cached = {DType.INT8} if scaled else {DType.FLOAT32, DType.FLOAT16}
    if q.dtype is not DType.FLOAT32 or k.dtype is not v.dtype or k.dtype not in cached:
        return _of({q.dtype, k.dtype, v.dtype})
    floats = [each.type.dtype for each in operands_of(arguments[10:12])]
    if isinstance(mask, Operand) and mask.type.dtype is not DType.BOOL:
        floats.append(mask.type.dtype)
    if any(dtype is not DType.FLOAT32 for dtype in floats):
        return _of(floats)
    return _grouped(q, k)


def _attention_product(arguments: Arguments, results: Results) -> str:
    """Return "" if attention without a cache can run, else why not.

    The kernel of `kvc::attention` runs it.
    """
    q, k = (operand(each).type for each in arguments[:2])
    mask, causal = arguments[3:5]
    floats = [*arguments[:3]]
    if isinstance(mask, Operand) and mask.type.dtype is not DType.BOOL:
        floats.append(mask)
    if len(q.dims) > 4:
        return f"queries {q}"
    if causal and not _at_most(q.dims[-2], k.dims[-2]):
        return f"causal attention of {q} to {k}"
    return _grouped(results[0], k) or _FLOAT32(floats, results)


def _at_most(first: Dim, second: Dim) -> bool:
    if isinstance(first, int) and isinstance(second, int):
        return first <= second
    return first == second


def _grouped(q: TensorType, k: TensorType) -> str:
    """Return why too many query heads share one key head, or ""."""
    heads, groups = (kind.dims[-3] if len(kind.dims) > 2 else 1 for kind in (q, k))
    if isinstance(heads, int) and isinstance(groups, int) and groups:
        return "" if heads // groups <= MAX_SHARE else f"{heads} heads over {groups}"
    return f"{heads} heads over {groups}"


def _of(dtypes: object) -> str:
    assert isinstance(dtypes, set | tuple | list)
    return "it takes no tensors of " + ", ".join(
        sorted({dtype.label for dtype in dtypes})
    )


_ARITHMETIC = _computed(*_NUMBERS)
_FLOATING = _computed(*_FLOATS)
_NUMERIC = _alike(*_NUMBERS)
_LOGIC = _alike(*_INDEX, DType.BOOL)
_FLOAT32 = _alike(DType.FLOAT32)


def _table(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_COMPUTED = {
    **_table(
        _ARITHMETIC,
        "aten::add.Tensor aten::sub.Tensor aten::add.Scalar aten::sub.Scalar "
        "aten::rsub.Scalar aten::mul.Tensor aten::mul.Scalar aten::maximum "
        "aten::minimum aten::neg aten::abs aten::clamp aten::clamp.Tensor aten::amax "
        "aten::amin",
    ),
    **_table(
        _FLOATING,
        "aten::div.Tensor aten::div.Scalar aten::pow.Tensor_Scalar aten::pow.Scalar "
        "aten::acos aten::acosh aten::asin aten::asinh aten::atan aten::atanh "
        "aten::cosh aten::erfc aten::exp2 aten::log10 aten::sinh aten::tan "
        "aten::ceil aten::cos aten::erf aten::exp aten::expm1 aten::floor aten::gelu "
        "aten::log aten::log1p aten::log2 aten::reciprocal aten::relu aten::round "
        "aten::rsqrt aten::sigmoid aten::silu aten::sin aten::sqrt aten::tanh "
        "aten::trunc aten::mean.dim",
    ),
    "aten::cumsum": _computed(DType.FLOAT32, DType.INT64),
}
# Operators whose operands are cast to the dtype of the result.
COMPUTED: Final = frozenset(_COMPUTED)
RULES: Final[dict[str, Rule]] = {
    **_COMPUTED,
    **_table(
        _comparison,
        "aten::eq.Tensor aten::ne.Tensor aten::lt.Tensor aten::le.Tensor "
        "aten::gt.Tensor aten::ge.Tensor aten::eq.Scalar aten::ne.Scalar "
        "aten::lt.Scalar aten::le.Scalar aten::gt.Scalar aten::ge.Scalar "
        "aten::logical_and aten::logical_or aten::logical_xor",
    ),
    **_table(
        _LOGIC,
        "aten::bitwise_and.Tensor aten::bitwise_or.Tensor aten::bitwise_xor.Tensor "
        "aten::bitwise_not",
    ),
    **_table(
        _truth,
        "aten::any aten::all aten::any.dim aten::all.dim aten::any.dims aten::all.dims",
    ),
    **_table(
        _same,
        "aten::clone aten::copy aten::reshape aten::repeat aten::cat aten::stack "
        "kvc::append kvc::replace",
    ),
    **_table(_triangle, "aten::tril aten::triu"),
    **_table(
        _any,
        "kvc::check_index kvc::check_rows kvc::check_size kvc::after kvc::cache_update",
    ),
    **_table(_along, "aten::index_select aten::gather aten::embedding"),
    **_table(_written(_same), "aten::index_copy aten::scatter.src"),
    **_table(_written(_NUMERIC), "aten::index_add aten::scatter_add"),
    **_table(
        _chosen(*_NUMBERS), "aten::argmax aten::argmin aten::max.dim aten::min.dim"
    ),
    **_table(_rows, "aten::rms_norm aten::layer_norm aten::softmax.int"),
    **_table(_rows, "aten::log_softmax.int"),
    **_table(_FLOAT32, "aten::matmul aten::mm aten::bmm aten::addmm"),
    **_table(
        quantized_rows, "kvc::quantize_rows kvc::quantize_blocks kvc::quantize_cache"
    ),
    **_table(
        quantized_linear(3), "kvc::linear_qd8 kvc::linear_qb4 kvc::expert_linear_qd8"
    ),
    **_table(
        quantized_linear(4), "kvc::linear_q8 kvc::linear_q4 kvc::expert_linear_q8"
    ),
    **_table(_FLOAT32, "kvc::glu kvc::rotary_embedding"),
    "aten::logical_not": _alike(DType.BOOL),
    "aten::where.self": _choice,
    "aten::masked_fill.Scalar": _fill,
    "aten::_to_copy": _cast,
    "aten::full": _made,
    "aten::arange.start_step": _counted,
    "aten::sum.dim_IntList": _sum,
    "aten::topk": _chosen(*_FLOATS),
    "aten::index.Tensor": _indexed,
    "aten::index_put": _put,
    "aten::scatter.value": _written(_filled),
    "aten::linear": _linear,
    "aten::scaled_dot_product_attention": _attention_product,
    "kvc::embedding_q8": quantized_table,
    "kvc::expert_linear": _experts,
    "kvc::attention": _attention,
}
