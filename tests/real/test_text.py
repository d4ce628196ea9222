"""SmolLM2: its text is transformers', what a recipe loses is bounded, it answers."""

import pydoc_data.topics

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvc.runtime import Conversation, generate, load
from kvc.runtime.scoring import score_tokens
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of

PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time"]
# Some 1,000 tokens.
TEXT = pydoc_data.topics.topics["objects"][:8000]


@pytest.fixture(scope="module")
def eager(folder):
    return AutoModelForCausalLM.from_pretrained(folder("smollm2")).eval()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_text_by_float32_is_that_of_transformers(bundle, folder, eager, prompt):
    tokenizer = AutoTokenizer.from_pretrained(folder("smollm2"))
    given = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        wanted = eager.generate(**given, max_new_tokens=40, do_sample=False)[0]
    with load(bundle("smollm2", "cpu_fp32")) as program, program.session() as session:
        said = "".join(generate(session, prompt, max_tokens=40).text())
    assert prompt + said == tokenizer.decode(wanted, skip_special_tokens=True)


# What each lost when this was written, and half as much again.
LOST = {"cpu_bf16": 0.001, "cpu_q8": 0.008, "xnnpack_q8": 0.02}


@pytest.mark.parametrize("recipe", LOST)
def test_a_recipe_loses_little(bundle, recipe):
    with (
        load(bundle("smollm2", recipe)) as program,
        load(bundle("smollm2", "cpu_fp32")) as exact,
    ):
        tokens = tokenizer_of(program).encode(TEXT, special=False)
        found = score_tokens(program, tokens, 512, against=exact).divergence
    assert 0 < found.nats < LOST[recipe]
    assert found.error < found.nats / 10


@pytest.mark.parametrize("recipe", ["cpu_fp32", "cpu_q8"])
def test_it_answers_in_a_chat(bundle, recipe):
    with load(bundle("smollm2", recipe)) as program, program.session() as session:
        template = chat_template_of(program)
        chat = Conversation(session, tokenizer_of(program), template, max_tokens=40)
        assert "Paris" in "".join(chat.say("What is the capital of France?"))
        assert "Rome" in "".join(chat.say("And of Italy?"))
