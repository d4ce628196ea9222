"""Tensors without axes where operators want one, against eager."""

import torch
from module_outcomes import outcome
from torch import nn

FIRST = torch.tensor(0)


class OfNumbers(nn.Module):
    """Operators along an axis, of a tensor that has none."""

    def forward(self, x, row, index):
        return (
            torch.topk(x, 1, -1),
            torch.topk(x, 0, 0),
            x.flip(-1),
            x.t() * 2,
            x.transpose(0, -1) * 2,
            torch.t_copy(x),
            torch.gather(x, 0, index[None]),
            torch.gather(row, 0, index),
            torch.gather(x, 0, index.expand(0)),
            torch.gather(row, 0, torch.zeros(0, dtype=torch.uint8)),
            torch.scatter(x, 0, index[None], row[1:2]),
            torch.index_fill(x, 0, index, 3.0),
            torch.take(x, index),
            torch.take(row, index - 1),
            torch.take(row, index.reshape(1, 1) - 2),
        )


def test_they_are_taken_for_rows_of_one(tmp_path):
    given = torch.tensor(2.5), torch.arange(3.0), FIRST
    found = outcome(OfNumbers(), given, {}, tmp_path / "numbers.kvc")
    assert (found.kind, found.reason) == ("equal", "")


class OneNumber(nn.Module):
    """Scatters one number, that adds or multiplies."""

    def forward(self, x, index):
        return [
            kind.scatter(0, index, 3, reduce=reduce)
            for kind in (x, x.long())
            for reduce in ("add", "multiply")
        ]


def test_one_number_is_added_or_multiplied_at_places(tmp_path):
    given = torch.arange(6.0).reshape(3, 2), torch.tensor([[2, 0], [2, 1]])
    found = outcome(OneNumber(), given, {}, tmp_path / "number.kvc")
    assert (found.kind, found.reason) == ("equal", "")
