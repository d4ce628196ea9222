"""Choosing tokens."""

import numpy as np

from kvc.runtime.sampling import choose_token

LOGITS = np.array([0.0, 3.0, 2.0, -1.0], np.float32)


def choose(temperature, top_k=None, seed=0, count=400):
    random = np.random.default_rng(seed)
    return [choose_token(LOGITS, temperature, top_k, random) for _ in range(count)]


def test_temperature_zero_takes_the_greatest():
    assert set(choose(0)) == {1}


def test_higher_temperature_spreads():
    assert choose(0.3).count(1) > choose(1.0).count(1) > choose(5.0).count(1)
    assert set(choose(5.0)) == {0, 1, 2, 3}


def test_frequencies_follow_the_softmax():
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    counts = np.bincount(choose(1.0, count=4000), minlength=4) / 4000
    assert np.abs(counts - expected).max() < 0.03


def test_top_k_keeps_the_k_greatest():
    assert set(choose(5.0, top_k=2)) == {1, 2}
    assert set(choose(5.0, top_k=1)) == {1}
    assert set(choose(5.0, top_k=99)) == {0, 1, 2, 3}


def test_a_seed_makes_it_repeatable():
    assert choose(1.0, seed=3) == choose(1.0, seed=3)
    assert choose(1.0, seed=3) != choose(1.0, seed=4)


def test_very_great_logits_do_not_overflow():
    logits = np.array([1e30, -1e30], np.float32)
    assert choose_token(logits, 0.01, None, np.random.default_rng(0)) == 0
