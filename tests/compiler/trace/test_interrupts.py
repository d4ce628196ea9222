import signal
import types
from contextlib import suppress

import pytest
import torch
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.compiler.trace import capture


class Interrupted(nn.Module):
    """Is interrupted below native code, which makes an error of its own of that."""

    def forward(self, x):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemError("returned a result with an exception set") from None


class Swallowing(nn.Module):
    """Goes on after an interrupt, as code does that catches everything."""

    def __init__(self):
        super().__init__()
        self.went_on = 0

    def forward(self, x):
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        x = x + 1
        self.went_on += 1
        return x


class Endless(nn.Module):
    """Never comes to another operator."""

    def __init__(self, hook):
        super().__init__()
        self.hook = hook

    def forward(self, x):
        x = x + 1
        while True:
            self.hook()


METHOD = Method("forward", (torch.ones(3),))


def test_an_interrupt_that_native_code_has_replaced_stays_one():
    with pytest.raises(KeyboardInterrupt):
        capture(Interrupted(), METHOD)


def test_an_interrupt_that_a_model_swallows_ends_at_its_next_operator():
    model = Swallowing()
    went_on = []
    model.register_forward_hook(lambda *_: went_on.append(1))
    with pytest.raises(KeyboardInterrupt):
        compile_program(model, [METHOD])
    assert not went_on


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_ends_a_model_that_comes_to_no_operator():
    with pytest.raises(KeyboardInterrupt):
        compile_program(Endless(interrupt), [METHOD])


def test_a_second_interrupt_ends_torch_that_comes_to_no_operator():
    within = types.FunctionType(_code_of_torch(), globals())
    with pytest.raises(KeyboardInterrupt):
        compile_program(Endless(within), [METHOD])


def _code_of_torch():
    """Return the code of `interrupt` as if it was torch's."""
    return interrupt.__code__.replace(co_filename=torch.__file__)


def test_an_interrupt_that_progress_swallows_ends_the_compilation():
    told = []

    def progress(stage, done, total, item=""):
        told.append(stage)
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        compile_program(nn.Linear(3, 3), [METHOD], progress=progress)
    assert len(told) == 1


def test_an_interrupt_that_is_swallowed_while_a_bundle_is_saved_leaves_no_file(
    tmp_path,
):
    bundle = compile_program(nn.Linear(3, 3), [METHOD])

    def progress(stage, done, total, item=""):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        bundle.save(tmp_path / "model.kvc", progress=progress)
    assert not list(tmp_path.iterdir())
