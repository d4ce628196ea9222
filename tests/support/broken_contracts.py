"""Steps that kernels take, and changes of them that each break one rule."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvc.runtime.memory.arrays import Array

F32, F64, I8, I32, I64, U8 = (
    np.float32, np.float64, np.int8, np.int32, np.int64, np.uint8,
)  # fmt: skip
NAN = float("nan")


@dataclass
class Call:
    """The arguments of `Steps.add`."""

    kernel: str
    tensors: list[Array | None]
    integers: list[int] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)


def f(*shape: int, dtype: type = F32) -> Array:
    return np.zeros(shape, dtype)


def right_calls() -> dict[str, Call]:
    """Return calls that the checker accepts, by a short name."""
    rows = [f(2, 64, dtype=I8), f(2, 1), f(2, 1, dtype=I32)]
    blocks = [f(2, 64, dtype=I8), f(2, 1), f(2, 2, dtype=I8), f(2, 2, dtype=I8)]
    int4 = [f(1, 8, 8, 4, dtype=U8), f(1, 2, 8)]
    int8 = [f(8, 64, dtype=I8), f(8, 2)]
    cache = [f(2, 4, 3, 8), f(2, 4, 3, 8), f(2, 2, 9, 8), f(2, 2, 9, 8)]
    lengths = np.full(2, 3, I64)
    index = np.zeros(3, I64)
    calls = [
        Call("aten::add.Tensor", [f(2, 3), f(2, 3), f(3)], [1], [1.0]),
        Call("aten::neg", [f(2, 3), f(2, 3)]),
        Call("aten::exp", [f(4, 5), f(4, 5)]),
        Call("aten::softmax.int", [f(2, 3), f(2, 3)], [1]),
        Call("aten::fmod.Scalar", [f(3, dtype=I8)] * 2, [3], [3.0]),
        Call("aten::floor_divide", [f(4, dtype=I64), f(4, dtype=I64), np.ones(4, I64)]),
        Call("kvc::rotary_embedding", [f(2, 3, 8), f(2, 3, 8), f(3, 8), f(3, 8)]),
        Call("aten::cat", [f(2, 5), f(2, 3), f(2, 2)], [2, 1]),
        Call("aten::repeat", [f(4, 3), f(2, 3)], [2, 2, 1]),
        Call("aten::full", [f(2, 3)], [2, 2, 3, 1], [1.0]),
        Call("aten::sum.dim_IntList", [f(2), f(2, 3)], [1, 1, 0]),
        Call("aten::topk", [f(2, 2), f(2, 2, dtype=I64), f(2, 5)], [2, 1, 1, 1]),
        Call("aten::roll", [f(2, 3), f(2, 3)], [1, 1, 1, 0]),
        Call("aten::flip", [f(2, 3), f(2, 3)], [1, 0]),
        Call("aten::constant_pad_nd", [f(2, 6), f(2, 3)], [2, 1, 2, 0], [0.0]),
        Call("aten::diagonal", [f(3), f(3, 5)], [1, 0, 1]),
        Call("aten::unfold", [f(3, 2), f(6)], [0, 2, 2]),
        Call("aten::_embedding_bag_forward_only",
             [f(2, 4), f(5, 4), index, np.array([0, 2]), None], [0, 0, -1]),
        Call("aten::_cdist_forward", [f(2, 3, 4), f(2, 3, 5), f(1, 4, 5)], [], [2.0]),
        Call("kvc::cache_update", [f(2, 4, 9), f(2, 4, 2), index[:2], None], [2, 0, 0]),
        Call("kvc::append", [f(2, 5), f(2, 2)], [1]),
        Call("kvc::embedding_q8", [f(3, 8), f(5, 8, dtype=I8), f(5, 2), index]),
        Call("aten::embedding", [f(3, 4), f(5, 4), index]),
        Call("aten::gather", [f(2, 3), f(2, 5), f(2, 3, dtype=I64)], [1]),
        Call("aten::index_copy", [f(2, 5), index, f(2, 3)], [1]),
        Call("aten::index.Tensor", [f(3, 6), f(4, 5, 6), index, index], [2]),
        Call("aten::index_put", [f(4, 5), index, f(3, 5)], [1, 0]),
        Call("aten::linear", [f(2, 8), f(2, 4), f(8, 4), f(8)]),
        Call("aten::matmul", [f(2, 3, 5), f(2, 3, 4), f(4, 5)]),
        Call("kvc::linear_qd8", [f(2, 8), *rows, *int8, f(8)]),
        Call("kvc::linear_qb4", [f(2, 8), *rows, *int4, f(8)]),
        Call("kvc::linear_q8", [f(2, 8), *blocks, *int8, f(8)]),
        Call("linears_of_rows",
             [f(2, 8), f(2, 8), f(2, 64), *[*int8, None, None] * 2], [0, 0, 0]),
        Call("kvc::adapted",
             [f(2, 3, 8), f(2, 3, 8), f(2, 3, 4), None, f(5, 4, 8), None,
              f(5, dtype=I64), f(2, dtype=I64), f(2), None, None]),
        Call("kvc::attention",
             [*cache, lengths, f(2, 1, 3, 9), None, None, None, None, None],
             [1, 5, 0, 0, 0], [NAN, NAN]),
        Call("aten::scaled_dot_product_attention",
             [f(4, 3, 8), f(4, 3, 8), f(2, 5, 8), f(2, 5, 8), f(3, 5)], [0], [NAN]),
        Call("aten::convolution", [f(1, 4, 5), f(1, 2, 7), f(4, 2, 3), None],
             [1, 1, 1, 0, 1, 1, 1]),
        Call("aten::conv_transpose1d", [f(1, 4, 9), f(1, 2, 7), f(2, 4, 3), None],
             [1, 1, 1, 0, 1, 0, 1, 1, 1]),
        Call("aten::avg_pool2d", [f(1, 2, 2), f(1, 4, 4)],
             [2, 2, 2, 0, 2, 0, 0, 0, 1, -(1 << 63)]),
        Call("aten::_adaptive_avg_pool2d", [f(1, 2, 2), f(1, 4, 4)]),
        Call("aten::upsample_nearest2d", [f(1, 4, 4), f(1, 2, 2)], [2, 4, 4],
             [NAN, NAN]),
        Call("aten::grid_sampler_2d", [f(1, 2, 3, 3), f(1, 2, 4, 4), f(1, 3, 3, 2)],
             [0, 0, 0]),
        Call("aten::group_norm", [f(2, 4, 3), f(2, 4, 3), f(4), f(4)], [2], [1e-5]),
        Call("aten::linalg_inv", [f(2, 3, 3), f(2, 3, 3)]),
        Call("aten::linalg_solve", [f(2, 3, 4), f(2, 3, 3), f(2, 3, 4)], [1]),
        Call("aten::linalg_householder_product", [f(5, 3), f(5, 3), f(3)]),
    ]  # fmt: skip
    return {call.kernel.partition("::")[2] or call.kernel: call for call in calls}


Change = Callable[[Call], object]


def tensor(i: int, array: Array | None) -> Change:
    return lambda call: call.tensors.__setitem__(i, array)


def integer(i: int, value: int) -> Change:
    return lambda call: call.integers.__setitem__(i, value)


def number(i: int, value: float) -> Change:
    return lambda call: call.numbers.__setitem__(i, value)


def both(*changes: Change) -> Change:
    return lambda call: [change(call) for change in changes]


def like(i: int, j: int) -> Change:
    return lambda call: call.tensors.__setitem__(i, call.tensors[j])


def _no_axis_of_windows(call: Call) -> None:
    call.tensors[0] = f(1, 1 << 32, 0)
    call.tensors[1] = f(1, 1 << 32, 0)


def gap(*shape: int) -> Array:
    return f(*shape[:-1], 2 * shape[-1])[..., ::2]


def repeated(*shape: int) -> Array:
    return np.broadcast_to(F32(0), shape)


EDGE = 1 << 31
BROKEN: list[tuple[str, str, Change]] = [
    ("number of operands", "neg", lambda call: call.tensors.append(f(3))),
    ("an operand is left out", "neg", tensor(1, None)),
    ("integers are missing", "add.Tensor", lambda call: call.integers.clear()),
    ("numbers are missing", "add.Tensor", lambda call: call.numbers.clear()),
    ("a dtype that the kernel does not take", "exp", both(*(
        tensor(i, f(4, 5, dtype=I8)) for i in (0, 1)))),
    ("operands differ in dtype", "neg", tensor(1, f(2, 3, dtype=F64))),
    ("operands differ in shape", "neg", tensor(1, f(1, 3))),
    ("an operand has not the shape of another", "add.Tensor", tensor(2, f(4))),
    ("an operand has gaps", "softmax.int", tensor(1, gap(2, 3))),
    ("an axis that there is not", "softmax.int", integer(0, 2)),
    ("an axis that there is not", "softmax.int", integer(0, -3)),
    ("elements of a result are the same", "neg", tensor(0, repeated(2, 3))),
    ("too many elements", "add.Tensor", tensor(2, repeated(1 << 20, 1 << 20))),
    ("a divisor that does not fit its type", "fmod.Scalar", integer(0, 256)),
    ("a result lies over indices or lengths", "floor_divide", lambda call: (
        call.tensors.__setitem__(2, call.tensors[0][::-1][::-1][:1]))),
    ("a result lies over indices or lengths", "embedding", lambda call: (
        call.tensors.__setitem__(0, call.tensors[2].view(F32)[:4].reshape(1, 4)),
        call.tensors.__setitem__(2, call.tensors[2][:1]))),
    ("width of a table", "rotary_embedding", tensor(2, f(3, 6))),
    ("rows of a table", "rotary_embedding", tensor(3, f(2, 8))),
    ("shape of a part", "cat", tensor(1, f(3, 3))),
    ("a dim of an operand", "cat", tensor(1, f(2, 4))),
    ("a dim that is no multiple of its parts", "repeat", integer(1, 3)),
    ("an operand is no tile of the result", "repeat", tensor(1, f(3, 3))),
    ("too many copies", "repeat", both(
        tensor(0, f(0, 3)), tensor(1, f(0, 3)), integer(1, 1 << 36), integer(2, 3))),
    ("an integer out of range", "repeat", integer(1, -2)),
    ("a list is missing", "roll", lambda call: call.integers.clear()),
    ("a list ends after the integers", "full", integer(0, 4)),
    ("length of a list", "full", integer(0, -1)),
    ("elements of an operand", "sum.dim_IntList", tensor(0, f(3))),
    ("more elements than a row has", "topk", integer(0, 6)),
    ("more elements than a row has", "topk", integer(0, -1)),
    ("shape of a result", "topk", integer(0, 1)),
    ("axes and distances differ", "roll", lambda call: (
        call.integers.__setitem__(slice(None), [2, 1, 1, 1, 0]))),
    ("axes are left out", "flip", integer(0, -(1 << 63))),
    ("length of a list", "constant_pad_nd", lambda call: (
        call.integers.__setitem__(slice(None), [3, 1, 2, 0, 0]))),
    ("a dim of an operand", "constant_pad_nd", integer(1, 2)),
    ("an integer out of range", "constant_pad_nd", integer(1, 1 << 62)),
    ("axes of a diagonal", "diagonal", integer(1, 1)),
    ("a diagonal is longer than its matrix", "diagonal", integer(0, 3)),
    ("windows end after the axis", "unfold", integer(2, 3)),
    ("more bags than offsets", "_embedding_bag_forward_only", tensor(0, f(3, 4))),
    ("shape of a batch", "_cdist_forward", tensor(2, f(3, 4, 5))),
    ("rows lie along the first axis", "cache_update", integer(0, 0)),
    ("shape of an update", "cache_update", tensor(1, f(2, 3, 2))),
    ("an integer out of range", "cache_update", integer(2, 10)),
    ("an update longer than the whole", "append", tensor(1, f(2, 6))),
    ("parts of rows", "embedding_q8", tensor(2, f(5, 0))),
    ("parts of rows", "embedding_q8", tensor(2, f(5, 3))),
    ("rank of an operand", "embedding", tensor(1, f(5, 4, 1))),
    ("an index larger than its operand", "gather", both(*(
        tensor(i, f(3, 3, dtype=t)) for i, t in ((0, F32), (2, I64))))),
    ("shape of slices", "index_copy", tensor(2, f(3, 3))),
    ("indices differ in shape", "index.Tensor", tensor(3, np.zeros(2, I64))),
    ("rank of what is picked", "index.Tensor", tensor(2, f(*(1,) * 8, dtype=I64))),
    ("shape of a result", "index.Tensor", tensor(0, f(2, 6))),
    ("shape of values", "index_put", tensor(2, f(2, 5))),
    ("leading dims of operands differ", "linear", tensor(1, f(3, 4))),
    ("shape of a batch", "matmul", tensor(1, f(3, 3, 4))),
    ("rows without elements", "linear_qd8", both(
        tensor(1, f(2, 0, dtype=I8)), tensor(4, f(8, 0, dtype=I8)), tensor(5, f(8)))),
    ("parts of rows", "linear_qd8", tensor(5, f(8, 3))),
    ("parts of rows", "linear_qd8", tensor(5, f(8, 0))),
    ("sizes of an int4 weight", "linear_qb4", both(
        tensor(0, f(2, 4)), tensor(6, None))),
    ("blocks of an int4 weight", "linear_qb4", tensor(5, f(1, 0, 8))),
    ("minimums of an int8 weight", "linears_of_rows", tensor(6, f(8, 2))),
    ("weights differ in their parts", "linears_of_rows", tensor(8, f(8, 1))),
    ("number of operands", "linears_of_rows", lambda call: call.tensors.pop()),
    ("as many elements as ranks", "adapted", tensor(2, f(2, 3, 5))),
    ("heads of a group", "attention", both(
        tensor(2, f(2, 3, 9, 8)), tensor(3, f(2, 3, 9, 8)))),
    ("heads of a group", "attention", both(
        tensor(2, f(2, 0, 9, 8)), tensor(3, f(2, 0, 9, 8)))),
    ("no heads", "attention", both(
        tensor(0, f(2, 0, 3, 8)), tensor(1, f(2, 0, 3, 8)), tensor(5, None))),
    ("heads of a mask", "attention", tensor(5, f(2, 3, 3, 9))),
    ("rows of a mask", "attention", tensor(5, f(3, 1, 3, 9))),
    ("an integer out of range", "attention", integer(1, -1)),
    ("elements of an operand", "attention", tensor(4, np.full(1, 3, I64))),
    ("parts of an operand", "scaled_dot_product_attention", both(
        tensor(2, f(3, 5, 8)), tensor(3, f(2, 5, 8)))),
    ("shape of a mask", "scaled_dot_product_attention", tensor(4, f(3, 4))),
    ("a setting of a convolution", "convolution", integer(1, 0)),
    ("a setting of a convolution", "convolution", integer(3, EDGE)),
    ("size of a result", "convolution", tensor(0, f(1, 4, 6))),
    ("groups of channels", "convolution", integer(6, 0)),
    ("a kernel without elements", "convolution", tensor(2, f(4, 2, 0))),
    ("size of an axis", "conv_transpose1d", tensor(1, f(1, 2, 0))),
    ("settings of a window", "avg_pool2d", integer(1, 0)),
    ("more windows than fit", "avg_pool2d", tensor(0, f(1, 3, 2))),
    ("too many elements", "_adaptive_avg_pool2d", _no_axis_of_windows),
    ("a factor out of range", "upsample_nearest2d", number(0, 1e-30)),
    ("an operand without elements", "upsample_nearest2d", tensor(1, f(1, 2, 0))),
    ("an axis too long", "grid_sampler_2d", tensor(
        1, np.broadcast_to(F32(0), (1, 2, 0, 1 << 25)))),
    ("an integer out of range", "grid_sampler_2d", integer(0, 3)),
    ("channels of a group", "group_norm", integer(0, 3)),
    ("a matrix that is not square", "linalg_inv", both(*(
        tensor(i, f(2, 3, 4)) for i in (0, 1)))),
    ("a matrix too large", "linalg_householder_product", both(*(
        tensor(i, f(1 << 21, 0)) for i in (0, 1)))),
    ("shape of a right side", "linalg_solve", tensor(2, f(2, 3, 5))),
    ("sizes of a system", "linalg_solve", integer(0, 0)),
    ("shape of a batch", "linalg_solve", tensor(1, f(3, 3, 3))),
    ("more reflections than columns", "linalg_householder_product", tensor(2, f(4))),
]  # fmt: skip
