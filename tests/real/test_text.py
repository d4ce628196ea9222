"""SmolLM2: its text is transformers', what a recipe loses is bounded, it answers."""

import json
import pydoc_data.topics

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvc.runtime import Conversation, generate, load
from kvc.runtime.scoring import score_tokens
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time",
    "To make bread you need",
    "The three laws of motion say that",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,",
    "In 1969, the first humans",
    "1, 1, 2, 3, 5, 8,",
    "# Installation\n\nRun",
    "Water boils at",
    "Die Hauptstadt von Deutschland ist",
    "The opposite of hot is",
    "A list of fruits: apples, pears,",
    "import numpy as np\n\n",
    "She opened the door and",
    '{"name": "Ada", "age":',
    "The mitochondria is",
    "Q: What is 2 + 2?\nA:",
    "for (int i = 0;",
]
SETTINGS = [
    {},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 3},
    {"min_new_tokens": 40},
    {"bad_words_ids": [[30], [339, 416]], "sequence_bias": [[[260], -2.0]]},
]
# Some 1,000 tokens.
TEXT = pydoc_data.topics.topics["objects"][:8000]


@pytest.fixture(scope="module")
def eager(folder):
    return AutoModelForCausalLM.from_pretrained(folder("smollm2")).eval()


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_the_text_by_float32_is_that_of_transformers(bundle, folder, eager, number):
    tokenizer = AutoTokenizer.from_pretrained(folder("smollm2"))
    prompt, asked = PROMPTS[number], SETTINGS[number % len(SETTINGS)]
    given = tokenizer(prompt, return_tensors="pt")
    with load(bundle("smollm2", "cpu_fp32")) as program, program.session() as session:
        for settings in ({}, asked):
            with torch.no_grad():
                wanted = eager.generate(
                    **given, max_new_tokens=40, do_sample=False, **settings
                )[0]
            run = generate(session, prompt, max_tokens=40, temperature=0, **settings)
            said = "".join(run.text())
            assert prompt + said == tokenizer.decode(wanted, skip_special_tokens=True)
            session.reset()


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {"type": "array", "items": {"enum": ["chess", "music", "sport"]}},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("recipe", ["cpu_fp32", "cpu_q8"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 3}])
def test_answers_are_json_of_a_schema(bundle, recipe, settings):
    with load(bundle("smollm2", recipe)) as program, program.session() as session:
        template = chat_template_of(program)
        chat = Conversation(
            session,
            tokenizer_of(program),
            template,
            max_tokens=150,
            json_schema=SCHEMA,
            **settings,
        )
        for question in ("Invent a person, as JSON.", "And another one."):
            found = json.loads("".join(chat.say(question)))
            assert set(found) == {"name", "age", "hobbies"}
            assert 0 <= found["age"] <= 120
            assert chat.answer.is_complete


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
