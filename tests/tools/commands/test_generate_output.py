"""What `kvc generate` takes and prints for other programs: JSON, stdin, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from counting_model import counting_program
from hand_built import write_bundle
from summing_rows import summing_rows
from wordy_models import write_wordy

from kvc.runtime import Session, load
from kvc.runtime.tokenizers import tokenizer_of
from kvc.runtime.tokenizers.spelled_tokens import plain_tokens
from kvc.tools.cli import main
from kvc.tools.generation_rows import BEAM_TOKENS

KVC = Path(sys.executable).parent / "kvc"


@pytest.fixture(scope="module")
def wordy(tmp_path_factory):
    return str(write_wordy(tmp_path_factory.mktemp("wordy") / "wordy.kvc"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.kvc"
    summing_rows(path)
    return path


def test_json_is_an_object_for_each_answer_and_nothing_else(kvc, rows):
    plain = kvc("generate", rows, "1 2", "3", "-n", 3)
    made = kvc("generate", rows, "1 2", "3", "-n", 3, "--json")
    found = [json.loads(line) for line in made.stdout.splitlines()]
    assert [one["prompt"] for one in found] == [0, 1]
    assert all(one["text"] in plain.stdout for one in found)
    for one in found:
        assert one["text"].split() == [str(token) for token in one["tokens"]]
        assert (one["version"], one["reason"]) == (1, "max_tokens")
        assert one["is_complete"] is one["logprobs"] is one["score"] is None
    drawn = ("--temperature", 3, "-n", 2, "--json")
    made = kvc("generate", rows, "7", "--answers", 2, *drawn)
    assert [json.loads(line)["prompt"] for line in made.stdout.splitlines()] == [0, 0]
    made = kvc("generate", rows, "7", "--beams", 2, "-n", 2, "--json")
    assert json.loads(made.stdout)["score"] < 0


def test_json_has_log_probabilities_and_whether_the_form_is_complete(kvc, wordy):
    options = ("--regex", "[ab]{20}", "-n", 2, "--logprobs", 1, "--json")
    made = json.loads(kvc("generate", wordy, "Once", *options).stdout)
    assert made["is_complete"] is False
    assert [one["token"] for one in made["logprobs"]] == made["tokens"]
    assert "".join(one["text"] for one in made["logprobs"]) == made["text"]
    assert all(one["top"][0][1] <= 0 for one in made["logprobs"])


def test_an_interrupt_prints_what_there_is(kvc, tmp_path, monkeypatch):
    path, calls, call = tmp_path / "c.kvc", [], Session.call
    write_bundle(path, counting_program())

    def interrupted(session, *args):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return call(session, *args)

    monkeypatch.setattr(Session, "call", interrupted)
    result = kvc("generate", path, "1 2 3", "--json")
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert (found["tokens"], found["reason"]) == ([4, 5, 6], None)


def test_quiet_leaves_stderr_empty(kvc, tmp_path):
    path = write_bundle(
        tmp_path / "c.kvc",
        counting_program(metadata={"generation_config": {"num_beams": 4}}),
    )
    assert kvc("generate", path, "1", "-n", 2).stderr
    result = kvc("generate", path, "1", "-n", 2, "--quiet")
    assert (result.stdout, result.stderr) == ("2 3 \n", "")
    refused = kvc("generate", path, "x", "--quiet")
    assert "expected token ids" in refused.stderr


def test_an_answer_without_its_form_is_exit_code_1(kvc, wordy):
    cut, whole = ("--regex", "[a-c]{20}", "-n", 3), ("--regex", "[a-c]{2}", "-n", 9)
    assert kvc("generate", wordy, "Once", *cut).exit_code == 1
    assert kvc("generate", wordy, "Once", "upon", *cut).exit_code == 1
    done = kvc("generate", wordy, "Once", *whole)
    assert done.exit_code == 0
    assert "; the answer has its form" in done.stderr
    both = kvc("generate", wordy, "Once", "upon", *whole)
    assert "2 ended with the form" in both.stderr


def test_a_schema_is_a_file_or_stdin_or_the_text_itself(wordy, tmp_path):
    schema = '{"enum": [1, 22]}'
    file = tmp_path / "schema.json"
    file.write_text(schema)
    for given, stdin in ((str(file), ""), ("-", schema), (f" {schema}", "")):
        options = ["generate", wordy, "Once", "--json-schema", given]
        assert CliRunner().invoke(main, options, input=stdin).stdout in ("1\n", "22\n")
    for arguments in (["generate", wordy, "-"], ["chat", wordy]):
        both = CliRunner().invoke(main, [*arguments, "--json-schema", "-"], input="a")
        assert both.exit_code == 2
        assert "--json-schema -: stdin has prompts" in both.stderr
    wrong = ["generate", wordy, "Once", "--json-schema", '{"enum" 1}']
    told = CliRunner().invoke(main, wrong).stderr
    assert "the text is not JSON: Expecting ':' delimiter (line 1, column 9)" in told


def test_a_misspelt_keyword_is_told(kvc, wordy):
    schema = '{"enum": [1], "maxmum": 3}'
    told = kvc("generate", wordy, "Once", "--json-schema", schema).stderr
    assert told.count("'maxmum' (did you mean 'maximum'?)") == 1


def test_what_is_not_utf8_is_told_with_its_byte(kvc, wordy, tiny):
    given = subprocess.run(
        [KVC, "generate", wordy, b"a\xff", "-n", "1"], capture_output=True
    )
    assert given.returncode == 2
    assert b"PROMPT is not UTF-8: byte 0xff at 1" in given.stderr
    read = CliRunner().invoke(main, ["generate", wordy, "-"], input=b"\xfe")
    assert "PROMPT is not UTF-8: byte 0xfe at 0" in read.stderr
    stop = subprocess.run(
        [KVC, "generate", wordy, "a", "--stop", b"\xfe"], capture_output=True
    )
    assert b"--stop is not UTF-8" in stop.stderr
    of_bytes = ["generate", str(tiny), "-", "-n", "1"]
    assert CliRunner().invoke(main, of_bytes, input=b"\xff").exit_code == 0


def test_a_line_of_a_chat_that_is_not_utf8_is_refused(wordy):
    for line in (b"\xff", b"/tool \xff", b"a\xffb"):
        done = CliRunner().invoke(main, ["chat", wordy, "-n", "1"], input=line)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "the line is not UTF-8: byte 0xff at " in done.stderr


def test_names_of_special_tokens_may_be_text(kvc, wordy):
    with load(wordy) as program:
        expected = len(tokenizer_of(program).encode("<|end|>Once"))
    tokens = kvc("generate", wordy, "<|end|>Once", "-n", 1, "--json")
    text = kvc(
        "generate", wordy, "<|end|>Once", "-n", 1, "--json", "--special-tokens", "text"
    )
    assert f"({expected} tokens)" in tokens.stderr
    assert f"({expected} tokens)" not in text.stderr


def test_beams_have_a_limit(kvc, rows, monkeypatch):
    monkeypatch.setattr("kvc.tools.generation_rows.BEAM_TOKENS", 5)
    result = kvc("generate", rows, "1 2", "--beams", 2, "--json")
    assert "note: --beams searches for at most 5 tokens" in result.stderr
    assert len(json.loads(result.stdout)["tokens"]) == 5
    assert BEAM_TOKENS == 256
    assert "note" not in kvc("generate", rows, "1", "--beams", 2, "-n", 2).stderr


def test_beams_that_are_interrupted_print_the_best_so_far(kvc, rows, monkeypatch):
    from kvc.runtime.generation.beams import BeamSearch

    steps, step = [], BeamSearch.step

    def interrupted(search, *args):
        steps.append(search)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return step(search, *args)

    monkeypatch.setattr(BeamSearch, "step", interrupted)
    result = kvc("generate", rows, "1 2", "--beams", 2, "-n", 9)
    assert result.exit_code == 130
    assert len(result.stdout.split()) == 3


def test_beams_and_a_form_are_refused_in_the_words_of_options(kvc, rows):
    for option, value in (("--regex", "a"), ("--choice", "a")):
        result = kvc("generate", rows, "1", "--beams", 2, option, value)
        assert result.exit_code == 2
        assert f"--beams does not go together with {option}" in result.stderr


def test_a_model_that_is_not_compiled_says_what_to_do(kvc, tmp_path):
    file, folder = tmp_path / "model.gguf", tmp_path / "a folder"
    file.write_bytes(b"GGUF" + bytes(60))
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for name in ("generate", "chat"):
        told = kvc(name, file, *["a"] * (name == "generate")).stderr
        assert f"compile it first: kvc compile {file}" in told
    told = kvc("generate", folder, "a").stderr
    assert f"compile it first: kvc compile '{folder}'" in told
    assert "compile it" not in kvc("generate", tmp_path, "a").stderr


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--temperature", "hot", "number"),
        ("--frequency-penalty", "x", "number"),
        ("-n", "3.5", "whole number"),
        ("--beams", "two", "whole number"),
    ],
)
def test_what_is_no_number_is_told_in_plain_words(kvc, rows, option, value, what):
    result = kvc("generate", rows, "1", option, value)
    assert result.exit_code == 2
    assert f"{value!r} is not a valid {what}." in result.stderr


def test_plain_tokens_have_what_stands_around_any_text(wordy):
    with load(wordy) as program:
        tokenizer = tokenizer_of(program)
    for text in ("Once", "Once upon", ""):
        assert plain_tokens(tokenizer, text) == list(tokenizer.encode(text))
    end = tokenizer.token("<|end|>")
    assert end in tokenizer.encode("a<|end|>b")
    assert end not in plain_tokens(tokenizer, "a<|end|>b")
