"""Turns of a chat: each is what a fresh session would say to all that was said."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from adding_model import CAPACITY, END, TEMPLATE, Totaling, write_chat
from daily import every
from hand_built import affine_program, write_bundle

from kvc.runtime import CacheOverflow, generate, load
from kvc.runtime.generation.conversation import Conversation
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.schema.errors import BadChatTemplate, BadSetting, UnknownName

# What was said before comes back in another spelling, as where thinking is left out.
FORGETFUL = TEMPLATE.replace("message.content", "message.content[:3]")


POLITE = (
    "{% if messages[0].content == 'no' %}{{ raise_exception('rude') }}{% endif %}"
    + TEMPLATE
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    adding = load(write_chat(folder / "adding.kvc"))
    totaling = load(write_chat(folder / "totaling.kvc", Totaling))
    with adding, totaling:
        yield {"adding": adding, "totaling": totaling}


def template_of(program, text=TEMPLATE):
    """The chat template of a program, with another text."""
    if text is None:
        return None
    template = chat_template_of(program)
    return replace(template, renderer=Renderer("t.jinja", text, Limits()))


@pytest.fixture
def talk(programs):
    """Open a conversation: talk("adding", max_tokens=3)."""

    def start(name, system=None, template=TEMPLATE, **settings):
        program = programs[name]
        return Conversation(
            program.session(),
            tokenizer_of(program),
            template_of(program, template),
            system,
            **settings,
        )

    return start


def answer(conversation, text):
    return "".join(conversation.say(text))


def fresh_answer(program, messages, template=TEMPLATE, **settings):
    """What the model says to all that was said, in a session of its own."""
    with program.session() as session:
        text = template_of(program, template).render(messages)
        settings |= {"stop_tokens": [ord(END)]}
        return "".join(generate(session, text, **settings).text())


def test_a_program_without_roles_holds_no_conversation(tmp_path):
    with (
        load(write_bundle(tmp_path / "a.kvc", affine_program())) as program,
        pytest.raises(UnknownName, match="no method of the role 'prefill'"),
    ):
        Conversation(program.session(), tokenizer_of(program), None)


def test_what_is_no_session_holds_no_conversation(programs):
    with pytest.raises(BadSetting, match="session: expected a Session"):
        Conversation(programs["adding"], tokenizer_of(programs["adding"]), None)


@every(2, "template", "name")
@pytest.mark.parametrize("template", [TEMPLATE, FORGETFUL])
@pytest.mark.parametrize("name", ["adding", "totaling"])
def test_each_answer_is_that_of_a_fresh_session(talk, programs, name, template):
    conversation = talk(name, template=template, max_tokens=7)
    for said in ("Hello", "What?", "é", "Well, well."):
        made = answer(conversation, said)
        assert made
        before = conversation.messages[:-1]
        assert before[-1] == {"role": "user", "content": said}
        assert conversation.messages[-1] == {"role": "assistant", "content": made}
        expected = fresh_answer(programs[name], before, template, max_tokens=7)
        assert made == expected


def test_only_what_is_new_runs(talk):
    conversation = talk("adding", max_tokens=7)
    answer(conversation, "Hello")
    assert conversation.answer.prefill.tokens == len("[u]Hello[a]")
    assert conversation.used == len("[u]Hello[a]") + 6
    answer(conversation, "What?")
    # The last token of the answer has never run.
    assert conversation.answer.prefill.tokens == len("x![u]What?[a]")
    assert conversation.used == len("[u]Hello[a]1234567![u]What?[a]") + 6


def test_what_comes_back_in_another_spelling_runs_again(talk):
    conversation = talk("adding", template=FORGETFUL, max_tokens=7)
    answer(conversation, "Hello")
    answer(conversation, "What?")
    assert conversation.answer.prefill.tokens == len("![u]Wha[a]")


def test_without_a_position_all_runs_again_where_it_differs(talk):
    conversation = talk("totaling", max_tokens=7)
    answer(conversation, "Hello")
    answer(conversation, "What?")
    assert conversation.answer.prefill.tokens == len("x![u]What?[a]")
    list(islice(conversation.say("Go"), 2))  # and leave it there
    answer(conversation, "on")
    whole = len("[u]Hello[a]1234567![u]What?[a]1234567![u]Go[a]12![u]on[a]")
    assert conversation.answer.prefill.tokens == whole


@every(2, "name", "end")
@pytest.mark.parametrize("name", ["adding", "totaling"])
@pytest.mark.parametrize("end", ["close", "throw"])
def test_an_answer_that_is_stopped_belongs_to_what_was_said(talk, programs, name, end):
    conversation = talk(name, max_tokens=7)
    pieces = conversation.say("Hello")
    part = next(pieces) + next(pieces)
    if end == "close":
        pieces.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            pieces.throw(KeyboardInterrupt)
    assert conversation.messages[-1]["content"] == part
    made = answer(conversation, "Go on")
    expected = fresh_answer(programs[name], conversation.messages[:-1], max_tokens=7)
    assert made == expected


def test_an_answer_that_fails_at_its_first_token_was_never_asked_for(talk, monkeypatch):
    conversation = talk("adding", max_tokens=7)
    first = answer(conversation, "Hello")
    before = list(conversation.messages)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(conversation.session._engine, "call", interrupt)
        with pytest.raises(KeyboardInterrupt):
            answer(conversation, "What?")
    assert conversation.messages == before
    conversation.reset()
    assert answer(conversation, "Hello") == first


@pytest.mark.parametrize("name", ["adding", "totaling"])
def test_the_models_end_token_ends_an_answer(talk, programs, name):
    conversation = talk(name)
    # "!" follows where the sum of all bytes is a multiple of 90.
    rest = -sum(b"[u]a[a]") % 90
    assert answer(conversation, "a" + chr(rest if rest > 32 else rest + 90)) == ""
    assert conversation.answer.reason == "stop"
    assert conversation.messages[-1] == {"role": "assistant", "content": ""}
    made = "".join(islice(conversation.say("b"), 5))
    expected = fresh_answer(programs[name], conversation.messages[:-1], max_tokens=5)
    assert made == expected


@pytest.mark.parametrize(
    "template", [TEMPLATE, FORGETFUL + "{{ messages[-1].content }}"]
)
def test_what_does_not_fit_leaves_the_conversation_as_it_was(talk, programs, template):
    conversation = talk("adding", template=template, max_tokens=7)
    answer(conversation, "Hello")
    before = list(conversation.messages)
    with pytest.raises(CacheOverflow):
        conversation.say("x" * CAPACITY)
    assert conversation.messages == before
    made = answer(conversation, "What?")
    before = conversation.messages[:-1]
    expected = fresh_answer(programs["adding"], before, template, max_tokens=7)
    assert made == expected


def test_what_the_template_refuses_leaves_the_conversation_as_it_was(talk):
    conversation = talk("adding", template=POLITE, max_tokens=7)
    with pytest.raises(BadChatTemplate, match="rude"):
        conversation.say("no")
    assert conversation.messages == []
    assert answer(conversation, "yes")


def test_a_full_cache_ends_an_answer(talk):
    conversation = talk("adding", stop_tokens=[])
    conversation._settings["stop_tokens"] = []
    made = answer(conversation, "Hello")
    assert conversation.answer.reason == "length"
    assert len(made) == CAPACITY - len("[u]Hello[a]") + 1


def test_a_reset_begins_anew_and_keeps_what_the_model_was_told(talk):
    conversation = talk("adding", system="Be brief", max_tokens=7)
    first = answer(conversation, "Hello")
    assert conversation.messages[0] == {"role": "system", "content": "Be brief"}
    assert answer(conversation, "Hello") != first
    conversation.reset()
    assert (conversation.used, len(conversation.messages)) == (0, 1)
    assert answer(conversation, "Hello") == first
    assert talk("adding", max_tokens=7).messages == []


def test_without_a_template_a_text_is_continued(talk, programs):
    conversation = talk("adding", template=None, max_tokens=5)
    text = "Once"
    made = answer(conversation, text)
    for more in (" upon", "", " a time"):
        text += made + more
        made = answer(conversation, more)
        with programs["adding"].session() as session:
            run = generate(session, text, max_tokens=5)
            assert made == "".join(run.text())
    assert conversation.messages == []
    conversation.reset()
    assert answer(conversation, "Once") == answer(
        talk("adding", template=None, max_tokens=5), "Once"
    )


def test_a_text_that_the_model_has_ended_can_be_asked_for_more(talk):
    rest = -sum(b"a") % 90
    text = "a" + chr(rest if rest > 32 else rest + 90)
    conversation = talk("adding", template=None, stop_tokens=[ord(END)])
    assert answer(conversation, text) == ""
    assert answer(conversation, "") == ""
    assert (conversation.answer.reason, conversation.used) == ("stop", 2)


class Spaced:
    """A tokenizer of letters with a space before each, but for the first of a text."""

    def encode(self, text, special=True):
        return list(text.encode())

    def stream(self, after=()):
        return SpacedStream(bool(after))


class SpacedStream:
    def __init__(self, behind):
        self.behind = behind

    def push(self, token):
        behind, self.behind = self.behind, True
        return " " * behind + chr(token)

    def finish(self):
        return ""


@pytest.mark.parametrize(("text", "first"), [(TEMPLATE, False), (None, True)])
def test_an_answer_does_not_begin_with_the_space_behind_the_prompt(
    programs, text, first
):
    with programs["adding"].session() as session:
        template = template_of(programs["adding"], text)
        conversation = Conversation(session, Spaced(), template, max_tokens=3)
        made = answer(conversation, "Hello")
    assert made.startswith(" ") is first
    assert len(made.split()) == 3


@every(2, "name", "template")
@pytest.mark.parametrize("name", ["adding", "totaling"])
@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_an_answer_that_is_left_open_ends_where_the_next_begins(
    talk, programs, name, template
):
    conversation = talk(name, template=template, max_tokens=5)
    left = conversation.say("one")  # held on to, so that nothing else closes it
    pieces = list(islice(left, 2))
    found = answer(conversation, "two")
    other = talk(name, template=template, max_tokens=5)
    assert list(islice(other.say("one"), 2)) == pieces
    assert found == answer(other, "two")
    assert list(left) == []
    assert conversation.messages == other.messages


def test_an_answer_that_is_left_open_is_forgotten_by_a_reset(talk):
    conversation = talk("adding", max_tokens=5)
    left = conversation.say("one")
    next(left)
    conversation.reset()
    assert list(left) == []
    assert (conversation.messages, conversation.used) == ([], 0)
    assert answer(conversation, "two") == answer(talk("adding", max_tokens=5), "two")


def test_a_session_that_holds_tokens_is_not_emptied_without_a_word(
    talk, programs, tmp_path
):
    for name, found in (("adding", "17 tokens"), ("totaling", "an unknown number")):
        first, program = talk(name, max_tokens=7), programs[name]
        answer(first, "Hello")
        path = tmp_path / name
        first.session.save(path)
        with program.restore(path) as session, session.fork() as fork:
            for one in (first.session, session, fork):
                total = one.state["total" if name == "totaling" else "position"].sum()
                with pytest.raises(BadSetting, match=rf"reset\(\).*history=.*{found}"):
                    Conversation(one, tokenizer_of(program), template_of(program))
                assert one.state["total" if name == "totaling" else "position"] == total
            session.reset()
            again = Conversation(
                session, tokenizer_of(program), template_of(program), max_tokens=7
            )
            assert answer(again, "Hello") == first.messages[-1]["content"]


@pytest.mark.parametrize("name", ["adding", "totaling"])
def test_a_saved_session_goes_on_with_what_was_said(talk, programs, tmp_path, name):
    first, program = talk(name, system="Be brief.", max_tokens=7), programs[name]
    answer(first, "Hello")
    first.session.save(tmp_path / "saved")
    messages, held = list(first.messages), first.held
    expected = answer(first, "What?")
    with program.restore(tmp_path / "saved") as session:
        again = Conversation(
            session,
            tokenizer_of(program),
            template_of(program),
            messages=messages,
            history=held,
            max_tokens=7,
        )
        assert answer(again, "What?") == expected
        assert again.messages == first.messages
        assert again.answer.prefill.tokens == first.answer.prefill.tokens
        again.reset()
        assert again.messages == [{"role": "system", "content": "Be brief."}]


def test_a_continued_text_goes_on_from_a_saved_session(talk, programs, tmp_path):
    first, program = talk("adding", template=None, max_tokens=5), programs["adding"]
    answer(first, "One")
    first.session.save(tmp_path / "saved")
    held, expected = first.held, answer(first, " more")
    with program.restore(tmp_path / "saved") as session:
        again = Conversation(
            session, tokenizer_of(program), None, history=held, max_tokens=5
        )
        assert answer(again, " more") == expected


def test_what_was_said_elsewhere_is_read_anew(talk, programs):
    first, program = talk("adding", max_tokens=7), programs["adding"]
    answer(first, "Hello")
    messages = list(first.messages)
    with program.session() as session:
        again = Conversation(
            session,
            tokenizer_of(program),
            template_of(program),
            messages=messages,
            max_tokens=7,
        )
        assert answer(again, "What?") == answer(first, "What?")


def test_what_a_session_does_not_hold_is_no_history(talk, programs):
    tokenizer = tokenizer_of(programs["adding"])
    template = template_of(programs["adding"])
    said = [{"role": "user", "content": "a"}]
    with programs["adding"].session() as session:
        session.decode(np.array([[3]]))
        for history in ([], [3, 4]):
            with pytest.raises(BadSetting, match="history: expected the 1 tokens"):
                Conversation(session, tokenizer, template, history=history)
        with pytest.raises(BadSetting, match="system: expected nothing beside"):
            Conversation(session, tokenizer, template, "b", said, [3])
        with pytest.raises(BadSetting, match="messages: expected none, as there"):
            Conversation(session, tokenizer, None, None, said, [3])
        assert session.position == 1


@pytest.mark.parametrize("messages", ["hi", ["a"], [None], 7])
def test_what_was_said_is_made_of_mappings(talk, messages):
    with pytest.raises(BadSetting, match="messages: expected mappings"):
        talk("adding", messages=messages)
