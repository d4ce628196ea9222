"""What no trace follows of a model's memory, or may not change, is refused in words."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from eager_parity import run_both
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.schema.errors import CaptureError, KvcError, StateConflict

X = torch.ones(4)


def refusal(model, *methods, **options):
    with pytest.raises(KvcError) as caught:
        compile_program(model, methods, **options)
    return caught.value


class Badly(nn.Module):
    """What cannot be followed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(4))
        self.plain = torch.zeros(4)
        self.box = SimpleNamespace(n=self.n, plain=torch.zeros(4))
        self.box.row = self.n[:2]
        self.larger = torch.zeros(8)
        self.register_buffer("part", self.larger[:4])
        self.bits = self.n.view(torch.int32)
        self.array = np.zeros(3)

    def writes_plain(self, x):
        self.box.plain.add_(x)
        return x * 1

    def catches(self, x):
        try:
            self.plain.add_(x)
        except Exception:
            return x * 2
        return x * 1

    def writes_larger(self, x):
        self.larger[2:6].add_(1)
        return x * 1

    def writes_part(self, x):
        self.part.add_(x)
        return x * 1

    def reads_larger(self, x):
        return self.larger[4:] + self.larger[:4] + x

    def writes_n(self, x):
        self.n.add_(x)
        return x * 1

    def reads_bits(self, x):
        return self.bits + x

    def assigns(self, x):
        self.n = self.n + x
        return x * 1

    def reads_alias(self, x):
        return self.box.n + x

    def other_memory(self, x):
        self.box.row.data = x
        return x * 1

    def another_shape(self, x):
        self.box.row.unsqueeze_(0)
        return self.box.row + x[:2]

    def another_shape_of_the_buffer(self, x):
        self.n.unsqueeze_(0)
        return self.n + x

    def another_shape_of_the_argument(self, x):
        x.unsqueeze_(0)
        return self.n + x

    def writes_array(self, x):
        self.array += 1
        return x * 1

    def out_of_the_trace(self, x):
        torch.add(self.box.plain, 1, out=self.box.plain)
        return x * 1


REFUSED = {
    "writes_plain": "write into 'box.plain', which is no buffer; make it a buffer",
    "catches": "would write into 'plain', which is no buffer",
    "other_memory": "gives 'box.row' other memory",
    "another_shape": "gives 'box.row' another shape in place",
    "another_shape_of_the_buffer": "gives 'n' another shape in place",
    "another_shape_of_the_argument": "gives 'argument 0' another shape in place",
    "writes_array": "changes the attribute 'array'",
    "out_of_the_trace": "would write into 'box.plain'",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_the_models_state_is_not_written(name):
    model = Badly()
    error = refusal(model, Method(name, (X,)))
    assert isinstance(error, CaptureError)
    assert REFUSED[name] in str(error)
    tensors = (model.n, model.plain, model.box.plain, model.larger)
    assert not any(tensor.any() for tensor in tensors)
    assert model.box.n is model.n
    assert not model.array.any()


def test_a_refused_write_is_named_with_its_line():
    message = str(refusal(Badly(), Method("writes_plain", (X,))))
    assert "test_guard:" in message


@pytest.mark.parametrize(
    ("writes", "reads", "state"),
    [
        ("writes_part", "reads_larger", "part"),
        ("writes_n", "reads_bits", "n"),
        ("writes_part", "writes_larger", "part"),
    ],
)
def test_memory_of_a_state_that_no_trace_follows_is_refused(writes, reads, state):
    for names in ((writes, reads), (reads, writes)):
        error = refusal(Badly(), *(Method(name, (X,)) for name in names))
        assert isinstance(error, StateConflict)
        assert error.facts["state"] == state
        assert "take views of the buffer" in str(error)


def test_an_array_over_the_memory_of_a_state_is_refused():
    model = Badly()
    model.box.array = model.n.numpy()[1:3]
    assert "box.array" in str(refusal(model, Method("writes_n", (X,))))
    compile_program(model, [Method("reads_alias", (X,))])


@pytest.mark.parametrize("name", ["reads_larger", "reads_bits"])
def test_memory_that_nobody_writes_may_be_read_in_any_way(name, tmp_path):
    run_both(Badly(), [Method(name, (X,))], [(name, (X,))], tmp_path)


def test_a_buffer_that_is_assigned_and_used_elsewhere_is_refused():
    error = refusal(Badly(), Method("assigns", (X,)), Method("reads_alias", (X,)))
    assert "'box.n', which is the same memory and is used as well" in str(error)
    assert "cannot capture method assigns" in str(error)


def test_a_buffer_that_is_assigned_and_used_nowhere_else_compiles(tmp_path):
    calls = [("assigns", (X,)), ("writes_n", (X,)), ("assigns", (X,))]
    run_both(
        Badly(), [Method("assigns", (X,)), Method("writes_n", (X,))], calls, tmp_path
    )
