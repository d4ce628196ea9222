"""How far rounding moves results: measured, and the same each time."""

import numpy as np
import pytest
import torch
from tiny_decoder import factory
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.tools.checks.calls import sample_results
from kvc.tools.checks.expected import FILE
from kvc.tools.checks.made import with_results
from kvc.tools.checks.readings import read
from kvc.tools.checks.rounding import Source, choose_calls, measure_moves


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    spec = factory()
    bundle = compile_program(spec.model, spec.methods, "cpu_q8", states=spec.states)
    path = tmp_path_factory.mktemp("rounding") / "model.kvc"
    bundle.save(path)
    return Source(path, None, None)


def test_moves_of_the_first_layer_are_last_bits_and_of_quantized_ones_are_not(source):
    calls = choose_calls(source)
    assert len(calls) == 8
    with load(source.path) as program:
        names = [one.name for one in read(sample_results(program, calls))]
    moves = dict(zip(names, measure_moves(source, calls), strict=True))
    first = moves["layers.0.attn.k_cache after two tokens"]
    assert 1e-8 < np.median(first.fine) < 1e-5
    assert 1e-4 < moves["two tokens"].coarse < 0.1
    assert moves["a prompt"].coarse == moves["token 1 after it"].coarse or (
        min(moves[name].coarse for name in ("a prompt", "token 1 after it")) > 1e-4
    )
    assert moves["position after two tokens"].coarse == 0


def test_the_file_stays_as_it_is(source):
    before = source.path.read_bytes()
    with source.changed(0.5, 1) as program:
        changed = program.data["norm.weight"].array().copy()
    assert source.path.read_bytes() == before
    with load(source.path) as program:
        plain = program.data["norm.weight"].array()
        share = np.abs(changed / plain - 1).max()
    assert 0.01 < share <= 0.5


class Masked(nn.Module):
    """Adds the least number there is, as masks do; a change would overflow it."""

    def __init__(self):
        super().__init__()
        mask = torch.tensor([0.0, torch.finfo(torch.float32).min])
        self.register_buffer("mask", mask)

    def forward(self, x):
        return (x + self.mask).softmax(-1)


def test_the_least_number_of_a_mask_stays(tmp_path):
    bundle = compile_program(Masked(), [Method("forward", (torch.ones(2),))], "fp32")
    assert with_results(bundle, lambda *stage: None)


def test_equal_models_have_equal_results():
    def content():
        spec = factory()
        bundle = compile_program(spec.model, spec.methods, "cpu_q8", states=spec.states)
        return with_results(bundle, lambda *stage: None)._files[FILE].key

    assert content() == content()
