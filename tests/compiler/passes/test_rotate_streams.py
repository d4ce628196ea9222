"""Streams are rotated in all methods, with equal results, or left alone."""

from dataclasses import replace

import hf_models
import numpy as np
import pytest
import torch
from daily import RARELY, every
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Dim, Method, compile_program, export_hf
from kvc.compiler.passes import rotate_streams
from kvc.compiler.weights.rotation import Rotated
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import load
from kvc.schema.errors import NotFinite, PassFailed

IDS = torch.tensor([[3, 7, 1, 9, 4]])


def rotating(name: str) -> Recipe:
    """Return a recipe that rotates streams."""
    return replace(load_recipe(name), basis="rotated")


class Rms(nn.Module):
    """A root mean square norm with a weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Layers(nn.Module):
    """Two residual layers between a table and an output layer.

    `change` is what happens to the stream after the first layer.
    """

    def __init__(self, norm=Rms, tied=False, width=32, vocab=256, bias=False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(vocab, width)
        self.norms = nn.ModuleList(norm(width) for _ in range(3))
        self.ups = nn.ModuleList(nn.Linear(width, 24, bias) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(24, width, bias) for _ in range(2))
        self.head = nn.Linear(width, vocab, False)
        if tied:
            self.head.weight = self.table.weight
        for norm in self.norms:
            for parameter in norm.parameters():
                nn.init.normal_(parameter, 1.0, 0.3)

    def stream(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=False):
            x = self.change(x + down(up(norm(x)).relu()))
        return x

    def change(self, x: Tensor) -> Tensor:
        return x

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norms[-1](self.stream(ids)))

    def last(self, ids: Tensor) -> Tensor:
        return self.head(self.norms[-1](self.stream(ids)[:, -1:]))


class Scaled(Layers):
    """Scales the stream, masks rows of it, and moves its axes."""

    def change(self, x: Tensor) -> Tensor:
        shown = (x.new_ones(1, x.shape[1], 1) * 0.5).expand(1, -1, 1)
        return ((x * 0.5).transpose(0, 1) * shown.transpose(0, 1)).transpose(0, 1)


class Placed(Layers):
    """Adds rows of a matrix that is read by indices."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(8, 32))

    def change(self, x: Tensor) -> Tensor:
        return x + self.places[torch.arange(x.shape[1]) // 2]


class Learned(Layers):
    """Begins with learned rows, which a norm reads as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(1, 1, 32))

    def stream(self, ids: Tensor) -> Tensor:
        x = self.rows + self.downs[0](self.ups[0](self.norms[0](self.rows)).relu())
        return x + self.table(ids)


class Picked(Layers):
    """Reads one place of each row, as prompts of several lengths do."""

    def forward(self, ids: Tensor) -> Tensor:
        states = self.norms[-1](self.stream(ids))
        last = ids[:, :1, None] * 0 + 2
        return self.head(states.gather(1, last.expand(-1, 1, states.shape[2])))


class Returned(Layers):
    """Returns the stream, too."""

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(ids), self.stream(ids)


class NormedAfterwards(Layers):
    """Normalises sums, so that norms' weights are in the stream."""

    def change(self, x: Tensor) -> Tensor:
        return self.norms[0](x)


class ComputedBias(Layers):
    """Computes the bias of a layer after a norm that has one, too."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm, bias=True)

    def stream(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        bias = self.ups[0].bias * ids.sum()
        up = functional.linear(self.norms[0](x), self.ups[0].weight, bias)
        return x + self.downs[0](up.relu())


class NormedSublayers(Layers):
    """Normalises what a layer adds."""

    def stream(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return x + self.norms[1](self.downs[0](self.ups[0](self.norms[0](x)).relu()))


class Bent(Layers):
    """Does to the stream what is different in each basis."""

    def change(self, x: Tensor) -> Tensor:
        return x.relu()


class ReadTwice(Layers):
    """Reads a matrix of the stream otherwise in another method."""

    def last(self, ids: Tensor) -> Tensor:
        return self.downs[0].weight.relu() + super().last(ids).sum()


class TwoNorms(Layers):
    """Reads one short matrix after two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.ups[1] = self.ups[0]


def compiled(model, folder, recipe, methods=("forward",)):
    """Return a bundle's results for each method, and the names of its constants."""
    asked = [
        Method(name, (IDS,), dynamic={"ids": {1: Dim("seq", 1, 8)}}) for name in methods
    ]
    path = folder / "a.kvc"
    compile_program(model.eval(), asked, recipe).save(path)
    with load(path) as program:
        results = [program.call(name, IDS.numpy()) for name in methods]
        return results, [name for name in program.data if ".rotated" in name]


def assert_rotated(model, folder, methods=("forward",), recipe="cpu_fp32"):
    found, names = compiled(model, folder, rotating(recipe), methods)
    for name, result in zip(methods, found, strict=True):
        wanted = getattr(model, name)(IDS).detach()
        torch.testing.assert_close(torch.as_tensor(result), wanted, atol=2e-5, rtol=0)
    assert any(name.startswith("table.") for name in names)
    return names


@every(2, "norm", "tied", "bias")  # each pair of two settings
@pytest.mark.parametrize("norm", [Rms, nn.LayerNorm])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_results_are_equal_in_every_method(tmp_path, norm, tied, bias):
    model = Layers(norm, tied, bias=bias)
    names = assert_rotated(model, tmp_path, ("forward", "last"))
    assert ("norms.2.weight.rotated_scale" in names) == tied
    assert ("head.weight.rotated" in names) != tied


@pytest.mark.parametrize(
    "model", [Scaled(), Picked(), Placed(), Learned(), Layers(width=48)]
)
def test_streams_may_be_scaled_and_selected_of(tmp_path, model):
    assert_rotated(model, tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        Returned(),
        NormedAfterwards(),
        NormedSublayers(),
        Bent(),
        ComputedBias(),
        TwoNorms(),
        Layers(width=40),
        Layers(tied=True, vocab=64),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_streams_are_left_alone(tmp_path, model):
    plain, _ = compiled(model, tmp_path, "cpu_fp32")
    found, names = compiled(model, tmp_path, rotating("cpu_fp32"))
    assert names == []
    torch.utils._pytree.tree_map(np.testing.assert_array_equal, plain, found)


def test_a_matrix_that_another_method_reads_otherwise_is_left_alone(tmp_path):
    recipe = rotating("cpu_fp32")
    _, names = compiled(ReadTwice(), tmp_path, recipe, ("forward", "last"))
    assert names == []
    _, names = compiled(ReadTwice(), tmp_path, recipe, ("forward",))
    assert names != []


@pytest.mark.parametrize("name", [pytest.param("qwen2", marks=RARELY), "phi"])
def test_decoders_give_equal_logits_in_all_methods(tmp_path, name):
    model = hf_models.build(name)
    hf_models.rescale(model, 1)
    logits = []
    for recipe in (load_recipe("cpu_fp32"), rotating("cpu_fp32")):
        export_hf(model, recipe=recipe).save(tmp_path / "a.kvc")
        with load(tmp_path / "a.kvc") as program, program.session() as session:
            first = session.prefill(IDS.numpy())
            logits.append(np.stack([first, session.decode(np.array([[5]]))]))
            rotated = [name for name in program.data if ".rotated" in name]
    assert rotated != []
    np.testing.assert_allclose(logits[0], logits[1], atol=3e-5)


def test_a_decoder_with_norms_after_sublayers_is_left_alone():
    bundle = export_hf(hf_models.build("gemma2"), recipe=rotating("cpu_fp32"))
    assert not any(".rotated" in named.name for named in bundle.program.names)


def test_the_same_model_gives_the_same_bytes(tmp_path):
    files = []
    for name in ("a.kvc", "b.kvc"):
        bundle = compile_program(Layers(), [Method("forward", (IDS,))], "xnnpack_q8")
        bundle.save(tmp_path / name)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


def test_weights_that_do_not_compute_the_same_are_found(monkeypatch):
    def reversed_columns(self, matrix, /, *scale):
        return Rotated.__call__(self, matrix.flip(-1), *scale)

    class Wrong(Rotated):
        __call__ = reversed_columns

    monkeypatch.setattr(rotate_streams, "Rotated", Wrong)
    with pytest.raises(PassFailed, match="does not equal the rotated original"):
        compile_program(Layers(), [Method("forward", (IDS,))], rotating("cpu_fp32"))


def test_a_weight_that_is_not_finite_is_refused_by_its_own_name(tmp_path):
    model = Layers()
    model.table.weight.data[4, 7] = float("nan")
    bundle = compile_program(model, [Method("forward", (IDS,))], "xnnpack_q8")
    with pytest.raises(NotFinite) as caught:
        bundle.save(tmp_path / "a.kvc")
    facts = caught.value.facts
    assert (facts["weight"], facts["count"]) == ("table.weight", 1)


def test_a_large_coordinate_costs_less_where_rows_are_quantized(tmp_path):
    model = Layers()
    model.table.weight.data[:, 5] += 60  # in each row, as in trained models
    wanted = model(IDS).detach().numpy()
    apart = {}
    for basis in ("model", "rotated"):
        recipe = replace(load_recipe("xnnpack_q8"), basis=basis)
        (found,), _ = compiled(model, tmp_path, recipe)
        apart[basis] = np.abs(found - wanted).mean()
    assert apart["rotated"] < apart["model"] / 2
