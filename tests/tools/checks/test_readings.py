"""What is kept of results, and how far rounding moves it."""

import numpy as np
import pytest
import torch
from tiny_decoder import factory
from torch import nn

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.tools.checks.calls import Result, sample_results
from kvc.tools.checks.expected import FILE, with_results
from kvc.tools.checks.readings import (
    SUMS,
    Source,
    choose_calls,
    differences,
    measure_moves,
    read,
)


def rows(*arrays):
    (reading,) = read(Result("a", array) for array in arrays)
    return reading.rows


def test_sums_differ_as_much_as_results_do():
    random = np.random.default_rng(1)
    before = random.standard_normal((40, 100_000)).astype(np.float32)
    here = before + random.standard_normal(before.shape) * 0.01
    (shares,) = np.split(differences(rows(*before), rows(*here)), 1)
    assert np.sqrt(np.mean(shares**2)) == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("at", [0, 65_535, 65_536, 99_999])
def test_each_number_counts(at):
    before = np.ones(100_000, np.float32)
    here = before.copy()
    here[at] = 1000
    (share,) = differences(rows(before), rows(here))
    assert share > 1


def test_a_result_that_is_small_beside_others_is_measured_by_these():
    before = rows(np.ones(50), np.full(50, 1e-6))
    here = rows(np.ones(50), np.zeros(50))
    assert differences(before, here).max() < 1e-5
    assert differences(before[1:], here[1:]).max() == 1


def test_which_numbers_are_not_finite_is_kept():
    numbers = np.ones(5, np.float32)
    others = [numbers.copy() for _ in range(4)]
    others[0][2] = np.nan
    others[1][2] = np.inf
    others[2][2] = -np.inf
    others[3][3] = np.nan
    (plain,) = read([Result("a", numbers)])
    kinds = [read([Result("a", one)])[0].kind for one in others]
    assert plain.kind == "float32[5]"
    assert all(kind.startswith("float32[5] with 1 not finite (") for kind in kinds)
    assert len(set(kinds)) == 4
    assert np.isfinite(rows(*others)).all()


def test_results_of_one_name_are_kept_together():
    given = [Result("a", np.ones(3)), Result("b", "Poisoned"), Result("a", np.ones(4))]
    first, second = read(given)
    assert (first.name, first.kind) == ("a", "float64[3]; float64[4]")
    assert first.rows.shape == (2, SUMS)
    assert (second.kind, second.rows.tolist()) == ("Poisoned", [[0.0] * SUMS])


def test_nothing_at_all_has_sums():
    assert rows(np.zeros((0, 4), np.int64)).tolist() == [[0.0] * SUMS]
    assert differences(rows(np.zeros(3)), rows(np.zeros(3))).tolist() == [0.0]


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
