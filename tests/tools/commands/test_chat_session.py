"""`kvc chat --session FILE`: what was said goes on in the next command."""

import json
import os

import pytest
from adding_model import write_chat
from click.testing import CliRunner

from kvc.runtime import Conversation, load
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.tools.cli import main


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_chat(tmp_path_factory.mktemp("chat") / "adding.kvc", max_new_tokens=7)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "my.chat"


def chat(path, file, said="", *options):
    arguments = ["chat", path, "--session", file, *options]
    return CliRunner().invoke(main, list(map(str, arguments)), said)


def answers_to(path, *lines):
    with load(path) as program, program.session() as session:
        template, tokenizer = chat_template_of(program), tokenizer_of(program)
        conversation = Conversation(session, tokenizer, template)
        return ["".join(conversation.say(line)) for line in lines]


def test_a_chat_goes_on_in_the_next_command(path, file):
    first, second, third = answers_to(path, "Hello", "What?", "Go")
    made = chat(path, file, "Hello\n")
    assert (made.exit_code, made.stdout) == (0, f"{first}\n")
    made = chat(path, file, "What?\nGo\n")
    assert made.stdout == f"{second}\n{third}\n"
    assert "my.chat: going on after 1 turn and 17 tokens" in made.stderr
    assert f"prompt {len('x![u]What?[a]')} tokens" in made.stderr


def test_a_new_chat_has_a_file_at_once(path, file):
    assert chat(path, file).exit_code == 0
    assert file.exists()
    assert "going on after 0 turns and 0 tokens" in chat(path, file).stderr


def test_a_reset_is_saved(path, file):
    chat(path, file, "Hello\n/reset\n")
    assert "going on after 0 turns" in chat(path, file).stderr


def test_settings_of_the_chat_stay_and_are_named(kvc, path, file):
    drawn = ["--temperature", 100, "--seed", 3, "--stop", "~", "--on-full", "drop"]
    chat(path, file, "Hello\n/reset\n", *drawn)
    fresh = chat(path, file.with_name("other"), "What?\n", *drawn).stdout
    again = chat(path, file, "What?\n/reset\n")
    assert again.stdout == fresh
    kept = ', with temperature 100.0, seed 3, stop-strings ["~"], on-full drop (saved)'
    assert f"0 tokens{kept}\n" in again.stderr
    dumped = kvc("dump", file)
    assert "temperature 100.0" in dumped.stdout
    assert json.loads(kvc("dump", file, "--json").stdout)["session"]["settings"] == {
        "temperature": 100.0,
        "seed": 3,
        "stop_strings": ["~"],
        "stop_tokens": [33],
        "special_tokens": "tokens",
        "on_full": "drop",
    }
    other = chat(path, file, "What?\n", "--temperature", 0).stderr
    assert ', with seed 3, stop-strings ["~"], on-full drop (saved)' in other


def test_limits_and_forms_are_of_one_command(path, file):
    assert len(chat(path, file, "Hello\n", "--max-tokens", 3).stdout) == 4
    again = chat(path, file, "What?\n")
    assert len(again.stdout) == 8
    assert "saved" not in again.stderr
    with load(path) as program:
        tokenizer, template = tokenizer_of(program), chat_template_of(program)
        with program.session() as session:
            made = Conversation(session, tokenizer, template, regex="a", max_length=9)
            made.save(file)
    assert len(chat(path, file, "What?\n").stdout) == 8


@pytest.mark.parametrize("raw", [b"", b"something else", b"KVCS" * 99])
def test_a_file_that_cannot_be_used_is_left_as_it_is(path, file, raw):
    file.write_bytes(raw)
    made = chat(path, file, "Hello\n")
    assert made.exit_code == 1
    assert "cannot restore a session from it" in made.stderr
    assert file.read_bytes() == raw


def test_options_for_a_new_chat_are_refused_later(path, file):
    chat(path, file, "Hello\n", "--system", "Be brief.", "--capacity", 100)
    before = file.read_bytes()
    assert chat(path, file, "", "--system", "Be brief.").exit_code == 0
    assert chat(path, file, "", "--capacity", 100).exit_code == 0
    made = chat(path, file, "Hello\n", "--system", "Be long.")
    assert made.exit_code == 2
    assert "--system is for a new chat" in made.stderr
    made = chat(path, file, "Hello\n", "--capacity", 99)
    assert made.exit_code == 2
    assert "--capacity is for a new chat" in made.stderr
    assert file.read_bytes() == before


def test_a_chat_that_cannot_be_saved_is_told_and_goes_on(path, file, monkeypatch):
    first, second = answers_to(path, "Hello", "What?")
    chat(path, file, "")
    before = file.read_bytes()

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        made = chat(path, file, "Hello\nWhat?\n")
    assert made.stdout == f"{first}\n{second}\n"
    assert made.stderr.count("the chat is not saved: ") == 2
    assert file.read_bytes() == before


def test_a_file_where_none_can_be_is_refused_before_anything_is_said(path, tmp_path):
    made = chat(path, tmp_path / "none" / "my.chat", "Hello\n")
    assert (made.exit_code, made.stdout) == (1, "")
    assert "none" in made.stderr


def test_a_chat_that_drops_turns_goes_on_so(path, file):
    made = chat(path, file, "Hello\n", "--capacity", 60, "--on-full", "drop")
    made = chat(path, file, "Hello\nHello\nHello\n")
    assert made.exit_code == 0
    assert "messages are no longer read" in made.stderr
    made = chat(path, file, "Hello\nHello\nHello\n", "--on-full", "stop")
    assert made.exit_code == 1
    assert "the message is refused: " in made.stderr


def test_without_turns_none_are_dropped(tmp_path):
    path = write_chat(tmp_path / "text.kvc", template=None)
    made = CliRunner().invoke(main, ["chat", str(path), "--on-full", "drop"])
    assert made.exit_code == 2
    assert "--on-full needs a chat template" in made.stderr


def test_no_other_file_is_left(path, file):
    chat(path, file, "Hello\n")
    assert list(file.parent.iterdir()) == [file]
