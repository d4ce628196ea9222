"""Programs that few models are: their names, numbers and shapes.

By numpy in place of Core AI, and by Core AI where it is here.
"""

from dataclasses import replace
from pathlib import Path

import library_here
import numpy as np
import pytest
import torch
from coreai_device import use_numpy_core_ai
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Dim, Method, compile_program
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.schema.errors import BadProgram


@pytest.fixture(params=["numpy", "library"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        use_numpy_core_ai(monkeypatch)
    else:
        library_here.need("coreai")


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.table = nn.Parameter(torch.randn(5, 4))

    def forward(self, t0: Tensor, c0: Tensor, index_outside: Tensor) -> Tensor:
        return self.one(torch.tanh(t0 * 2)) + c0 + self.table[index_outside]

    def run(self, x: Tensor) -> Tensor:
        return self.one(x)

    def run_rows4(self, x: Tensor) -> Tensor:
        return self.other(x)


@pytest.fixture
def model() -> Named:
    return Named().eval()


def test_arguments_may_be_called_as_tensors_of_a_function_are(
    model: Named, tmp_path: Path
):
    given = torch.randn(2, 4), torch.randn(2, 4), torch.tensor([3, 1])
    bundle = compile_program(model, [Method("forward", given)], "coreai_fp32")
    bundle.save(tmp_path / "m")
    with load(tmp_path / "m") as program:
        found = program.forward(*(each.numpy() for each in given))
    wanted = model(*given).detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_method_may_be_called_as_another_one_is_at_some_sizes(
    model: Named, tmp_path: Path
):
    x = torch.randn(4, 4)
    methods = [
        Method("run", (x,), dynamic={"x": {0: Dim("rows", 1, 4)}}),
        Method("run_rows4", (x,)),
    ]
    recipe = replace(load_recipe("coreai_fp32"), buckets={"rows": (1, 4)})
    compile_program(model, methods, recipe).save(tmp_path / "m")
    with load(tmp_path / "m") as program:
        for name in ("run", "run_rows4"):
            wanted = getattr(model, name)(x).detach().numpy()
            found = program.call(name, x.numpy())
            np.testing.assert_allclose(found, wanted, atol=1e-5)


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.register_buffer("large", torch.tensor([1, 2**40]))

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), n + self.large


def test_a_constant_of_more_than_32_bits_is_refused_where_it_is_needed(tmp_path: Path):
    given = torch.randn(2, 4), torch.tensor([1, 2])
    bundle = compile_program(Large().eval(), [Method("forward", given)], "coreai_fp32")
    bundle.save(tmp_path / "m")
    told = "constant 'large': .* 32 bits, and this is 1099511627776"
    with load(tmp_path / "m") as program:
        with pytest.raises(BadProgram, match=told):
            program.forward(*(each.numpy() for each in given))
        with pytest.raises(BadProgram, match=told):
            program.pack("coreai")[0].content()


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8)

    def forward(self, q: Tensor, kv: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(self.one(q), kv, kv)


@pytest.mark.parametrize(
    ("leading", "others"),
    [((1, 4), (2, 4)), ((2, 1), (2, 4)), ((2, 4), (1, 4)), ((2, 4), (2, 1))],
)
def test_attention_broadcasts_batches_and_heads_of_queries_and_keys(
    tmp_path: Path, leading: tuple[int, int], others: tuple[int, int]
):
    torch.manual_seed(0)
    model, given = (
        Attending(),
        (torch.randn(*leading, 3, 8), torch.randn(*others, 5, 8)),
    )
    compile_program(model, [Method("forward", given)], "coreai_fp32").save(
        tmp_path / "m"
    )
    with load(tmp_path / "m") as program:
        found = program.forward(*(each.numpy() for each in given))
    np.testing.assert_allclose(found, model(*given).detach().numpy(), atol=1e-5)
