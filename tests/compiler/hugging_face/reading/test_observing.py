"""What is known of a run without the weights, and where it meets them."""

import pytest
import torch
from torch._subclasses import FakeTensor
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.nn.functional import embedding

from kvc.compiler.hugging_face.reading.observing import observed


class Tables(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8, 3))
        self.register_buffer("table", torch.arange(8.0), persistent=False)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("stored", torch.arange(8.0))

    def positions(self, places):
        return embedding(places * 2, self.weight)

    def table_after_weights(self, places):
        mixed = torch.zeros(2)
        mixed[:1] = self.weight[0, 0]
        return self.table[places] * mixed

    def stored_table(self, places):
        return self.stored[places]

    def counting(self, places):
        self.calls += 1
        self.calls.mul_(2)
        return self.weight[0] * self.calls


def run(method, *values):
    """Return what a method of `Tables` gives, and which values met its weight."""
    model = Tables()
    with observed(model) as meetings:
        made = getattr(model, method)(*values)
    return model, made, [(m.op, m.value.tolist()) for m in meetings]


def test_what_is_known_is_computed_until_it_meets_a_weight():
    _, made, meetings = run("positions", torch.tensor([1, 3]))
    assert meetings == [("aten::embedding", [2, 6])]
    assert isinstance(made, FakeTensor)
    assert made.shape == (2, 3)


def test_a_buffer_that_a_checkpoint_has_is_unknown():
    _, made, meetings = run("stored_table", torch.tensor([1, 3]))
    assert meetings == [("aten::index", [1, 3])]
    assert isinstance(made, FakeTensor)


def test_a_tensor_that_a_weight_is_written_into_is_unknown():
    _, made, meetings = run("table_after_weights", torch.tensor([5, 6]))
    assert isinstance(made, FakeTensor)
    assert meetings[-1] == ("aten::mul", [5.0, 6.0])


def test_buffers_stay_as_they_are_and_are_unknown_once_they_are_written():
    model, made, meetings = run("counting", torch.tensor([0]))
    assert model.calls == 0
    assert isinstance(made, FakeTensor)
    assert meetings == [("aten::add_", 0.0)]


def test_a_value_that_is_changed_later_is_noted_as_it_was():
    model, places = Tables(), torch.tensor([1, 3])
    with observed(model) as meetings:
        embedding(places, model.weight)
        places += 1
    assert places.tolist() == [2, 4]
    assert meetings[0].value.tolist() == [1, 3]


def test_values_of_weights_are_not_read():
    model, refused = Tables(), pytest.raises(DataDependentOutputException)
    with observed(model), refused:
        model.weight.sum().item()
