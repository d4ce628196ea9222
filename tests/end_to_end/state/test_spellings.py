"""Every way to write a state: what it does in several calls, and whether it copies."""

from pathlib import Path

import pytest
import torch
from daily import every
from state_models import Write, Written
from state_runs import agree, opened
from torch import Tensor, nn

from kvc.compiler import Method
from kvc.schema.errors import KvcError

Model = nn.Module
ROWS = torch.arange(2)[:, None]


def _index_copy(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.index_copy_(1, at, x)


def _index_put(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.index_put_((ROWS, at[None]), x)


def _index_put_adding(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.index_put_((ROWS, at[None]), x, accumulate=True)


def _index_add(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.index_add_(1, at, x, alpha=2)


def _index_fill(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.index_fill_(1, at, 8.0)


def _slice_at_a_number(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[:, 2:4] = x


def _slice_with_a_step(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[:, 1::3] = x


def _slice_of_rows(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[1:, -2:] = x[:1]


def _at_tensor_positions(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[:, at] = x


def _at_an_item(m: Model, x: Tensor, at: Tensor) -> None:
    start = at[0].item()
    torch._check(start >= 0)
    torch._check(start + 2 <= 6)
    m.k[:, start : start + 2] = x


def _narrow_at_a_number(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.narrow(1, 3, 2).copy_(x)


def _narrow_at_an_item(m: Model, x: Tensor, at: Tensor) -> None:
    start = at[0].item()
    torch._check(start >= 0)
    torch._check(start + 2 <= 6)
    m.k.narrow(1, start, 2).copy_(x)


def _scatter(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.scatter_(1, at.expand(2, 2), x)


def _scatter_of_a_number(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.scatter_(1, at.expand(2, 2), 9.0)


def _scatter_add(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.scatter_add_(1, at.expand(2, 2), x)


def _select(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[:, 1] = x[:, 0]


def _select_a_row(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[-1] = x.sum()


def _whole_copy(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.copy_(x.repeat(1, 3))


def _through_a_flat_view(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.view(-1)[3:7].copy_(x.view(-1))


def _through_a_transposed_view(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.t()[2:4].copy_(x)


def _broadcast_copy(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.copy_(x[:, :1])


def _roll(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.copy_(m.k.roll(-1, 1))


def _shift_with_clone(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[:, :-2] = m.k[:, 2:].clone()
    m.k[:, -2:] = x


def _shift_by_cat(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.copy_(torch.cat([m.k, x], 1)[:, 2:])


def _counter(m: Model, x: Tensor, at: Tensor) -> None:
    m.count.add_(1)


def _counter_by_operator(m: Model, x: Tensor, at: Tensor) -> None:
    m.count += x.shape[1]


def _counter_says_where(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.index_copy_(1, m.count % 6, x[:, :1])
    m.count.add_(1)


def _add_on_a_slice(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[:, 1:3].add_(x)


def _multiply_a_row(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[0].mul_(-1)


def _multiply_a_row_by_operator(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[0] *= -1


def _add_on_a_slice_by_operator(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[:, 1:3] += x


def _add_on_all(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.add_(x.sum())


def _chained(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.index_copy_(1, at, x)
    m.k[:, 0] = 7
    m.k.add_(1)
    m.k[:, 2:4] = x * 2


def _masked_fill(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.masked_fill_(m.k < 0, 1.0)


def _fill_under_a_mask(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[m.k > 5] = -1.0


def _clamp(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.clamp_(min=-2.0)


def _zero(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.zero_()


def _fill(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[1].fill_(3.0)


def _fill_with_a_tensor(m: Model, x: Tensor, at: Tensor) -> None:
    m.k.fill_(x[0, 0])


def _swap_halves(m: Model, x: Tensor, at: Tensor) -> None:
    left = m.k[:, :3].clone()
    m.k[:, :3] = m.k[:, 3:]
    m.k[:, 3:] = left


def _one_slice_to_another(m: Model, x: Tensor, at: Tensor) -> None:
    m.k[:, 3:5] = m.k[:, 1:3]


IN_PLACE: list[Write] = [
    _index_copy,
    _index_put,
    _index_put_adding,
    _index_add,
    _index_fill,
    _slice_at_a_number,
    _slice_with_a_step,
    _slice_of_rows,
    _at_tensor_positions,
    _at_an_item,
    _narrow_at_a_number,
    _narrow_at_an_item,
    _scatter,
    _scatter_of_a_number,
    _scatter_add,
    _select,
    _select_a_row,
    _whole_copy,
    _through_a_flat_view,
    _through_a_transposed_view,
    _broadcast_copy,
    _counter,
    _counter_by_operator,
    _counter_says_where,
    _add_on_a_slice,
    _multiply_a_row,
    _multiply_a_row_by_operator,
    _add_on_a_slice_by_operator,
    _add_on_all,
    _chained,
    _masked_fill,
    _fill_under_a_mask,
    _clamp,
    _zero,
    _fill,
    _fill_with_a_tensor,
]
COPIES: list[Write] = [
    _roll,
    _shift_with_clone,
    _shift_by_cat,
    _swap_halves,
    _one_slice_to_another,
]

X = torch.tensor([[10.0, 20.0], [30.0, 40.0]])
PLACES = [torch.tensor(p) for p in ([0, 1], [4, 5], [2, 3], [3, 4])]
CALLS = [("step", X * (i + 1), at) for i, at in enumerate(PLACES)]


def _title(write: Write) -> str:
    return write.__name__.strip("_")


@every(2, "write")
@pytest.mark.parametrize("write", IN_PLACE + COPIES, ids=_title)
def test_a_spelling_does_in_each_call_what_eager_does(
    tmp_path: Path, write: Write
) -> None:
    step = Method("step", args=(X, PLACES[0]))
    with opened(Written(write), [step], tmp_path) as program:
        with program.session() as session:
            agree(session, Written(write), CALLS)
        with program.session() as session:
            agree(session, Written(write), CALLS[::-1])
        updates = program.methods["step"].updates
        assert updates
        copies = [update.reason for update in updates if update.reason]
        assert bool(copies) == (write in COPIES), copies
        assert all(bool(u.copies) == bool(u.reason) for u in updates)


@pytest.mark.parametrize(
    "write",
    [_index_copy, _index_put, _at_tensor_positions, _at_an_item, _narrow_at_an_item],
    ids=_title,
)
def test_a_write_outside_is_refused_and_changes_nothing(
    tmp_path: Path, write: Write
) -> None:
    step = Method("step", args=(X, PLACES[0]))
    with (
        opened(Written(write), [step], tmp_path) as program,
        program.session() as session,
    ):
        for far in ([6, 7], [5, 6], [-9, -8]):
            with pytest.raises(KvcError):
                session.step(X, torch.tensor(far))
            assert session.state["k"].tolist() == Written(write).k.tolist()
        agree(session, Written(write), CALLS)


@pytest.mark.parametrize("write", [_index_put, _at_tensor_positions], ids=_title)
def test_a_place_may_be_counted_from_the_end(tmp_path: Path, write: Write) -> None:
    step = Method("step", args=(X, PLACES[0]))
    with (
        opened(Written(write), [step], tmp_path) as program,
        program.session() as session,
    ):
        calls = [("step", X, torch.tensor([-1, -6])), ("step", X, PLACES[1])]
        agree(session, Written(write), calls)
