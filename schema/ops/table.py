"""The table of all allowed operators, one per line; each also needs a kernel.

Parameters that kvc does not support (devices, layouts, memory formats, `out`) are
omitted. The compiler refuses a traced call that sets such a parameter to anything but
its usual value.
"""

from functools import partial

from kvc.schema.ops import caches as c
from kvc.schema.ops import fused as f
from kvc.schema.ops import indexing as i
from kvc.schema.ops import linear_algebra as la
from kvc.schema.ops import products as p
from kvc.schema.ops import row_blocks as b
from kvc.schema.ops import shapes as s
from kvc.schema.ops import spatial
from kvc.schema.ops import views as v
from kvc.schema.ops.adapters import adapted
from kvc.schema.ops.spec import Aliasing, Keeps, OpSpec, ShapeRule, parse

DELEGATE = "kvc::delegate"
APPEND, REPLACE, CACHE_UPDATE = "kvc::append", "kvc::replace", "kvc::cache_update"
AFTER = "kvc::after"
COND, WHILE, SCAN = "kvc::cond", "kvc::while", "kvc::scan"
# Operators that run blocks; they have no shape rule.
CONTROL_OPS = frozenset({COND, WHILE, SCAN, DELEGATE})

_UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_not",
    "ceil",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "i0",
    "isinf",
    "isnan",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "neg",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinh",
    "special_bessel_j0",
    "special_bessel_j1",
    "special_bessel_y0",
    "special_bessel_y1",
    "special_erfcx",
    "special_i0e",
    "special_i1",
    "special_i1e",
    "special_modified_bessel_i0",
    "special_modified_bessel_i1",
    "special_modified_bessel_k0",
    "special_modified_bessel_k1",
    "special_ndtri",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
# Unary operators whose operand is named x.
_UNARY_OF_X = [
    *("special_airy_ai", "special_spherical_bessel_j0"),
    *("special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1"),
]
_BINARY = [
    "atan2",
    "bitwise_and.Tensor",
    "bitwise_left_shift.Tensor",
    "bitwise_or.Tensor",
    "bitwise_right_shift.Tensor",
    "bitwise_xor.Tensor",
    "copysign.Tensor",
    "div.Tensor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod.Tensor",
    "gcd",
    "hypot",
    "igamma",
    "igammac",
    "lcm",
    "ldexp.Tensor",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mul.Tensor",
    "nextafter",
    "remainder.Tensor",
    "special_zeta",
]
_BINARY_SCALAR = [
    "bitwise_and.Scalar",
    "bitwise_or.Scalar",
    "bitwise_xor.Scalar",
    "copysign.Scalar",
    "div.Scalar",
    "fmod.Scalar",
    "mul.Scalar",
    "remainder.Scalar",
]
_COMPARE = ["eq", "ge", "gt", "le", "lt", "ne"]

_FRESH: dict[str, ShapeRule] = {
    **{f"aten::{name}(Tensor self) -> Tensor": s.same_shape for name in _UNARY},
    **{f"aten::{name}(Tensor x) -> Tensor": s.same_shape for name in _UNARY_OF_X},
    **{
        f"aten::{name}(Tensor self, Tensor other) -> Tensor": s.broadcast
        for name in _BINARY
    },
    **{
        f"aten::{name}(Tensor self, Scalar other) -> Tensor": s.broadcast
        for name in _BINARY_SCALAR
    },
    **{
        f"aten::{name}.Tensor(Tensor self, Tensor other) -> Tensor": s.compare
        for name in _COMPARE
    },
    **{
        f"aten::{name}.Scalar(Tensor self, Scalar other) -> Tensor": s.compare
        for name in _COMPARE
    },
    "aten::add.Tensor(Tensor self, Tensor other, Scalar alpha) -> Tensor": s.broadcast,
    "aten::add.Scalar(Tensor self, Scalar other, Scalar alpha) -> Tensor": s.broadcast,
    "aten::sub.Tensor(Tensor self, Tensor other, Scalar alpha) -> Tensor": s.broadcast,
    "aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha) -> Tensor": s.broadcast,
    "aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha) -> Tensor": s.broadcast,
    "aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor": s.broadcast,
    "aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor": s.broadcast,
    "aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor": s.broadcast,
    "aten::div.Tensor_mode(Tensor self, Tensor other, str? rounding_mode) -> Tensor": s.broadcast,
    "aten::div.Scalar_mode(Tensor self, Scalar other, str? rounding_mode) -> Tensor": s.broadcast,
    "aten::polygamma(int n, Tensor self) -> Tensor": s.broadcast,
    "aten::gelu(Tensor self, str approximate) -> Tensor": s.same,
    "aten::clamp(Tensor self, Scalar? min, Scalar? max) -> Tensor": s.same_shape,
    "aten::clamp.Tensor(Tensor self, Tensor? min, Tensor? max) -> Tensor": s.broadcast,
    "aten::round.decimals(Tensor self, int decimals) -> Tensor": s.same_shape,
    "aten::hardtanh(Tensor self, Scalar min_val, Scalar max_val) -> Tensor": s.same,
    "aten::leaky_relu(Tensor self, Scalar negative_slope) -> Tensor": s.same,
    "aten::elu(Tensor self, Scalar alpha, Scalar scale, Scalar input_scale) -> Tensor": s.same,
    "aten::softplus(Tensor self, Scalar beta, Scalar threshold) -> Tensor": s.same,
    "aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor": s.where,
    "aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor": s.masked_fill,
    "aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor": s.masked_fill,
    "aten::_to_copy(Tensor self, dtype dtype) -> Tensor": s.cast,
    "aten::clone(Tensor self) -> Tensor": s.same,
    "aten::reshape(Tensor self, int[] shape) -> Tensor": v.view,
    "aten::sum.dim_IntList(Tensor self, int[]? dim, bool keepdim) -> Tensor": s.reduce,
    "aten::mean.dim(Tensor self, int[]? dim, bool keepdim) -> Tensor": s.reduce,
    "aten::amax(Tensor self, int[] dim, bool keepdim) -> Tensor": s.reduce,
    "aten::amin(Tensor self, int[] dim, bool keepdim) -> Tensor": s.reduce,
    "aten::prod.dim_int(Tensor self, int dim, bool keepdim) -> Tensor": s.reduce,
    "aten::prod(Tensor self) -> Tensor": s.reduce,
    "aten::linalg_vector_norm(Tensor self, Scalar ord, int[]? dim, bool keepdim) -> Tensor": s.vector_norm,
    "aten::any.dims(Tensor self, int[]? dim, bool keepdim) -> Tensor": s.reduce_bool,
    "aten::all.dims(Tensor self, int[]? dim, bool keepdim) -> Tensor": s.reduce_bool,
    "aten::any.dim(Tensor self, int dim, bool keepdim) -> Tensor": s.reduce_bool,
    "aten::all.dim(Tensor self, int dim, bool keepdim) -> Tensor": s.reduce_bool,
    "aten::any(Tensor self) -> Tensor": s.reduce_bool,
    "aten::all(Tensor self) -> Tensor": s.reduce_bool,
    "aten::argmax(Tensor self, int? dim, bool keepdim) -> Tensor": s.reduce_index,
    "aten::argmin(Tensor self, int? dim, bool keepdim) -> Tensor": s.reduce_index,
    "aten::max.dim(Tensor self, int dim, bool keepdim) -> Tensor, Tensor": s.reduce_with_index,
    "aten::min.dim(Tensor self, int dim, bool keepdim) -> Tensor, Tensor": s.reduce_with_index,
    "aten::median(Tensor self) -> Tensor": s.reduce,
    "aten::median.dim(Tensor self, int dim, bool keepdim) -> Tensor, Tensor": s.reduce_with_index,
    "aten::nanmedian(Tensor self) -> Tensor": s.reduce,
    "aten::nanmedian.dim(Tensor self, int dim, bool keepdim) -> Tensor, Tensor": s.reduce_with_index,
    "aten::kthvalue(Tensor self, int k, int dim, bool keepdim) -> Tensor, Tensor": s.kth_value,
    "aten::var_mean.correction(Tensor self, int[]? dim, Scalar? correction, bool keepdim) -> Tensor, Tensor": s.variance_and_mean,
    "aten::var.correction(Tensor self, int[]? dim, Scalar? correction, bool keepdim) -> Tensor": s.variance,
    "aten::topk(Tensor self, int k, int dim, bool largest, bool sorted) -> Tensor, Tensor": s.topk,
    "aten::sort(Tensor self, int dim, bool descending) -> Tensor, Tensor": s.sort,
    "aten::cumsum(Tensor self, int dim) -> Tensor": s.along_axis,
    "aten::cumprod(Tensor self, int dim) -> Tensor": s.along_axis,
    "aten::logcumsumexp(Tensor self, int dim) -> Tensor": s.along_axis,
    "aten::cummax(Tensor self, int dim) -> Tensor, Tensor": s.sort,
    "aten::cummin(Tensor self, int dim) -> Tensor, Tensor": s.sort,
    "aten::softmax.int(Tensor self, int dim) -> Tensor": s.along_axis,
    "aten::log_softmax.int(Tensor self, int dim) -> Tensor": s.along_axis,
    "aten::linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor": p.linear,
    "aten::matmul(Tensor self, Tensor other) -> Tensor": p.matmul,
    "aten::mm(Tensor self, Tensor mat2) -> Tensor": p.mm,
    "aten::bmm(Tensor self, Tensor mat2) -> Tensor": p.bmm,
    "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, Scalar beta, Scalar alpha) -> Tensor": p.addmm,
    "aten::convolution(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups) -> Tensor": p.convolution,
    "aten::conv_transpose1d(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] output_padding, int groups, int[] dilation) -> Tensor": p.conv_transpose,
    "aten::conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] output_padding, int groups, int[] dilation) -> Tensor": p.conv_transpose,
    "aten::conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] output_padding, int groups, int[] dilation) -> Tensor": p.conv_transpose,
    "aten::avg_pool2d(Tensor self, int[] kernel_size, int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor": partial(
        spatial.average_pool, 2
    ),
    "aten::avg_pool3d(Tensor self, int[] kernel_size, int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor": partial(
        spatial.average_pool, 3
    ),
    "aten::max_pool2d_with_indices(Tensor self, int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode) -> Tensor, Tensor": partial(
        spatial.max_pool, 2
    ),
    "aten::max_pool3d_with_indices(Tensor self, int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode) -> Tensor, Tensor": partial(
        spatial.max_pool, 3
    ),
    "aten::_adaptive_avg_pool2d(Tensor self, int[] output_size) -> Tensor": partial(
        spatial.adaptive_pool, 2
    ),
    "aten::_adaptive_avg_pool3d(Tensor self, int[] output_size) -> Tensor": partial(
        spatial.adaptive_pool, 3
    ),
    "aten::adaptive_max_pool2d(Tensor self, int[] output_size) -> Tensor, Tensor": partial(
        spatial.adaptive_max_pool, 2
    ),
    "aten::adaptive_max_pool3d(Tensor self, int[] output_size) -> Tensor, Tensor": partial(
        spatial.adaptive_max_pool, 3
    ),
    "aten::upsample_nearest2d(Tensor self, int[] output_size, float? scales_h, float? scales_w) -> Tensor": partial(
        spatial.resize, 2
    ),
    "aten::upsample_bilinear2d(Tensor self, int[] output_size, bool align_corners, float? scales_h, float? scales_w) -> Tensor": partial(
        spatial.resize, 2
    ),
    "aten::_upsample_bilinear2d_aa(Tensor self, int[] output_size, bool align_corners, float? scales_h, float? scales_w) -> Tensor": partial(
        spatial.resize, 2
    ),
    "aten::_upsample_bicubic2d_aa(Tensor self, int[] output_size, bool align_corners, float? scales_h, float? scales_w) -> Tensor": partial(
        spatial.resize, 2
    ),
    "aten::grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor": partial(
        spatial.grid_sample, 2
    ),
    "aten::grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor": partial(
        spatial.grid_sample, 3
    ),
    "aten::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float eps) -> Tensor": s.batch_norm,
    "aten::group_norm(Tensor input, int num_groups, Tensor? weight, Tensor? bias, float eps) -> Tensor": s.group_norm,
    "aten::rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> Tensor": s.normalized,
    "aten::layer_norm(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> Tensor": s.normalized,
    "aten::embedding(Tensor weight, Tensor indices) -> Tensor": i.embedding,
    "aten::_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, int mode, Tensor? per_sample_weights, bool include_last_offset, int padding_idx) -> Tensor": i.embedding_bag,
    "aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, bool enable_gqa) -> Tensor": p.attention_product,
    "aten::_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor": p.distances,
    "aten::linalg_inv(Tensor A) -> Tensor": la.square,
    "aten::linalg_inv_ex(Tensor A, bool check_errors) -> Tensor, Tensor": la.square_told,
    "aten::linalg_cholesky(Tensor self, bool upper) -> Tensor": la.square,
    "aten::linalg_cholesky_ex(Tensor self, bool upper, bool check_errors) -> Tensor, Tensor": la.square_told,
    "aten::linalg_matrix_exp(Tensor self) -> Tensor": la.square,
    "aten::linalg_det(Tensor A) -> Tensor": la.determinant,
    "aten::linalg_slogdet(Tensor A) -> Tensor, Tensor": la.sign_and_logarithm,
    "aten::linalg_solve(Tensor A, Tensor B, bool left) -> Tensor": la.solve,
    "aten::linalg_solve_ex(Tensor A, Tensor B, bool left, bool check_errors) -> Tensor, Tensor": la.solve_told,
    "aten::linalg_solve_triangular(Tensor self, Tensor B, bool upper, bool left, bool unitriangular) -> Tensor": la.solve_triangular,
    "aten::linalg_qr(Tensor A, str mode) -> Tensor, Tensor": la.orthogonal,
    "aten::linalg_householder_product(Tensor input, Tensor tau) -> Tensor": la.reflections,
    "aten::_linalg_svd(Tensor A, bool full_matrices, bool compute_uv, str? driver) -> Tensor, Tensor, Tensor": la.singular_values,
    "aten::_linalg_eigh(Tensor A, str UPLO, bool compute_v) -> Tensor, Tensor": la.eigenvalues,
    "aten::cat(Tensor[] tensors, int dim) -> Tensor": s.cat,
    "aten::stack(Tensor[] tensors, int dim) -> Tensor": s.stack,
    "aten::repeat(Tensor self, int[] repeats) -> Tensor": s.repeat,
    "aten::constant_pad_nd(Tensor self, int[] pad, Scalar value) -> Tensor": s.pad,
    "aten::index_select(Tensor self, int dim, Tensor index) -> Tensor": i.index_select,
    "aten::gather(Tensor self, int dim, Tensor index) -> Tensor": i.gather,
    "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor": i.indexed,
    "aten::diagonal(Tensor self, int offset, int dim1, int dim2) -> Tensor": s.diagonal,
    "aten::unfold(Tensor self, int dimension, int size, int step) -> Tensor": s.unfold,
    "aten::bucketize.Tensor(Tensor self, Tensor boundaries, bool out_int32, bool right) -> Tensor": i.bucketize,
    "aten::searchsorted.Tensor(Tensor sorted_sequence, Tensor self, bool out_int32, bool right) -> Tensor": i.search_sorted,
    "aten::roll(Tensor self, int[] shifts, int[] dims) -> Tensor": s.roll,
    "aten::flip(Tensor self, int[] dims) -> Tensor": s.flip,
    "aten::tril(Tensor self, int diagonal) -> Tensor": s.same,
    "aten::triu(Tensor self, int diagonal) -> Tensor": s.same,
    "aten::full(int[] size, Scalar fill_value, dtype dtype) -> Tensor": s.full,
    "aten::arange.start_step(Scalar start, Scalar end, Scalar step, dtype dtype) -> Tensor": s.arange,
    "kvc::attention(Tensor q, Tensor k, Tensor v, Tensor valid_length, float? scale, bool causal, int? window_left, int? window_right, float? softcap, Tensor? mask, Tensor? slopes, Tensor? sinks, str layout, Tensor? k_scale, Tensor? v_scale, Tensor? row_lengths, int keep=0) -> Tensor": c.cached_attention,
    f"{AFTER}(Tensor start, int count) -> Tensor": c.after,
    "kvc::quantize_cache(Tensor x) -> Tensor, Tensor": c.quantize_cache,
    "kvc::rotary_embedding(Tensor x, Tensor cos, Tensor sin) -> Tensor": f.rotary_embedding,
    "kvc::convolution(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, int[] padding, int[] dilation, int groups, str ending, float? low, float? high) -> Tensor": f.ended_convolution,
    "kvc::pointwise_depthwise(Tensor input, Tensor weight, Tensor? bias, str ending, float? low, float? high, Tensor planes, Tensor? planes_bias, int[] stride, int[] padding, int[] dilation, str planes_ending, float? planes_low, float? planes_high) -> Tensor": f.pointwise_depthwise,
    "kvc::convolution_w8(Tensor input, Tensor weight, Tensor weight_scale, Tensor? bias, Tensor? residual, int[] stride, int[] padding, int[] dilation, int groups, str ending, float? low, float? high) -> Tensor": f.convolution_w8,
    "kvc::pointwise_depthwise_w8(Tensor input, Tensor weight, Tensor weight_scale, Tensor? bias, str ending, float? low, float? high, Tensor planes, Tensor? planes_bias, int[] stride, int[] padding, int[] dilation, str planes_ending, float? planes_low, float? planes_high) -> Tensor": f.pointwise_depthwise_w8,
    "kvc::conv_transpose_w8(Tensor input, Tensor weight, Tensor weight_scale, Tensor? bias, int[] stride, int[] padding, int[] output_padding, int groups, int[] dilation) -> Tensor": f.conv_transpose_w8,
    "kvc::glu(Tensor gate, Tensor up, str activation) -> Tensor": f.glu,
    "kvc::quantize_rows(Tensor x) -> Tensor, Tensor, Tensor": p.quantize_rows,
    "kvc::linear_qd8(Tensor q, Tensor scale, Tensor zero_point, Tensor weight, Tensor weight_scale, Tensor? bias) -> Tensor": p.linear_qd8,
    "kvc::linear_w8(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias) -> Tensor": p.linear_w8,
    "kvc::linear_qb4(Tensor q, Tensor scale, Tensor zero_point, Tensor weight, Tensor weight_scale, Tensor? bias) -> Tensor": p.linear_qb4,
    "kvc::expert_linear(Tensor x, Tensor weight, Tensor experts, Tensor? bias, bool transposed) -> Tensor": p.expert_linear,
    "kvc::expert_linear_qd8(Tensor q, Tensor scale, Tensor zero_point, Tensor weight, Tensor weight_scale, Tensor experts, Tensor? bias) -> Tensor": p.expert_linear_qd8,
    "kvc::quantize_blocks(Tensor x) -> Tensor, Tensor, Tensor, Tensor": b.quantize_blocks,
    "kvc::linear_q8(Tensor q, Tensor scale, Tensor zero_point, Tensor factor, Tensor weight, Tensor weight_scale, Tensor? bias) -> Tensor": b.linear_q8,
    "kvc::linear_q4(Tensor q, Tensor scale, Tensor zero_point, Tensor factor, Tensor weight, Tensor weight_scale, Tensor? bias, Tensor? weight_minimum) -> Tensor": b.linear_q4,
    "kvc::expert_linear_q8(Tensor q, Tensor scale, Tensor zero_point, Tensor factor, Tensor weight, Tensor weight_scale, Tensor experts, Tensor? bias) -> Tensor": b.expert_linear_q8,
    "kvc::adapted(Tensor y, Tensor x, Tensor? a, Tensor b, Tensor? factors, Tensor ranks, Tensor adapters, Tensor scales, Tensor? gain, Tensor? offset) -> Tensor": adapted,
    "kvc::embedding_q8(Tensor weight, Tensor scale, Tensor indices) -> Tensor": i.embedding_q8,
}
_VIEW: dict[str, ShapeRule] = {
    "aten::alias(Tensor self) -> Tensor": s.same,
    "aten::view(Tensor self, int[] size) -> Tensor": v.view,
    "aten::transpose.int(Tensor self, int dim0, int dim1) -> Tensor": v.transpose,
    "aten::permute(Tensor self, int[] dims) -> Tensor": v.permute,
    "aten::slice.Tensor(Tensor self, int dim, int? start, int? end, int step) -> Tensor": v.slice_,
    "aten::select.int(Tensor self, int dim, int index) -> Tensor": v.select,
    "aten::unsqueeze(Tensor self, int dim) -> Tensor": v.unsqueeze,
    "aten::squeeze.dims(Tensor self, int[] dim) -> Tensor": v.squeeze,
    "aten::expand(Tensor self, int[] size) -> Tensor": v.expand,
    "aten::split_with_sizes(Tensor self, int[] split_sizes, int dim) -> Tensor[]": v.split,
}
_UPDATE: dict[str, ShapeRule] = {
    "kvc::cache_update(Tensor cache, Tensor update, Tensor? write_indices, int axis, str mode, Tensor? row_lengths, int keep=0) -> Tensor": c.cache_update,
    "aten::index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor": i.index_copy,
    "aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate) -> Tensor": i.index_put,
    "aten::index_add(Tensor self, int dim, Tensor index, Tensor source, Scalar alpha) -> Tensor": i.index_add,
    "aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor": i.scatter,
    "aten::scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, bool include_self) -> Tensor": i.scatter_reduce,
    "aten::scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor": i.scatter,
    "aten::scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor": i.scatter,
    "aten::copy(Tensor self, Tensor src) -> Tensor": i.copy,
    "kvc::append(Tensor past, Tensor update, int axis) -> Tensor": c.append,
    "kvc::replace(Tensor past, Tensor source, int axis) -> Tensor": c.replace,
}
_CONTROL: dict[str, ShapeRule] = {
    f"{COND}(Tensor pred, int yes, int no, Tensor[] operands, int?[] over) -> Tensor[]": s.unchecked,
    f"{WHILE}(int test, int body, int carried, Tensor[] operands, int?[] over) -> Tensor[]": s.unchecked,
    f"{DELEGATE}(int block, Tensor[] operands, int?[] over) -> Tensor[]": s.unchecked,
    f"{SCAN}(int body, int carried, int scanned, Tensor[] operands, int?[] over) -> Tensor[]": s.unchecked,
}
_CHECK: dict[str, ShapeRule] = {
    "kvc::check_index(Tensor index, int least, int count, int slots) -> ()": i.check_index,
    "kvc::check_rows(Tensor index, Tensor row_lengths, int most, int slots) -> ()": i.check_rows,
    "kvc::check_size(int size, int expected) -> ()": i.check_size,
    "aten::_assert_async.msg(Tensor self, str assert_msg) -> ()": i.check_truth,
}
# Shape rules of operators that compute elementwise, and other such operators.
_POINTWISE_RULES = (s.same_shape, s.broadcast, s.compare, s.where, s.masked_fill)
_POINTWISE = {"aten::gelu", "aten::hardtanh", "aten::leaky_relu", "aten::elu", "aten::softplus", "kvc::glu"}  # fmt: skip
_KEEPS = {
    Keeps.ALL: ("alias", "view", "unsqueeze", "squeeze.dims", "clone", "reshape"),
    Keeps.PERMUTED: ("transpose.int", "permute"),
    Keeps.SOME: ("select.int", "slice.Tensor", "split_with_sizes"),
    Keeps.REPEATED: ("expand", "repeat"),
}
_KEEPS_OF = {f"aten::{op}": keeps for keeps, ops in _KEEPS.items() for op in ops}


def _parse(signature: str, rule: ShapeRule, aliasing: Aliasing) -> OpSpec:
    name = signature.partition("(")[0]
    known = name in _POINTWISE or rule in _POINTWISE_RULES
    pointwise = known and aliasing is Aliasing.FRESH
    halves = rule is f.rotary_embedding
    return parse(signature, rule, aliasing, pointwise, _KEEPS_OF.get(name), halves)


OPS: dict[str, OpSpec] = {
    spec.name: spec
    for aliasing, rules in (
        (Aliasing.FRESH, _FRESH),
        (Aliasing.VIEW, _VIEW),
        (Aliasing.UPDATE, _UPDATE),
        (Aliasing.CONTROL, _CONTROL),
        (Aliasing.CHECK, _CHECK),
    )
    for spec in (_parse(signature, rule, aliasing) for signature, rule in rules.items())
}


def ops_that_keep(*keeps: Keeps) -> frozenset[str]:
    """Return the names of the operators whose results copy operand 0 in a given way."""
    return frozenset(name for name, spec in OPS.items() if spec.keeps in keeps)


PERMUTING = ops_that_keep(Keeps.PERMUTED)
# Views that keep all elements in order: the same bytes in another shape.
RESHAPING_VIEWS = frozenset(
    name for name in ops_that_keep(Keeps.ALL) if OPS[name].aliasing is Aliasing.VIEW
)
