"""Divergences against sums by hand, and between whole programs."""

import math

import numpy as np
import pytest
from scored_model import KINDS, TOKENS, scored_programs

from kvc.runtime.generation.log_probabilities import log_probabilities
from kvc.runtime.scoring import divergence, score_tokens
from kvc.runtime.scoring.divergence import Beside
from kvc.runtime.scoring.scorers import WindowTokens, find_scorer
from kvc.schema.errors import BadSetting, UnusableLogits


class Pieces:
    """A scorer of rows in pieces."""

    method, most = "rows", None

    def __init__(self, rows, *sizes):
        self._pieces = np.split(np.asarray(rows, np.float32), np.cumsum(sizes))

    def logits(self, tokens, first):
        yield from self._pieces


def divergence_of(reference, found, *sizes):
    beside = Beside(Pieces(reference, *sizes), WindowTokens((), 1))
    beside.add(log_probabilities(np.asarray(found, np.float32)))
    return divergence.divergence_of([beside.compared()])


def test_it_is_the_sum_of_p_times_the_logarithm_of_p_by_q():
    p, q = [[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], [[0.25, 0.25, 0.5], [0.1, 0.1, 0.8]]
    first = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    found = divergence_of(np.log(p), np.log(q) + 3)  # logits are up to a constant
    assert found.nats == pytest.approx(first / 2, rel=1e-6)
    assert found.error == pytest.approx(first / 2, rel=1e-6)  # two: first and 0
    assert found.same == 0.5


def test_of_one_token_nothing_says_how_far_off_the_mean_is():
    assert divergence_of([[0.0, 1.0]], [[1.0, 0.0]]).error == math.inf


@pytest.mark.parametrize("sizes", [(), (1,), (2, 1), (1, 1, 1)])
def test_rows_come_in_pieces_of_any_sizes(sizes):
    rng = np.random.default_rng(0)
    p, q = rng.normal(size=(2, 4, 9))
    assert divergence_of(p, q, *sizes) == divergence_of(p, q)


def test_what_the_reference_rules_out_adds_nothing():
    with np.errstate(divide="ignore"):
        p, q = np.log([[0.5, 0.5, 0.0]]), np.log([[0.5, 0.25, 0.25]])
    assert divergence_of(p, q).nats == pytest.approx(0.5 * math.log(2), rel=1e-6)
    with np.errstate(divide="ignore"):
        assert divergence_of(q, p).nats == math.inf


def test_logits_that_are_no_numbers_are_refused():
    with pytest.raises(UnusableLogits, match="NaN, or only infinities"):
        divergence_of([[math.nan, 1.0]], [[0.0, 1.0]])


def test_models_of_other_tokens_are_not_compared():
    with pytest.raises(BadSetting, match="against: expected a model of 3 tokens"):
        divergence_of([[0.0, 1.0]], [[0.0, 1.0, 2.0]])


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    yield from scored_programs(tmp_path_factory.mktemp("compared"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_programs_of_one_model_are_together_however_they_give_logits(
    programs, kind, other
):
    score = score_tokens(programs[kind], TOKENS, 20, 9, against=programs[other])
    alone = score_tokens(programs[kind], TOKENS, 20, 9)
    assert score.bits == alone.bits
    assert score.divergence.nats == pytest.approx(0, abs=1e-8)
    assert score.divergence.same == 1
    assert alone.divergence is None


def test_another_context_is_apart(programs):
    """The control: what is compared above depends on each row."""
    shifted = [*TOKENS]
    shifted[10] += 1
    with programs["decode"].session() as one, programs["forward"].session() as other:
        window = WindowTokens(tuple(shifted[:20]), 1)
        beside = Beside(find_scorer(programs["decode"], one), window)
        own = find_scorer(programs["forward"], other)
        for logits in own.logits(TOKENS[:20], 1):
            beside.add(log_probabilities(logits))
    assert divergence.divergence_of([beside.compared()]).nats > 1e-3
