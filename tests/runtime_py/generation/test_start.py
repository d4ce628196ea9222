"""A text that begins with what the tokenizer puts before it."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from drafting_models import Table, write_table
from small_tokenizers import byte_level
from tokenizers import Tokenizer, processors

from kvc.runtime import BegunTwice, Conversation, generate, load
from kvc.runtime.generation.start import warn_if_begun_twice
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.runtime.tokenizers.library import JsonTokenizer
from kvc.runtime.tokenizers.plain import Bytes, Ids
from kvc.tools.cli import main

BEGIN, END = "<|begin|>", "<|end|>"
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


def with_template(single: str) -> JsonTokenizer:
    """Return a tokenizer that puts these tokens around a text."""
    made = Tokenizer.from_str(byte_level().to_str())
    named = [(BEGIN, 0), (END, 1)]
    made.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=named
    )
    return JsonTokenizer(made.to_str().encode())


BEGINS = f"{BEGIN} $A"


@pytest.mark.parametrize(
    ("single", "text", "named"),
    [
        (BEGINS, f"{BEGIN}a text", r"token 0\)"),
        (BEGINS, BEGIN, r"token 0\)"),
        (BEGINS, BEGIN * 3, r"token 0\)"),
        (BEGINS, BEGIN + "long " * 1000, r"token 0\)"),
        (f"{BEGINS} {END}", f"{BEGIN}a text{END}", r"token 0\)"),
        (f"{BEGIN} {END} $A", f"{BEGIN}{END}a", r"token 0, 1\)"),
    ],
)
def test_it_is_warned_of(single, text, named):
    with pytest.warns(BegunTwice, match=named):
        warn_if_begun_twice([text], with_template(single))


@pytest.mark.parametrize(
    ("single", "text"),
    [
        (BEGINS, "a text"),
        (BEGINS, ""),
        (BEGINS, f" {BEGIN}"),
        (BEGINS, f"{END}{BEGIN}"),
        (f"$A {END}", f"{END}a{END}"),
        ("$A", BEGIN * 2),
        (f"{BEGIN} {END} $A", f"{BEGIN}a"),
        (f"{BEGIN} {END} $A", f"{END}{BEGIN}"),
    ],
)
def test_other_texts_are_not_warned_of(single, text):
    warn_if_begun_twice([text], with_template(single))


@pytest.mark.parametrize("tokenizer", [Bytes(), Ids()])
def test_a_tokenizer_that_puts_nothing_there_warns_of_nothing(tokenizer):
    warn_if_begun_twice(["1 1 1 2"], tokenizer)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("beginnings") / "t.kvc"
    library = byte_level()
    size = library.get_vocab_size()
    config = {"bos_token": BEGIN, "chat_template": TEMPLATE}
    files = {
        "tokenizer.json": library.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    metadata = {"tokenizer": "tokenizer.json"}
    write_table(path, Table(torch.eye(size)), files=files, metadata=metadata)
    with load(path) as opened:
        yield opened


def test_a_rendered_text_is_warned_of_once_and_where_it_was_given(program):
    text = chat_template_of(program).render([{"role": "user", "content": "Hi"}])
    assert text == f"{BEGIN}Hi"
    with program.session() as session:
        with pytest.warns(BegunTwice, match="remove it from the text") as caught:
            run = generate(session, text, max_tokens=1)
        assert [one.filename for one in caught] == [__file__]
        assert len(list(run)) == 1
        tokens = tokenizer_of(program).encode(text, special=False)
        session.reset()
        generate(session, tokens, max_tokens=1)
        generate(session, "Hi", max_tokens=1)


def test_a_text_in_the_middle_gets_nothing_before_it(program):
    with program.session() as session:
        session.read(np.array([[0, 5]]))
        generate(session, f"{BEGIN}Hi", max_tokens=1)


def test_a_conversation_begins_once(program):
    with program.session() as session:
        template, tokenizer = chat_template_of(program), tokenizer_of(program)
        chat = Conversation(session, tokenizer, template, max_tokens=1)
        list(chat.say("Hi"))
        assert chat.held[0] == 0
        assert chat.held[1] != 0


def test_the_command_line_says_it(program):
    arguments = ["generate", program.path, f"{BEGIN}Hi", "-n", "1"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0
    assert done.stderr.count("warning: the prompt begins with a special token") == 1
