import pytest
import torch
from small_models import Branches
from torch import nn

from kvc.compiler import Dim, Method
from kvc.compiler.trace import capture
from kvc.schema.errors import CaptureError

T = torch.ones(1, 4)
SEQ = {1: Dim("seq", 1, 8)}


@pytest.mark.parametrize("name", ["one", "more_than_one"])
def test_a_branch_on_a_size_that_a_call_may_have_is_refused(name):
    method = Method(name, (T,), dynamic={"t": SEQ})
    with pytest.raises(CaptureError, match="asks about a size"):
        capture(Branches(), method)


def test_a_branch_on_two_dims_being_equal_is_refused():
    dynamic = {"t": SEQ, "u": {1: Dim("other", 1, 8)}}
    with pytest.raises(CaptureError, match="asks about a size"):
        capture(Branches(), Method("equal", (T, torch.ones(1, 5)), dynamic=dynamic))


def test_a_branch_that_no_declared_size_leaves_is_taken():
    captured = capture(Branches(), Method("any_size", (T,), dynamic={"t": SEQ}))
    assert captured.exported is not None


def test_a_branch_outside_of_the_bounds_is_taken():
    larger = {1: Dim("seq", 2, 8)}
    assert capture(Branches(), Method("one", (T,), dynamic={"t": larger}))


class Empty(nn.Module):
    """Asks whether there is anything, in several words."""

    def equal(self, t):
        return t * 3 if t.shape[1] == 0 else t

    def reversed(self, t):
        return t * 3 if 0 == t.shape[1] else t  # noqa: SIM300

    def unequal(self, t):
        return t if t.shape[1] != 0 else t * 3

    def more(self, t):
        return t if t.shape[1] > 0 else t * 3

    def least(self, t):
        return t if t.shape[1] >= 1 else t * 3

    def less(self, t):
        return t * 3 if t.shape[1] < 1 else t

    def most(self, t):
        return t * 3 if t.shape[1] <= 0 else t

    def truth(self, t):
        return t if t.shape[1] else t * 3

    def elements(self, t):
        return t if t.numel() == 0 else t * 3


EMPTY = [name for name in vars(Empty) if not name.startswith("_")]


@pytest.mark.parametrize("name", EMPTY)
def test_a_question_whether_there_is_anything_is_refused(name):
    method = Method(name, (T,), dynamic={"t": {1: Dim("past", 0, 8)}})
    line = getattr(Empty, name).__code__.co_firstlineno + 1
    with pytest.raises(
        CaptureError, match=f"test_shape_guards:{line}: .* past = 0 than"
    ):
        capture(Empty(), method)


@pytest.mark.parametrize("name", EMPTY)
def test_a_question_whether_there_is_anything_is_fine_where_there_is(name):
    captured = capture(Empty(), Method(name, (T,), dynamic={"t": SEQ}))
    assert captured.exported is not None


def test_torch_compares_sizes_itself_again_afterwards():
    before = torch.SymInt.__eq__
    capture(Branches(), Method("any_size", (T,), dynamic={"t": SEQ}))
    assert torch.SymInt.__eq__ is before


class Difference(nn.Module):
    """Asks for a difference that is 0 whatever the size, as mask code does."""

    def forward(self, t):
        return t * 3 if t.shape[1] - torch.ones(1, t.shape[1]).shape[1] > 0 else t


def test_a_question_that_has_lost_its_size_is_answered():
    method = Method("forward", (T,), dynamic={"t": SEQ})
    assert capture(Difference(), method).exported is not None


class InBodies(nn.Module):
    """Asks in the body of a branch."""

    def one(self, p, t):
        def body(t):
            return t * 5 if t.shape[1] == 1 else t * 2

        return torch.cond(p, body, lambda t: t + 1, (t,))


def test_a_question_in_a_body_is_noted():
    given = (torch.tensor(True), torch.ones(1, 4))
    with pytest.raises(CaptureError, match="in a branch or loop: the code asks"):
        capture(InBodies(), Method("one", given, dynamic={"t": SEQ}))
    larger = {1: Dim("seq", 2, 8)}
    assert capture(InBodies(), Method("one", given, dynamic={"t": larger}))


LAYERS = [
    (nn.BatchNorm1d(3, track_running_stats=False), torch.ones(4, 3), 0),
    (nn.GroupNorm(3, 3), torch.ones(4, 3), 0),
    (nn.InstanceNorm1d(3), torch.ones(2, 3, 4), 2),
]


@pytest.mark.parametrize(("layer", "example", "axis"), LAYERS, ids=str)
def test_a_size_for_which_torch_raises_is_refused(layer, example, axis):
    """The statistics of one value would make zeros of it."""

    def method(least):
        dynamic = {"input": {axis: Dim("n", least, 8)}}
        return Method("forward", (example,), dynamic=dynamic)

    with pytest.raises(ValueError, match="Expected more than 1"):
        layer.eval()(example.narrow(axis, 0, 1))
    with pytest.raises(CaptureError, match="another way for n = 1"):
        capture(layer, method(1))
    assert capture(layer, method(2))
