"""The same tokens stay in the choice as in transformers, with the same scores.

Both sides compute in float64 where sums decide, so that rounding cannot.
"""

import numpy as np
import pytest
import torch
from daily import every

from kvc.runtime.generation import GenerationSettings
from kvc.runtime.generation.processors import penalize
from kvc.runtime.generation.sampling import keep_tokens

processors = pytest.importorskip("transformers").generation.logits_process
SEEN = [3, 3, 17, 250, 9]


def theirs(logits, settings):
    """What transformers makes of logits, in the order of its generate."""
    steps = processors.LogitsProcessorList()
    steps.append(processors.TemperatureLogitsWarper(settings.temperature))
    if settings.top_k:
        steps.append(processors.TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        steps.append(processors.TopPLogitsWarper(settings.top_p))
    if settings.min_p:
        steps.append(processors.MinPLogitsWarper(settings.min_p))
    scores = steps(
        torch.tensor([SEEN]), torch.tensor(logits, dtype=torch.float64)[None]
    )
    ids = torch.nonzero(scores[0] > -torch.inf)[:, 0]
    return ids.numpy(), scores[0, ids].numpy()


@every(3, "temperature", "top_k", "top_p", "min_p")
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 12, 40, 5000])
@pytest.mark.parametrize("top_p", [0.05, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.5])
def test_the_same_tokens_are_kept(temperature, top_k, top_p, min_p):
    settings = GenerationSettings(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    random = np.random.default_rng(7)
    for spread in (0.5, 2.0, 6.0):
        logits = random.normal(0, spread, 1000).astype(np.float32)
        ids, scores = keep_tokens(logits, settings)
        expected, numbers = theirs(logits, settings)
        assert ids.tolist() == expected.tolist()
        np.testing.assert_allclose(scores, numbers - numbers.max(), 1e-12, 1e-12)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
def test_the_same_tokens_are_kept_of_many_that_are_about_as_likely(top_p):
    logits = np.random.default_rng(11).normal(0, 1, 6000).astype(np.float32)
    settings = GenerationSettings(temperature=1.5, top_p=top_p)
    ids = keep_tokens(logits, settings)[0]
    assert ids.tolist() == theirs(logits, settings)[0].tolist()
    assert len(ids) > 100


@pytest.mark.parametrize("top_k", [1, 5, 300])
def test_the_same_equals_are_kept(top_k):
    logits = np.random.default_rng(3).integers(0, 9, 300).astype(np.float32)
    settings = GenerationSettings(temperature=0.7, top_k=top_k)
    assert (
        keep_tokens(logits, settings)[0].tolist()
        == theirs(logits, settings)[0].tolist()
    )


@pytest.mark.parametrize("penalty", [0.5, 1.1, 2.0])
def test_the_same_penalty_is_paid_once_for_each_token(penalty):
    logits = np.random.default_rng(5).normal(0, 3, 300).astype(np.float32)
    step = processors.RepetitionPenaltyLogitsProcessor(penalty)
    expected = step(torch.tensor([SEEN]), torch.tensor(logits)[None])[0].numpy()
    found = penalize(logits, np.unique(SEEN), penalty)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (found != logits).sum() == 4
