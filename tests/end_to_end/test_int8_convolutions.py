"""Models of convolutions by recipes with int8 weights: size, numbers and kernels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.schema.container import BundleFile


class Picture(nn.Module):
    """A net for pictures: blocks as MobileNetV2's, a skip, and sizes down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32))
        self.wide = nn.Sequential(
            nn.Conv2d(32, 192, 1, bias=False), nn.BatchNorm2d(192)
        )
        self.planes = nn.Conv2d(192, 192, 3, padding=1, groups=192)
        self.narrow = nn.Conv2d(192, 32, 1)
        self.down = nn.Conv2d(32, 96, (3, 5), 2, (1, 4), dilation=(1, 2))
        self.apart = nn.Conv2d(96, 96, 3, padding=1, groups=3)
        self.up = nn.ConvTranspose2d(96, 32, 2, 2)
        self.last = nn.Conv2d(64, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = x + self.narrow(self.planes(self.wide(x).clamp(0, 6)).clamp(0, 6))
        deep = nn.functional.gelu(self.apart(nn.functional.silu(self.down(x))))
        made: Tensor = self.last(torch.cat((x, self.up(deep)), 1))
        return made


class Sound(nn.Module):
    """A net for signals: an axis with a long first kernel, then more channels."""

    def __init__(self) -> None:
        super().__init__()
        self.bands = nn.Conv1d(1, 40, 64, 8, bias=False)
        self.deep = nn.Conv1d(40, 64, 5, padding=2, dilation=1)
        self.up = nn.ConvTranspose1d(64, 24, 7, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.up(self.deep(self.bands(x).abs()).tanh())
        return made


class Volume(nn.Module):
    """A net over three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv3d(4, 24, 3, 2, 1)
        self.up = nn.ConvTranspose3d(24, 5, (2, 3, 2), 2, (0, 1, 0))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.up(nn.functional.hardswish(self.down(x)))
        return made


SHAPES = {Picture: (2, 3, 64, 56), Sound: (2, 1, 999), Volume: (1, 4, 9, 10, 7)}
INT8 = {
    Picture: {
        "convolution_w8": 4,
        "pointwise_depthwise_w8": 1,
        "conv_transpose_w8": 1,
        "convolution": 1,
    },
    Sound: {"convolution": 1, "convolution_w8": 1, "conv_transpose_w8": 1},
    Volume: {"convolution_w8": 1, "conv_transpose_w8": 1},
}


def made(kind: type[nn.Module]) -> tuple[nn.Module, Tensor]:
    """Return a model of random weights and statistics, and an input."""
    torch.manual_seed(0)
    model = kind().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model, torch.randn(SHAPES[kind])


def bundle(kind: type[nn.Module], recipe: str, folder: Path) -> Path:
    model, x = made(kind)
    path = folder / f"{recipe}.kvc"
    compile_program(model, (Method("forward", (x,)),), recipe).save(path)
    return path


def call(path: Path, x: Tensor, **options: object) -> np.ndarray:
    with load(path, **options) as program:
        found = program.session().call("forward", x)
    assert isinstance(found, Tensor)
    return found.numpy()


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("recipe", ["cpu_q8", "cpu_q4"])
def test_results_are_near_those_of_float32(tmp_path, kind, recipe):
    model, x = made(kind)
    path = bundle(kind, recipe, tmp_path)
    with torch.no_grad():
        expected = model(x).numpy()
    found = call(path, x)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 1e-4 < error < 0.02
    reference = call(path, x, reference=True)
    np.testing.assert_allclose(found, reference, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", SHAPES)
def test_every_convolution_runs_in_the_form_that_its_weight_has(tmp_path, kind):
    with BundleFile.open(bundle(kind, "cpu_q8", tmp_path)) as file:
        program = file.program
    found: dict[str, int] = {}
    for graph in (graph for method in program.methods for graph in method.graphs):
        for step in graph.instructions:
            name = step.op.partition("::")[2]
            if "conv" in name or "pointwise" in name:
                found[name] = found.get(name, 0) + 1
    assert found == INT8[kind]


@pytest.mark.parametrize(("kind", "ratio"), [(Picture, 0.31), (Volume, 0.30)])
def test_weights_take_a_quarter(tmp_path, kind, ratio):
    """Scales, biases and the planes' weights are the rest."""
    sizes = {}
    for recipe in ("cpu_fp32", "cpu_q8"):
        with BundleFile.open(bundle(kind, recipe, tmp_path)) as file:
            sizes[recipe] = sum(blob.nbytes for blob in file.program.blobs)
    assert 0.25 < sizes["cpu_q8"] / sizes["cpu_fp32"] < ratio
