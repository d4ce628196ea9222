# ruff: noqa: E501  a table reads best with one line an op
"""Every op of the table, called as a user would, compiled, saved, loaded and run."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from eager_parity import same
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.ops import CONTROL_OPS, OPS

Function = Callable[..., object]


MATH = "abs ceil cos erf exp expm1 floor isinf isnan log log1p log2 logical_not neg reciprocal relu round rsqrt sigmoid sign sin sqrt tanh trunc"
ANALYSIS = "acos acosh asin asinh atan atanh cosh digamma erfc exp2 i0 lgamma log10 signbit sinh tan"
SPECIAL = "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx i0e i1 i1e modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0"
LOGIC = ("and", "or", "xor")
ORDER = ("eq", "ge", "gt", "le", "lt", "ne")


def _of_x(name: str) -> Function:
    return lambda x, y, n, b: getattr(torch, name)(x)


def _special(name: str) -> Function:
    return lambda x, y, n, b: getattr(torch.special, name)(x)


def _of_booleans(name: str) -> Function:
    return lambda x, y, n, b: getattr(torch, name)(n > 0, b)


def _of_number(name: str) -> Function:
    function = getattr(torch, name)
    return lambda x, y, n, b: (function(n, 3), function(3, n), function(b, True))


def _compared(name: str, number: float | None = None) -> Function:
    function = getattr(torch, name)
    return lambda x, y, n, b: function(x, y if number is None else number)


# Of x and y float32 [2, 3], n int64 [2, 3], b bool [2, 3].
UNARY: dict[str, Function] = {
    **{f"aten::{name}": _of_x(name) for name in MATH.split()},
    "aten::bitwise_not": lambda x, y, n, b: torch.bitwise_not(n),
    **{f"aten::{name}": _of_x(name) for name in ANALYSIS.split()},
    **{f"aten::special_{name}": _special(name) for name in SPECIAL.split()},
    "aten::polygamma": lambda x, y, n, b: torch.polygamma(1, x),
    "aten::erfinv": lambda x, y, n, b: torch.erfinv(x / 9),
    "aten::round.decimals": lambda x, y, n, b: x.round(decimals=1),
    "aten::silu": lambda x, y, n, b: functional.silu(x),
    "aten::gelu": lambda x, y, n, b: functional.gelu(x),
    "aten::hardtanh": lambda x, y, n, b: functional.hardtanh(x),
    "aten::leaky_relu": lambda x, y, n, b: functional.leaky_relu(x, 0.2),
    "aten::elu": lambda x, y, n, b: functional.elu(x),
    "aten::softplus": lambda x, y, n, b: functional.softplus(x),
    "aten::clamp": lambda x, y, n, b: x.clamp(-0.5, 0.5),
    "aten::clamp.Tensor": lambda x, y, n, b: torch.clamp(x, min=y),
    "aten::_to_copy": lambda x, y, n, b: x.to(torch.float16),
    "aten::clone": lambda x, y, n, b: x.clone(),
}
BINARY: dict[str, Function] = {
    "aten::add.Tensor": lambda x, y, n, b: torch.add(x, y, alpha=2),
    "aten::add.Scalar": lambda x, y, n, b: (x + 1.5, 2 + n),
    "aten::sub.Tensor": lambda x, y, n, b: torch.rsub(x, y, alpha=2),
    "aten::sub.Scalar": lambda x, y, n, b: x - 2,
    "aten::rsub.Scalar": lambda x, y, n, b: (
        1 - x,
        2.0 - n,
        1 - b.float(),
        torch.rsub(x, 3, alpha=2),
        torch.linspace(0, 1, 5) * x[0, 0],
    ),
    "aten::mul.Tensor": lambda x, y, n, b: x * y,
    "aten::mul.Scalar": lambda x, y, n, b: (x * 0.3, 2 * n),
    "aten::div.Tensor": lambda x, y, n, b: (
        x / y,
        torch.div(1, x),
        torch.div(2, n + 9),
    ),
    "aten::div.Scalar": lambda x, y, n, b: x / 3,
    "aten::div.Tensor_mode": lambda x, y, n, b: (x // y, 3 // x, 7 // (n + 9)),
    "aten::div.Scalar_mode": lambda x, y, n, b: (x // 0.7, n // 2),
    "aten::floor_divide": lambda x, y, n, b: torch.floor_divide(x, y),
    "aten::fmod.Tensor": lambda x, y, n, b: torch.fmod(x, y),
    "aten::fmod.Scalar": lambda x, y, n, b: (
        torch.fmod(x, 0.4),
        torch.roll(x, (1, 2), (0, 1)),
    ),
    "aten::remainder.Tensor": lambda x, y, n, b: (x % y, 5 % x, 5 % (n + 9)),
    "aten::remainder.Scalar": lambda x, y, n, b: n % 3,
    "aten::pow.Tensor_Tensor": lambda x, y, n, b: x.abs() ** y,
    "aten::pow.Tensor_Scalar": lambda x, y, n, b: x**3,
    "aten::pow.Scalar": lambda x, y, n, b: (2**x, 0.5**n),
    "aten::atan2": lambda x, y, n, b: torch.atan2(x, y),
    "aten::copysign.Tensor": lambda x, y, n, b: torch.copysign(x, y),
    "aten::copysign.Scalar": lambda x, y, n, b: torch.copysign(x, -1),
    "aten::fmax": lambda x, y, n, b: torch.fmax(x, y),
    "aten::fmin": lambda x, y, n, b: torch.fmin(x, y),
    "aten::gcd": lambda x, y, n, b: torch.gcd(n, n.t().reshape(2, 3)),
    "aten::lcm": lambda x, y, n, b: torch.lcm(n, n + 3),
    "aten::igamma": lambda x, y, n, b: torch.igamma(x.abs(), y.abs()),
    "aten::igammac": lambda x, y, n, b: torch.igammac(x.abs(), y.abs()),
    "aten::nextafter": lambda x, y, n, b: torch.nextafter(x, y),
    "aten::special_zeta": lambda x, y, n, b: (
        torch.special.zeta(x.abs() + 1, y.abs()),
        torch.special.zeta(x.abs() + 2, 1.5),
        torch.special.zeta(2.5, y.abs() + 1),
    ),
    "aten::hypot": lambda x, y, n, b: torch.hypot(x, y),
    "aten::ldexp.Tensor": lambda x, y, n, b: (torch.ldexp(x, n), torch.ldexp(x, y)),
    "aten::bitwise_left_shift.Tensor": lambda x, y, n, b: (
        n << 2,
        torch.bitwise_left_shift(1, n.abs()),
        n << n.abs(),
    ),
    "aten::bitwise_right_shift.Tensor": lambda x, y, n, b: (n >> 1, n >> n.abs()),
    "aten::maximum": lambda x, y, n, b: torch.maximum(x, y),
    "aten::minimum": lambda x, y, n, b: torch.minimum(x, y),
    **{f"aten::logical_{name}": _of_booleans(f"logical_{name}") for name in LOGIC},
    **{
        f"aten::bitwise_{name}.Tensor": _of_booleans(f"bitwise_{name}")
        for name in LOGIC
    },
    **{f"aten::bitwise_{name}.Scalar": _of_number(f"bitwise_{name}") for name in LOGIC},
    **{f"aten::{name}.Tensor": _compared(name) for name in ORDER},
    **{f"aten::{name}.Scalar": _compared(name, 0.1) for name in ORDER},
    "aten::where.self": lambda x, y, n, b: (
        torch.where(b, x, y),
        torch.where(b, 1.0, x),
        torch.where(b, x, 0),
    ),
    "aten::masked_fill.Scalar": lambda x, y, n, b: x.masked_fill(b, 7.0),
    "aten::masked_fill.Tensor": lambda x, y, n, b: x.masked_fill(b, y.sum()),
}
REDUCTIONS: dict[str, Function] = {
    "aten::sum.dim_IntList": lambda x, y, n, b: (x.sum(1), x.sum()),
    "aten::mean.dim": lambda x, y, n, b: (x.mean(1, keepdim=True), x.mean()),
    "aten::amax": lambda x, y, n, b: (x.amax(1), x.max()),
    "aten::amin": lambda x, y, n, b: (x.amin((0, 1)), x.min()),
    "aten::prod.dim_int": lambda x, y, n, b: x.prod(1),
    "aten::prod": lambda x, y, n, b: (x.prod(), b.prod()),
    "aten::linalg_vector_norm": lambda x, y, n, b: (
        x.norm(),
        x.norm(p=1, dim=1),
        functional.normalize(x, dim=1),
    ),
    "aten::any.dim": lambda x, y, n, b: b.any(1),
    "aten::all.dim": lambda x, y, n, b: b.all(1),
    "aten::any.dims": lambda x, y, n, b: b.any((0, 1)),
    "aten::all.dims": lambda x, y, n, b: b.all((0, 1)),
    "aten::any": lambda x, y, n, b: b.any(),
    "aten::all": lambda x, y, n, b: b.all(),
    "aten::argmax": lambda x, y, n, b: (x.argmax(1), x.argmax()),
    "aten::argmin": lambda x, y, n, b: x.argmin(0, keepdim=True),
    "aten::max.dim": lambda x, y, n, b: tuple(x.max(1)),
    "aten::min.dim": lambda x, y, n, b: tuple(x.min(0)),
    "aten::var.correction": lambda x, y, n, b: (x.var(1), x.std()),
    "aten::var_mean.correction": lambda x, y, n, b: (
        *torch.var_mean(x, dim=1),
        *torch.std_mean(x),
    ),
    "aten::median": lambda x, y, n, b: x.median(),
    "aten::median.dim": lambda x, y, n, b: tuple(x.median(1)),
    "aten::nanmedian": lambda x, y, n, b: (x / y).nanmedian(),
    "aten::nanmedian.dim": lambda x, y, n, b: tuple((x / y).nanmedian(1)),
    "aten::kthvalue": lambda x, y, n, b: tuple(x.kthvalue(2)),
    "aten::topk": lambda x, y, n, b: tuple(x.topk(2)),
    "aten::sort": lambda x, y, n, b: (*x.sort(1), n.argsort(dim=1, stable=True)),
    "aten::cummax": lambda x, y, n, b: tuple(x.cummax(1)),
    "aten::cummin": lambda x, y, n, b: tuple(x.cummin(1)),
    "aten::logcumsumexp": lambda x, y, n, b: x.logcumsumexp(1),
    "aten::cumsum": lambda x, y, n, b: x.cumsum(1),
    "aten::cumprod": lambda x, y, n, b: x.cumprod(1),
    "aten::softmax.int": lambda x, y, n, b: x.softmax(1),
    "aten::log_softmax.int": lambda x, y, n, b: x.log_softmax(1),
}
PRODUCTS: dict[str, Function] = {
    "aten::linear": lambda x, y, n, b: functional.linear(x, y, y[:, 0]),
    "aten::matmul": lambda x, y, n, b: x @ y.t(),
    "aten::mm": lambda x, y, n, b: torch.mm(x, y.t()),
    "aten::bmm": lambda x, y, n, b: torch.bmm(x[None], y.t()[None]),
    "aten::addmm": lambda x, y, n, b: torch.addmm(x[:, :2], x, y.t(), beta=0.5),
    "aten::convolution": lambda x, y, n, b: functional.conv1d(x.t()[None], y[:, :, None]),
    "aten::conv_transpose1d": lambda x, y, n, b: functional.conv_transpose1d(x[None], y[:, None], stride=2, output_padding=1),
    "aten::conv_transpose2d.input": lambda x, y, n, b: functional.conv_transpose2d(x[None, None], y[None, None], padding=1),
    "aten::conv_transpose3d.input": lambda x, y, n, b: functional.conv_transpose3d(x[None, None, None], y[None, None, None]),
    "aten::batch_norm": lambda x, y, n, b: functional.batch_norm(x, y[0], y[1] ** 2, x[0], y[1]),
    "aten::group_norm": lambda x, y, n, b: (functional.group_norm(x, 1, y[0], y[1]), functional.group_norm(x[..., None], 3), functional.instance_norm(x[None])),
    "aten::rms_norm": lambda x, y, n, b: functional.rms_norm(x, (3,), y[0]),
    "aten::layer_norm": lambda x, y, n, b: functional.layer_norm(x, (3,), y[0], y[1]),
    "aten::_cdist_forward": lambda x, y, n, b: (torch.cdist(x, y), torch.cdist(x, y, 1.0)),
    "aten::_embedding_bag_forward_only": lambda x, y, n, b: functional.embedding_bag(n.abs() % 2, x),
    "aten::embedding": lambda x, y, n, b: functional.embedding(n.abs() % 2, x),
    "aten::scaled_dot_product_attention": lambda x, y, n, b: functional.scaled_dot_product_attention(x[None], y[None], y[None]),
    "kvc::attention": lambda x, y, n, b: torch.ops.kvc.attention(x[None, None], y[None, None], y[None, None], torch.tensor([2]), None, True),
    "kvc::expert_linear": lambda x, y, n, b: torch.ops.kvc.expert_linear(x, torch.stack((x, y)), torch.tensor([1, 0])),
    "kvc::adapted": lambda x, y, n, b: torch.ops.kvc.adapted(x, y, torch.stack((x, y)), torch.stack((y, x)), None, torch.tensor([0, 2]), torch.tensor([1, 0]), x[0, :2]),
    "kvc::cache_update": lambda x, y, n, b: torch.ops.kvc.cache_update(x[None], y[None, :1], torch.tensor([1]), 1, "linear", None),
    "kvc::quantize_cache": lambda x, y, n, b: torch.ops.kvc.quantize_cache(x),
}  # fmt: skip
MOVES: dict[str, Function] = {
    "aten::reshape": lambda x, y, n, b: x.t().reshape(6),
    "aten::alias": lambda x, y, n, b: x[0].t() + 1,
    "aten::view": lambda x, y, n, b: x.view(3, 2) + 1,
    "aten::transpose.int": lambda x, y, n, b: x.transpose(0, 1) + 1,
    "aten::permute": lambda x, y, n, b: x.permute(1, 0) + 1,
    "aten::slice.Tensor": lambda x, y, n, b: (x[:, -100:2] + 1, x[:, 1:99:2] + 1),
    "aten::select.int": lambda x, y, n, b: x[:, -1] + 1,
    "aten::unsqueeze": lambda x, y, n, b: x[:, None] + 1,
    "aten::squeeze.dims": lambda x, y, n, b: x[:1].squeeze() + 1,
    "aten::expand": lambda x, y, n, b: x[:1].expand(4, 3) + 1,
    "aten::split_with_sizes": lambda x, y, n, b: [part + 1 for part in x.split(2, 1)],
    "aten::cat": lambda x, y, n, b: torch.cat((x, y), 1),
    "aten::stack": lambda x, y, n, b: torch.stack((x, y), 1),
    "aten::repeat": lambda x, y, n, b: x.repeat(2, 1),
    "aten::constant_pad_nd": lambda x, y, n, b: functional.pad(x, (1, 2)),
    "aten::index_select": lambda x, y, n, b: x.index_select(1, torch.tensor([2, 0])),
    "aten::gather": lambda x, y, n, b: x.gather(1, n.abs() % 3),
    "aten::index.Tensor": lambda x, y, n, b: x[:, torch.tensor([0, 2])],
    "aten::roll": lambda x, y, n, b: x.roll(1, 0),
    "aten::flip": lambda x, y, n, b: x.flip(1),
    "aten::tril": lambda x, y, n, b: x.tril(),
    "aten::triu": lambda x, y, n, b: x.triu(1),
    "aten::full": lambda x, y, n, b: torch.full((2,), 3.0) + x[:, 0],
    "aten::arange.start_step": lambda x, y, n, b: torch.arange(3) + n,
    "aten::diagonal": lambda x, y, n, b: (x.diagonal(1), (x @ y.t()).trace()),
    "aten::unfold": lambda x, y, n, b: x.unfold(1, 2, 1),
    "aten::bucketize.Tensor": lambda x, y, n, b: torch.bucketize(x, torch.tensor([0.0, 1.0])),
    "aten::searchsorted.Tensor": lambda x, y, n, b: torch.searchsorted(x.sort(1).values, y, right=True),
    "aten::index_copy": lambda x, y, n, b: x.index_copy(0, torch.tensor([1]), y[:1]),
    "aten::index_put": lambda x, y, n, b: x.index_put((torch.tensor([1]),), y[:1]),
    "aten::index_add": lambda x, y, n, b: x.index_add(1, torch.tensor([1, 1]), y[:, :2], alpha=2),
    "aten::scatter_add": lambda x, y, n, b: x.scatter_add(1, n.abs() % 1, y),
    "aten::scatter_reduce.two": lambda x, y, n, b: x.scatter_reduce(1, n.abs() % 1, y, "amax"),
    "aten::scatter.src": lambda x, y, n, b: x.scatter(1, n.abs() % 1, y),
    "aten::scatter.value": lambda x, y, n, b: x.scatter(1, n.abs() % 3, 2.0),
    "aten::copy": lambda x, y, n, b: torch.zeros(2, 3).copy_(x) + 1,
    "aten::_assert_async.msg": lambda x, y, n, b: (torch._assert_async((x < 99).all(), "less"), x + 1)[1],
}  # fmt: skip
# Of the square that x times y is, and of x itself.
MATRICES: dict[str, Function] = {
    "aten::linalg_inv": lambda x, y, n, b: torch.inverse(x @ y.t()),
    "aten::linalg_inv_ex": lambda x, y, n, b: (*torch.linalg.inv_ex(x @ y.t()),),
    "aten::linalg_cholesky_ex": lambda x, y, n, b: (*torch.linalg.cholesky_ex(x @ x.t(), upper=True),),
    "aten::linalg_solve_ex": lambda x, y, n, b: (*torch.linalg.solve_ex(x @ y.t(), x),),
    "aten::linalg_cholesky": lambda x, y, n, b: torch.linalg.cholesky(x @ x.t()),
    "aten::linalg_matrix_exp": lambda x, y, n, b: torch.matrix_exp(x @ y.t()),
    "aten::linalg_det": lambda x, y, n, b: torch.det(x @ y.t()),
    "aten::linalg_slogdet": lambda x, y, n, b: (*torch.slogdet(x @ y.t()), torch.logdet(x @ x.t())),
    "aten::linalg_solve": lambda x, y, n, b: torch.linalg.solve(x @ y.t(), x),
    "aten::linalg_solve_triangular": lambda x, y, n, b: torch.linalg.solve_triangular(x[:, :2].triu(), y, upper=True),
    "aten::linalg_qr": lambda x, y, n, b: (*torch.linalg.qr(x), torch.linalg.qr(y, "r").R),
    "aten::linalg_householder_product": lambda x, y, n, b: torch.linalg.householder_product(x.t(), y[0, :2]),
    "aten::_linalg_svd": lambda x, y, n, b: (*torch.linalg.svd(x), torch.linalg.svdvals(y)),
    "aten::_linalg_eigh": lambda x, y, n, b: (*torch.linalg.eigh(x @ x.t()), torch.linalg.eigvalsh(x @ x.t())),
}  # fmt: skip
# Of [2, 3] as a picture with one channel, or as one of three axes.
SPATIAL: dict[str, Function] = {
    "aten::avg_pool2d": lambda x, y, n, b: (functional.avg_pool2d(x[None], 2, 1), functional.avg_pool1d(x, 2, padding=1)),
    "aten::avg_pool3d": lambda x, y, n, b: functional.avg_pool3d(x[None, None], (1, 2, 2), 1),
    "aten::max_pool2d_with_indices": lambda x, y, n, b: (functional.max_pool2d(x[None], 2, 1, ceil_mode=True), *functional.max_pool1d(x, 2, return_indices=True)),
    "aten::max_pool3d_with_indices": lambda x, y, n, b: functional.max_pool3d(x[None, None], (1, 2, 2), dilation=(1, 1, 2), padding=(0, 1, 1)),
    "aten::_adaptive_avg_pool2d": lambda x, y, n, b: (functional.adaptive_avg_pool2d(x[None], (1, 2)), functional.adaptive_avg_pool1d(x, 2)),
    "aten::_adaptive_avg_pool3d": lambda x, y, n, b: functional.adaptive_avg_pool3d(x[None, None], (1, 2, 2)),
    "aten::adaptive_max_pool2d": lambda x, y, n, b: functional.adaptive_max_pool2d(x[None], 2),
    "aten::adaptive_max_pool3d": lambda x, y, n, b: functional.adaptive_max_pool3d(x[None, None], (1, 2, 2)),
    "aten::upsample_nearest2d": lambda x, y, n, b: (functional.interpolate(x[None, None], scale_factor=1.6), functional.interpolate(x[None, None], (3, 7))),
    "aten::upsample_bilinear2d": lambda x, y, n, b: (functional.interpolate(x[None, None], scale_factor=1.6, mode="bilinear"), functional.interpolate(x[None, None], (5, 2), mode="bilinear", align_corners=True)),
    "aten::_upsample_bilinear2d_aa": lambda x, y, n, b: functional.interpolate(x[None, None], (1, 2), mode="bilinear", antialias=True),
    "aten::_upsample_bicubic2d_aa": lambda x, y, n, b: functional.interpolate(x[None, None], (1, 2), mode="bicubic", antialias=True),
    "aten::grid_sampler_2d": lambda x, y, n, b: functional.grid_sample(x[None, None], y.view(1, 1, 3, 2), align_corners=True),
    "aten::grid_sampler_3d": lambda x, y, n, b: functional.grid_sample(x[None, None, None], y.view(1, 1, 1, 2, 3), align_corners=True),
    "aten::constant_pad_nd": lambda x, y, n, b: (functional.pad(x[None], (1, 1), mode="circular"), functional.pad(x[None], (1, 1), mode="reflect"), functional.pad(x[None], (2, 1), mode="replicate"), functional.pad(x, (1, 2))),
    "aten::full": lambda x, y, n, b: (torch.empty(2).fill_(3.0) + x[:, 0], torch.empty_like(x).copy_(x)),
}  # fmt: skip

# What torch writes with other ops, or a pass of ours leaves out; the calls are checked.
OTHERWISE = {
    "aten::alias", "aten::all", "aten::all.dim", "aten::all.dims", "aten::clone",
    "aten::copy", "aten::floor_divide", "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor", "aten::roll", "aten::softplus", "aten::stack",
    "aten::tril", "aten::triu",
}  # fmt: skip
# What only recipes make; `test_quantize_weights` and the kernels' tests have them.
MADE_BY_PASSES = {
    "kvc::conv_transpose_w8",
    "kvc::convolution_w8",
    "kvc::pointwise_depthwise_w8",
    "kvc::convolution",
    "kvc::pointwise_depthwise",
    "kvc::glu",
    "kvc::rotary_embedding",
    "kvc::quantize_rows",
    "kvc::linear_qd8",
    "kvc::linear_qb4",
    "kvc::linear_w8",
    "kvc::quantize_blocks",
    "kvc::linear_q8",
    "kvc::linear_q4",
    "kvc::expert_linear_q8",
    "kvc::expert_linear_qd8",
    "kvc::embedding_q8",
    "kvc::after",
    "kvc::append",
    "kvc::replace",
    "kvc::check_index",
    "kvc::check_rows",
    "kvc::check_size",
}


class Calls(nn.Module):
    """Calls functions, all in one method."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        super().__init__()
        self.functions = list(functions.values())

    def forward(self, x: Tensor, y: Tensor, n: Tensor, b: Tensor) -> tuple[object, ...]:
        return tuple(function(x, y, n, b) for function in self.functions)


X = torch.tensor([[0.5, -1.25, 2.0], [3.5, 0.75, -0.5]])
Y = torch.tensor([[1.5, 0.25, -2.0], [0.5, 1.0, 2.5]])
N = torch.tensor([[3, -1, 2], [0, 5, -4]])
B = torch.tensor([[True, False, True], [False, True, True]])


@pytest.mark.parametrize(
    "functions", [UNARY, BINARY, REDUCTIONS, PRODUCTS, MATRICES, MOVES, SPATIAL]
)
def test_ops_do_as_eager_does(tmp_path: Path, functions: dict[str, Function]) -> None:
    model = Calls(functions).eval()
    bundle = compile_program(model, [Method("forward", args=(X, Y, N, B))], "fp32")
    bundle.save(tmp_path / "model.kvc")
    (method,) = bundle.program.methods
    used = {instruction.op for instruction in method.graph.instructions}
    assert set(functions) - used == set(functions) & OTHERWISE
    with load(tmp_path / "model.kvc") as program, program.session() as session:
        for factor in (1, 2):
            given = (X * factor, Y * factor, N * factor, B)
            expected = model(*given)
            got = session.call("forward", *given)
            for op, one, other in zip(functions, got, expected, strict=True):
                same({op: one}, {op: other}, atol=1e-6)


def test_the_tables_name_every_op() -> None:
    named = {*UNARY, *BINARY, *REDUCTIONS, *PRODUCTS, *MATRICES, *MOVES, *SPATIAL}
    assert named | MADE_BY_PASSES == set(OPS) - CONTROL_OPS
