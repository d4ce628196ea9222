"""Functions that capture replaces by others, against eager."""

import pytest
import torch
from eager_parity import run_both
from module_outcomes import Applied, outcome
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Dim, Method, compile_program
from kvc.schema.errors import CaptureError

X = torch.arange(12.0).reshape(3, 4).sin()


def _polygamma_in_place(x):
    held = x * 2 + 3
    held.t().polygamma_(1)
    return held


def test_polygamma_writes_over_what_it_is_given(tmp_path):
    given = (X,)
    found = outcome(Applied(_polygamma_in_place), given, {}, tmp_path / "a.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_nothing_is_taken_of_an_axis_from_where_a_tensor_says(tmp_path):
    def nothing(x):
        return x.narrow(1, (x > 0).sum() // 12, 0), torch.narrow(
            x, 0, x[0, 0].long(), 0
        )

    found = outcome(Applied(nothing), (X,), {}, tmp_path / "b.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def _narrowed(x):
    held = x + 1
    some = torch.narrow(held, 1, (x[0] > 0).sum() - 5, 2)  # 3 of 4 are: from the end
    taken = some * 2
    held.narrow(0, (x[0] > 0).sum() - 2, 2).mul_(9)
    return taken, held


def test_parts_of_an_axis_begin_where_a_tensor_says_and_are_written_through(tmp_path):
    assert int((X[0] > 0).sum()) == 3
    found = outcome(Applied(_narrowed), (X,), {}, tmp_path / "c.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def _written_copies(x):
    made = []
    for copied in (
        torch.permute_copy(x[None], (2, 0, 1)),
        torch.t_copy(x),
        torch.transpose_copy(x, 0, 1),
    ):
        copied.reshape(-1)[:5].zero_()
        made.append(copied * 2)
    return made


def test_copies_of_turned_views_are_in_order_and_written_as_such(tmp_path):
    found = outcome(Applied(_written_copies), (X,), {}, tmp_path / "d.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_copies_of_turned_views_have_other_views(tmp_path):
    def viewed(x):
        copies = torch.permute_copy(x, (1, 0)), torch.select_copy(x[None].mT, 0, 0)
        return [each.view(-1) for each in copies]

    found = outcome(Applied(viewed), (X,), {}, tmp_path / "f.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def _written_pieces(x):
    held = x + 1
    torch.unsafe_split(held, 3, dim=1)[0].zero_()
    held.unsafe_split_with_sizes([1, 2])[0].fill_(7)
    torch.unsafe_chunk(held, 3)[2].mul_(2)
    torch.ops.aten.unsafe_split(held, 1)[1].neg_()
    torch.ops.aten.unsafe_chunk.default(self=held, chunks=2, dim=1)[0].add_(1)
    return held


def test_writes_into_unsafe_pieces_go_through_as_in_torch(tmp_path):
    found = outcome(Applied(_written_pieces), (X,), {}, tmp_path / "e.kvc")
    assert (found.kind, found.reason) == ("equal", "")


class Unsafe(nn.Module):
    """Writes into unsafe pieces of a size that only a call knows."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        held = x + 1
        torch.unsafe_chunk(held, 2)[0].mul_(3)
        first, *_ = held.unsafe_split(2, dim=0)
        return held, first.neg_()


def test_unsafe_pieces_may_be_of_dynamic_sizes(tmp_path):
    method = Method("forward", (X,), dynamic={"x": {0: Dim("rows", 3, 4)}})
    calls = [("forward", (torch.ones(rows, 4),)) for rows in (3, 4)]
    run_both(Unsafe(), [method], calls, tmp_path)


def test_a_dtype_is_converted_to_as_primitives_do(tmp_path):
    def convert(x):
        return torch.ops.prims.convert_element_type(x, torch.float64)

    found = outcome(Applied(convert), (X,), {}, tmp_path / "c.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_attention_gives_queries_the_axes_that_keys_have(tmp_path):
    attend = functional.scaled_dot_product_attention
    keys, values = torch.arange(96.0).reshape(2, 2, 2, 3, 4).cos()

    def attended(x):
        queries, grouped = x.expand(2, 3, 4), x.expand(4, 3, 4)
        mask = torch.ones(3, 3, dtype=torch.bool).tril()
        return (
            attend(queries, keys, values),
            attend(queries, key=keys, value=values, attn_mask=mask),
            attend(grouped, keys[0], values[0], enable_gqa=True),
        )

    found = outcome(Applied(attended), (X,), {}, tmp_path / "d.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_writes_into_windows_leave_what_lies_between_them(tmp_path):
    def windows(x):
        held, other = x.flatten() * 1, x * 2
        held.unfold(0, 2, 3).mul_(5)  # every third stays
        other.unfold(1, 2, 2)[0] += 1
        taken = other.unfold(-1, 1, 3)
        taken[:, 0] = 9
        return held, other, x.unfold(0, 2, 1)

    found = outcome(Applied(windows), (X,), {}, tmp_path / "f.kvc")
    assert (found.kind, found.reason) == ("equal", "")


def test_recurrent_layers_are_called_by_the_names_of_torch(tmp_path):
    layer = nn.GRU(4, 3)

    def called(x):
        weights = [one.detach() for one in layer.parameters()]
        return torch.gru(
            x[:, None], torch.zeros(1, 1, 3), weights, has_biases=True, num_layers=1,
            dropout=0.0, train=False, bidirectional=False, batch_first=False,
        )  # fmt: skip

    found = outcome(Applied(called), (X,), {}, tmp_path / "g.kvc")
    assert (found.kind, found.reason) == ("equal", "")


CASES = {
    "bartlett": lambda x: x * torch.bartlett_window(5),
    "blackman, symmetric": lambda x: x * torch.blackman_window(5, periodic=False),
    "hann": lambda x: (x * torch.hann_window(5), x[:1] * torch.hann_window(1)),
    "hann, symmetric, double": lambda x: (
        x * torch.hann_window(5, False, dtype=torch.float64)
    ),
    "hamming": lambda x: (
        x * torch.hamming_window(5),
        x * torch.hamming_window(5, True, alpha=0.5, beta=0.4),
        x[:1] * torch.hamming_window(1),
    ),
    "kaiser": lambda x: (
        x * torch.kaiser_window(5),
        x * torch.kaiser_window(5, False, beta=7.0),
    ),
    "none": lambda x: torch.cat([x, torch.hann_window(0), torch.hamming_window(0)]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_equals_eager(name, tmp_path):
    x = torch.arange(5.0) + 1

    found = outcome(Applied(CASES[name]), (x,), {}, tmp_path / "window.kvc")

    assert (found.kind, found.reason) == ("equal", "")


def test_a_window_of_a_dynamic_length_is_refused():
    model = Applied(lambda x: x * torch.hann_window(x.shape[0]))
    dynamic = {"x": {0: Dim("length", 2, 8)}}

    with pytest.raises(CaptureError, match="for all declared sizes"):
        compile_program(model, [Method("forward", (torch.ones(4),), dynamic=dynamic)])
