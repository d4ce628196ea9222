import copy

import pytest
import torch
from eager_parity import run_both
from small_models import Accumulator, IndexCopyCache, OverlappingBuffers, Reassigns
from torch import nn
from torch.fx.proxy import TracerBase

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.trace import capture
from kvc.compiler.trace.sources import lines_kept
from kvc.schema.errors import CaptureError, StateConflict

ROWS, SLOTS = torch.ones(1, 2, 4), torch.tensor([1, 2])
PREFILL = Method("prefill", args=(ROWS, SLOTS))


class Awkward(nn.Module):
    """Methods that cannot be captured, each for its own reason."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(2))

    def many(self, *args):
        return args[0]

    def branches(self, x):
        return x + 1 if x.sum() > 0 else x

    def fails(self, x):
        self.k = x
        raise RuntimeError("one thing\n\n    and another\n")

    def adds_buffer(self, x):
        self.register_buffer("late", torch.zeros(2))
        return x + self.late


def refusal(model, name, *args):
    with pytest.raises(CaptureError) as caught:
        capture(model, Method(name, args=args))
    return str(caught.value)


def snapshot(model):
    tensors = {**model._parameters, **model._buffers}
    return {name: (id(t), t.tolist()) for name, t in tensors.items()}, set(vars(model))


def test_a_method_of_any_name_is_captured_with_its_own_names():
    captured = capture(IndexCopyCache(), PREFILL)
    assert list(captured.arguments) == ["rows", "slots"]
    assert "cache" in captured.exported.graph_signature.buffers


def test_no_such_method_is_refused():
    assert "Awkward has no method of this name" in refusal(Awkward(), "nothing")


def test_star_arguments_are_refused():
    assert "takes *args; name its parameters" in refusal(Awkward(), "many", ROWS)


def test_too_many_examples_are_refused():
    assert "args has 2 examples; its" in refusal(Awkward(), "branches", ROWS, ROWS)


def test_a_reassigned_buffer_is_refused_with_the_remedy():
    message = refusal(Reassigns(), "step", torch.ones(1, 2))
    assert "the buffer 'k' a tensor of another shape or dtype" in message
    assert "index_copy_" in message
    assert "Method(carry=...)" in message


def test_a_failure_of_torch_is_one_paragraph():
    message = refusal(Awkward(), "branches", torch.ones(2))
    assert message.startswith("cannot capture method branches at ")
    assert ": it asks for the value" in message
    assert "\n" not in message


def test_an_error_in_the_users_code_is_one_paragraph():
    message = refusal(Awkward(), "fails", torch.ones(2))
    assert "one thing and another" in message
    assert "\n" not in message


def test_overlapping_buffers_are_refused_by_both_names():
    with pytest.raises(StateConflict, match=r"shares memory with '(head|tail)'"):
        compile_program(OverlappingBuffers(), [Method("step", args=(torch.ones(6),))])


def test_capture_leaves_the_model_as_it_was():
    model = IndexCopyCache()
    before = snapshot(model)
    capture(model, PREFILL)
    assert snapshot(model) == before
    assert "forward" not in vars(model)


@pytest.mark.parametrize("name", ["branches", "fails", "adds_buffer", "many"])
def test_a_failed_capture_leaves_the_model_as_it_was(name):
    model = Awkward()
    before = snapshot(model)
    refusal(model, name, torch.ones(2))
    assert snapshot(model) == before


def test_a_forward_of_the_instances_own_survives():
    model = Accumulator()
    own = model.forward = lambda x: x
    capture(model, Method("add", args=(torch.ones(3),)))
    assert model.forward is own


def test_capture_runs_nothing_on_the_real_state():
    model = Accumulator()
    capture(model, Method("add", args=(torch.ones(3),)))
    assert model.total.tolist() == [1, 1, 1]


def test_capturing_twice_gives_the_same_graph():
    model = IndexCopyCache()
    first, second = capture(model, PREFILL), capture(copy.deepcopy(model), PREFILL)
    assert str(first.exported.graph) == str(second.exported.graph)


def test_torch_gets_its_own_rule_for_lines_back():
    before = TracerBase._filter_traceback_frames
    with lines_kept():
        assert TracerBase._filter_traceback_frames is not before
    assert TracerBase._filter_traceback_frames is before


def test_examples_that_no_longer_fit_each_other_are_said_to_be_longer():
    class Masked(nn.Module):
        def step(self, past, x, mask):
            return (torch.cat([past, x], 1) * mask).sum(1)

    args = (torch.zeros(1, 0, 4), torch.ones(1, 3, 4), torch.ones(1, 3, 4))
    dynamic = {"past": {1: Dim("past", 0, 8)}, "mask": {1: Dim("total", 1, 16)}}
    with pytest.raises(CaptureError) as caught:
        capture(Masked(), Method("step", args, dynamic=dynamic))
    assert "here past = 2: give examples of 2 or more" in str(caught.value)


class Calls(nn.Module):
    """Methods that call `forward`, which writes two buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Accumulator(), Accumulator()

    def forward(self, x):
        return self.first.add(x) + self.second.add(x)

    def by_name(self, x):
        return self.forward(x) * 2

    def by_call(self, x):
        return self(x) * 2


@pytest.mark.parametrize("name", ["by_name", "by_call"])
def test_a_method_may_call_forward(name):
    captured = capture(Calls(), Method(name, args=(torch.ones(3),)))
    assert captured.exported.graph_signature.buffers_to_mutate


@pytest.mark.parametrize("name", ["by_name", "by_call"])
def test_a_method_may_call_forward_of_a_model_with_two_names(name, tmp_path):
    model = Calls()
    model.second.total = model.first.total
    methods = [Method(name, (torch.ones(3),)), Method("forward", (torch.ones(3),))]
    calls = [(n, (torch.full((3,), 2.0),)) for n in (name, "forward", name)]
    run_both(model, methods, calls, tmp_path)
