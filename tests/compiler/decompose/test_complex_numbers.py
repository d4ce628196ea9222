# ruff: noqa: E501  texts and tables read best unbroken
"""Complex numbers of a method are written in real ones, or refused in words."""

import numpy as np
import pytest
import torch
from daily import only
from module_outcomes import Applied, outcome
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import CaptureError

X = torch.arange(24.0).reshape(2, 3, 4).sin()
pairs = torch.view_as_real


def written(z: Tensor, x: Tensor) -> Tensor:
    """Write complex and real numbers into complex ones."""
    z[torch.tensor([1, 0])] = torch.complex(x, x + 1)
    z[:, 0] = x[:, 1]
    z[1, 1, 1] = 2 - 1j
    z += 1j
    return z


CASES = {
    "pairs, and back": lambda x: pairs(torch.view_as_complex(x.reshape(2, 3, 2, 2))),
    "products": lambda x: pairs(torch.complex(x, x + 1) * torch.complex(x - 1, x)),
    "products with real numbers": lambda x: pairs(x * torch.complex(x, x + 1) * 2),
    "products with a number": lambda x: pairs(x * (1 - 2j)),
    "sums": lambda x: pairs(torch.complex(x, x + 1) + x - 1j),
    "differences": lambda x: pairs(1 - torch.sub(torch.complex(x, x), x, alpha=3)),
    "quotients": lambda x: pairs(torch.complex(x, x + 1) / torch.complex(x - 1, x) / x),
    "quotients of large numbers": lambda x: pairs(torch.complex(x, x) / torch.complex(x * 1e25, 1e25 + x)),
    "reciprocals": lambda x: pairs(1 / torch.complex(x, x + 2) + torch.complex(x, x) / (2 - 1j)),
    "whole powers": lambda x: pairs(torch.complex(x, x + 1) ** 3),
    "size and angle": lambda x: (torch.complex(x, x + 1).abs(), torch.angle(torch.complex(x, x - 1))),
    "angles of real numbers": lambda x: (torch.angle(torch.where(x > 0.9, torch.nan, x)), torch.angle((x * 9).long())),
    "polar": lambda x: pairs(torch.polar(x.abs(), x)),
    "exponentials": lambda x: pairs(torch.exp(torch.complex(x, x)) + torch.exp(-2j * x)),
    "conjugates": lambda x: pairs(torch.complex(x, x).conj().resolve_conj() * torch.complex(x, -x)),
    "parts": lambda x: (torch.complex(x, x + 1).real, torch.complex(x, x + 1).conj().imag),
    "matrices": lambda x: pairs(torch.complex(x, x + 1) @ torch.complex(x, -x).transpose(1, 2)),
    "a real matrix": lambda x: pairs(torch.einsum("bij,bkj->bik", torch.complex(x, x), x.to(torch.complex64))),
    "moved": lambda x: pairs(torch.complex(x, -x).transpose(0, 1).reshape(3, -1).flip(0)[1:]),
    "joined": lambda x: pairs(torch.cat([torch.complex(x, -x), (x * 3).long()])),
    "stacked": lambda x: pairs(torch.stack([torch.complex(x, x), x.to(torch.complex64)], -1)),
    "picked": lambda x: pairs(torch.complex(x, -x)[torch.tensor([1, 0, 1])]),
    "chosen": lambda x: pairs(torch.where(x > 0, torch.complex(x, x), 0)),
    "added up": lambda x: pairs(torch.complex(x, -x).sum(1) + torch.complex(x, x).mean()),
    "wider": lambda x: pairs(torch.complex(x, -x).to(torch.complex128)),
    "filled": lambda x: pairs(torch.zeros_like(torch.complex(x, x)) + torch.full((4,), 1j) + x),
    "written": lambda x: pairs(written(torch.complex(x, x), x)),
}  # fmt: skip
REFUSED = {
    "it returns or keeps complex numbers": lambda x: torch.complex(x, x),
    "aten.eq.Scalar of complex numbers": lambda x: torch.complex(x, x) == 1j,
    "aten.prod.dim_int of complex": lambda x: pairs(torch.complex(x, x).prod(-1)),
    "of complex numbers, and a bundle": lambda x: torch.linalg.det(torch.complex(x, x)[..., :3]).real,
}  # fmt: skip


# What other cases do too, beside something else.
ALSO = ("products with a number", "sums", "reciprocals", "quotients", "moved", "wider")


@only(name=set(CASES) - set(ALSO))
@pytest.mark.parametrize("name", CASES)
def test_it_equals_eager(name, tmp_path):
    found = outcome(Applied(CASES[name]), (X,), {}, tmp_path / "function.kvc")

    assert (found.kind, found.reason) == ("equal", "")


@pytest.mark.parametrize("reason", REFUSED)
def test_what_stays_complex_is_refused_with_its_line(reason):
    methods = [Method("forward", args=(X,))]
    with pytest.raises(CaptureError, match="real numbers only") as caught:
        compile_program(Applied(REFUSED[reason]), methods)
    assert reason in str(caught.value)
    assert "test_complex_numbers:" in str(caught.value)


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(3, dtype=torch.complex64))

    def write(self, x: Tensor) -> Tensor:
        self.held.mul_(x)
        return self.held.real + 1

    def read(self, z: Tensor) -> Tensor:
        return z.real + 1

    def choose(self, x: Tensor) -> Tensor:
        turned = lambda x: torch.complex(x, x).prod(-1).real + 1  # noqa: E731
        return torch.cond(x.sum() > 0, turned, lambda x: x.sum(-1), (x,))


@pytest.mark.parametrize(
    ("name", "x", "reason"),
    [
        ("write", torch.ones(3), "'b_held' is an input or a state of complex numbers"),
        ("read", torch.ones(3) * 1j, "'z' is an input or a state of complex numbers"),
        ("choose", torch.ones(2, 3), "aten.prod.dim_int of complex numbers"),
    ],
)
def test_complex_inputs_states_and_branches_are_refused(name, x, reason):
    with pytest.raises(CaptureError, match="real numbers only") as caught:
        compile_program(Held(), [Method(name, args=(x,))])
    assert reason in str(caught.value)


class Rotary(nn.Module):
    """Turns queries and keys as Llama's original code does."""

    def __init__(self, as_buffer: bool) -> None:
        super().__init__()
        frequencies = 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8)
        angles = torch.outer(torch.arange(16).float(), frequencies)
        turns = torch.polar(torch.ones_like(angles), angles)
        if as_buffer:
            self.register_buffer("turns", turns, persistent=False)
        else:
            self.turns = turns

    def forward(self, x: Tensor, start: int = 3) -> Tensor:
        turns = self.turns[start : start + x.shape[1]]
        complex_x = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = complex_x * turns.view(1, x.shape[1], 1, 4)
        return torch.view_as_real(turned).flatten(3).type_as(x)


@pytest.mark.parametrize("as_buffer", [False, True])
@pytest.mark.parametrize("recipe", ["fp32", "cpu_fp32"])
def test_llamas_rotary_embedding_is_eagers_at_all_lengths(tmp_path, as_buffer, recipe):
    model, x = Rotary(as_buffer), torch.randn(1, 5, 2, 8)
    dynamic = {"x": {1: Dim("seq", 2, 12)}}
    bundle = compile_program(
        model, [Method("forward", args=(x,), dynamic=dynamic)], recipe
    )
    bundle.save(tmp_path / "rotary.kvc")

    (named,) = bundle.program.names
    assert str(named.type) == "float32[16, 4, 2]"
    with load(tmp_path / "rotary.kvc") as program:
        for length in (5, 2, 12):
            given = torch.randn(1, length, 2, 8)
            np.testing.assert_allclose(
                program.forward(given.numpy()), model(given), rtol=1e-5, atol=1e-6
            )


def test_the_model_keeps_its_complex_numbers():
    model, x = Rotary(True), torch.randn(1, 5, 2, 8)
    before = model.turns.clone()
    compile_program(model, [Method("forward", args=(x,))])
    assert model.turns.dtype is torch.complex64
    assert torch.equal(model.turns, before)
