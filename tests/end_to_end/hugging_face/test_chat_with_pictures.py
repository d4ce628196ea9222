"""Pictures in conversations: each answer is that of a fresh session to all of it."""

from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from joined_pictures import CAPACITY, TEMPLATE, model, processor
from seeing_models import JOINED, picture

from kvc.runtime import Conversation, Session, generate, load
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.schema.errors import BadSetting, NoPosition
from kvc.tools.chat_loop import run_chat
from kvc.tools.cli import main

LIMIT = {"max_tokens": 5, "stop_tokens": [95]}
TEXTS_ALONE = "{% for m in messages %} 80 {{ m.content.strip() }} 81{% endfor %} 82"
# Of earlier turns it leaves out texts, so that what follows is encoded otherwise.
FORGETFUL = TEMPLATE.replace(
    "{{ part.text }}", "{% if loop.last and message == messages[-1] %}7{% endif %}"
)


@pytest.fixture(scope="module")
def program(joined_bundle):
    with load(joined_bundle) as opened:
        yield opened


def talk(program, text=TEMPLATE) -> Conversation:
    """Begin a conversation with a template; None: a text that is continued."""
    template = None
    if text is not None:
        renderer = Renderer("t.jinja", text, Limits())
        template = replace(chat_template_of(program), renderer=renderer)
    return Conversation(program.session(), tokenizer_of(program), template, **LIMIT)


def answer(conversation, text, *images) -> str:
    return "".join(conversation.say(text, images))


def fresh_answer(program, conversation, images) -> str:
    """What the model says to all but the last answer, in a session of its own."""
    text = conversation._script.template.render(conversation.messages[:-1])
    with program.session() as session:
        return "".join(generate(session, text, images=images, **LIMIT).text()).strip()


@pytest.mark.parametrize("template", [TEMPLATE, FORGETFUL])
def test_each_answer_is_that_of_a_fresh_session(program, template):
    conversation, shown = talk(program, template), []
    for text, seeds in (("5 6", [0]), ("7", []), ("8 9", [1, 2]), ("10", [])):
        images = [picture(seed) for seed in seeds]
        shown += images
        made = answer(conversation, text, *images)
        assert made.strip() == fresh_answer(program, conversation, shown)
    said = conversation.messages[0]
    parts = [{"type": "image"}, {"type": "text", "text": "5 6"}]
    assert said == {"role": "user", "content": parts}


def test_an_answer_in_a_later_turn_is_that_of_transformers(program):
    conversation = talk(program)
    answer(conversation, "5 6", picture(0))
    answer(conversation, "7", picture(1))
    messages = conversation.messages[:-1]
    text = processor().apply_chat_template(messages, add_generation_prompt=True)
    given = processor()(images=[picture(0), picture(1)], text=text, return_tensors="pt")
    limit = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": [95]}
    with torch.no_grad():
        wanted = model().generate(**given, **limit)[0, given["input_ids"].shape[1] :]
    found = list(conversation.answer.tokens)
    assert found == [token for token in wanted.tolist() if token != 95]


def test_a_picture_of_an_earlier_turn_is_not_read_again(program, monkeypatch):
    conversation, calls, call = talk(program), [], Session.call

    def noting(session, name, *given, **named):
        calls.append(name)
        return call(session, name, *given, **named)

    monkeypatch.setattr(Session, "call", noting)
    answer(conversation, "5 6", picture(0))
    answer(conversation, "7", picture(1))
    answer(conversation, "8")
    read = [name for name in calls if name in ("embed_image", "prefill_picture")]
    assert read == ["embed_image", "prefill_picture"] * 2


def test_a_picture_is_not_taken_for_another_in_the_same_places(program, monkeypatch):
    conversation = talk(program)
    left = conversation.say("5 6", [picture(0)])
    calls, call = [], Session.call

    def interrupting(session, name, *given, **named):
        made = call(session, name, *given, **named)
        calls.append(name)
        if name == "prefill_picture":
            raise KeyboardInterrupt
        return made

    with monkeypatch.context() as patch:
        patch.setattr(Session, "call", interrupting)
        with pytest.raises(KeyboardInterrupt):
            next(left)
    assert "prefill_picture" in calls
    assert (conversation.messages, conversation.used > JOINED) == ([], True)
    made = answer(conversation, "5 6", picture(1))
    assert made.strip() == fresh_answer(program, conversation, [picture(1)])


def test_a_template_of_texts_alone_leaves_the_place_to_the_text(program):
    conversation = talk(program, TEXTS_ALONE)
    made = answer(conversation, "5 <boi> 6", picture(0))
    assert conversation.messages[0] == {"role": "user", "content": "5 <boi> 6"}
    assert made.strip() == fresh_answer(program, conversation, [picture(0)])
    with pytest.raises(BadSetting, match="'<boi>' 2 times, once for each picture"):
        conversation.say("7", [picture(0)])
    assert len(conversation.messages) == 2


def test_a_text_that_is_continued_has_pictures(program):
    conversation = talk(program, None)
    first = answer(conversation, "5 <boi> 6", picture(0))
    second = answer(conversation, " 7 <boi> 8", picture(1))
    text = f"5 <boi> 6 {first} 7 <boi> 8"
    with program.session() as session:
        run = generate(session, text, images=[picture(0), picture(1)], **LIMIT)
        assert second == "".join(run.text())


def test_what_cannot_be_rewound_reads_its_pictures_again(program, monkeypatch):
    conversation = talk(program, FORGETFUL)
    answer(conversation, "5 6", picture(0))

    def refuse(*_):
        raise NoPosition(method="rewind", reason="it is refused")

    monkeypatch.setattr(Session, "rewind", refuse)
    made = answer(conversation, "8", picture(1))
    shown = [picture(0), picture(1)]
    assert made.strip() == fresh_answer(program, conversation, shown)


class Terminal:
    """Says what it was given, and keeps what it is shown."""

    def __init__(self, *lines):
        self.lines, self.shown, self.notes = list(lines), "", []

    def ask(self):
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)

    def write(self, text):
        self.shown += text

    def note(self, text):
        self.notes += [text] if text else []


def test_the_chat_shows_pictures_with_the_next_message(program, tmp_path):
    picture(0).save(tmp_path / "a b.png")
    (tmp_path / "c.png").write_text("words")
    file = tmp_path / "a b.png"
    terminal = Terminal(
        "/image", f"/image {tmp_path / 'c.png'}", f"/image {tmp_path / 'no.png'}",
        f"/image {file}", "5 6", "7", f"/image {file}", "/reset", "8",
    )  # fmt: skip
    conversation = talk(program)
    run_chat(conversation, terminal, None)
    assert terminal.notes[0] == "/image needs the name of a file"
    assert "c.png" in terminal.notes[1]
    assert "no.png" in terminal.notes[2]
    assert terminal.notes[3] == f"{file} goes with the next message"
    other = talk(program)
    wanted = [answer(other, "5 6", picture(0)), answer(other, "7")]
    other.reset()
    wanted.append(answer(other, "8"))
    assert terminal.shown == "".join(f"{text}\n" for text in wanted)


def test_the_command_shows_pictures(joined_bundle, program, tmp_path):
    picture(0).save(tmp_path / "a.png")
    lines = f"/image {tmp_path / 'a.png'}\n5 6\n"
    options = ["--max-tokens", "5", "--stop", "95"]
    done = CliRunner().invoke(main, ["chat", str(joined_bundle), *options], input=lines)
    assert done.exit_code == 0, done.stderr
    conversation = talk(program)
    assert done.stdout == answer(conversation, "5 6", picture(0)) + "\n"
    assert "/image FILE shows a picture" in done.stderr


def test_pictures_of_turns_that_are_dropped_are_forgotten(program):
    template, tokenizer = chat_template_of(program), tokenizer_of(program)
    with program.session(capacity=CAPACITY // 2) as session:
        given = {**LIMIT, "max_tokens": 9, "on_full": "drop"}
        conversation, shown = Conversation(session, tokenizer, template, **given), []
        for seed in range(6):
            images = [picture(seed)] * (seed % 3)
            shown.append(images)
            made = answer(conversation, str(seed + 5), *images)
            begun = conversation.dropped // 2
            left = [one for images in shown[begun:] for one in images]
            assert len(conversation._pictures) == len(left)
            text = template.render(conversation.messages[conversation.dropped : -1])
            with program.session(capacity=CAPACITY // 2) as other:
                run = generate(other, text, images=left, **{**LIMIT, "max_tokens": 9})
                assert made.strip() == "".join(run.text()).strip()
        assert conversation.dropped >= 4
