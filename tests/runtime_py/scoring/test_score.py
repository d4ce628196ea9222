"""Scores against the cross entropy of the eager model, by each kind of method."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from counting_model import VOCAB, counting_program
from daily import every
from hand_built import write_bundle
from scored_model import (
    CONFIG,
    KINDS,
    TOKENS,
    scored_model,
    scored_programs,
    write_scored,
)
from torch.nn import functional

from kvc.runtime import load
from kvc.runtime.generation.log_probabilities import log_probabilities
from kvc.runtime.scoring import cut_windows, score_tokens
from kvc.runtime.scoring.window_scores import _bits
from kvc.schema.errors import BadSetting, InputMismatch, UnknownName, UnusableLogits


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    yield from scored_programs(tmp_path_factory.mktemp("scored"))


def eager_bits(tokens, window, stride, start=()):
    """The same by the eager model in float64, without a cache."""
    model, total = scored_model().double(), 0.0
    for one in cut_windows(len(tokens), window, stride, bool(start)):
        seen = torch.tensor([[*start, *tokens[one.begin : one.end]]])
        first = len(start) + one.first - one.begin
        with torch.no_grad():
            logits = model(seen)[0, first - 1 : -1]
        nats = functional.cross_entropy(logits, seen[0, first:], reduction="sum")
        total += nats.item() / math.log(2)
    return total


@every(3, "start", "window", "kind")
@pytest.mark.parametrize("start", [(), (7,), (7, 3)])
@pytest.mark.parametrize(("window", "stride"), [(38, 19), (20, 19), (9, 1), (12, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_the_cross_entropy_of_the_eager_model(
    programs, kind, window, stride, start
):
    score = score_tokens(programs[kind], TOKENS, window, stride, start)
    expected = eager_bits(TOKENS, window, stride, start)
    assert score.tokens == len(TOKENS) - (not start)
    # float32 logits near 10 are known to 1e-6; cells of the cache in other orders
    assert score.bits == pytest.approx(expected, rel=1e-4)
    assert score.bits_per_token > 4  # far from nothing
    assert score.method == kind


def test_a_wrong_token_costs_more(programs):
    """The control: what is compared above depends on each token."""
    before = score_tokens(programs["decode"], TOKENS, 38, 19).bits
    for place in (1, 30, len(TOKENS) - 1):
        other = [*TOKENS]
        other[place] = (other[place] + 1) % CONFIG.vocab
        changed = score_tokens(programs["decode"], other, 38, 19).bits
        assert abs(changed - before) > 0.01


def test_window_and_stride_have_defaults_that_fit(programs):
    score = score_tokens(programs["decode"], TOKENS)
    assert (score.window, score.stride) == (CONFIG.capacity + 1, 20)
    score = score_tokens(programs["forward"], TOKENS, start=(7,))
    assert (score.window, score.stride) == (CONFIG.capacity, 20)
    score = score_tokens(programs["decode"], TOKENS, window=10)
    assert score.stride == 5


def test_perplexity_is_among_how_many_the_model_chooses(programs):
    score = score_tokens(programs["decode"], TOKENS)
    nats = score.bits * math.log(2) / score.tokens
    assert score.perplexity == pytest.approx(math.exp(nats))


def test_progress_says_how_many_tokens_are_done(programs):
    told = []
    score_tokens(
        programs["forward"], TOKENS, 20, 10, progress=lambda *p: told.append(p)
    )
    assert told == [(at, len(TOKENS)) for at in (1, 20, 30, 40, 50)]


def test_what_the_model_makes_likely_costs_little(tmp_path):
    path = write_bundle(tmp_path / "counting.kvc", counting_program())
    with load(path) as program:
        counted = score_tokens(program, list(range(12)), 8, 4)
        other = score_tokens(program, [0, 5, 9, 2, 20, 1], 8, 4)
    # The likely token has the logit 6, the others 1.
    nats = math.log(math.exp(6) + (VOCAB - 1) * math.e)
    assert counted.bits_per_token == pytest.approx((nats - 6) / math.log(2))
    assert other.bits_per_token == pytest.approx((nats - 1) / math.log(2))
    assert counted.method == "step"


@pytest.mark.parametrize(
    ("tokens", "sizes", "text"),
    [
        ([], {}, "text: expected 2 tokens"),
        ([1], {}, "text: expected 2 tokens"),
        (TOKENS, {"window": 42}, "window: expected up to 41, got 42"),
        (TOKENS, {"window": 1}, "window: expected 2"),
        (TOKENS, {"window": 8, "stride": 8}, "stride: expected from 1 to 7"),
        (TOKENS, {"window": 41, "start": [1]}, "window: expected up to 40"),
    ],
)
def test_what_cannot_be_scored_is_refused(programs, tokens, sizes, text):
    with pytest.raises(BadSetting, match=text):
        score_tokens(programs["decode"], tokens, **sizes)


@pytest.mark.parametrize("tokens", [[1, 256], [1, -1], [1, 2, 300, 4], [-5, 1]])
def test_tokens_that_the_model_does_not_have_are_refused(programs, tokens):
    with pytest.raises((InputMismatch, UnusableLogits)):
        score_tokens(programs["decode"], tokens)


def test_a_program_without_such_methods_is_refused(tmp_path):
    made, arrays = counting_program()
    methods = tuple(replace(method, role="") for method in made.methods)
    path = write_bundle(tmp_path / "m.kvc", (replace(made, methods=methods), arrays))
    with load(path) as program, pytest.raises(UnknownName, match="role 'prefill'"):
        score_tokens(program, TOKENS)


def test_a_method_that_sees_what_it_is_to_predict_is_refused(programs, monkeypatch):
    from kvc.runtime import Session

    call = Session.call

    def leak(session, name, tokens):
        return call(session, name, tokens) + tokens.sum()

    monkeypatch.setattr(Session, "call", leak)
    with pytest.raises(UnusableLogits, match="depend on later tokens"):
        score_tokens(programs["forward"], TOKENS)


def test_float64_keeps_what_float32_would_lose():
    logits = np.full((2, 50_000), 88.0, np.float32)
    logits[0, 0] = 100.0
    exact = math.log2(50_000)
    assert _bits(log_probabilities(logits[1:]), [3]) == pytest.approx(exact, rel=1e-12)
    first = math.log2(1 + 49_999 * math.exp(-12))
    assert _bits(log_probabilities(logits), [0, 3]) == pytest.approx(
        exact + first, rel=1e-12
    )


@pytest.mark.parametrize(
    "bad", [[math.nan, 1.0], [math.inf, math.inf], [-math.inf] * 2]
)
def test_logits_that_are_no_numbers_are_refused(bad):
    with (
        pytest.raises(UnusableLogits, match="NaN, or only infinities"),
        np.errstate(invalid="ignore"),
    ):
        log_probabilities(np.array([bad], np.float32))


def test_a_token_that_is_ruled_out_costs_infinitely_much():
    with np.errstate(divide="ignore"):
        found = log_probabilities(np.array([[0.0, -math.inf]], np.float32))
        assert _bits(found, [1]) == math.inf


@pytest.mark.parametrize("names", [("prefill", "decode"), ("forward",)])
def test_loading_is_not_measured(tmp_path, names, monkeypatch):
    """What only a process's first calls do takes longer than the rest together."""
    with load(write_scored(tmp_path / "m.kvc", *names)) as program:
        hours = [0]

        def slow_at_first(*given):
            hours[0] = hours[0] or 1
            return taken(*given)

        held = program._engine._blobs
        taken, held.touch = held.touch, slow_at_first
        monkeypatch.setattr(time, "perf_counter", lambda: 3600.0 * hours[0])
        assert score_tokens(program, range(12)).seconds == 0
        assert hours == [1]
