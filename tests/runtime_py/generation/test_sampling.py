"""Choosing tokens: from the logits of one step, and one after the other."""

import math

import numpy as np
import pytest
import torch

from kvc.runtime import UnusableLogits
from kvc.runtime.generation import GenerationSettings
from kvc.runtime.generation.processors import (
    forced_tokens,
    penalize,
    processors_of,
)
from kvc.runtime.generation.sampling import Chooser, choose_token, keep_tokens

LOGITS = np.array([0.0, 3.0, 2.0, -1.0], np.float32)
OF_A_STEP = np.array([3, 4, 2, -1], np.float32)


def chooser_of(settings, prompt, most=None):
    """Return the chooser of an answer to a prompt at the beginning of a session."""
    start = len(prompt)
    forced = forced_tokens(settings, start, most)
    rules = processors_of(settings, start, start)
    place = None if forced is None else lambda ids: forced(ids.size - start)
    return Chooser(settings, prompt, 0, rules, place)


def choose(temperature, seed=0, count=400, logits=LOGITS, **others):
    random = np.random.default_rng(seed)
    settings = GenerationSettings(temperature=temperature, **others)
    return [choose_token(logits, settings, random) for _ in range(count)]


def kept(logits, **settings):
    found = keep_tokens(np.array(logits, np.float32), GenerationSettings(**settings))
    return found[0].tolist()


def test_temperature_zero_takes_the_greatest():
    assert set(choose(0)) == {1}


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 2}])
@pytest.mark.parametrize("temperature", [1e-30, 1e-308, 5e-324])
def test_a_temperature_as_good_as_zero_takes_the_greatest(temperature, settings):
    for logits in (LOGITS, LOGITS - 9, np.array([-np.inf, 3e38, -3e38, 0], np.float32)):
        assert set(choose(temperature, count=20, logits=logits, **settings)) == {1}


def test_higher_temperature_spreads():
    assert choose(0.3).count(1) > choose(1.0).count(1) > choose(5.0).count(1)
    assert set(choose(5.0)) == {0, 1, 2, 3}


def test_frequencies_follow_the_softmax():
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    counts = np.bincount(choose(1.0, count=4000), minlength=4) / 4000
    assert np.abs(counts - expected).max() < 0.03


def test_top_k_keeps_the_k_greatest_and_their_equals():
    assert kept(LOGITS, temperature=5.0, top_k=2) == [1, 2]
    assert kept(LOGITS, temperature=5.0, top_k=1) == [1]
    assert kept(LOGITS, temperature=5.0, top_k=99) == [0, 1, 2, 3]
    assert kept([1, 2, 2, 2], temperature=1.0, top_k=2) == [1, 2, 3]


def test_top_p_keeps_the_fewest_that_reach_the_share():
    logits = np.log([0.1, 0.5, 0.15, 0.25])
    assert kept(logits, temperature=1.0, top_p=0.4) == [1]
    assert kept(logits, temperature=1.0, top_p=0.6) == [1, 3]
    assert kept(logits, temperature=1.0, top_p=0.8) == [1, 2, 3]
    assert kept(logits, temperature=1.0, top_p=0.95) == [0, 1, 2, 3]
    assert kept(logits, temperature=1.0, top_p=0.0) == [1]
    assert kept([0, 0, 0, 0], temperature=1.0, top_p=0.0) == [0]


def test_top_p_of_many_equal_tokens_takes_the_first_of_them():
    equal = np.zeros(5000)
    assert kept(equal, temperature=1.0, top_p=0.4999) == list(range(2500))
    assert kept([0.0, *equal, 9.0], temperature=1.0, top_p=0.9) == [
        *range(3691),
        5001,
    ]


def test_top_p_of_many_tokens_is_as_if_all_were_sorted():
    logits = np.random.default_rng(1).normal(0, 2, 9000).astype(np.float32)
    chances = np.exp(logits.astype(np.float64))
    order = np.argsort(-chances, kind="stable")
    for share in (0.3, 0.9, 0.999):
        count = int((chances[order].cumsum() < share * chances.sum()).sum()) + 1
        assert kept(logits, temperature=1.0, top_p=share) == sorted(order[:count])


def test_min_p_keeps_what_is_likely_beside_the_likeliest():
    logits = np.log([0.1, 0.5, 0.15, 0.25])
    assert kept(logits, temperature=1.0, min_p=0.25) == [1, 2, 3]
    assert kept(logits, temperature=1.0, min_p=1.0) == [1]
    # At half the temperature chances are squared.
    assert kept(logits, temperature=0.5, min_p=0.1) == [1, 3]


def test_what_is_impossible_is_never_kept():
    logits = [-math.inf, 0, -math.inf, 1]
    assert kept(logits, temperature=1.0) == [1, 3]
    assert kept(logits, temperature=1.0, top_k=3) == [1, 3]


def test_a_seed_makes_it_repeatable():
    assert choose(1.0, seed=3) == choose(1.0, seed=3)
    assert choose(1.0, seed=3) != choose(1.0, seed=4)


def test_very_great_logits_do_not_overflow():
    logits = np.array([1e30, -1e30], np.float32)
    assert set(choose(0.01, logits=logits, count=9)) == {0}


class Fixed:
    """Chance that is none."""

    def __init__(self, chance):
        self._chance = chance

    def random(self):
        return self._chance


@pytest.mark.parametrize(
    ("chance", "logits", "token"),
    [
        (math.nextafter(1, 0), [1, 1, 0], 2),
        (math.nextafter(1, 0), [1, 1, -1000], 1),
        (0.0, [-1000, 1, 1], 1),
        (0.0, [0, 1, 1], 0),
    ],
)
def test_the_ends_of_chance_take_tokens_that_are_possible(chance, logits, token):
    settings = GenerationSettings(temperature=1.0)
    assert choose_token(np.array(logits, np.float32), settings, Fixed(chance)) == token


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("logits", "text"),
    [([0, math.nan, 9], "NaN"), ([-math.inf] * 3, "minus infinity")],
)
def test_logits_without_a_choice_are_refused(temperature, logits, text):
    for settings in ({}, {"top_k": 2}, {"top_p": 0.5}):
        with pytest.raises(UnusableLogits, match=text):
            choose(temperature, logits=np.array(logits, np.float32), **settings)


def test_infinity_can_be_taken_but_not_weighed():
    logits = np.array([0, math.inf], np.float32)
    assert choose(0, count=1, logits=logits) == [1]
    with pytest.raises(UnusableLogits, match="infinity is among them"):
        choose(1.0, logits=logits)


def test_a_penalty_weakens_what_was_there():
    logits = np.array([2, -2, 3, 0], np.float32)
    assert penalize(logits, np.array([0, 1, 3]), 2.0).tolist() == [1, -4, 3, 0]
    assert logits.tolist() == [2, -2, 3, 0]
    greatest = penalize(logits, np.array([0, 1, 3]), 1e300)
    assert greatest.tolist() == [0, -math.inf, 3, 0]


def test_a_token_that_was_chosen_is_less_likely_from_then_on():
    chooser = chooser_of(GenerationSettings(repetition_penalty=5.0), [])
    assert [chooser.choose(OF_A_STEP) for _ in range(5)] == [1, 0, 2, 1, 1]


def test_tokens_that_the_model_takes_but_never_makes_are_left_alone():
    chooser = chooser_of(GenerationSettings(repetition_penalty=5.0), [99, 1, 4])
    assert [chooser.choose(OF_A_STEP) for _ in range(3)] == [0, 2, 1]


def test_what_was_there_counts_once_however_often_it_was_there():
    chooser = chooser_of(GenerationSettings(repetition_penalty=1.5), [1, 1, 1, 0])
    assert chooser.choose(OF_A_STEP) == 1


def test_chance_goes_on_from_token_to_token():
    settings = GenerationSettings(temperature=9.0, seed=4)
    first, again = Chooser(settings, []), Chooser(settings, [])
    chosen = [first.choose(OF_A_STEP) for _ in range(20)]
    assert chosen == [again.choose(OF_A_STEP) for _ in range(20)]
    assert len(set(chosen)) > 1


processors = pytest.importorskip("transformers").generation.logits_process
VOCAB, STEPS = 12, 6


def theirs(settings: GenerationSettings, prompt: list[int], most: int) -> list[int]:
    """Return what transformers makes of the same logits at each step."""
    steps = processors.LogitsProcessorList()
    if settings.forced_bos_token_id is not None:
        first = processors.ForcedBOSTokenLogitsProcessor(settings.forced_bos_token_id)
        steps.append(first)
    if settings.forced_eos_token_id:
        length, ends = len(prompt) + most, list(settings.forced_eos_token_id)
        steps.append(processors.ForcedEOSTokenLogitsProcessor(length, ends))
    if settings.suppress_tokens:
        never = list(settings.suppress_tokens)
        steps.append(processors.SuppressTokensLogitsProcessor(never))
    if settings.begin_suppress_tokens:
        forced = len(prompt) == 1 and settings.forced_bos_token_id is not None
        begin = list(settings.begin_suppress_tokens)
        steps.append(
            processors.SuppressTokensAtBeginLogitsProcessor(begin, len(prompt) + forced)
        )
    tokens = list(prompt)
    for step in range(most):
        scores = steps(torch.tensor([tokens]), torch.from_numpy(logits(step))[None])
        tokens.append(int(scores.argmax()))
    return tokens[len(prompt) :]


def logits(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=VOCAB).astype(np.float32)


@pytest.mark.parametrize("prompt", [[3], [3, 4]])
@pytest.mark.parametrize(
    "settings",
    [
        {"forced_bos_token_id": 7},
        {"forced_eos_token_id": (9, 2)},
        {"suppress_tokens": (1, 2, 3, 4, 5, 6, 30)},
        {"begin_suppress_tokens": (1, 2, 3, 4, 5, 6, 7, 8)},
        {"forced_bos_token_id": 7, "begin_suppress_tokens": tuple(range(10))},
        {"forced_bos_token_id": 7, "forced_eos_token_id": (2,)},
    ],
)
def test_tokens_are_those_of_transformers(settings, prompt):
    asked = GenerationSettings(**settings)
    chooser = chooser_of(asked, prompt, STEPS)
    found = [chooser.choose(logits(step)) for step in range(STEPS)]
    assert found == theirs(asked, prompt, STEPS)
    plain = [int(logits(step).argmax()) for step in range(STEPS)]
    assert (found != plain) or (prompt == [3, 4] and "bos" in next(iter(settings)))


def test_an_answer_of_any_length_has_no_last_place():
    asked = GenerationSettings(forced_eos_token_id=(9,))
    assert forced_tokens(asked, 1, None)(10_000) is None


def test_a_copy_goes_on_from_the_same_place():
    asked = GenerationSettings(begin_suppress_tokens=tuple(range(11)))
    chooser = chooser_of(asked, [3])
    twin = chooser.copy()
    assert chooser.choose(logits(1)) == twin.choose(logits(1)) == 11
    assert chooser.choose(logits(1)) == int(logits(1).argmax())
