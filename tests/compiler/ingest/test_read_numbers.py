"""Numbers read from tensors, `.item()`: what a method that uses them is imported as."""

from functools import cache

import pytest
import torch
from interpreter import interpret
from torch import nn

from kvc.compiler import Method
from kvc.compiler.ingest import import_program
from kvc.compiler.ir.text import argument_text
from kvc.compiler.passes.redundancies import DropDeadCode
from kvc.compiler.trace import capture
from kvc.schema.errors import CaptureError, UnsupportedOps

K, AT = torch.arange(48.0).reshape(2, 8, 3) - 20, torch.tensor([5, 2])


class Calls(nn.Module):
    """A method that makes something of a cache [2, 8, 3] and two places."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def step(self, k, i):
        return self.function(k, i)


@cache
def imported(function):
    model = Calls(function)
    captured = capture(model, Method("step", args=(K, AT)))
    return DropDeadCode().run(import_program(model, (captured,)))


def lines(function):
    """Return the nodes as text, without types."""
    (method,) = imported(function).methods
    return [
        f"{n.op.partition('::')[2]}({', '.join(map(argument_text, n.arguments))})"
        for n in method.nodes
    ]


def place(k, i, least=0, most=6):
    """Return the second place, with its bounds."""
    p = i[1].item()
    torch._check(p >= least)
    torch._check(p <= most)
    return p


def sliced(k, i):
    p = place(k, i)
    return k[:, p : p + 2] * 2


def one(k, i):
    return k[:, place(k, i)] * 2


def one_from_the_back(k, i):
    return k[:, i[1].item()] * 2


def narrowed(k, i):
    return k.narrow(1, i[1].item(), 3) * 2


def counted(k, i):
    p = i[1].item()
    return torch.arange(p + 1, p + 5)


def arithmetic(k, i):
    p = i[1].item()
    return k * (3 * p - 1) + p // 2 - p % 3


def number_first(k, i):
    p = i[1].item()
    return p - k, p < k, p / (k + 50), p * i


def beside_integers(k, i):
    p = i[1].item()
    small = i.to(torch.int32)
    limited = small.clamp(max=p), small.clamp(-1, p), small.clamp(min=p)
    more = small[0] + p, i / p, (i > 3) * p
    return small + p, small // (p + 9), small == p, *more, *limited


def filled(k, i):
    p = i[1].item()
    full = torch.full((2, 3), p), torch.full((), p + 1), torch.tensor(p + 2)
    return *full, k.new_full((2,), p), torch.full_like(k, p)


def floats(k, i):
    f = k[0, 0, 1].item()
    return k * f, k * (f * 0.13 - 0.25), i * f, torch.full((2,), f)


def from_one_element(k, i):
    return k + i[:1].item() + i.to(torch.int32)[1].item()


def of_a_half(k, i):
    half = k.to(torch.bfloat16)
    return k * half[1, 1, 1].item(), half[0, 0, 0] * k[0, 0, 1].item()


def two_reads(k, i):
    a, b = i.tolist()
    torch._check(b >= 0)
    torch._check(b + 2 <= 8)
    return k[:, b : b + 2] + a - b


READS = (
    sliced, one, one_from_the_back, narrowed, counted, arithmetic, number_first,
    beside_integers, filled, floats, from_one_element, of_a_half, two_reads,
)  # fmt: skip


@pytest.mark.parametrize("function", READS)
@pytest.mark.parametrize("places", [(5, 2), (-1, 0), (3, 5), (0, 1)])
def test_a_read_number_does_as_eager_does(function, places):
    places = torch.tensor(places)
    (method,) = imported(function).methods
    got = interpret(method, [K, places], {})[0]
    expected = function(K, places)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_slice_at_a_read_number_is_read_at_an_index():
    assert lines(sliced) == [
        "select.int(%1, 0, 1)",
        "arange.start_step(0, 2, 1, int64)",
        "add.Tensor(%3, %2, 1)",
        "index_select(%0, 1, %4)",
        "mul.Scalar(%5, 2)",
    ]


def test_one_place_is_read_from_the_back_unless_that_is_ruled_out():
    assert "index_select(%0, 1, %3)" in lines(one)
    assert "index.Tensor(%0, [None, %2])" in lines(one_from_the_back)


def write(k, x, i):
    """Write a slice whose end is another number than its start plus the length."""
    start, end = i[0].item(), i[1].item()
    copy = k.clone()
    torch.ops.aten.slice(copy, 1, start, end).copy_(x)
    return copy


def between_two_reads(k, i):
    return write(k, k[:, :2] * 0, i)


def test_a_slice_between_two_read_numbers_is_checked():
    checks = [line for line in lines(between_two_reads) if "check_index" in line]
    assert [line.partition(", ")[2] for line in checks] == ["0, 0, 0)"]


def longer(k, i):
    return k[:, : i[0].item()].sum()


def places_of_it(k, i):
    return k[:, torch.arange(i[0].item())]


def ones(k, i):
    return torch.ones(i[0].item())


def power(k, i):
    return k ** i[0].item()


def rounded(k, i):
    return k * round(i[0].item() / 3, 1)


def truth(k, i):
    return torch.full((2,), i[0].item() > 3)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (longer, r"a size that depends on values; attend .*valid_length"),
        (places_of_it, "a size that depends on values"),
        (ones, "a size that depends on values"),
        (power, "a number that depends on values, where only a fixed one is allowed"),
        (rounded, "computed from a size or from values by more than"),
        (truth, "a condition on sizes or values"),
    ],
)
def test_what_a_read_number_cannot_do_is_refused(function, reason):
    with pytest.raises(UnsupportedOps, match=reason):
        imported(function)


def branches(k, i):
    return k * 2 if i[0].item() > 3 else k


def whole_number(k, i):
    return k[:, int(i[0])]


@pytest.mark.parametrize("function", [branches, whole_number])
def test_python_that_asks_for_the_number_is_refused_with_advice(function):
    with pytest.raises(CaptureError, match=r"use torch.where, and for the position"):
        imported(function)
