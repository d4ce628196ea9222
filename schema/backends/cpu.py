"""Support list of the native backend `cpu`: operators and the dtypes they accept.

The compiler selects nodes by this list; the runtime refuses a block with any other
node. Views accept any dtype, since they compute nothing. Operators of control flow are
not in the list: the runtime runs them itself. All others are, but for `LACKS`.

Computed with are float32, float64, integers and bools. float16 and bfloat16 are moved,
converted and, where rules say so, read by products and attention.
"""

from typing import Final

from kvc.schema.backends.cpu_convolution import CONVOLUTIONS
from kvc.schema.backends.cpu_linear_algebra import LINEAR_ALGEBRA
from kvc.schema.backends.cpu_places import PLACES
from kvc.schema.backends.cpu_reductions import COMPUTED_REDUCTIONS, REDUCTIONS
from kvc.schema.backends.cpu_rows import (
    quantized_linear,
    quantized_rows,
    quantized_table,
)
from kvc.schema.backends.cpu_rules import (
    ALL,
    ANY,
    FLOAT32,
    FLOATING,
    LOGIC,
    MAX_RANK,
    NUMERIC,
    REAL,
    WHOLE,
    along,
    anything,
    attention,
    attention_product,
    bounded,
    cast,
    choice,
    comparison,
    counted,
    derivative,
    divided,
    experts,
    fill,
    fill_one,
    filled,
    indexed,
    linear,
    made,
    one_dtype,
    power,
    put,
    rules,
    scaled_by_powers,
    told,
    triangle,
    written,
)
from kvc.schema.backends.cpu_spatial import SPATIAL
from kvc.schema.backends.operands import Arguments, Results, Rule, operands_of
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, Aliasing


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why the backend cannot run a node, or ""; this function is a `WhyNot`."""
    for kind in [*(each.type for each in operands_of(arguments)), *results]:
        if len(kind.dims) > MAX_RANK:
            return f"{kind} has more than {MAX_RANK} dims"
    if OPS[op].aliasing is Aliasing.VIEW:
        return ""
    rule = RULES.get(op)
    if rule is None:
        return f"it has no kernel of {op}{LACKS.get(op, '')}"
    return rule(arguments, results)


# Operators that have no kernel -> why.
LACKS: Final = dict.fromkeys(
    ("aten::_linalg_svd", "aten::_linalg_eigh"),
    ": signs and order of its vectors follow from the steps of LAPACK's iterations",
)


_COMPUTED = {
    **rules(
        ANY,
        "aten::add.Tensor aten::add.Scalar aten::mul.Tensor aten::mul.Scalar "
        "aten::maximum aten::minimum aten::fmax aten::fmin aten::sign "
        "aten::clamp.Tensor",
    ),
    **rules(
        REAL,
        "aten::sub.Tensor aten::sub.Scalar aten::rsub.Scalar aten::neg aten::abs "
        "aten::clamp aten::relu aten::ceil aten::floor aten::round "
        "aten::trunc aten::floor_divide "
        "aten::fmod.Tensor aten::fmod.Scalar aten::remainder.Tensor "
        "aten::remainder.Scalar aten::pow.Tensor_Tensor aten::pow.Scalar",
    ),
    **rules(divided, "aten::div.Tensor_mode aten::div.Scalar_mode"),
    **rules(power, "aten::pow.Tensor_Scalar"),
    **rules(
        LOGIC,
        "aten::bitwise_and.Tensor aten::bitwise_or.Tensor aten::bitwise_xor.Tensor "
        "aten::bitwise_and.Scalar aten::bitwise_or.Scalar aten::bitwise_xor.Scalar "
        "aten::bitwise_not",
    ),
    **rules(
        WHOLE,
        "aten::gcd aten::lcm aten::bitwise_left_shift.Tensor "
        "aten::bitwise_right_shift.Tensor",
    ),
    **rules(
        FLOATING,
        "aten::div.Tensor aten::div.Scalar aten::acos aten::acosh aten::asin "
        "aten::asinh aten::atan aten::atanh aten::cosh aten::erfc aten::exp2 "
        "aten::log10 aten::sinh aten::tan aten::cos aten::erf aten::exp aten::expm1 "
        "aten::gelu aten::log aten::log1p aten::log2 aten::reciprocal aten::rsqrt "
        "aten::sigmoid aten::silu aten::sin aten::sqrt aten::tanh "
        "aten::leaky_relu aten::elu aten::softplus aten::round.decimals aten::atan2 "
        "aten::copysign.Tensor aten::copysign.Scalar aten::hypot aten::nextafter",
    ),
    **rules(
        FLOATING,
        "aten::lgamma aten::digamma aten::erfinv aten::i0 aten::igamma aten::igammac "
        "aten::special_airy_ai aten::special_bessel_j0 aten::special_bessel_j1 "
        "aten::special_bessel_y0 aten::special_bessel_y1 aten::special_erfcx "
        "aten::special_i0e aten::special_i1 aten::special_i1e aten::special_ndtri "
        "aten::special_modified_bessel_i0 aten::special_modified_bessel_i1 "
        "aten::special_modified_bessel_k0 aten::special_modified_bessel_k1 "
        "aten::special_scaled_modified_bessel_k0 aten::special_zeta "
        "aten::special_scaled_modified_bessel_k1 aten::special_spherical_bessel_j0",
    ),
    "aten::polygamma": derivative,
    **COMPUTED_REDUCTIONS,
}
_COMPARED = rules(
    comparison,
    "aten::eq.Tensor aten::ne.Tensor aten::lt.Tensor aten::le.Tensor "
    "aten::gt.Tensor aten::ge.Tensor aten::eq.Scalar aten::ne.Scalar "
    "aten::lt.Scalar aten::le.Scalar aten::gt.Scalar aten::ge.Scalar "
    "aten::logical_and aten::logical_or aten::logical_xor",
)
# Operators whose operands are cast to the dtype of the result, and to a common dtype.
COMPUTED: Final = frozenset(_COMPUTED)
COMPARED: Final = frozenset(_COMPARED)
RULES: Final[dict[str, Rule]] = {
    **_COMPUTED,
    **_COMPARED,
    **rules(
        told(DType.BOOL, *ALL),
        "aten::logical_not aten::isnan aten::isinf aten::signbit "
        "aten::_assert_async.msg",
    ),
    **rules(
        one_dtype,
        "aten::clone aten::copy aten::reshape aten::repeat aten::cat aten::stack "
        "kvc::append kvc::replace",
    ),
    **rules(triangle, "aten::tril aten::triu"),
    **rules(
        anything,
        "kvc::check_index kvc::check_rows kvc::check_size kvc::after kvc::cache_update",
    ),
    **rules(along, "aten::index_select aten::gather aten::embedding"),
    **rules(written(one_dtype), "aten::index_copy aten::scatter.src"),
    **rules(NUMERIC, "aten::matmul aten::mm aten::bmm aten::addmm"),
    **rules(anything, "kvc::linear_w8 kvc::adapted"),
    **rules(
        quantized_rows, "kvc::quantize_rows kvc::quantize_blocks kvc::quantize_cache"
    ),
    **rules(
        quantized_linear(3), "kvc::linear_qd8 kvc::linear_qb4 kvc::expert_linear_qd8"
    ),
    **rules(quantized_linear(4), "kvc::linear_q8 kvc::linear_q4 kvc::expert_linear_q8"),
    **rules(FLOAT32, "kvc::glu kvc::rotary_embedding"),
    "aten::where.self": choice,
    "aten::masked_fill.Scalar": fill,
    "aten::masked_fill.Tensor": fill_one,
    "aten::hardtanh": bounded,
    "aten::ldexp.Tensor": scaled_by_powers,
    "aten::_to_copy": cast,
    "aten::full": made,
    "aten::arange.start_step": counted,
    "aten::index.Tensor": indexed,
    "aten::index_put": put,
    "aten::scatter.value": written(filled),
    "aten::linear": linear,
    "aten::scaled_dot_product_attention": attention_product,
    "kvc::embedding_q8": quantized_table,
    "kvc::expert_linear": experts,
    "kvc::attention": attention,
    **CONVOLUTIONS,
    **LINEAR_ALGEBRA,
    **PLACES,
    **REDUCTIONS,
    **SPATIAL,
}
