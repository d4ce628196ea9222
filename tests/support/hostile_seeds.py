"""Small real bundles from which hostile files are made.

Together they have each backend, int8 weights, linear and growing caches, rings, int8
caches, rows of different lengths, branches and loops.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from branching_models import Branches, Loops
from cached_models import Append, append_methods
from ragged_models import MOST, RAGGED, ragged_methods, ragged_specs
from ring_models import RingDecoder, Shape, ring_methods
from tiny_decoder import factory
from torch import Tensor, nn

from kvc.compiler import Method, StateSpec, compile_program
from kvc.recipes import Wanted, load_recipe, load_recipes


class Convolutions(nn.Module):
    """Convolutions of all kinds, with and without a function at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, 2, 1)
        self.apart = nn.Conv2d(16, 16, 3, 1, 2, 2, 16)
        self.wide = nn.Conv2d(16, 32, 1, groups=2)
        self.back = nn.ConvTranspose2d(32, 4, 3, 2, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [1, 4, ...] of the size of x."""
        y = self.first(x).relu()
        y = nn.functional.silu(self.apart(y) + y)
        made: Tensor = self.back(self.wide(y))
        return made


COUNT, ROWS = torch.tensor(3), torch.randn(2, 4)
YES, NO = torch.tensor(True), torch.tensor(False)
PICTURE = (Method("forward", (torch.randn(1, 3, 8, 10),)),)
LOOPS = (
    Method("until", (COUNT, ROWS)),
    Method("swapped", (COUNT, ROWS, ROWS)),
    Method("scanned", (ROWS, torch.randn(3, 2, 4))),
    Method("mapped", (torch.randn(3, 2, 4), ROWS)),
    Method("branching", (COUNT, ROWS)),
)
BRANCHES = (
    Method("consecutive", (YES, ROWS)),
    Method("nested", (YES, NO, ROWS)),
    Method("captured", (YES, ROWS)),
)


class Seed(NamedTuple):
    """The arguments with which one bundle is compiled.

    `states` and `max_length` are those of `compile_program`.
    """

    model: Callable[[], nn.Module]
    methods: Sequence[Method]
    recipe: Wanted
    cache: str | None = None
    states: Sequence[StateSpec] = ()
    max_length: int | None = None


def _bucketed() -> Wanted:
    recipe = replace(load_recipe("cpu_fp32"), buckets={"seq": (1, 4, 8)})
    return [recipe, "xnnpack_fp32"]


def _decoder(recipe: Wanted, cache: str | None = None) -> Seed:
    spec = factory()
    return Seed(lambda: spec.model, spec.methods, recipe, cache)


def _rings(recipe: str, cache: str | None = None) -> Seed:
    return Seed(lambda: RingDecoder(Shape()), ring_methods(6)[:2], recipe, cache)


def _ragged(kind: str, recipe: str) -> Seed:
    rings = "rings" in kind
    specs, most = ragged_specs(False, rings), MOST if rings else None
    return Seed(RAGGED[kind], ragged_methods(), recipe, None, specs, most)


SEEDS: Mapping[str, Callable[[], Seed]] = {
    "cpu_q8": lambda: _decoder("cpu_q8"),
    "two recipes": lambda: _decoder("xnnpack_fp32, cpu_fp32"),
    "buckets": lambda: _decoder(_bucketed()),
    "loops": lambda: Seed(Loops, LOOPS, "fp32"),
    "xnnpack_q8": lambda: _decoder("xnnpack_q8"),
    "int8 cache": lambda: _decoder("cpu_fp32", "int8"),
    "rings": lambda: _rings("cpu_fp32"),
    "int8 rings": lambda: _rings("fp32", "int8"),
    "ragged": lambda: _ragged("state", "cpu_fp32"),
    "ragged branches": lambda: _ragged("branches", "fp32"),
    "ragged rings": lambda: _ragged("rings", "fp32"),
    "convolutions": lambda: Seed(Convolutions, PICTURE, "cpu_fp32"),
    "growing": lambda: Seed(Append, append_methods(), "fp32"),
    "branches on cpu": lambda: Seed(Branches, BRANCHES, "cpu_fp32"),
    "loops on cpu": lambda: Seed(Loops, LOOPS, "cpu_fp32"),
    "xnnpack int8 cache": lambda: _decoder("xnnpack_fp32", "int8"),
    "torch": lambda: _decoder("bf16"),
    "vulkan": lambda: _decoder("vulkan_fp32"),
    "vulkan rings": lambda: _rings("vulkan_fp32"),
}


def write_seed(name: str, path: Path) -> None:
    """Compile one of `SEEDS` into a file, with the same bytes each time."""
    torch.manual_seed(0)
    seed = SEEDS[name]()
    recipe = load_recipes(seed.recipe, seed.cache)
    model, states = seed.model().eval(), seed.states
    bundle = compile_program(
        model, seed.methods, recipe, states=states, max_length=seed.max_length
    )
    bundle.save(path)
