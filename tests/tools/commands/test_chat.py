"""`kvc chat`: its loop with a terminal of the test's own, then the command."""

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from adding_model import CAPACITY, write_chat
from click.testing import CliRunner

from kvc.runtime import Conversation, generate, load
from kvc.runtime.generation.answer import Answer
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.tools.chat_loop import Stop, run_chat
from kvc.tools.cli import main

KVC = Path(sys.executable).parent / "kvc"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_chat(tmp_path_factory.mktemp("chat") / "adding.kvc", max_new_tokens=7)


@pytest.fixture
def program(path):
    with load(path) as opened:
        yield opened


class Terminal:
    """Says what it was given, and keeps what it is shown."""

    def __init__(self, *lines):
        self.lines, self.shown, self.notes = list(lines), "", []

    def ask(self):
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        if isinstance(line, type):
            raise line
        return line

    def write(self, text):
        self.shown += text

    def think(self, text):
        self.thought = getattr(self, "thought", "") + text

    def note(self, text):
        self.notes += [text] if text else []


def conversation_on(program, **settings):
    template, tokenizer = chat_template_of(program), tokenizer_of(program)
    return Conversation(program.session(), tokenizer, template, **settings)


def talk(program, terminal, **settings):
    conversation = conversation_on(program, **settings)
    run_chat(conversation, terminal, CAPACITY)
    return conversation


def answers_to(program, *lines):
    """What the model says to the lines of one conversation."""
    conversation = conversation_on(program)
    return ["".join(conversation.say(line)) for line in lines]


def test_answers_come_with_their_pace_and_what_is_used(program):
    terminal = Terminal("Hello", "What?")
    talk(program, terminal)
    first, second = answers_to(program, "Hello", "What?")
    assert terminal.shown == f"{first}\n{second}\n"
    used = len("[u]Hello[a]") + 6
    line = (
        r"\[7 tokens, [\d.]+ tokens/s; prompt 11 tokens, [\d.]+ tokens/s; "
        rf"context {used} of 160\]"
    )
    assert re.fullmatch(line, terminal.notes[0])
    assert terminal.notes[1] == "the limit of tokens was reached"


def test_what_is_no_longer_read_is_told(program):
    terminal = Terminal(*["Hello"] * 10)
    conversation = talk(program, terminal, on_full="drop")
    assert conversation.dropped == 6
    told = [note for note in terminal.notes if "no longer read" in note]
    words = r"the first 6 messages are no longer read; \d+ tokens were read again"
    (line,) = told
    assert re.fullmatch(words, line)


def test_the_end_of_input_an_interrupt_and_quit_end_it(program):
    for end in ([], [KeyboardInterrupt, "x"], ["/quit", "x"], [" /exit ", "x"]):
        terminal = Terminal("Hello", *end)
        conversation = talk(program, terminal)
        assert len(conversation.messages) == 2
        assert terminal.lines == end[1:]


def test_commands_and_empty_lines_are_not_said(program):
    terminal = Terminal("/help", "", "  ", "/nothing")
    assert talk(program, terminal).messages == []
    assert terminal.notes[0].startswith("/reset forgets the conversation")
    assert terminal.notes[1].startswith("there is no /nothing; /reset forgets")
    assert not any("/image" in note for note in terminal.notes)  # it reads none


def test_a_path_is_said(program):
    conversation = talk(program, Terminal("/usr/bin/kvc", "/a b"))
    said = [one["content"] for one in conversation.messages if one["role"] == "user"]
    assert said == ["/usr/bin/kvc", "/a b"]


def test_a_command_with_more_words_is_refused_and_two_slashes_say_anything(program):
    terminal = Terminal("/reset now", "//reset now", " //x")
    conversation = talk(program, terminal)
    said = [one["content"] for one in conversation.messages if one["role"] == "user"]
    assert said == ["/reset now", "/x"]
    assert terminal.notes[0] == "/reset stands alone on its line; //reset now says it"


@pytest.mark.parametrize("line", ["x" * 200, "/reset now", "/nothing", "/image"])
def test_a_line_that_is_refused_is_exit_code_1(path, line):
    done = CliRunner().invoke(main, ["chat", str(path)], f"Hello\n{line}\nGo\n")
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 2  # the others are answered


def test_reset_begins_anew(program):
    terminal = Terminal("Hello", "/reset", "Hello")
    talk(program, terminal)
    (first,) = answers_to(program, "Hello")
    assert terminal.shown == f"{first}\n{first}\n"
    assert "a new conversation" in terminal.notes


def test_an_interrupt_stops_an_answer_and_keeps_the_conversation(program):
    class Impatient(Terminal):
        def write(self, text):
            super().write(text)
            if len(self.shown) == 3:
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    terminal = Impatient("Hello", "Go on")
    conversation = talk(program, terminal)
    assert signal.getsignal(signal.SIGINT) is before
    (whole,) = answers_to(program, "Hello")
    first, second, _ = terminal.shown.split("\n")
    assert first == whole[:3]
    assert "stopped" in terminal.notes
    expected = [("user", "Hello"), ("assistant", first)]
    expected += [("user", "Go on"), ("assistant", second)]
    found = [(one["role"], one["content"]) for one in conversation.messages]
    assert found == expected
    template, session = chat_template_of(program), program.session()
    with session:
        text = template.render(conversation.messages[:-1])
        assert second == "".join(generate(session, text, max_tokens=7).text())


def test_a_second_interrupt_does_not_wait_for_the_next_token(program, monkeypatch):
    @contextmanager
    def hasty():
        yield Stop()

    conversation = conversation_on(program)
    first = "".join(conversation.say("Hello"))

    def fail(*_):
        raise KeyboardInterrupt

    terminal = Terminal("What?")
    with monkeypatch.context() as patch:
        patch.setattr(conversation.session._engine, "call", fail)
        run_chat(conversation, terminal, CAPACITY, hasty)
    assert terminal.notes[-1] == "stopped"
    assert [one["content"] for one in conversation.messages] == ["Hello", first]
    run_chat(conversation, terminal := Terminal("What?"), CAPACITY)
    assert terminal.shown == answers_to(program, "Hello", "What?")[1] + "\n"


def test_the_second_of_two_signals_interrupts_at_once(program):
    class VeryImpatient(Terminal):
        def write(self, text):
            super().write(text)
            if len(self.shown) == 3:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                self.shown += "never"

    terminal = VeryImpatient("Hello")
    conversation = talk(program, terminal)
    assert terminal.shown == conversation.messages[-1]["content"] + "\n"
    assert len(terminal.shown) == 4


def test_a_full_cache_and_a_line_too_long_say_what_to_do(program):
    terminal = Terminal("Hello", "x" * CAPACITY, "y")
    conversation = talk(program, terminal, max_tokens=CAPACITY, stop_tokens=[])
    (full,) = [note for note in terminal.notes if "the context is full" in note]
    over, last = [note for note in terminal.notes if "the message is refused" in note]
    for note in (full, over, last):
        assert (
            note.count("/reset begins a new conversation, --on-full drop leaves") == 1
        )
        assert "--capacity N" in note
        assert "session" not in note
    assert "of 160" in over
    assert conversation.messages[0]["content"] == "Hello"


def test_the_command_reads_stdin_and_writes_answers_to_stdout(kvc, path, program):
    lines = b"Hello\n\xff\n/quit\nmore\n"
    done = CliRunner().invoke(main, ["chat", str(path)], input=lines)
    assert done.exit_code == 0  # a model of bytes reads any
    first, second = answers_to(program, "Hello", "\udcff")
    assert done.stdout == f"{first}\n{second}\n"
    assert "/reset forgets the conversation" in done.stderr
    assert "context 17 of 160" in done.stderr


def test_options_are_those_of_generate_and_a_system_text(path, program):
    options = ["--system", "Be brief", "-n", "3", "--capacity", "64"]
    options += ["--temperature", "100", "--top-k", "5", "--seed", "1"]
    done = CliRunner().invoke(main, ["chat", str(path), *options], input="Hello\n")
    sampled = {"temperature": 100, "top_k": 5, "seed": 1}
    conversation = conversation_on(program, system="Be brief", max_tokens=3, **sampled)
    assert done.stdout == "".join(conversation.say("Hello")) + "\n"
    assert "of 64]" in done.stderr


def test_without_a_template_the_text_is_continued_with_a_note(tiny):
    done = CliRunner().invoke(
        main, ["chat", str(tiny), "-n", "3"], input=b"def\n\n/quit\n"
    )
    assert done.exit_code == 0
    assert "note: the bundle has no chat template" in done.stderr
    with load(tiny) as opened, opened.session() as session:
        expected = "".join(generate(session, "def", max_tokens=6).text())
    assert done.stdout.replace("\n", "") == expected.replace("\n", "")


def test_a_system_text_needs_a_template(kvc, tiny):
    done = kvc("chat", tiny, "--system", "Be brief")
    assert done.exit_code == 2
    assert "--system needs a chat template" in done.stderr


def test_the_example_of_the_page_runs(path, program, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "tools/COMMANDS.md").read_text()
    example, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (path.parent / "demo.kvc").write_bytes(path.read_bytes())
    monkeypatch.chdir(path.parent)
    exec(example, {})
    conversation = conversation_on(program, max_tokens=200)
    expected = "".join(conversation.say("def is_prime(n):\n"))
    assert capsys.readouterr().out == f"{expected}{conversation.used} of 160\n"


@pytest.mark.exhaustive
def test_on_a_real_terminal_an_interrupt_at_the_prompt_ends_it(path):
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [KVC, "chat", path], stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            _read_until(ours, b"> ")
            os.write(ours, b"Hello\n")
            _read_until(ours, b"context 17 of 160")
            _read_until(ours, b"> ")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
    finally:
        os.close(ours)


def _read_until(terminal, text):
    seen = b""
    while text not in seen:
        seen += os.read(terminal, 1000)


def test_tools_and_arguments_reach_the_template(tmp_path):
    text = "{{ tools[0].name }}{{ mood }}{{ messages[-1].content }}"
    bundle = write_chat(tmp_path / "told.kvc", template=text, max_new_tokens=2)
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "add"}]')
    told = ["--tools", tools, "--template-argument", 'mood="gay"']
    result = CliRunner().invoke(main, list(map(str, ["chat", bundle, *told])), "Hi")
    assert result.exit_code == 0, result.output
    assert f"prompt {len('addgayHi')} tokens" in result.stderr
    assert "is of no known family of models: calls of tools stay" in result.stderr
    plain = write_chat(tmp_path / "plain.kvc", template=None)
    for option in (told[:2], told[2:], ["--special-tokens", "text"]):
        result = CliRunner().invoke(main, list(map(str, ["chat", plain, *option])))
        assert result.exit_code == 2
        assert f"{option[0]} needs a chat template" in result.stderr


def test_reasoning_and_calls_are_shown_apart(program, monkeypatch):
    template = "{# tools #}<tool_call></think>{{ messages[-1].content }}{{ eos_token }}"
    made = replace(
        chat_template_of(program), renderer=Renderer("t", template, Limits())
    )
    given = {"tools": [{"name": "add"}], "max_tokens": 99}
    conversation = Conversation(program.session(), tokenizer_of(program), made, **given)
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    answers = [f"<think>Hm.</think>I add.{call}", "<tool_call>{"]
    tokens = [token for one in answers for token in (*one.encode(), ord("!"))]
    script = iter(tokens)
    monkeypatch.setattr(Answer, "choose", lambda *_: next(script))
    terminal = Terminal("Hello", "/tool 3", "/help")
    run_chat(conversation, terminal, CAPACITY)
    line = '{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}'
    assert terminal.shown == f"I add.\n{line}\n<tool_call>{{\n"
    assert terminal.thought == "Hm.\n"
    assert conversation.messages[2] == {"role": "tool", "name": "add", "content": "3"}
    assert any("'<tool_call>{' is no call: " in note for note in terminal.notes)
    assert "/tool TEXT" in terminal.notes[-1]


def test_calls_are_not_told_again_where_an_answer_has_not_begun(program, monkeypatch):
    conversation = conversation_on(program)
    call = {"function": {"name": "add", "arguments": {}}}
    told = {"role": "assistant", "content": "", "tool_calls": [call]}
    conversation.messages += [{"role": "user", "content": "Hello"}, told]

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(conversation.session._engine, "call", fail)
        run_chat(conversation, terminal := Terminal("What?"), CAPACITY)
    assert (terminal.shown, terminal.notes[-1]) == ("\n", "stopped")
