"""MiniLM: embeddings are transformers', and what a recipe loses is bounded."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from kvc.runtime import embed, load

TEXTS = [
    "A cat sits on the mat.",
    "A kitten is lying on a rug.",
    "The stock market fell sharply on Monday.",
    "Shares lost a tenth of their value.",
    "How do I compile a model for a phone?",
    "import numpy as np",
    "",
    "Der Hund bellt.",
]


def embeddings(path):
    with load(path) as program:
        return np.asarray(embed(program, TEXTS))


def test_by_float32_they_are_those_of_transformers(bundle, folder):
    model = AutoModel.from_pretrained(folder("minilm")).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder("minilm"))
    found = embeddings(bundle("minilm", "cpu_fp32"))
    for text, one in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        wanted = torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy()
        np.testing.assert_allclose(one, wanted, atol=2e-6)


# The least cosine of a text, when this was written, and half of what it lost again.
LEAST = {"cpu_bf16": 0.9999, "cpu_q8": 0.998, "cpu_q4": 0.85}


@pytest.mark.parametrize("recipe", LEAST)
def test_a_recipe_turns_them_little(bundle, recipe):
    exact = embeddings(bundle("minilm", "cpu_fp32"))
    cosines = (exact * embeddings(bundle("minilm", recipe))).sum(-1)
    assert cosines.min() > LEAST[recipe]
    assert cosines.max() < 1 - 1e-7  # it is another recipe


def test_what_is_alike_is_near(bundle):
    found = embeddings(bundle("minilm", "cpu_q8"))
    near = found @ found.T
    assert near[0, 1] > near[0, 2] + 0.3
    assert near[2, 3] > near[1, 3] + 0.3
