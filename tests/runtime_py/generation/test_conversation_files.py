"""Chats on disk go on in another process as if they had never ended."""

import json
import random
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
from adding_model import CAPACITY, TEMPLATE, Totaling, write_chat
from changed_snapshots import change_header
from click.testing import CliRunner

from kvc.runtime import BadSnapshot, CannotWrite, TemplateChanged, load
from kvc.runtime.generation.conversation import Conversation
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.schema.errors import BadSetting, FileProblem, Poisoned
from kvc.tools.cli import main

# The templates of these tests are of no family.
pytestmark = pytest.mark.filterwarnings("ignore::kvc.runtime.UnknownAnswers")
TOLD = "{{ mood }}{{ tools[0].name if tools }}" + TEMPLATE
SAID = ["Hello", "What?", "é", "Well, well.", "Go"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    return {
        "adding": write_chat(folder / "adding.kvc", template=TOLD),
        "totaling": write_chat(folder / "totaling.kvc", Totaling, template=TOLD),
        "text": write_chat(folder / "text.kvc", template=None),
    }


@pytest.fixture(scope="module")
def programs(paths):
    with (
        load(paths["adding"]) as adding,
        load(paths["totaling"]) as totaling,
        load(paths["text"]) as text,
    ):
        yield {"adding": adding, "totaling": totaling, "text": text}


def talk(program, **given):
    template = chat_template_of(program)
    given = {"max_tokens": 5, **given}
    return Conversation(program.session(), tokenizer_of(program), template, **given)


def answer(conversation, text):
    return "".join(conversation.say(text))


def state_of(conversation):
    """What decides how a conversation goes on."""
    return conversation.messages, conversation.held, conversation._text


GIVEN = {"template_arguments": {"mood": "gay"}, "tools": [{"name": "add"}]}
GIVEN["special_tokens"] = "text"


@pytest.mark.parametrize("name", ["adding", "totaling", "text"])
@pytest.mark.parametrize("seed", range(6))
def test_a_chat_saved_at_any_turn_goes_on_as_if_it_had_not(
    programs, tmp_path, name, seed
):
    chance, program = random.Random(seed), programs[name]
    more = GIVEN if seed % 2 and name != "text" else {}
    system = {} if name == "text" else {"system": "Be brief."}
    given = {"temperature": 2.0, "seed": seed, **more, **system}
    first, file = talk(program, **given), tmp_path / "chat"
    other = talk(program, **given)
    for said in chance.sample(SAID, 4):
        assert answer(first, said) == answer(other, said)
        tokens = first.answer.prefill.tokens, other.answer.prefill.tokens
        assert tokens[0] == tokens[1]
        if chance.random() < 0.6:
            other.save(file)
            other.session.close()
            other = Conversation.restore(program, file)
        assert state_of(other) == state_of(first)
        assert other._script.special_tokens == first._script.special_tokens
    other.reset()
    first.reset()
    assert state_of(other) == state_of(first)


def test_a_chat_goes_on_in_another_process(paths, tmp_path):
    code = (
        "import sys; from kvc.runtime import Conversation, load\n"
        "with load(sys.argv[1]) as program:\n"
        "    chat = Conversation.restore(program, sys.argv[2])\n"
        "    print(''.join(chat.say('What?')), chat.answer.prefill.tokens)\n"
        "    chat.save(sys.argv[2])"
    )
    with load(paths["adding"]) as program:
        first = talk(program, **GIVEN)
        answer(first, "Hello")
        first.save(tmp_path / "chat")
        command = [sys.executable, "-c", code, paths["adding"], tmp_path / "chat"]
        made = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path)
        expected = f"{answer(first, 'What?')} {first.answer.prefill.tokens}\n"
        assert made.stdout.decode() == expected
        again = Conversation.restore(program, tmp_path / "chat")
        assert state_of(again) == state_of(first)


def test_an_open_answer_is_saved_as_it_is(programs, tmp_path):
    first = talk(programs["adding"], max_tokens=7)
    pieces = first.say("Hello")
    part = next(pieces) + next(pieces)
    first.save(tmp_path / "chat")
    assert list(pieces) == []
    again = Conversation.restore(programs["adding"], tmp_path / "chat")
    assert again.messages[-1] == {"role": "assistant", "content": part}
    assert answer(again, "Go") == answer(first, "Go")


def test_what_is_given_anew_replaces_what_was_saved(programs, tmp_path):
    program, file = programs["adding"], tmp_path / "chat"
    first = talk(program, **GIVEN, max_tokens=3)
    answer(first, "Hello")
    first.save(file)
    more = {"template_arguments": {"mood": "sad"}, "max_tokens": 4}
    again = Conversation.restore(program, file, **more)
    made = answer(again, "What?")
    whole = f"sadadd[u]Hello[a]{first.messages[1]['content']}![u]What?[a]"
    assert again.answer.prefill.tokens == len(whole)
    assert len(made) == 4
    assert again.messages[:2] == first.messages


@pytest.mark.parametrize(
    ("saved", "new"),
    [
        ({"regex": "a"}, {"json_schema": {}}),
        ({"choices": ["a"]}, {"grammar": "b"}),
        ({"max_tokens": 5}, {"max_new_tokens": 2}),
        ({"max_tokens": 5}, {"max_length": 200}),
        ({"min_new_tokens": 1}, {"min_length": 2}),
        ({}, {"eos_token_id": 7}),
    ],
)
def test_a_new_setting_replaces_what_says_the_same(programs, tmp_path, saved, new):
    first = talk(programs["adding"], **{"max_tokens": None, **saved})
    first.save(tmp_path / "chat")
    again = Conversation.restore(programs["adding"], tmp_path / "chat", **new)
    fresh = talk(programs["adding"], **{"max_tokens": None, **new})
    kept = {k: v for k, v in again._settings.items() if v is not None}
    assert kept == {k: v for k, v in fresh._settings.items() if v is not None}


def test_a_session_that_holds_the_tokens_goes_on(programs, tmp_path):
    program, file = programs["adding"], tmp_path / "chat"
    first = talk(program)
    answer(first, "Hello")
    first.save(file)
    with program.restore(file, transactional=True) as session:
        again = Conversation.restore(session, file)
        assert again.session is session
        assert answer(again, "What?") == answer(first, "What?")
        assert again.answer.prefill.tokens == first.answer.prefill.tokens
    with program.session() as session:  # reads all of it again
        again = Conversation.restore(session, file)
        answer(again, "What?")
        assert again.held == first.held
        with pytest.raises(BadSetting, match="history: expected the"):
            Conversation.restore(session, file)
        assert int(session.position[0]) == len(first.held)
    with pytest.raises(BadSetting, match="session: expected a Session"):
        Conversation.restore(3, file)


def test_another_template_reads_from_the_first_difference(programs, tmp_path):
    program, file = programs["adding"], tmp_path / "chat"
    first = talk(program)
    template = first._script.template
    text = TEMPLATE.replace("[{{ message.role[0] }}]", "[{{ message.role[1] }}]")
    changed = replace(template, renderer=Renderer("t", text, Limits()))
    first._script.template = changed
    answer(first, "Hello")
    first.save(file)
    with pytest.warns(TemplateChanged, match="another chat template than"):
        again = Conversation.restore(program, file)
    made = answer(again, "What?")
    whole = f"[u]Hello[a]{first.messages[1]['content']}![u]What?[a]"
    assert again.answer.prefill.tokens == len(whole) - 1
    other = talk(program)
    other.messages = list(first.messages)
    assert answer(other, "What?") == made
    again.save(file)
    with warnings.catch_warnings(action="error"):
        Conversation.restore(program, file)


def test_a_bundle_that_is_split_or_built_again_keeps_its_chats(paths, tmp_path):
    def run(*arguments):
        result = CliRunner().invoke(main, list(map(str, arguments)))
        assert result.exit_code == 0, result.output

    split, joined = tmp_path / "split.kvc", tmp_path / "joined.kvc"
    run("split", paths["adding"], "-o", split)
    run("join", split, "-o", joined)
    built = write_chat(tmp_path / "built.kvc", template=TOLD, top_k=3)
    file = tmp_path / "chat"
    with load(paths["adding"]) as program:
        first = talk(program)
        answer(first, "Hello")
        first.save(file)
        expected = answer(first, "What?")
    for path in (split, joined, built):
        with load(path) as program:
            again = Conversation.restore(program, file)
            assert answer(again, "What?") == expected
            assert again.answer.prefill.tokens == len("x![u]What?[a]")


@pytest.fixture
def saved(programs, tmp_path):
    conversation = talk(programs["adding"], **GIVEN)
    answer(conversation, "Hello")
    conversation.save(tmp_path / "chat")
    return tmp_path / "chat"


def refused(program, file, match, kind=BadSnapshot):
    """Check that a file is refused, and stays as it is."""
    before = file.read_bytes()
    with pytest.raises(kind, match=match):
        Conversation.restore(program, file)
    assert file.read_bytes() == before


def test_files_that_are_damaged_are_refused(programs, saved):
    whole = saved.read_bytes()
    for cut in (0, 1, 11, 40, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:cut])
        refused(programs["adding"], saved, "saved session|cut short|header|damaged")
    for place in range(0, len(whole), max(1, len(whole) // 50)):
        changed = bytearray(whole)
        changed[place] ^= 1
        saved.write_bytes(changed)
        refused(programs["adding"], saved, "cannot restore a session from it")


def test_files_of_other_models_are_refused(programs, saved):
    refused(programs["totaling"], saved, "of program .* own$")
    with programs["totaling"].session() as session:
        refused(session, saved, "of another program; .* own$")


def test_a_session_without_a_chat_is_refused(programs, tmp_path):
    with programs["adding"].session() as session:
        session.save(tmp_path / "session", attached={"else": [1]})
        again = programs["adding"].restore(tmp_path / "session")
        assert again.attached == {"else": [1]}
        refused(programs["adding"], tmp_path / "session", "a session without a chat")
        with pytest.raises(BadSetting, match="attached: expected JSON"):
            session.save(tmp_path / "session", attached={"else": {1}})


def test_a_chat_of_another_kind_is_refused(programs, paths, saved, tmp_path):
    plain = write_chat(tmp_path / "plain.kvc", template=None)
    with load(plain) as program:
        refused(program, saved, "a chat with turns, but the bundle has no")
        talk(program).save(saved)
        refused(programs["adding"], saved, "a text without turns, but the bundle has")


def change(key, value):
    def apply(header):
        header["attached"]["chat"][key] = value

    return apply


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("messages", 3),
        ("messages", ["a"]),
        ("held", "abc"),
        ("held", [1.0]),
        ("held", [-1]),
        ("held", [True]),
        ("text", [None]),
        ("tools", {}),
        ("template_arguments", []),
        ("settings", []),
        ("settings", {"nothing": 1}),
        ("special_tokens", "maybe"),
        ("template", 3),
        ("more", 1),
    ],
)
def test_chats_of_a_wrong_form_are_refused(programs, saved, key, value):
    change_header(saved, change(key, value))
    refused(programs["adding"], saved, "its chat has other parts|" + key)


@pytest.mark.parametrize("key", ["held", "text"])
def test_tokens_that_the_model_lacks_are_refused(programs, saved, key):
    change_header(saved, change(key, [999]))
    refused(programs["adding"], saved, "it has token 999, but the model has 256")


def test_what_does_not_fit_the_session_is_refused(programs, saved):
    whole = saved.read_bytes()
    change_header(saved, change("held", [1]))
    refused(programs["adding"], saved, "history: expected the", BadSetting)
    saved.write_bytes(whole)
    change_header(saved, change("settings", {"temperature": -1}))
    refused(programs["adding"], saved, "temperature", BadSetting)
    change_header(saved, lambda header: header.update(attached=3))
    refused(programs["adding"], saved, "attached is 3")


def test_a_file_that_is_not_there_is_named(programs, tmp_path):
    with pytest.raises(FileProblem, match="nowhere"):
        Conversation.restore(programs["adding"], tmp_path / "nowhere")


def test_the_old_file_is_kept_where_the_new_one_cannot_be_written(programs, saved):
    before, conversation = saved.read_bytes(), talk(programs["adding"])
    with pytest.raises(CannotWrite):
        conversation.save(saved.parent / "none" / "chat")
    conversation.messages = [{"role": "user", "content": {1}}]
    with pytest.raises(BadSetting, match="messages: expected JSON, to be saved"):
        conversation.save(saved)
    conversation._held.session._states.poisoned = "decode"
    conversation.messages = []
    with pytest.raises(Poisoned):
        conversation.save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_full_chat_can_be_saved(programs, tmp_path):
    first = talk(programs["adding"], max_tokens=None, stop_tokens=[])
    first._settings["stop_tokens"] = ()
    answer(first, "Hello")
    assert first.answer.reason == "length"
    first.save(tmp_path / "chat")
    again = Conversation.restore(programs["adding"], tmp_path / "chat")
    assert (again.used, again.messages) == (CAPACITY, first.messages)
    assert json.dumps(again.messages)
