"""Ranges on Ethos-U: values that are nothing, tiny or huge beside the others."""

from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import torch
from torch import nn
from tosa_reference import needs_tosa, reference

from kvc.compiler import Method, compile_program
from kvc.compiler.models.decoder import rotate
from kvc.runtime import load
from kvc.runtime.calibration import Samples
from kvc.runtime.delegates.ethosu.backend import EthosUHandle
from kvc.runtime.delegates.ethosu.evaluate import evaluate
from kvc.runtime.delegates.ethosu.tosa import Element, TosaGraph

RECIPES = "ethosu_a8w8", "ethosu_a16w8"
FAR = {"ethosu_a8w8": 0.02, "ethosu_a16w8": 0.01}


def noise(*shape: int, times: float = 1.0) -> np.ndarray:
    return (times * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)


def far_off(folder: Path, model: nn.Module, recipe: str, **given: np.ndarray) -> float:
    """Return how far results are from the model's, as a part of the greatest."""
    np.savez(folder / "samples.npz", **given)
    example = tuple(torch.from_numpy(one[0]) for one in given.values())
    compile_program(
        model.eval(), [Method("forward", example)], recipe,
        calibrate=Samples(folder / "samples.npz"),
    ).save(folder / "model.kvc")  # fmt: skip
    worst = 0.0
    with load(folder / "model.kvc") as program:
        for one in zip(*given.values(), strict=True):
            wanted = model(*map(torch.from_numpy, one)).detach().numpy()
            off = np.abs(program.forward(*one) - wanted).max()
            worst = max(worst, float(off / np.abs(wanted).max()))
    return worst


class Layer(nn.Module):
    """A linear layer of which one row is not used, as of a vocabulary with room."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4096, 8, bias=False)
        self.linear.weight.data[3] = 0

    def forward(self, x):
        return self.linear(x)


class Normed(nn.Module):
    """A norm whose epsilon is large beside small numbers."""

    def forward(self, x):
        return nn.functional.rms_norm(x, (24,), None, 1e-5)


class Sum(nn.Module):
    """Adds two tensors."""

    def forward(self, x, y):
        return x + y


class Far(nn.Module):
    """Brings what is far from 0 near to it."""

    def forward(self, x):
        return x - 1000


class Cut(nn.Module):
    """Cuts off between two numbers of what it is given."""

    def forward(self, x):
        return x.clamp(-1, 1)


class Single(nn.Module):
    """Multiplies numbers without axes."""

    def forward(self, x):
        return x[0] * x[1]


class Turned(nn.Module):
    """Turns by angles that are given."""

    def forward(self, x, cos, sin):
        return rotate(x, cos, sin)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_row_of_zeros_in_a_deep_weight_is_no_scale_out_of_range(tmp_path, recipe):
    assert far_off(tmp_path, Layer(), recipe, x=noise(3, 2, 4096)) < 2 * FAR[recipe]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("times", [1.0, 1e-3, 1e-4, 1e-8])
def test_a_norm_of_numbers_far_below_epsilon(tmp_path, recipe, times):
    x = noise(3, 4, 24, times=times)
    assert far_off(tmp_path, Normed(), recipe, x=x) < FAR[recipe] / 2


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("times", [1.0, 1e-4])
def test_zeros_that_are_added_coarsen_nothing(tmp_path, recipe, times):
    x = noise(3, 4, 24, times=times)
    off = far_off(tmp_path, Sum(), recipe, x=x, y=np.zeros_like(x))
    assert off < FAR[recipe] / 2


def test_a_number_far_from_0_is_taken_away_as_exactly_as_its_grid_says(tmp_path):
    x = noise(3, 4, 64) + 1000
    half_a_step = np.abs(x).max() / 32767
    off = far_off(tmp_path, Far(), RECIPES[1], x=x)
    assert off < 2 * half_a_step / np.abs(x - 1000).max()


def test_what_is_cut_off_on_a_coarse_grid_ends_where_it_should(tmp_path: Path):
    x = np.array([[9e4, 1e4, -1e4, -9e4]] * 3, np.float32)
    assert far_off(tmp_path, Cut(), RECIPES[1], x=x) < 1e-4


@pytest.mark.parametrize("recipe", RECIPES)
def test_numbers_without_axes_are_multiplied(tmp_path: Path, recipe: str):
    assert far_off(tmp_path, Single(), recipe, x=noise(3, 2)) < FAR[recipe]


@pytest.mark.parametrize("recipe", RECIPES)
def test_at_the_first_position_alone_nothing_is_turned(tmp_path, recipe):
    x, ones = noise(3, 1, 2, 4, 16), np.ones((3, 4, 8), np.float32)
    cos, sin = ones * np.float32(0.9), 0 * ones
    off = far_off(tmp_path, Turned(), recipe, x=x, cos=cos, sin=sin)
    assert off < FAR[recipe]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("times", [1, 65, 300])
def test_what_is_hidden_counts_for_nothing_beside_huge_scores(tmp_path, recipe, times):
    graph, results = decode_graph(tmp_path, recipe, times), []
    for hidden in (0, 1):
        made = evaluate(graph, given(graph, hidden))
        results += [one for one in made if one.shape == (1, 256)]
    assert np.array_equal(*results)
    assert results[0].any()


@pytest.mark.parametrize("recipe", RECIPES)
@needs_tosa
def test_huge_scores_are_those_of_the_reference_model(tmp_path: Path, recipe: str):
    graph = decode_graph(tmp_path, recipe, 300)
    inputs = given(graph, 1)
    found, wanted = evaluate(graph, inputs), reference(graph, inputs, tmp_path)
    assert [one.tolist() for one in found] == [one.tolist() for one in wanted]


def given(graph: TosaGraph, hidden: int) -> list[np.ndarray]:
    """Return inputs of a decode at position 5: what is hidden is zeros, or the ends."""
    random, positions, inputs = np.random.default_rng(1), iter((5, 6)), []
    for tensor in (graph.tensors[name] for name in graph.inputs):
        if tensor.element is Element.INT32:
            inputs.append(np.full(1, next(positions)))
            continue
        most = 128 if tensor.element is Element.INT8 else 1 << 15
        array = random.integers(-most, most, tensor.shape)
        if tensor.shape == (1, 1, 24, 16):
            array[:, :, :6] //= 16
            array[:, :, 6:] = hidden * np.where(array[:, :, 6:] < 0, -most, most - 1)
        inputs.append(array)
    return inputs


def decode_graph(folder: Path, recipe: str, times: float) -> TosaGraph:
    """Return a decode whose queries and keys are so many times as large as usual."""
    spec = tiny_decoder.factory()
    attention = spec.model.layers[0].attn
    attention.q.weight.data *= times
    attention.k.weight.data *= times
    tokens = np.random.default_rng(0).integers(0, 256, (8, 20))
    np.savez(folder / "tokens.npz", tokens=tokens)
    compile_program(
        spec.model, spec.methods, recipe, calibrate=Samples(folder / "tokens.npz")
    ).save(folder / "model.kvc")
    with load(folder / "model.kvc") as program:
        program.pack()
        handles = program._engine._resources._handles.values()
        taken = [one for one in handles if isinstance(one, EthosUHandle)]
        return taken[-1].lowered({})
