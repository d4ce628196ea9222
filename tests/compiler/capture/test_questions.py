import pytest
import torch
from small_models import Branches

from kvc.compiler import Dim, Method
from kvc.compiler.capture import capture
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
