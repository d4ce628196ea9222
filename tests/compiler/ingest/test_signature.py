"""Constants among arguments: those given as examples, and defaults."""

import pytest
import torch
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import CallMismatch

X = torch.arange(3.0)


class Scales(nn.Module):
    def f(self, x, scale: float = 2.0, mask=None, sizes=(1, 2), kind=torch.float32):
        y = (x * scale).to(kind) * sizes[1]
        return y if mask is None else y * mask


def opened(tmp_path, *args, **kwargs):
    bundle = compile_program(Scales(), [Method("f", args, kwargs)])
    bundle.save(tmp_path / "m.kvc")
    return load(tmp_path / "m.kvc")


def test_a_default_may_be_passed(tmp_path):
    with opened(tmp_path, X) as program:
        for y in (
            program.f(X),
            program.f(X, scale=2.0),
            program.f(X, 2.0, None, (1, 2)),
            program.f(X, mask=None, sizes=[1, 2]),
        ):
            assert torch.equal(y, X * 4)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"scale": 3.0}, "f, scale: this program was compiled for 2.0, got 3.0; comp"),
        ({"mask": X}, "f, mask: this program was compiled for None, got a Tensor"),
        ({"sizes": (1, 3)}, r"f, sizes\[1\]: this program was compiled for 2, got 3"),
        ({"kind": torch.half}, "f, kind: this program was compiled without it"),
    ],
)
def test_another_value_than_the_default_is_refused(tmp_path, kwargs, text):
    with opened(tmp_path, X) as program, pytest.raises(CallMismatch, match=text):
        program.f(X, **kwargs)


def test_a_constant_that_was_given_may_be_passed(tmp_path):
    with opened(tmp_path, X, scale=3.0, mask=X) as program:
        assert torch.equal(program.f(X, 3.0, X), X * X * 6)
        assert torch.equal(program.f(X, mask=X), X * X * 6)
        with pytest.raises(CallMismatch, match=r"scale: .* compiled for 3.0, got 2.0"):
            program.f(X, 2.0, X)
        with pytest.raises(CallMismatch, match="mask: missing"):
            program.f(X, 3.0)
