"""Chats with hybrid models whose template leaves out a part of earlier answers."""

import pytest
from daily import only
from hf_models import build

from kvc.compiler.hugging_face import export_hf
from kvc.runtime import generate, load
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


@only(name=["lfm2"])
@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2"])
def test_a_turn_reads_what_is_new_alone(tmp_path, name, monkeypatch):
    export_hf(build(name), recipe="cpu_fp32").save(tmp_path / "hybrid.kvc")
    with load(tmp_path / "hybrid.kvc") as program:
        answers, read = talk(program)
        monkeypatch.setattr(Held, "needs_copies", False)
        expected, all_read = talk(program)
    assert answers == expected
    assert (read, all_read) == ([7, 9, 10, 9], [7, 15, 24, 32])


@only(name=["lfm2", "gemma3_text"])
@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", "gemma3_text"])
def test_a_chat_goes_on_without_its_oldest_turns(tmp_path, name):
    export_hf(build(name), recipe="cpu_fp32").save(tmp_path / "hybrid.kvc")
    template = ChatTemplate("t", Renderer("t", TEMPLATE, Limits()), {})
    with load(tmp_path / "hybrid.kvc") as program:
        tokenizer = tokenizer_of(program)
        with program.session(capacity=32) as session:
            given = {"max_tokens": 14, "stop_tokens": []}
            chat = Conversation(session, tokenizer, template, on_full="drop", **given)
            for said in ("6 7 8", "9 10", "11 12 13", "7 6 7 6 7 6"):
                before = chat.dropped
                made = "".join(chat.say(said))
                text = template.render(chat.messages[chat.dropped : -1])
                with program.session() as fresh:
                    run = generate(fresh, text, tokenizer=tokenizer, **given)
                    assert "".join(run.text()).strip() == made.strip()
            assert chat.dropped > before > 0
            chat._settings["max_tokens"] = None
            "".join(chat.say("8"))
            tokens = chat.answer.tokens
            assert chat.dropped == 8
            text = template.render(chat.messages[8:-1])
            count = 32 - len(tokenizer.encode(text)) + 1
            assert (len(tokens), chat.answer.reason) == (count, "length")
            prompt = [*tokenizer.encode(text), *tokens[:-3]]
            with program.session() as fresh:
                run = generate(fresh, prompt, max_tokens=3, stop_tokens=[])
                assert list(run) == tokens[-3:]
