"""Tokens that have to stand at a place, or must not, as in transformers."""

import numpy as np
import pytest
import torch

from kvc.runtime.generation import GenerationSettings
from kvc.runtime.generation.placing import Placing
from kvc.runtime.generation.sampling import Chooser

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
    placing = Placing(asked, len(prompt), STEPS)
    chooser = Chooser(asked, prompt, placing=placing)
    found = [chooser.choose(logits(step)) for step in range(STEPS)]
    assert found == theirs(asked, prompt, STEPS)
    plain = [int(logits(step).argmax()) for step in range(STEPS)]
    assert (found != plain) or (prompt == [3, 4] and "bos" in next(iter(settings)))


def test_an_answer_of_any_length_has_no_last_place():
    asked = GenerationSettings(forced_eos_token_id=(9,))
    assert Placing(asked, 1, None).forced(10_000) is None


def test_a_copy_goes_on_from_the_same_place():
    asked = GenerationSettings(begin_suppress_tokens=tuple(range(11)))
    chooser = Chooser(asked, [3])
    twin = chooser.copy()
    assert chooser.choose(logits(1)) == twin.choose(logits(1)) == 11
    assert chooser.choose(logits(1)) == int(logits(1).argmax())
