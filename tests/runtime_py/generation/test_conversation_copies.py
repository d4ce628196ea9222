"""Turns of a model whose states cannot be rewound: what has to be read again."""

import random
from dataclasses import replace

import pytest
from adding_model import END, TEMPLATE, Adding, write_chat
from held_buffers import ZERO

from kvc.runtime import generate, load
from kvc.runtime.generation.conversation import Conversation
from kvc.runtime.generation.conversation_held import Held
from kvc.runtime.sessions.going_back import GoingBack
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer

# Of earlier answers only the end is told, as where reasoning is left out.
FORGETFUL = TEMPLATE.replace(
    "{{ message.content }}",
    "{{ message.content[-2:] if message.role == 'assistant' else message.content }}",
)
BEGUN = FORGETFUL.replace("[a]{% endif", "[a]<t>{% endif")


class Hybrid(Adding, total=ZERO):
    """A model with a cache and a position, and a sum that cannot be rewound."""

    def forward(self, tokens):
        self.total.add_(tokens.sum(1))
        return super().forward(tokens) + self.best(self.total)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = write_chat(tmp_path_factory.mktemp("chat") / "h.kvc", Hybrid)
    with load(path) as opened:
        yield opened


def template_of(program, text):
    template = chat_template_of(program)
    return replace(template, renderer=Renderer("t.jinja", text, Limits()))


def talk(program, text=FORGETFUL, **settings):
    settings = {"max_tokens": 20, **settings}
    template, tokenizer = template_of(program, text), tokenizer_of(program)
    return Conversation(program.session(), tokenizer, template, **settings)


def answer(conversation, text):
    return "".join(conversation.say(text))


def fresh_answer(program, messages, text):
    with program.session() as session:
        whole = template_of(program, text).render(messages)
        made = generate(session, whole, max_tokens=20, stop_tokens=[ord(END)])
        return "".join(made.text())


@pytest.mark.parametrize("text", [TEMPLATE, FORGETFUL, BEGUN])
def test_answers_are_those_of_a_fresh_session(program, text):
    conversation = talk(program, text)
    for said in ("Hello", "é", "Go"):
        made = answer(conversation, said)
        assert made == fresh_answer(program, conversation.messages[:-1], text)


@pytest.mark.parametrize(("text", "begun"), [(FORGETFUL, ""), (BEGUN, "<t>")])
def test_only_the_turn_after_the_copy_is_read_again(program, text, begun, monkeypatch):
    conversation, before = talk(program, text), talk(program, text)
    read, all_read = [], []
    for said in ("Hello", "What", "Go", "on"):
        answer(conversation, said)
        read.append(conversation.answer.prefill.tokens)
        with monkeypatch.context() as patch:
            patch.setattr(Held, "needs_copies", False)
            answer(before, said)
            all_read.append(before.answer.prefill.tokens)
        assert conversation.messages == before.messages
    answers = [one["content"][-2:] for one in conversation.messages[1::2]]
    copied = [f"[a]{answers[i]}!" * (i < 3) for i in range(3)]
    new = [
        len(f"{copied[i]}[u]{said}[a]{begun}")
        for i, said in enumerate(["What", "Go", "on"])
    ]
    # What comes back of the prompt is not read again, what does not (<t>) is.
    back = len("[a]")
    assert read == [len(f"[u]Hello[a]{begun}"), *(n - back for n in new)]
    assert sum(read[1:]) < sum(all_read[1:]) / 2
    assert all_read[3] == len(conversation.held) - 19


def test_copies_are_few_and_told(program):
    conversation = talk(program, FORGETFUL, max_tokens=2)
    assert conversation.kept_nbytes == 0
    sizes = []
    for said in "abcdefg":
        answer(conversation, said)
        sizes.append(conversation.kept_nbytes)
    assert len(conversation.session.going_back.kept) == 4
    assert sizes[0] > 0
    assert sizes[3:] == [4 * sizes[0]] * 4
    conversation.reset()
    assert conversation.kept_nbytes == 0


def test_the_nearest_copy_is_taken_where_more_has_changed(program):
    conversation = talk(program, FORGETFUL, max_tokens=4)
    for said in ("one", "two", "three"):
        answer(conversation, said)
    kept = conversation.session.going_back.kept
    conversation.messages[4] = {"role": "user", "content": "3"}
    made = answer(conversation, "four")
    nearest = next(at for at in kept if at < kept[0])
    assert conversation.answer.prefill.tokens == len(conversation.held) - 3 - nearest
    other = talk(program, FORGETFUL, max_tokens=4)
    other.messages = list(conversation.messages[:-2])
    assert answer(other, "four") == made


def test_no_copies_are_made_where_all_can_be_rewound(program, tmp_path):
    with load(write_chat(tmp_path / "a.kvc")) as adding:
        conversation = talk(adding)
        answer(conversation, "Hello")
        assert conversation.kept_nbytes == 0
    with program.session(snapshots=9) as session:
        tokenizer = tokenizer_of(program)
        conversation = Conversation(session, tokenizer, None, max_tokens=3)
        answer(conversation, "Once")
        assert conversation.kept_nbytes == 0


@pytest.mark.parametrize("text", [FORGETFUL, BEGUN])
@pytest.mark.parametrize("seed", range(4))
def test_a_saved_chat_reads_no_more_than_one_that_goes_on(
    program, tmp_path, text, seed, monkeypatch
):
    monkeypatch.setattr(
        "kvc.runtime.generation.conversation_files.chat_template_of",
        lambda _: template_of(program, text),
    )
    chance, first, other = random.Random(seed), talk(program, text), talk(program, text)
    for said in ("Hello", "é", "Go", "on"):
        assert answer(first, said) == answer(other, said)
        assert other.answer.prefill.tokens == first.answer.prefill.tokens
        if chance.random() < 0.7:
            position = int(other.session.position[0])
            other.save(tmp_path / "chat")
            assert int(other.session.position[0]) == position
            other.session.close()
            other = Conversation.restore(program, tmp_path / "chat")
        assert other.messages == first.messages


def test_a_chat_is_saved_whole_if_its_template_does_not_tell_the_next_turn(
    program, tmp_path
):
    refusing = "{{ raise_exception('x') if messages[-1].content == '1' }}" + TEMPLATE
    conversation = talk(program, refusing)
    answer(conversation, "Hello")
    conversation.save(tmp_path / "chat")
    with program.restore(tmp_path / "chat") as session:
        assert session.position[0] == conversation.session.position[0]


def test_a_failed_prompt_leaves_no_copy_to_be_made(program, monkeypatch):
    conversation = talk(program)
    answer(conversation, "Hello")

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GoingBack, "keep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            answer(conversation, "What?")
    assert conversation.session.going_back.keeps_at is None
    made = answer(conversation, "What?")
    assert made == fresh_answer(program, conversation.messages[:-1], FORGETFUL)
