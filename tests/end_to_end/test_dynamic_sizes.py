"""Modules over a dynamic size, compared with eager at its ends, in the middle, and odd.

Each case is a function of a tensor x, given a shape and the bounds of some of its axes.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from daily import every
from eager_parity import same
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn.functional import (
    avg_pool1d,
    avg_pool2d,
    interpolate,
    max_pool1d,
    max_pool2d,
    pad,
    scaled_dot_product_attention,
)

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load
from kvc.schema.errors import CaptureError, UnsupportedOps


@dataclass(frozen=True)
class Case:
    """What is computed of x, and which sizes x may have; `layer` is what `f` needs."""

    f: Callable[..., object]
    shape: tuple[int, ...] = (16, 4)
    axes: Mapping[int, tuple[int, int]] = field(default_factory=lambda: {0: (2, 17)})
    layer: nn.Module | None = None

    def sizes(self) -> list[tuple[int, ...]]:
        """Return shapes with each axis at its ends, beside them and in the middle."""
        choices = [[size] for size in self.shape]
        for axis, (low, high) in self.axes.items():
            middle = (low + high) // 2
            choices[axis] = sorted({low, low + 1, middle, middle + 1, high - 1, high})
        return list(itertools.product(*choices))


class Computed(nn.Module):
    """Runs a case."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layer = case.layer
        self.f = case.f

    def forward(self, x: Tensor) -> object:
        """Compute it."""
        return self.f(x) if self.layer is None else self.f(self.layer, x)


def n(x: Tensor) -> int:
    """Return the dynamic size of x."""
    return x.shape[0]


def summed_over(*tensors: Tensor) -> Tensor:
    """Return sums of sums over the first axis of all tensors."""

    def step(total: Tensor, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        total = total + torch.stack(rows).sum(0)
        return total, total * 2

    _, sums = scan(step, torch.zeros(4), list(tensors))
    return sums


def with_numbers(x: torch.Tensor) -> torch.Tensor:
    """Return logarithms, NaN of negative numbers; in each column one is a number.

    Of a column that is all NaN, torch tells any index.
    """
    return torch.where(x == x.amax(0), x, x.log())


LENGTH = {"shape": (1, 4, 16), "axes": {2: (2, 33)}}
IMAGE = {"shape": (1, 3, 8, 8), "axes": {2: (2, 9), 3: (2, 9)}}
SOME = {0: Dim("d", 2, 17)}
CASES = {
    "first half": Case(lambda x: x[: n(x) // 2] * 2, axes={0: (1, 17)}),
    "second half": Case(lambda x: x[n(x) // 2 :] * 2, axes={0: (1, 17)}),
    "half from the back": Case(lambda x: x[-(n(x) // 2) :] + 1),
    "larger half": Case(lambda x: x[: (n(x) + 1) // 2] * 2, axes={0: (1, 17)}),
    "all but one": Case(lambda x: x[:-1] + 1),
    "every other": Case(lambda x: x[::2] + x[::2]),
    "odd ones": Case(lambda x: x[1::2] + 1),
    "middle": Case(lambda x: x[n(x) // 4 : 3 * n(x) // 4] + 1, axes={0: (4, 33)}),
    "both halves": Case(lambda x: x[: n(x) // 2] + x[n(x) - n(x) // 2 :]),
    "halves swapped": Case(lambda x: torch.cat([x[n(x) // 2 :], x[: n(x) // 2]])),
    "pairs": Case(lambda x: x[: n(x) - n(x) % 2].view(n(x) // 2, 2, 4).sum(1)),
    "padded windows": Case(
        lambda x: pad(x, (0, 0, 0, (4 - n(x) % 4) % 4)).view(-1, 4, 4).sum(1)
    ),
    "places of a half": Case(lambda x: torch.arange(n(x) // 2) + x.sum().long()),
    "zeros of a half": Case(lambda x: torch.zeros(n(x) // 2, 3) + x.sum()),
    "twice less one": Case(lambda x: torch.zeros(2 * n(x) - 1, 3) + x.sum()),
    "angles": Case(lambda x: torch.outer(torch.arange(n(x) // 2).float(), x[0]).cos()),
    "divided by a half": Case(lambda x: x / n(x) + x.sum() / (n(x) // 2)),
    "unequal split": Case(
        lambda x: [t * 2 for t in x.split([n(x) // 2, n(x) - n(x) // 2])]
    ),
    "windows": Case(lambda x: x.unfold(0, 2, 2) * 1.0),
    "linear of a half": Case(
        lambda layer, x: layer(x[: n(x) // 2]), layer=nn.Linear(4, 3)
    ),
    "queries of a half": Case(
        lambda x: scaled_dot_product_attention(
            x[None, None, : n(x) // 2], x[None, None], x[None, None]
        )
    ),
    "strided convolution": Case(
        lambda layer, x: layer(x),
        layer=nn.Conv1d(4, 6, 3, stride=2, padding=1),
        **LENGTH,
    ),
    "dilated convolution": Case(
        lambda layer, x: layer(x),
        (1, 4, 16),
        {2: (7, 40)},
        nn.Conv1d(4, 6, 4, stride=3, dilation=2),
    ),
    "two strided ones": Case(
        lambda layer, x: layer(x),
        layer=nn.Sequential(
            nn.Conv1d(4, 6, 3, 2, 1), nn.GELU(), nn.Conv1d(6, 4, 3, 2, 1)
        ),
        **LENGTH,
    ),
    "down and up": Case(
        lambda layer, x: layer(x)[..., : x.shape[2]] + x,
        layer=nn.Sequential(nn.Conv1d(4, 6, 3, 2, 1), nn.ConvTranspose1d(6, 4, 2, 2)),
        **LENGTH,
    ),
    "patches": Case(
        lambda layer, x: layer(x).flatten(2).transpose(1, 2),
        (1, 3, 16, 16),
        {2: (4, 20), 3: (4, 20)},
        nn.Conv2d(3, 6, 4, stride=4),
    ),
    "transposed convolution": Case(
        lambda layer, x: layer(x),
        layer=nn.ConvTranspose2d(3, 4, 3, 2, 1, output_padding=1),
        **IMAGE,
    ),
    "maximum of windows": Case(lambda x: max_pool2d(x, 3, 2, 1).flatten(1), **IMAGE),
    "mean of windows": Case(lambda x: avg_pool1d(x, 3, 2, 1), **LENGTH),
    "mean of windows, last ones cut": Case(
        lambda x: avg_pool2d(x, 2, 2, ceil_mode=True), **IMAGE
    ),
    "stem of a network": Case(
        lambda layer, x: layer(x).mean((2, 3)),
        (1, 3, 32, 32),
        {2: (16, 48), 3: (16, 48)},
        nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
    ),
    "half the pixels": Case(lambda x: interpolate(x, scale_factor=0.5), **IMAGE),
    "half as many more": Case(lambda x: interpolate(x, scale_factor=1.5), **IMAGE),
    "down and up by pixels": Case(
        lambda x: interpolate(max_pool2d(x, 2), size=x.shape[2:]) + x,
        **IMAGE,
    ),
    "rows twice as wide": Case(lambda x: interpolate(x, scale_factor=2), **LENGTH),
    "maximum of windows of one axis": Case(
        lambda x: max_pool1d(x, 3, 2, 1, return_indices=True), **LENGTH
    ),
    "rotated": Case(lambda x: torch.roll(x, (1, -3), (0, 1)), axes={0: (1, 17)}),
    "rotated by half": Case(lambda x: torch.roll(x, n(x) // 2, 0)),
    "rotated as one": Case(lambda x: torch.roll(x, 2)),
    "flipped": Case(lambda x: x.flip(0)),
    "halves of twice": Case(lambda x: sum(torch.cat([x, x * 2]).chunk(2))),
    "two chunks": Case(lambda x: [t * 2 for t in torch.chunk(x, chunks=2, dim=0)]),
    "three chunks": Case(lambda x: [t * 2 for t in x.chunk(3)], (10, 4), {0: (9, 12)}),
    "pieces of all": Case(lambda x: [t * 2 for t in torch.cat([x, x]).split(n(x))]),
    "three alike": Case(lambda x: [t * 2 for t in x.tensor_split(3)]),
    "itself twice": Case(lambda x: torch.cat([x, x])),
    "itself and its start": Case(lambda x: torch.cat([x, x[:1]])),
    "itself and its rest": Case(lambda x: torch.cat([x, x[:-1].flip(0), x[1:]])),
    "nothing and itself": Case(lambda x: torch.cat([torch.empty(0), x])),
    "itself and nothing": Case(lambda x: torch.cat([x, torch.tensor([])], -2)),
    "a size": Case(lambda x: x.shape[0]),
    "sizes": Case(lambda x: {"x": x + 1, "n": n(x) // 2, "mean": [n(x) / 2]}),
    "values as numbers": Case(lambda x: (x + 1, x[0, 0].item(), x.argmax().item())),
    "copies of views": Case(
        lambda x: (
            torch.slice_copy(x, 0, 0, n(x) // 2),
            torch.view_copy(x, (-1,)),
            torch.unbind_copy(x, 1),
            torch.split_copy(x, 2, 1),
        )
    ),
    "reduced by places": Case(
        lambda x: [
            torch.ones(n(x), 4).scatter_reduce(0, x.abs().long() % 2, x, reduce)
            for reduce in ("amax", "mean", "prod")
        ]
    ),
    "without dims": Case(
        lambda x: (
            x.sum().index_select(0, torch.tensor([0])),
            x.sum().index_copy(0, torch.tensor(0), x[0, 0]),
        )
    ),
    "medians without nan": Case(
        lambda x: (x.log().nanmedian(), *with_numbers(x).nanmedian(0))
    ),
    "matrix and vector": Case(
        lambda x: torch.addmv(x[:, 0], x, x[0], beta=0.5, alpha=2)
    ),
    "each row repeated": Case(lambda x: x.repeat_interleave(3, 0)),
    "divided by a root": Case(lambda x: x.sum(0) / n(x) ** 0.5),
    # Always one, which torch knows where it has divided it, and not where it has not.
    "a quotient of one size": Case(
        lambda x: summed_over(x.new_ones((n(x) + 63) // 64, 4), x[:1].exp()),
    ),
}


# What half of the others do not have, each.
ODD = [
    "padded windows",
    "unequal split",
    "maximum of windows",
    "mean of windows, last ones cut",
    "flipped",
    "pieces of all",
    "sizes",
    "copies of views",
    "divided by a root",
]


@every(4, "name", "recipe", always=ODD)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("recipe", ["fp32", "cpu_fp32"])
def test_a_module_over_a_dynamic_size_is_equal_to_eager(
    tmp_path: Path, name: str, recipe: str
) -> None:
    compare(CASES[name], recipe, tmp_path, 0.0 if recipe == "fp32" else 1e-5)


def compare(case: Case, recipe: str, folder: Path, atol: float) -> None:
    """Assert that a case is equal to eager at all of its sizes."""
    torch.manual_seed(0)
    model = Computed(case).eval()
    dims = {axis: Dim(f"d{axis}", *ends) for axis, ends in case.axes.items()}
    method = Method("forward", args=(torch.randn(case.shape),), dynamic={"x": dims})
    compile_program(model, (method,), recipe).save(folder / "model.kvc")
    with load(folder / "model.kvc") as program, program.session() as session:
        for shape in case.sizes():
            x = torch.randn(shape)
            with torch.no_grad():
                expected = model(x)
            same(session.forward(x), expected, atol)


BY_ROWS = {0: (1, 9), 1: (1, 4)}
PROJECTED = nn.LSTM(4, 6, proj_size=3)


@every(2, "layer", always=[PROJECTED])
@pytest.mark.parametrize(
    ("layer", "axes"),
    [
        (nn.LSTM(4, 5), BY_ROWS),
        (PROJECTED, BY_ROWS),
        (nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True), {1: (1, 9)}),
        (nn.GRU(4, 5), {0: (1, 9)}),
        (nn.GRU(4, 5, bias=False), BY_ROWS),
        (nn.RNN(4, 5, 2), {0: (1, 9)}),
        (nn.RNN(4, 5, nonlinearity="relu"), {0: (1, 9)}),
    ],
)
@pytest.mark.parametrize("recipe", ["fp32", "cpu_fp32"])
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layers_run_any_number_of_steps(
    tmp_path: Path, recipe: str, layer: nn.Module, axes: Mapping[int, tuple[int, int]]
) -> None:
    case = Case(lambda layer, x: layer(x), (5, 3, 4), axes, layer)
    compare(case, recipe, tmp_path, 1e-6)


def test_a_place_that_counts_from_either_end_is_refused(tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        return x[-(n(x) // 2) :] + 1  # all of x where n is 1

    x = torch.randn(16, 4)
    method = Method("forward", args=(x,), dynamic={"x": {0: Dim("d", 1, 17)}})
    with pytest.raises(UnsupportedOps, match=r"front of its axis.*test_dynamic_sizes"):
        compile_program(Computed(Case(f)).eval(), (method,), "fp32")


def test_pieces_whose_number_differs_are_refused(tmp_path: Path) -> None:
    case = Case(lambda x: [t * 2 for t in x.chunk(3)], axes={0: (2, 17)})
    method = Method("forward", args=(torch.randn(16, 4),), dynamic={"x": SOME})
    with pytest.raises(CaptureError, match="takes another way for d = 2") as raised:
        compile_program(Computed(case).eval(), (method,), "fp32")
    assert "test_dynamic_sizes" in str(raised.value)


def test_a_truth_about_sizes_is_not_returned(tmp_path: Path) -> None:
    case = Case(lambda x: (x, x.sum() > 0, n(x) % 2 == 0))
    method = Method("forward", args=(torch.randn(16, 4),), dynamic={"x": SOME})
    with pytest.raises(CaptureError, match="a bool that differs from call to call"):
        compile_program(Computed(case).eval(), (method,), "fp32")


def test_a_dim_of_two_sizes_is_one_dim_in_both_inputs(tmp_path: Path) -> None:
    """torch takes 2 for its only size, and does not ask whether both are equal."""

    class Both(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (x.flatten() * 2).view(y.shape[0], -1) + y

    rows = {0: Dim("rows", 1, 2)}
    inputs = torch.randn(2, 4), torch.randn(2, 4)
    method = Method("forward", inputs, dynamic={"x": rows, "y": rows})
    compile_program(Both(), (method,)).save(tmp_path / "both.kvc")
    with load(tmp_path / "both.kvc") as program:
        for count in (1, 2):
            x, y = (tensor[:count] for tensor in inputs)
            assert torch.equal(program.forward(x, y), x * 2 + y)
