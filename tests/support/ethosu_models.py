"""Models for Ethos-U, their calibration samples, and their bundles."""

from pathlib import Path

import numpy as np
import tiny_decoder
import torch
from streaming_audio import CHANNELS, CausalStack
from torch import nn
from torch.nn import functional

from kvc.compiler import Method, compile_program
from kvc.runtime.calibration import Samples
from kvc.schema.container import BundleFile

RECIPES = "ethosu_a8w8", "ethosu_a16w8"
PROMPT = np.random.default_rng(0).integers(0, 256, (8, 20))


class Picture(nn.Module):
    """A small network for pictures: several convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(8, 16, 3, padding=(1, 2), dilation=(1, 2), groups=8)
        self.last = nn.Conv2d(16, 4, 1, bias=False)
        self.out = nn.Linear(4 * 6 * 6, 10)

    def forward(self, x):
        x = functional.relu(self.first(x))
        x = functional.silu(self.deep(x))
        return self.out(self.last(x).flatten(1))


class Shapes(nn.Module):
    """A model that reorders elements, and has values of different ranges."""

    def forward(self, x, y):
        a, b = x.split([2, 4], 1)
        joined = torch.cat([a.tanh(), 3 * b[:, 1:3] - y[0, 1]], 1)
        turned = joined.permute(0, 2, 1) + y.unsqueeze(1).expand(1, 4, 4, 4)[0]
        mixed = (turned * turned.transpose(0, 1).sigmoid()).clamp(-1.5, 2)
        return mixed[:, -1], mixed.neg()


class Gated(nn.Module):
    """The feed-forward part of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(16, 32), nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(functional.gelu(self.gate(x)) * self.up(x))


MODELS = {
    "picture": (Picture, [(1, 3, 12, 12)]),
    "shapes": (Shapes, [(4, 6, 4), (1, 4, 4)]),
    "gated": (Gated, [(2, 3, 16)]),
}


def noise(shapes, seed=0, calls=4):
    random = np.random.default_rng(seed)
    return [random.standard_normal((calls, *one)).astype(np.float32) for one in shapes]


def compiled(
    folder: Path, name: str, recipe: str = RECIPES[0]
) -> tuple[nn.Module, Path, list[np.ndarray]]:
    torch.manual_seed(0)
    kind, shapes = MODELS[name]
    model, given = kind().eval(), noise(shapes)
    example = tuple(torch.from_numpy(one[0]) for one in given)
    path, told = folder / f"{name}.kvc", samples(folder, *given)
    _compile(path, recipe, told, model, [Method("forward", example)])
    return model, path, given


def _compile(path, recipe, told: Samples, model, methods: list[Method]) -> None:
    compile_program(model, methods, recipe=recipe, calibrate=told).save(path)


def samples(folder: Path, *given: np.ndarray) -> Samples:
    path = folder / "samples.npz"
    np.savez(path, **dict(zip(("x", "y"), given, strict=False)))
    return Samples(path)


def partition_of(path: Path):
    with BundleFile.open(path) as file:
        (partition,) = file.program.delegates
        method = file.program.methods[partition.method]
        return partition, method.blocks[partition.block].graph


def stream(
    folder: Path, recipe: str = RECIPES[0]
) -> tuple[nn.Module, Path, np.ndarray]:
    torch.manual_seed(0)
    (given,) = noise([(1, CHANNELS, 8)], calls=12)
    model, path = CausalStack().eval(), folder / "stream.kvc"
    method = Method("forward", (torch.zeros(1, CHANNELS, 8),))
    _compile(path, recipe, samples(folder, given), model, [method])
    return model, path, given


def decoder(folder: Path) -> Path:
    """Compile a decoder for Ethos-U, at two sizes; `cpu` runs the rest of it."""
    recipe, path = folder / "decoder.toml", folder / "decoder.kvc"
    backend = '[backend]\nname = "ethosu"\nrest = "cpu"\n'
    recipe.write_text(f"{backend}[buckets]\nseq = [1, 8]\n")
    np.savez(folder / "tokens.npz", tokens=PROMPT)
    spec = tiny_decoder.factory()
    told = Samples(folder / "tokens.npz")
    _compile(path, str(recipe), told, spec.model, spec.methods)
    return path
