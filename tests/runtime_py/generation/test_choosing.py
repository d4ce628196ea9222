"""One row of a generation: what chance and repetition make of its choices."""

import numpy as np

from kvc.runtime import GenerationSettings
from kvc.runtime.generation.choosing import Chooser

LOGITS = np.array([3, 4, 2, -1], np.float32)


def test_a_token_that_was_chosen_is_less_likely_from_then_on():
    chooser = Chooser(GenerationSettings(repetition_penalty=5.0), [])
    assert [chooser.choose(LOGITS) for _ in range(5)] == [1, 0, 2, 1, 1]


def test_tokens_that_the_model_takes_but_never_makes_are_left_alone():
    chooser = Chooser(GenerationSettings(repetition_penalty=5.0), [99, 1, 4])
    assert [chooser.choose(LOGITS) for _ in range(3)] == [0, 2, 1]


def test_what_was_there_counts_once_however_often_it_was_there():
    chooser = Chooser(GenerationSettings(repetition_penalty=1.5), [1, 1, 1, 0])
    assert chooser.choose(LOGITS) == 1


def test_chance_goes_on_from_token_to_token():
    settings = GenerationSettings(temperature=9.0, seed=4)
    first, again = Chooser(settings, []), Chooser(settings, [])
    chosen = [first.choose(LOGITS) for _ in range(20)]
    assert chosen == [again.choose(LOGITS) for _ in range(20)]
    assert len(set(chosen)) > 1
