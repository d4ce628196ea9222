"""Chats with hybrid models whose template leaves out a part of earlier answers."""

import pytest
from hf_models import build

from kvc.compiler.hugging_face import export_hf
from kvc.runtime import load
from kvc.runtime.generation.conversation import Conversation
from kvc.runtime.generation.conversation_held import Held
from kvc.runtime.tokenizers import ChatTemplate, tokenizer_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer

# Tokens are written as numbers; only the end of an earlier answer comes back.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}1 {{ m.content }} 2 {% else %}"
    "3 {{ m.content.split(' ')[-3:] | join(' ') }} 4 {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}3 5 {% endif %}"
)


def talk(program):
    """Return the answers of a chat, and how many tokens of each prompt were read."""
    template = ChatTemplate("t", Renderer("t", TEMPLATE, Limits()), {})
    answers, read = [], []
    with program.session() as session:
        settings = {"max_tokens": 8, "stop_tokens": []}
        chat = Conversation(session, tokenizer_of(program), template, **settings)
        for said in ("6 7 8", "9 10", "11 12 13", "7 6"):
            answers.append("".join(chat.say(said)))
            read.append(chat.answer.prefill.tokens)
    return answers, read


@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2"])
def test_a_turn_reads_what_is_new_alone(tmp_path, name, monkeypatch):
    export_hf(build(name), recipe="cpu_fp32").save(tmp_path / "hybrid.kvc")
    with load(tmp_path / "hybrid.kvc") as program:
        answers, read = talk(program)
        monkeypatch.setattr(Held, "needs_copies", False)
        expected, all_read = talk(program)
    assert answers == expected
    assert (read, all_read) == ([7, 9, 10, 9], [7, 15, 24, 32])
