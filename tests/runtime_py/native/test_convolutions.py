"""Convolutions of random sizes: equal to eager, with the same bits however computed."""

import random
from collections.abc import Iterator

import pytest
import torch
from daily import every
from native_calls import native_graph, run_native
from op_cases import Case
from op_cases.case import rand, restart
from op_cases.convolving import (
    CASES,
    by_int8,
    convolution,
    ended,
    paired,
    transposed,
)
from torch import Tensor

from kvc.runtime.native.library import find_library
from kvc.schema.ops import OPS
from kvc.schema.ops.spec import ShapeMismatch

ENDINGS = ("identity", "silu", "gelu", "gelu_tanh", "sigmoid", "hard_swish")


@pytest.fixture
def processors() -> Iterator[tuple[str, ...]]:
    """Return the instruction sets that this processor has; use the same one again."""
    library = find_library()
    kept = library.processor
    yield library.processors
    library.use(kept)


def results(case: Case, expected: Tensor, threads: int) -> Tensor:
    built = native_graph(case, (expected,))
    assert built is not None
    (found,) = run_native(*built, (expected,), threads)
    return found


def check(case: Case, processors: tuple[str, ...]) -> None:
    """Compare with eager; bits by threads, and by instruction sets but the least."""
    with torch.inference_mode():
        (expected,) = case.eager()
    finite = expected[expected.isfinite()].abs()
    atol = 2e-5 * max(1, float(finite.max())) if finite.numel() else 0
    found = {}
    for name in processors:
        find_library().use(name)
        one, two, three = (results(case, expected, threads) for threads in (1, 2, 3))
        assert all(same_bits(one, other) for other in (two, three)), name
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=atol, equal_nan=True)
        found[name] = one
    alike = [one for name, one in found.items() if name != "portable"]
    assert all(same_bits(alike[0], other) for other in alike)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether numbers are equal, zeros with their signs, and NaNs lie alike."""
    a, b = (torch.where(each.isnan(), torch.nan, each) for each in (a, b))
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


class Dice:
    """Draws convolutions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        restart(seed)
        self.rank = self.one_of(1, 1, 2, 2, 2, 3)
        if self.one_of(False, True):  # each channel alone
            self.groups, self.inputs = self.one_of(1, 3, 8, 16, 37), 1
            self.outputs = self.one_of(1, 1, 2)
        else:
            self.groups, self.inputs = self.one_of(1, 1, 2, 3), self.one_of(1, 2, 5, 40)
            self.outputs = self.one_of(1, 3, 8, 17)
        self.kernel = self.each(1, 1, 2, 3, 5)
        self.options = {
            "stride": self.each(1, 1, 2, 3),
            "padding": self.each(0, 0, 1, 2, 4),
            "dilation": self.each(1, 1, 2, 3),
            "groups": self.groups,
        }
        sizes = (1, 4, 7, 14, 33, 60) if self.rank < 3 else (1, 4, 7, 9)
        channels = self.inputs * self.groups
        x = rand(self.one_of(1, 1, 2, 3), channels, *self.each(*sizes))
        self.x = self.spread(x)

    def one_of(self, *values):
        return self._random.choice(values)

    def each(self, *values: int) -> tuple[int, ...]:
        return tuple(self.one_of(*values) for _ in range(self.rank))

    def spread(self, x: Tensor) -> Tensor:
        """Return x as it is, or with its elements elsewhere."""
        way = self.one_of("plain", "plain", "apart", "channels last", "repeated")
        if way == "apart":
            return torch.stack((x, x), -1)[..., 0]
        if way == "channels last":
            return x.movedim(1, -1).contiguous().movedim(-1, 1)
        return x[..., :1].expand_as(x) if way == "repeated" else x

    def ordinary(self) -> Case:
        """Return a convolution, half of the time one that ends with a function."""
        outputs, biased = self.outputs * self.groups, self.one_of(False, True)
        kernel = (outputs, self.inputs, *self.kernel)
        case = convolution(self.x, kernel, biased, **self.options)
        if self.one_of(False, True) or not fits(case):
            return case
        return ended(case, self.one_of(*ENDINGS), residual=self.one_of(False, True))

    def transposed(self) -> Case:
        inputs = self.inputs * self.groups
        kernel, biased = (inputs, self.outputs, *self.kernel), self.one_of(False, True)
        steps = zip(self.options["stride"], self.options["dilation"], strict=True)
        extra = tuple(self.one_of(0, 0, 1) if max(each) > 1 else 0 for each in steps)
        return transposed(self.x, kernel, biased, extra=extra, **self.options)

    def pair(self) -> Case:
        """Return a convolution of single elements and the one of planes after it."""
        channels = self.one_of(1, 7, 16, 20, 50)
        settings = {n: each for n, each in self.options.items() if n != "groups"}
        ends = ((self.one_of(*ENDINGS),), ("clamp", self.one_of(None, 0.0), 6.0))
        first, second = self.one_of(*ends), self.one_of(*ends)
        biased = self.one_of(False, True), self.one_of(False, True)
        kernel = (channels, *self.kernel)
        return paired(self.x, kernel, first, second, biased, **settings)


def fits(case: Case) -> bool:
    try:
        OPS[case.op].rule(*case.types())
    except ShapeMismatch:
        return False
    return True


@every(20, "seed")
@pytest.mark.parametrize("seed", [*range(400)])
def test_random_convolutions_equal_eager_with_the_same_bits(processors, seed: int):
    for number in range(4):
        dice = Dice(4 * seed + number)
        for case in (dice.ordinary(), dice.transposed(), dice.pair()):
            if fits(case):
                check(case, processors)


@every(20, "seed")
@pytest.mark.parametrize("seed", [*range(400)])
def test_int8_weights_give_the_bits_of_these_weights_as_floats(processors, seed: int):
    for number in range(4):
        dice = Dice(4 * seed + number)
        for case in (dice.ordinary(), dice.transposed(), dice.pair()):
            if fits(case):
                check_int8(by_int8(case), case, processors)


def check_int8(case: Case, floats: Case, processors: tuple[str, ...]) -> None:
    """Compare with eager, and the bits with those of a case over float weights."""
    check(case, processors)
    x, weight, scale, *rest = case.arguments
    if case.op == "kvc::conv_transpose_w8":
        parts = (rest[4], len(weight) // rest[4], *weight.shape[1:])
        by_group = scale.view(rest[4], 1, -1, *[1] * len(parts[3:]))
        widened = (weight.view(parts) * by_group).view(weight.shape)
    else:
        widened = weight * scale.view(-1, *[1] * (weight.dim() - 1))
    if floats.op == "aten::convolution":
        floats = ended(floats, "identity")
    same = Case(floats.op, (x, widened, *rest))
    (expected,) = same.eager()
    for name in processors:
        find_library().use(name)
        one, other = (results(each, expected, 1) for each in (case, same))
        assert same_bits(one, other), name


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("make", [convolution, transposed])
def test_a_bad_scale_makes_one_channel_bad(each_processor, make, number):
    case = by_int8(make((1, 40, 9), (40, 40, 3)))
    case.arguments[1][:] = torch.where(case.arguments[1] == 0, 1, case.arguments[1])
    case.arguments[2][7] = number
    (expected,) = case.eager()
    found = results(case, expected, 2)
    assert not found[:, 7].isfinite().any()
    others = [channel for channel in range(40) if channel != 7]
    torch.testing.assert_close(
        found[:, others], expected[:, others], rtol=1e-4, atol=1e-4
    )


@every(12, "case")
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.arguments[0].dtype is torch.float32]
)
def test_bits_depend_on_neither_threads_nor_instruction_sets(processors, case: Case):
    check(case, processors)


# Sizes at which outputs are packed in different ways: x, kernel and options.
EDGES = [
    ((2, 40, 7, 7), (17, 40, 1, 1), {}),  # one more than registers hold
    ((1, 30, 14, 14), (34, 15, 1, 1), {"groups": 2}),  # four more
    ((1, 9, 4, 5), (8, 9, 1, 1), {}),
    ((3, 5, 17), (6, 5, 1), {}),
    ((1, 200, 16), (9, 200, 1), {}),
    ((1, 16, 3, 400), (20, 16, 1, 1), {}),  # panels of few rows
    ((2, 20, 9, 64), (12, 20, 3, 3), {"padding": 1}),
    ((1, 6, 50, 30), (10, 3, 3, 3), {"padding": (0, 2), "dilation": 2, "groups": 2}),
    ((1, 3, 45, 51), (10, 3, 3, 3), {"padding": 1, "stride": 2}),
    ((1, 4, 20, 33), (5, 4, 3, 5), {"padding": 2, "stride": (1, 3)}),
    ((1, 2, 300), (3, 2, 128), {"padding": 5}),  # the most taps of a copy
    ((1, 2, 300), (3, 2, 129), {"padding": 5}),
    ((1, 2, 5, 9, 40), (4, 2, 3, 3, 3), {"padding": 1}),  # across planes
    ((1, 3, 9, 30, 40), (4, 3, 2, 3, 3), {"padding": 1, "stride": (2, 1, 1)}),
]


@pytest.mark.parametrize(("x", "kernel", "options"), EDGES)
@pytest.mark.parametrize("residual", [False, True])
def test_edges_equal_eager_with_the_same_bits(processors, x, kernel, options, residual):
    plain = convolution(x, kernel, True, **options)
    check(ended(plain, "silu", residual=residual), processors)


@pytest.mark.parametrize(("x", "kernel", "options"), EDGES)
def test_nan_and_infinity_spread_as_in_eager(processors, x, kernel, options):
    case = convolution(x, kernel, True, **options)
    flat = case.arguments[0].view(-1)
    flat[0], flat[-1], flat[len(flat) // 2] = torch.nan, torch.inf, torch.nan
    check(case, processors)


FAR = 2**30  # as a padding, or between taps


@pytest.mark.parametrize("channels", [1, 3, 20])
@pytest.mark.parametrize("size", [(9,), (5, 7), (3, 4, 5)])
@pytest.mark.parametrize("groups", ["one", "each"])
def test_taps_far_away_read_zeros(each_processor, size, channels, groups):
    count = channels if groups == "each" else 1
    x, rank = torch.randn(2, channels, *size), len(size)
    kernel = (2 * channels, channels // count, *[3] * rank)
    case = convolution(x, kernel, True, padding=FAR, dilation=FAR, groups=count)
    near = (x, case.arguments[1][(..., *[slice(1, 2)] * rank)], case.arguments[2])
    settings = ((1,) * rank, (0,) * rank, (1,) * rank, count)
    (expected,) = Case("aten::convolution", (*near, *settings)).eager()
    torch.testing.assert_close(
        results(case, expected, 2), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("groups", [1, 4])
def test_outputs_far_away_are_the_bias(each_processor, groups):
    options = {"padding": FAR, "stride": 2 * FAR - 1, "groups": groups}
    case = convolution((1, 4, 5, 5), (4, 4 // groups, 3, 3), True, **options)
    expected = case.arguments[2].view(1, 4, 1, 1).expand(1, 4, 2, 2).clone()
    assert torch.equal(results(case, expected, 2), expected)


def test_a_transposed_convolution_takes_the_longest_steps(each_processor):
    options = {"stride": 2 * FAR - 1, "dilation": 2 * FAR - 1}
    far = transposed((1, 3, 1, 1), (3, 2, 1, 1), True, **options)
    x, w, bias, *_ = far.arguments
    ones, zeros = (1, 1), (0, 0)
    near = Case(far.op, (x, w, bias, ones, zeros, zeros, 1, ones))
    (expected,) = near.eager()
    torch.testing.assert_close(results(far, expected, 2), expected)
