# ruff: noqa: E501  a table reads best with one line a case
"""Cases of convolutions: ordinary, transposed, and those that end with a function."""

from collections.abc import Mapping
from math import prod
from typing import Final

import torch
from torch import Tensor

from op_cases.case import Argument, Case, rand

Sizes = tuple[int, ...]
TRANSPOSED_OPS: Final = {
    1: "aten::conv_transpose1d",
    2: "aten::conv_transpose2d.input",
    3: "aten::conv_transpose3d.input",
}


def convolution(
    x: Tensor | Sizes, w: Sizes, biased: bool = False, **options: int | Sizes
) -> Case:
    """Return a case; options are for all axes, or one for each."""
    rank = len(w) - 2
    settings = _of_axes(rank, options, {"stride": 1, "padding": 0, "dilation": 1})
    bias = rand(w[0]) if biased else None
    given = x if isinstance(x, Tensor) else rand(*x)
    groups = options.get("groups", 1)
    return Case("aten::convolution", (given, rand(*w), bias, *settings, groups))


def transposed(
    x: Tensor | Sizes, w: Sizes, biased: bool = False, **options: int | Sizes
) -> Case:
    """Return a case of a transposed convolution, as `convolution` does."""
    rank, groups = len(w) - 2, options.get("groups", 1)
    names = {"stride": 1, "padding": 0, "extra": 0, "dilation": 1}
    *settings, dilation = _of_axes(rank, options, names)
    assert isinstance(groups, int)
    bias = rand(w[1] * groups) if biased else None
    given = x if isinstance(x, Tensor) else rand(*x)
    arguments = (given, rand(*w), bias, *settings, groups, dilation)
    return Case(TRANSPOSED_OPS[rank], arguments)


def ended(
    case: Case,
    ending: str,
    low: float | None = None,
    high: float | None = None,
    residual: bool = False,
) -> Case:
    """Return a case of `kvc::convolution` that ends what `case` makes."""
    (made,) = case.eager()
    x, w, bias, *settings = case.arguments
    more = rand(*made.shape) if residual else None
    arguments = (x, w, bias, more, *settings, ending, low, high)
    return Case("kvc::convolution", arguments)


def paired(
    x: Tensor | Sizes,
    kernel: Sizes,
    first: tuple[object, ...] = ("identity",),
    second: tuple[object, ...] = ("identity",),
    biased: tuple[bool, bool] = (True, True),
    **options: int | Sizes,
) -> Case:
    """Return a case of `kvc::pointwise_depthwise`.

    Args:
        x: the input, or its shape.
        kernel: the number of channels between, and the sizes of the planes' kernel.
        first: the function of the single elements, and its bounds if it has some.
        second: that of the planes.
        biased: whether each of the two has a bias.
        options: stride, padding and dilation, as those of `convolution`.
    """
    channels, *sizes = kernel
    rank, given = len(sizes), x if isinstance(x, Tensor) else rand(*x)
    settings = _of_axes(rank, options, {"stride": 1, "padding": 0, "dilation": 1})
    endings = ((*each, None, None)[:3] for each in (first, second))
    biases = (rand(channels) if each else None for each in biased)
    weights = (
        rand(channels, given.shape[1], *(1,) * rank) / given.shape[1] ** 0.5,
        rand(channels, 1, *sizes) / prod(sizes) ** 0.5,
    )
    single, planes = zip(weights, biases, endings, strict=True)
    arguments = (given, *single[:2], *single[2], *planes[:2], *settings, *planes[2])
    return Case("kvc::pointwise_depthwise", arguments)


def by_int8(case: Case) -> Case:
    """Return a case over int8 weights with a scale for each output channel."""
    op, (x, w, bias, *rest) = case.op, case.arguments
    assert isinstance(w, Tensor)
    channels = len(w)
    if op in TRANSPOSED_OPS.values():
        op, channels = "kvc::conv_transpose_w8", w.shape[1] * rest[3]
    elif op == "aten::convolution":
        op, rest = "kvc::convolution_w8", [None, *rest, "identity", None, None]
    else:  # one that ends with a function, or a pair
        op = f"{op}_w8"
    weights = (50 * rand(*w.shape)).clamp(-128, 127).to(torch.int8)
    return Case(op, (x, weights, rand(channels).abs() / 99, bias, *rest))


def odd(*shape: int) -> Tensor:
    """Return random elements with infinities and NaN, inside and at the borders."""
    x = rand(*shape)
    flat = x.view(-1)
    numbers = torch.tensor([torch.inf, -torch.inf, torch.nan])
    for place, number in zip((0, flat.numel() // 2, -1), numbers, strict=True):
        flat[place] = number
    return x


def _of_axes(
    rank: int, options: Mapping[str, int | Sizes], names: Mapping[str, int]
) -> tuple[Argument, ...]:
    wanted = (options.get(name, default) for name, default in names.items())
    return tuple(each if isinstance(each, tuple) else (each,) * rank for each in wanted)


_BF16: Final = torch.bfloat16

ONE_AXIS = (
    convolution((2, 4, 11), (6, 4, 3), True),
    convolution((2, 4, 11), (6, 2, 3), stride=2, padding=1, dilation=2, groups=2),
    convolution((1, 4, 9), (4, 1, 3), True, padding=2, groups=4),
    convolution((1, 5, 1), (7, 5, 1), True),
    convolution((3, 5, 60), (9, 5, 1)),
    convolution((1, 2, 7), (3, 2, 2), padding=6),
    convolution((1, 2, 7), (3, 2, 3), True, padding=9, dilation=3, stride=3),
    convolution((2, 3, 49), (17, 3, 5), True, stride=3, padding=2),
    convolution((1, 1, 60), (5, 1, 9), True, stride=2),
    convolution((1, 6, 120), (4, 3, 3), groups=2, padding=1),
    convolution(rand(2, 14, 3).transpose(1, 2), (4, 3, 3), True, padding=1),
    convolution(rand(2, 1, 14).expand(2, 3, 14), (4, 3, 3), padding=1),
)
TWO_AXES = (
    convolution((2, 3, 8, 9), (5, 3, 3, 2), True, stride=(1, 2), padding=(1, 0)),
    convolution((1, 3, 8, 8), (4, 3, 4, 4), True, stride=4),
    convolution((1, 4, 1, 1), (9, 4, 3, 3), True, padding=1),
    convolution((2, 9, 7, 7), (10, 9, 1, 1), True),
    convolution((1, 3, 14, 14), (20, 3, 3, 3), padding=1),
    convolution((1, 3, 14, 7), (8, 3, 1, 1), stride=2),
    convolution((1, 2, 60, 7), (3, 2, 3, 3), True, padding=(0, 5), dilation=(3, 2)),
    convolution((3, 4, 7, 49), (6, 2, 2, 5), groups=2, stride=(3, 1), padding=(1, 3)),
    convolution((1, 70, 4, 5), (3, 70, 2, 2), True),
    convolution(rand(1, 14, 14, 3).permute(0, 3, 1, 2), (4, 3, 3, 3), True, padding=1),
)
THREE_AXES = (
    convolution((1, 2, 4, 5, 6), (3, *[2] * 4), True, stride=(1, 1, 2), padding=(0, 1, 0)),
    convolution((2, 3, 1, 7, 7), (4, 3, 1, 1, 1), True),
    convolution((1, 2, 7, 1, 9), (3, 2, 3, 1, 3), padding=(2, 0, 4), dilation=(1, 2, 3)),
    convolution((1, 4, 4, 6, 7), (4, 1, 1, 3, 3), True, padding=(0, 1, 1), groups=4),
    convolution((2, 3, 4, 5, 5), (6, 1, 2, 3, 3), groups=3, stride=(2, 1, 1)),
)  # fmt: skip
DEPTHWISE = (
    *(
        convolution(
            (2, channels, size, size), (channels * many, 1, 3, 3), biased=many == 1,
            padding=1, stride=stride, groups=channels,
        )
        for channels in (1, 3, 16, 37)
        for size, stride, many in ((7, 1, 1), (14, 2, 1), (60, 1, 1), (14, 3, 2))
    ),
    convolution((1, 37, 49), (37, 1, 5), True, padding=4, groups=37),
    convolution((1, 16, 33), (16, 1, 4), stride=3, padding=3, dilation=2, groups=16),
    convolution((2, 18, 1, 1), (18, 1, 3, 3), True, padding=1, groups=18),
    convolution((1, 17, 5, 7), (17, 1, 2, 3), True, padding=(6, 7), groups=17),
    convolution((1, 16, 7, 1), (16, 1, 3, 1), dilation=(2, 1), groups=16),
    convolution((1, 3, 70), (3, 1, 3), stride=17, groups=3),
    convolution((1, 2, 40, 40), (2, 1, 33, 33), groups=2),
    convolution(rand(1, 7, 9, 20).permute(0, 3, 1, 2), (20, 1, 3, 3), True, groups=20),
)  # fmt: skip
UNUSUAL = (
    convolution((0, 2, 5), (4, 2, 3), True),
    convolution((0, 4, 5, 5), (4, 1, 3, 3), groups=4),
    *(
        convolution(odd(1, channels, *size), (groups * many, channels // groups, *kernel),
                    padding=padding, groups=groups)
        for channels, groups, many in ((3, 1, 5), (4, 4, 1), (20, 20, 1), (2, 2, 3))
        for size, kernel, padding in (((9,), (3,), 2), ((7, 8), (3, 3), 1), ((30, 40), (2, 5), 3))
    ),
    Case(
        "aten::convolution",
        (rand(2, 4, 11, dtype=_BF16), rand(6, 4, 3, dtype=_BF16), None, (1,), (1,), (1,), 1),
    ),
)  # fmt: skip
CONVOLUTION = (*ONE_AXIS, *TWO_AXES, *THREE_AXES, *DEPTHWISE, *UNUSUAL)

TRANSPOSED = (
    transposed((2, 4, 5), (4, 3, 3), True, stride=2, padding=1, extra=1),
    transposed((1, 4, 5), (4, 3, 2), groups=2, dilation=2),
    transposed((1, 3, 60), (3, 4, 4), True, stride=2, padding=1),
    transposed((2, 3, 1), (3, 2, 7), True, stride=3),
    transposed((1, 2, 7), (2, 3, 2), True, stride=3, extra=2),  # a phase without taps
    transposed((1, 2, 7), (2, 3, 3), stride=2, dilation=2, extra=1),
    transposed((1, 2, 7), (2, 3, 3), True, stride=6, dilation=4, padding=3),
    transposed((1, 2, 7), (2, 3, 5), stride=4, dilation=6, padding=5, extra=3),
    transposed((2, 6, 14), (6, 1, 4), True, stride=2, padding=1, groups=6),
    transposed((0, 2, 5), (2, 3, 3), stride=2),
    transposed(odd(1, 3, 14), (3, 5, 4), True, stride=2, padding=1),
    transposed((1, 2, 3, 4), (2, 3, 2, 3), True, stride=(2, 1), padding=(0, 1), extra=(1, 0)),
    transposed((2, 5, 7, 7), (5, 4, 1, 1), True),
    transposed((1, 5, 7, 14), (5, 4, 1, 1), stride=3, extra=1),
    transposed((1, 3, 14, 7), (3, 2, 2, 2), True, stride=2),
    transposed((2, 4, 5, 7), (4, 3, 3, 4), stride=(3, 2), padding=(1, 2), dilation=(2, 1), groups=2),
    transposed(odd(1, 3, 7, 7), (3, 2, 3, 3), stride=2, padding=1, extra=1),
    transposed(rand(1, 7, 6, 3).permute(0, 3, 1, 2), (3, 2, 3, 3), True, stride=2),
    transposed((1, 2, 2, 3, 2), (2, 1, 2, 2, 2), stride=(1, 2, 1), extra=(0, 1, 0)),
    transposed((2, 2, 3, 4, 5), (2, 3, 3, 1, 2), True, stride=2, padding=(1, 0, 1)),
)  # fmt: skip

_ENDINGS: Final = (
    ("identity",), ("silu",), ("gelu",), ("gelu_tanh",), ("sigmoid",), ("hard_swish",),
    ("hard_sigmoid",), ("clamp", 0.0), ("clamp", None, 0.5), ("clamp", -0.5, 0.25),
    ("clamp", 0.0, 6.0), ("clamp", 1.0, -1.0), ("clamp", -torch.inf, torch.inf),
)  # fmt: skip
ENDED = tuple(
    ended(case, *ending, residual=residual)
    for ending in _ENDINGS
    for residual in (False, True)
    for case in (
        convolution((1, 3, 33), (5, 3, 3), True, padding=1),
        convolution((2, 20, 7, 7), (20, 1, 3, 3), padding=1, groups=20),
        convolution((1, 5, 40, 30), (5, 1, 3, 3), True, padding=1, groups=5),
        convolution(odd(1, 4, 14, 14), (9, 4, 1, 1), True),
        convolution((0, 3, 7), (2, 3, 3)),
    )
    if ending != ("gelu",) or case.arguments[0].isfinite().all()  # torch's gives NaN
)

PAIRED = (
    paired((2, 3, 11), (7, 3), biased=(False, False)),
    paired((1, 1, 33), (16, 5), stride=2, padding=2, dilation=2, biased=(True, False)),
    paired((2, 2, 20_000), (50, 3), ("silu",), stride=3, padding=1),  # of some blocks
    *(
        paired((batch, 3, 14, 9), (channels, 3, 3), ("clamp", 0.0, 6.0), padding=1,
               stride=stride, biased=(False, True))
        for channels in (1, 7, 16, 50)
        for batch, stride in ((1, 2), (3, 1))
    ),
    paired((1, 40, 7, 7), (50, 5, 3), stride=(1, 2), padding=(4, 0), dilation=(2, 1)),
    paired((1, 3, 130, 130), (50, 3, 3), second=("clamp", 0.0), padding=1, stride=2),
    paired((1, 5, 1, 1), (7, 3, 3), padding=1, biased=(False, False)),
    paired((1, 5, 6, 5), (7, 1, 1), ("sigmoid",)),
    paired((1, 2, 4, 5, 6), (7, 3, 1, 2), padding=(1, 0, 1), stride=(1, 2, 1)),
    paired((2, 3, 5, 5, 5), (16, 3, 3, 3), ("hard_swish",), padding=2, dilation=2),
    paired((1, 2, 9, 40, 50), (50, 3, 3, 3), biased=(False, True), padding=1),
    paired((0, 3, 5, 5), (4, 3, 3)),
    paired(odd(1, 3, 9, 8), (7, 3, 3), padding=1, stride=2),
    paired(odd(2, 3, 30), (16, 3), ("clamp", 0.0, 6.0), ("silu",), padding=1),
    paired(rand(1, 7, 9, 3).permute(0, 3, 1, 2), (20, 3, 3), padding=1),
    paired(rand(2, 1, 14).expand(2, 3, 14), (7, 3), padding=1),
    *(
        paired((1, 3, 9, 8), (7, 3, 3), *both, padding=1)
        for ending in _ENDINGS
        for both in ((ending, ("identity",)), (("identity",), ending), (ending, ending))
    ),
)  # fmt: skip

INT8 = tuple(
    by_int8(case)
    for case in (*CONVOLUTION, *TRANSPOSED, *ENDED[:20], *PAIRED)
    if case.arguments[0].dtype is torch.float32
)

CASES = (*CONVOLUTION, *TRANSPOSED, *ENDED, *PAIRED, *INT8)
