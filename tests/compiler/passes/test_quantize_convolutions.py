"""Weights of convolutions as int8: which are, with which numbers, and in which file."""

import pytest
import torch
from convolution_models import Calls
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.weights.sources import TensorSource
from kvc.compiler.weights.weight_reader import WeightReader, read
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.schema.errors import NotFinite, UnmatchedPattern

INT8_OPS = (
    "kvc::convolution_w8",
    "kvc::pointwise_depthwise_w8",
    "kvc::conv_transpose_w8",
)
X = torch.linspace(-9, 9, 16 * 12 * 11).sin().reshape(1, 16, 12, 11)


def bundle_of(module: nn.Module, x: Tensor = X, recipe: object = "cpu_q8", **options):
    method = Method("forward", (x,), **options)
    return compile_program(module.eval(), (method,), recipe)


def chain(*modules: nn.Module) -> Calls:
    """Return a model that calls its modules in turn."""

    def call(self: Calls, x: Tensor) -> Tensor:
        for name in self._modules:
            x = self.get_submodule(name)(x)
        return x

    return Calls(call, *modules)


def stored(module: nn.Module, x: Tensor = X, recipe: object = "cpu_q8") -> set[str]:
    """Return the names of the constants that a module's bundle has."""
    return {named.name for named in bundle_of(module, x, recipe).program.names}


def ops(bundle) -> list[str]:
    graphs = (g for method in bundle.program.methods for g in method.graphs)
    found = [call.op for graph in graphs for call in graph.instructions]
    return [op for op in found if "conv" in op or "pointwise" in op]


@pytest.mark.parametrize("recipe", ["cpu_q8", "cpu_q4"])
def test_weights_become_int8_and_their_floats_are_not_stored(recipe):
    model = chain(
        nn.Conv2d(16, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.ConvTranspose2d(8, 4, 2, 2),
    )
    found = bundle_of(model, recipe=recipe)
    assert ops(found) == ["kvc::convolution_w8"] * 2 + ["kvc::conv_transpose_w8"]
    assert {named.name for named in found.program.names} == {
        *(f"m{i}.weight.int8_channels{end}" for i in (0, 2) for end in ("", "_scale")),
        *(f"m3.weight.int8_outputs{end}" for end in ("", "_scale")),
        *(f"m{i}.bias" for i in (0, 2, 3)),
    }


@pytest.mark.parametrize("recipe", ["fp32", "cpu_fp32", "cpu_bf16", "xnnpack_q8"])
def test_other_recipes_leave_weights_float32(recipe):
    model = chain(nn.Conv2d(16, 8, 3), nn.ConvTranspose2d(8, 4, 2, 2))
    assert stored(model, recipe=recipe) >= {"m0.weight", "m1.weight"}


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(16, 16, 7, groups=16),  # depthwise
        nn.Conv2d(16, 32, 7, groups=16),
        nn.Conv2d(16, 8, 1),  # 16 weights of an output channel
        nn.ConvTranspose2d(16, 16, 3, groups=2),
        nn.ConvTranspose2d(16, 64, 1),
    ],
)
def test_weights_that_do_not_pay_stay_float32(module):
    assert stored(chain(module)) == {"m0.weight", "m0.bias"}


def test_a_weight_that_is_no_constant_stays_as_it_is():
    class Given(nn.Module):
        def forward(self, x, weight):
            return nn.functional.conv2d(x, weight)

    method = Method("forward", (X, torch.ones(4, 16, 3, 3)))
    found = compile_program(Given(), (method,), "cpu_q8")
    assert not {*ops(found)} & {*INT8_OPS}


def test_a_batch_norm_is_folded_before_weights_are_rounded():
    norm = nn.BatchNorm2d(8)
    model = chain(nn.Conv2d(16, 8, 3, bias=False), norm)
    torch.nn.init.constant_(norm.weight, 100)
    (scale,) = (n for n in stored(model) if n.endswith("int8_channels_scale"))
    assert scale.startswith("m0.weight.folded.")
    with_norm, alone = (
        read(bundle_of(each)._sources[name])
        for each, name in (
            (model, scale),
            (chain(model.m0), "m0.weight.int8_channels_scale"),
        )
    )
    torch.testing.assert_close(with_norm, alone * 100 / (1 + 1e-5) ** 0.5)


def test_the_first_convolution_of_a_pair_is_int8_and_its_planes_are_not():
    x = torch.zeros(1, 40, 64, 64)
    pair = chain(nn.Conv2d(40, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, groups=64))
    found = bundle_of(pair, x)
    assert ops(found) == ["kvc::pointwise_depthwise_w8"]
    names = {named.name for named in found.program.names}
    assert names == {
        *("m0.weight.int8_channels", "m0.weight.int8_channels_scale"),
        *("m0.bias", "m2.weight", "m2.bias"),
    }


def test_a_weight_of_two_convolutions_is_stored_once():
    one, other = nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3)
    other.weight = one.weight
    found = bundle_of(chain(one, other))
    assert ops(found) == ["kvc::convolution_w8"] * 2
    int8 = [n for n in found.program.names if "int8" in n.name]
    assert [named.type.dims for named in int8] == [(16, 16, 3, 3), (16,)]


@pytest.mark.parametrize("block", [1 << 19, 100])  # elements that are read together
def test_each_output_channel_is_rounded_by_its_own_largest_weight(monkeypatch, block):
    monkeypatch.setattr("kvc.compiler.weights.weight_reader.BLOCK_ELEMENTS", block)
    model = chain(nn.Conv2d(16, 5, 3), nn.ConvTranspose2d(5, 7, (2, 4)))
    size = torch.tensor([1e-9, 0, 1, 40, 3e38])
    turned = torch.tensor([3.0, 0, 1e-3, 1, 1, 1e9, 2])
    with torch.no_grad():
        model.m0.weight.mul_(size.view(5, 1, 1, 1))
        model.m1.weight.mul_(turned.view(1, 7, 1, 1))
    sources = bundle_of(model)._sources
    for name, axis, kind in (("m0", 0, "channels"), ("m1", 1, "outputs")):
        weight = model.get_submodule(name).weight.detach()
        values = read(sources[f"{name}.weight.int8_{kind}"])
        scales = read(sources[f"{name}.weight.int8_{kind}_scale"])
        assert values.shape == weight.shape
        for channel, scale in enumerate(scales):
            floats = weight.select(axis, channel)
            most = floats.abs().max()
            assert scale == (most / 127 if most else 1)
            wanted = (floats / scale).round().to(torch.int8)
            assert torch.equal(values.select(axis, channel), wanted)


def test_the_scales_are_those_of_the_values_however_they_are_read():
    sources = bundle_of(chain(nn.ConvTranspose2d(16, 6, 3)))._sources
    values, scale = (f"m0.weight.int8_outputs{end}" for end in ("", "_scale"))
    reader = WeightReader()
    together = [list(reader.blocks(sources[name])) for name in (values, scale)]
    assert torch.equal(torch.cat(together[1]), read(sources[scale]))
    assert torch.equal(torch.cat(together[0]), read(sources[values]))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_weights_that_are_not_finite_are_refused_with_their_name(
    tmp_path, number, kind
):
    model = chain(kind(16, 8, 3))
    with torch.no_grad():
        model.m0.weight[3, 2, 1, 0] = number
    with pytest.raises(NotFinite) as told:
        bundle_of(model).save(tmp_path / "model.kvc")
    assert (told.value.weight, told.value.dtype) == ("m0.weight", "int8")
    assert (told.value.count, told.value.total) == (1, 16 * 8 * 9)


def recipe_with(folder, *lines: str):
    path = folder / "own.toml"
    path.write_text("\n".join((*lines, '[backend]\nname = "cpu"', "")))
    return load_recipe(path)


@pytest.mark.parametrize("linear", ['[linear]\nscheme = "q8"', ""])
def test_kept_weights_stay_float32(tmp_path, linear):
    recipe = recipe_with(
        tmp_path,
        linear,
        '[convolution]\nscheme = "w8"\n[keep]\nm1 = "float32"',
    )
    model = chain(
        *(nn.Conv2d(16, 16, 3) for _ in range(2)),
        nn.BatchNorm2d(16),
    )
    found = bundle_of(model, recipe=recipe)
    kept = [n.name for n in found.program.names if n.name.startswith("m1.weight")]
    assert kept
    assert not any("int8" in name for name in kept)
    assert ops(found) == ["kvc::convolution_w8", "aten::convolution"]


@pytest.mark.parametrize("linear", ['[linear]\nscheme = "q8"', ""])
def test_a_pattern_that_matches_nothing_is_refused(tmp_path, linear):
    keep = '[convolution]\nscheme = "w8"\n[keep]\nm7 = "float32"'
    with pytest.raises(UnmatchedPattern, match="m7"):
        bundle_of(
            chain(nn.Conv2d(16, 16, 3)), recipe=recipe_with(tmp_path, linear, keep)
        )


def test_the_same_model_gives_the_same_bytes(tmp_path):
    model = chain(nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 4, 3))
    for name in ("one", "other"):
        bundle_of(model).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_size_may_change_from_call_to_call(tmp_path):
    model = chain(nn.Conv1d(16, 8, 3, padding=1), nn.SiLU())
    x = X[0].transpose(0, 1).reshape(1, 16, -1)[..., :40].contiguous()
    dynamic = {"x": {2: Dim("length", 1, 64)}}
    found = bundle_of(model, x, dynamic=dynamic)
    assert ops(found) == ["kvc::convolution_w8"]
    found.save(tmp_path / "model.kvc")
    with load(tmp_path / "model.kvc") as program:
        session = program.session()
        for length in (1, 7, 40):
            part = x[..., :length]
            with torch.no_grad():
                expected = model(part)
            error = session.call("forward", part) - expected
            assert 0 < error.abs().max() < 0.02


def test_constants_that_nobody_rounds_are_equal_to_the_models():
    module = chain(nn.Conv2d(16, 8, 3))
    assert bundle_of(module)._sources["m0.bias"] == TensorSource(module.m0.bias)
