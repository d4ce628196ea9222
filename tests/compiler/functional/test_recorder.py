"""What operators do that are neither plain views nor plain writes."""

import pytest
import torch
from eager_parity import run_both
from module_outcomes import Applied, outcome
from torch import Tensor
from torch.nn import functional

from kvc.compiler import Dim, Method, compile_program
from kvc.schema.errors import CaptureError, UnsupportedOps

X = torch.arange(12.0).sin().reshape(3, 4)


def cast_by_torch(x: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = x @ x.t()
        low.add_(1)
        with torch.autocast("cpu", enabled=False):
            full = x @ x.t()
    return [low, full]


def cast_in_a_branch(x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        held = torch.cond(
            x.sum() > 0, lambda x: x @ x.t(), lambda x: x[:, :3] * 1, (x,)
        )
    other = torch.cond(x.sum() < 0, lambda x: x * 2, lambda x: x * 3, (x,))
    return held @ other


def made_into_others(x: Tensor) -> list[Tensor]:
    made, filled, power = torch.empty(4), torch.empty(2), torch.empty(0)
    torch.arange(4, out=made)
    torch.full((2,), 3.0, out=filled)
    torch.pow(2, x, out=power)
    return [made, filled, power]


def several_out(x: Tensor) -> list[Tensor]:
    values, places = torch.empty(3), torch.empty(3, dtype=torch.int64)
    torch.max(x, 1, out=(values, places))
    total = torch.empty((), dtype=torch.float64)
    torch.sum(x, (0, 1), out=total)
    return [values, places, total]


def shuffled(x: Tensor) -> list[Tensor]:
    held = x * 1
    made = functional.channel_shuffle(held[None, :, :, None], 1)
    made[0, 0, 0, 0] = 50
    held.zero_()
    return [made, held]


def turned_in_place(x: Tensor) -> list[Tensor]:
    held = x * 1
    rows = held[1:]
    rows.t_().unsqueeze_(0).squeeze_()[1] = 5
    return [held, rows]


def repeated(x: Tensor) -> Tensor:
    held = x * 1
    held[0].expand(2, 4).zero_()
    return held


def given_other_sizes(x: Tensor) -> list[Tensor]:
    held = x * 1
    row = held[1]
    row.resize_(2, 2)[0] = 5
    other = held[2].resize_(1, 4, 1)
    other.mul_(2)
    return [held, row, other]


CASES = [
    given_other_sizes,
    cast_by_torch,
    cast_in_a_branch,
    made_into_others,
    several_out,
    shuffled,
]
CASES += [turned_in_place, repeated]


@pytest.mark.parametrize("code", CASES)
def test_it_equals_eager(code, tmp_path):
    found = outcome(Applied(code), (X,), {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def every_second(x: Tensor) -> list[Tensor]:
    held = x * 1
    held[1::2] = 5
    held[1 : x.shape[0] : 3].add_(1)
    return [held, held[:1]]


def into_nothing(x: Tensor) -> list[Tensor]:
    made, part = torch.empty(0), torch.empty(0)
    torch.exp(x, out=made)
    torch.cat([x, x], 1, out=part)
    part[0].zero_()
    return [made, part]


def test_what_is_given_a_size_may_be_dynamic(tmp_path):
    method = Method("forward", (X,), dynamic={"x": {0: Dim("n", 1, 6)}})
    calls = [("forward", (torch.ones(n, 4),)) for n in (3, 1, 6)]
    run_both(Applied(into_nothing), [method], calls, tmp_path)


def test_a_step_may_leave_nothing(tmp_path):
    method = Method("forward", (X,), dynamic={"x": {0: Dim("n", 1, 6)}})
    calls = [("forward", (torch.ones(n, 4),)) for n in (3, 1, 2, 6)]
    run_both(Applied(every_second), [method], calls, tmp_path)


@pytest.mark.parametrize(
    "code", [lambda x: x.squeeze() * 1, lambda x: (x * 1).squeeze_().add_(1)]
)
def test_axes_that_are_dropped_at_some_sizes_are_refused(code):
    method = Method("forward", (X,), dynamic={"x": {0: Dim("n", 1, 6)}})
    with pytest.raises(CaptureError, match="n = 1"):
        compile_program(Applied(code), [method])


def into_a_sum(x: Tensor) -> list[Tensor]:
    made = x.sum_to_size(1, 4)
    made.add_(1)
    return [x * 1, made]


def with_other_data(x: Tensor) -> Tensor:
    made = x * 1
    made.data = x * 3
    return made


def conjugated(x: Tensor) -> Tensor:
    held = torch.complex(x, x)
    seen = held.conj()
    held.mul_(2)
    return torch.view_as_real(seen.resolve_conj())


def drawn(x: Tensor) -> Tensor:
    return (x * 1).normal_()


def drawn_as_bools(x: Tensor) -> Tensor:
    return (x * 1).bernoulli_(0.5)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (into_a_sum, "itself at some sizes"),
        (with_other_data, r"\.data"),
        (conjugated, "its conjugate"),
        (drawn, "random numbers"),
        (drawn_as_bools, "bernoulli"),
        (lambda x: x.unsqueeze_(0) * 1, "another shape in place"),
        (lambda x: (x * 1).resize_(9, 9), "more elements in place"),
    ],
)
def test_what_has_no_form_is_refused_in_words(code, told):
    method = Method("forward", (X,), dynamic={"x": {0: Dim("n", 1, 6)}})
    if "resize" in told or "elements" in told:
        method = Method("forward", (X,))
    with pytest.raises((CaptureError, UnsupportedOps), match=told):
        compile_program(Applied(code), [method])
