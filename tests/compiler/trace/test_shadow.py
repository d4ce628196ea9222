"""What a traced method is, and what it is not: neither call nor other code runs."""

import pytest
import torch
from eager_parity import run_both
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.schema.errors import CaptureError

X = torch.ones(2)


class Hooked(nn.Module):
    """Has hooks, which run when it is called."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(0))
        self.register_forward_hook(lambda module, args, out: out * 10)
        self.inner = nn.Linear(2, 2)
        self.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x):
        return x + 2

    def step(self, x):
        return self.inner(x) + 1

    def calls(self, x):
        return self(x) + 1

    def catches(self, x):
        try:
            k = int(self.n)
        except Exception:
            k = -1
        self.n.add_(1)
        return x * k

    def asks(self, x):
        try:
            return x * 2 if self.n > 0 else x
        except Exception:
            return x * 3

    def noted(self, x):
        return x * getattr(self.inner.weight, "scale", 1) + self.n.shift

    def default(self, x):
        torch.set_default_dtype(torch.float64)
        try:
            return torch.ones(2) / 3 + x
        finally:
            torch.set_default_dtype(torch.float32)


def test_attributes_of_tensors_are_those_of_the_model(tmp_path):
    model = Hooked()
    model.inner.weight.scale, model.n.shift = 4, 3.0
    run_both(model, [Method("noted", (X,))], [("noted", (X,))], tmp_path)


@pytest.mark.parametrize("name", ["step", "calls"])
def test_a_method_runs_without_the_hooks_of_its_model(name, tmp_path):
    run_both(Hooked(), [Method(name, (X,))], [(name, (X,))], tmp_path)


def test_hooks_are_there_afterwards():
    model = Hooked()
    hooks = model._forward_hooks
    compile_program(model, [Method("step", (X,))])
    assert model._forward_hooks is hooks
    assert model(X).tolist() == [30, 30]


class OwnCall(nn.Module):
    """Does more when it is called."""

    def __call__(self, *args):
        return super().__call__(*args) * 100

    def step(self, x):
        return x + 1


def refusal(model, name):
    with pytest.raises(CaptureError) as caught:
        compile_program(model, [Method(name, (X,))])
    return str(caught.value)


def test_a_call_of_its_own_is_refused():
    assert "OwnCall has a __call__ of its own" in refusal(OwnCall(), "step")


@pytest.mark.parametrize("name", ["catches", "asks"])
def test_an_error_of_the_trace_that_code_catches_is_refused(name):
    assert "asks for the value of a tensor" in refusal(Hooked(), name)


def test_another_default_dtype_is_refused():
    assert "sets torch's default dtype to torch.float64" in refusal(Hooked(), "default")
    assert torch.get_default_dtype() == torch.float32


class Recurrent(nn.Module):
    """A layer of torch over a hidden state in a buffer."""

    def __init__(self, kind):
        super().__init__()
        self.layer = kind(2, 3, batch_first=True)
        self.register_buffer("hidden", torch.zeros(1, 1, 3))

    def step(self, x):
        y, hidden = self.layer(x, self.hidden)
        self.hidden.copy_(hidden)
        return y


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU])
def test_recurrent_layers_keep_their_hidden_state(kind, tmp_path):
    rows = torch.linspace(-1, 1, 6).reshape(1, 3, 2)
    calls = [("step", (rows * i,)) for i in (1, 2, -1)]
    run_both(Recurrent(kind), [Method("step", (rows,))], calls, tmp_path, atol=1e-6)


class Lstm(nn.Module):
    """The same with two of them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(2, 3, num_layers=2, bidirectional=True)
        self.register_buffer("h", torch.zeros(4, 1, 3))
        self.register_buffer("c", torch.zeros(4, 1, 3))

    def step(self, x):
        y, (h, c) = self.layer(x, (self.h, self.c))
        self.h.copy_(h)
        self.c.copy_(c)
        return y


def test_an_lstm_keeps_its_state(tmp_path):
    rows = torch.linspace(-1, 1, 6).reshape(3, 1, 2)
    calls = [("step", (rows * i,)) for i in (1, 2, -1)]
    run_both(Lstm(), [Method("step", (rows,))], calls, tmp_path, atol=1e-6)
