import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import torch
from click.testing import CliRunner
from counting_model import counting_program
from daily import RARELY, only
from drafting_models import Summing, write_decoder, write_table
from hand_built import write_bundle
from ring_models import RingDecoder, Shape, ring_methods, text
from wordy_models import write_folder, write_wordy

from kvc.compiler import compile_program
from kvc.compiler.hugging_face import export_hf
from kvc.runtime import Session, generate, load
from kvc.tools.cli import main

KVC = Path(sys.executable).parent / "kvc"


def test_stdout_gets_what_is_generated_and_a_line_feed(tiny):
    done = subprocess.run(
        [KVC, "generate", tiny, "def", "-n", "8"], capture_output=True, check=True
    )
    with load(tiny) as program, program.session() as session:
        expected = "".join(generate(session, "def", max_tokens=8).text())
    assert done.stdout.decode() == expected + "\n"
    assert len(expected) > 4
    assert b"prefill" in done.stderr
    assert b"tokens/s (3 tokens)" in done.stderr


def test_it_stops_when_the_cache_is_full(kvc, tiny):
    result = kvc("generate", tiny, "abcd")
    assert result.exit_code == 0
    assert "(20 tokens)" in result.stderr
    assert "the cache is full" in result.stderr


def test_a_prompt_longer_than_the_cache_is_an_error(kvc, tiny):
    result = kvc("generate", tiny, "x" * 25)
    assert result.exit_code == 1
    assert "room for 24: it holds 0 of 24" in result.stderr
    assert result.stdout == ""


def test_sampling_repeats_with_a_seed(kvc, tiny):
    options = ("generate", tiny, "a", "-n", 8, "--temperature", 100, "--seed")
    first, again, other = (kvc(*options, s).stdout_bytes for s in (1, 1, 2))
    assert first == again != other


@pytest.fixture(scope="module")
def untold(tmp_path_factory):
    """The path of a decoder without a tokenizer."""
    path = tmp_path_factory.mktemp("untold") / "untold.kvc"
    spec = tiny_decoder.untold()
    compile_program(spec.model, spec.methods).save(path)
    return path


def test_without_a_tokenizer_the_prompt_is_token_ids(kvc, untold):
    ids = kvc("generate", untold, "1 2,3", "-n", 4).stdout.split()
    assert len(ids) == 4
    assert all(0 <= int(i) < 256 for i in ids)
    result = kvc("generate", untold, "def ")
    assert result.exit_code == 1
    assert "expected token ids such as '1 15 8'" in result.stderr


def test_a_token_that_the_model_does_not_have_is_an_error(kvc, untold):
    result = kvc("generate", untold, "1 300")
    assert result.exit_code == 1
    assert "expected tokens of 0 to 255, got token 300" in result.stderr
    result = kvc("generate", untold, "99999999999999999999")
    assert result.exit_code == 1
    assert "got 99999999999999999999" in result.stderr


def test_a_bundle_without_roles_says_so(kvc, tmp_path, monkeypatch):
    (tmp_path / "plain_model.py").write_text(
        "import torch\n"
        "from kvc.compiler import Method, ModelSpec\n"
        "class Twice(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * 2\n"
        "def factory():\n"
        "    return ModelSpec(Twice(), (Method('forward', args=(torch.zeros(2),)),))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert kvc("compile", "plain_model:factory").exit_code == 0
    result = kvc("generate", "factory.kvc", "1")
    assert result.exit_code == 1
    assert "a method is given one by Method(role=...)" in result.stderr


def test_residency_is_told_on_stderr_after_the_run(kvc, tiny):
    plain = kvc("generate", tiny, "def", "-n", 4)
    result = kvc("generate", tiny, "def", "-n", 4, "--residency", "--mode", "read")
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes == plain.stdout_bytes
    figures, memory = result.stderr.split("memory of the data, loaded with mode read")
    assert "tokens/s" in figures
    assert "prefill + decode" in memory
    assert "memory of the data" not in plain.stderr


@pytest.fixture
def counting(tmp_path):
    """Write a bundle that counts, with settings of its own: the path."""

    def write(**config):
        metadata = {"generation_config": config} if config else {}
        built = counting_program(metadata=metadata)
        return write_bundle(tmp_path / "counting.kvc", built)

    return write


def test_a_stop_string_is_left_out(kvc, counting):
    result = kvc("generate", counting(), "1 2", "--stop", " 7", "--stop", "6 7 ")
    assert result.stdout == "3 4 5 6\n"
    assert "; a stop string came" in result.stderr


def test_the_prompt_comes_from_stdin_without_the_last_line_feed(counting, tiny):
    shown = CliRunner().invoke(main, ["generate", str(tiny), "-"], input=b"ab\n\n")
    assert "prefill" in shown.stderr
    assert "(3 tokens), decode" in shown.stderr
    command = ["generate", str(counting()), "-", "-n", "2"]
    assert CliRunner().invoke(main, command, input=b"1 2\n").stdout == "3 4 \n"
    empty = CliRunner().invoke(main, command, input=b"")
    assert empty.exit_code == 1
    assert empty.stderr == "Error: prompt: expected at least one token, got none\n"


def test_a_capacity_ends_it_earlier(kvc, counting):
    result = kvc("generate", counting(), "1 2", "--capacity", 4)
    assert result.stdout == "3 4 5 \n"
    assert "the cache is full" in result.stderr
    assert "1..16" in kvc("generate", counting(), "1", "--capacity", 17).stderr


def test_the_bundles_settings_count_until_others_are_given(kvc, counting):
    path = counting(eos_token_id=[9], max_new_tokens=3)
    result = kvc("generate", path, "1")
    assert result.stdout == "2 3 4 \n"
    assert "the bundle's limit of tokens was reached" in result.stderr
    result = kvc("generate", path, "1", "-n", 99)
    assert result.stdout == "2 3 4 5 6 7 8 \n"
    assert "the model ended the text" in result.stderr


def test_what_the_bundle_asks_for_in_vain_is_said_once(kvc, counting):
    result = kvc("generate", counting(num_beams=4), "1", "-n", 1)
    assert result.exit_code == 0, result.output
    assert (
        result.stderr.count("warning: the bundle's generation_config: num_beams") == 1
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--top-k", "3", "--temperature", "9"],
        ["--top-p", "0.99", "--temperature", "9"],
        ["--min-p", "0.001", "--temperature", "9"],
    ],
)
def test_sampling_strays_from_the_likeliest(kvc, counting, options):
    result = kvc("generate", counting(), "1", "-n", 9, "--seed", 1, *options)
    assert len(result.stdout.split()) == 9
    assert result.stdout != "2 3 4 5 6 7 8 9 10 "


def test_a_penalty_turns_away_from_the_prompt(kvc, counting):
    options = ("-n", 1, "--repetition-penalty", 7)
    assert kvc("generate", counting(), "9 8", *options).stdout == "0 \n"


@pytest.mark.parametrize(
    "option", [("--top-p", 2), ("--min-p", -1), ("--repetition-penalty", 0), ("-n", -1)]
)
def test_an_option_out_of_range_is_refused(kvc, counting, option):
    result = kvc("generate", counting(), "1", *option)
    assert result.exit_code == 2
    assert "Invalid value" in result.stderr


def test_an_interrupt_ends_it_with_the_figures(kvc, counting, monkeypatch):
    path, calls, call = counting(), [], Session.call

    def interrupted(session, *args):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return call(session, *args)

    monkeypatch.setattr(Session, "call", interrupted)
    result = kvc("generate", path, "1 2 3")
    assert result.exit_code == 130
    assert result.stdout == "4 5 6 "
    assert "prefill" in result.stderr
    assert "(2 tokens); interrupted" in result.stderr


def test_a_closed_pipe_ends_it_without_a_word(counting):
    reader, writer = os.pipe()
    os.close(reader)
    command = [KVC, "generate", counting(), "1"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@only(keep=[3])
@pytest.mark.parametrize("keep", [0, 3])
def test_a_text_goes_on_past_the_window_of_a_ring(kvc, tmp_path, keep):
    path, model = tmp_path / "rings.kvc", RingDecoder(Shape((5, 4), 12, keep=keep))
    compile_program(model, ring_methods(5), max_length=60).save(path)
    result = kvc("generate", path, " ".join(map(str, text(25)[0])), "-n", 30)
    made = list(map(int, result.stdout.split()))
    whole = np.array([[*text(25)[0], *made]])
    best = model.reference(whole)[0].argmax(-1)
    assert made == best[24:-1].tolist()
    assert len(made) == 30
    states = kvc("dump", path, "--states").stdout
    kept = f" and the first {keep} " if keep else " "
    assert f"ring, 2, window 5{kept}" in states
    assert f"ring, 2, window 4{kept}" in states
    assert "at most 60 tokens" in states


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The paths of a decoder and of one that guesses what it says."""
    folder = tmp_path_factory.mktemp("pair")
    draft = write_decoder(folder / "d.kvc", noise=1.0, all_logits=False)
    return write_decoder(folder / "t.kvc"), draft


@RARELY
def test_models_whose_states_go_back_by_copies_are_target_and_draft(kvc, folder):
    torch.manual_seed(3)
    one, other = torch.randn(256, 256), torch.randn(256, 256)
    target = write_table(folder / "summing.kvc", Summing(one))
    draft = write_table(folder / "guessing.kvc", Summing(one + other))
    options = ["generate", target, "abc", "--max-tokens", 20]
    plain, drafted = kvc(*options), kvc(*options, "--draft", draft)
    assert drafted.exit_code == 0, drafted.output
    assert drafted.stdout_bytes == plain.stdout_bytes
    assert "guesses right" in drafted.stderr


def test_a_draft_gives_the_same_text_and_its_figures(kvc, pair):
    target, draft = pair
    options = ("generate", target, "\x03\x01\x04", "-n", 40)
    plain, drafted = kvc(*options), kvc(*options, "--draft", draft)
    assert drafted.exit_code == 0
    assert drafted.stdout_bytes == plain.stdout_bytes
    found = re.search(r"; (\d+) of (\d+) guesses right \(\d+%\); ", drafted.stderr)
    right, made = map(int, found.groups())
    assert 0 <= right < made
    assert "guesses" not in plain.stderr
    perfect = kvc(*options, "--draft", target, "--draft-tokens", 2)
    assert perfect.stdout_bytes == plain.stdout_bytes
    assert "26 of 26 guesses right (100%)" in perfect.stderr


def test_a_draft_that_cannot_be_one_is_refused(kvc, pair, tiny):
    result = kvc("generate", pair[0], "\x03", "--draft", tiny)
    assert result.exit_code == 1
    assert "draft: expected a model of 32 tokens" in result.stderr
    result = kvc("generate", tiny, "a", "--draft", tiny)
    assert result.exit_code == 1
    assert "compile with --all-logits" in result.stderr
    result = kvc("generate", tiny, "a", "--draft-tokens", 2)
    assert result.exit_code == 2
    assert "--draft-tokens needs --draft" in result.stderr


@pytest.fixture(scope="module")
def wordy(tmp_path_factory):
    return str(write_wordy(tmp_path_factory.mktemp("wordy") / "wordy.kvc"))


def test_answers_have_the_form_that_options_name(kvc, wordy, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"enum": [1, 22]}, "maxItems": 3}')
    grammar = tmp_path / "g.lark"
    grammar.write_text('start: "(" /[ab]{1,3}/ ")"')
    shown = kvc("generate", wordy, "Once", "--json-schema", str(schema)).stdout
    assert set(json.loads(shown)) <= {1, 22}
    shown = kvc("generate", wordy, "Once", "--regex", "[xy]{3}z?").stdout
    assert re.fullmatch("[xy]{3}z?\n", shown)
    shown = kvc("generate", wordy, "Once", "--choice", "so", "--choice", "no").stdout
    assert shown in ("so\n", "no\n")
    shown = kvc("generate", wordy, "Once", "--grammar", str(grammar)).stdout
    assert re.fullmatch(r"\([ab]{1,3}\)\n", shown)


def test_an_answer_that_is_cut_in_its_form_is_told(kvc, wordy):
    cut = ["--regex", "[a-c]{20}", "-n", "3"]
    result = kvc("generate", wordy, "Once", *cut)
    assert "--max-tokens was reached, before the answer had its form" in result.stderr
    result = kvc("generate", wordy, "Once", "upon", *cut)
    assert "2 ended by the limit of tokens, 2 without the form" in result.stderr


@pytest.mark.parametrize("option", ["--json-schema", "--grammar"])
def test_a_file_of_a_form_that_cannot_be_read_is_named(kvc, wordy, tmp_path, option):
    absent, wrong = tmp_path / "absent", tmp_path / "wrong"
    wrong.write_bytes(b"\xff\xfe")
    for path in (absent, wrong):
        result = kvc("generate", wordy, "Once", option, str(path))
        assert result.exit_code == 2
        assert option in result.stderr
        assert result.stderr.count(path.name) == 1
        assert "Errno" not in result.stderr
    wrong.write_text('"unfinished')
    result = kvc("generate", wordy, "Once", option, str(wrong))
    assert result.exit_code == (2 if option == "--json-schema" else 1)
    assert "wrong is not JSON: " in result.stderr or "grammar" in result.stderr


def test_log_probabilities_are_a_line_for_each_token(kvc, wordy):
    lines = kvc("generate", wordy, "Once", "-n", "3", "--logprobs", "2").stdout
    rows = [line.split() for line in lines.splitlines()[-3:]]
    assert all(float(row[0]) <= 0 for row in rows)
    assert all(row[0] in row[3:] for row in rows)  # the likeliest was chosen
    both = kvc("generate", wordy, "a", "b", "-n", "2", "--logprobs", "0").stdout
    assert "log probabilities of answer 2" in both
    assert "answer" not in lines


def test_a_model_for_chats_is_told_of_them(kvc, wordy, tmp_path):
    assert "kvc chat" not in kvc("generate", wordy, "Once", "-n", "1").stderr
    folder = write_folder(tmp_path / "wordy")
    (folder / "chat_template.jinja").write_text("{{ eos_token }}{{ messages }}")
    bundle = str(tmp_path / "chat.kvc")
    export_hf(folder, recipe="cpu_fp32").save(bundle)
    assert "note: the model was made for chats: kvc chat" in (
        kvc("generate", bundle, "Once", "-n", "1").stderr
    )
    rendered = kvc("generate", bundle, "<|end|>Once", "-n", "1")
    assert "kvc chat" not in rendered.stderr


def test_guesses_from_the_text_give_the_same_text(kvc, wordy):
    plain = kvc("generate", wordy, "Once upon upon", "-n", "40")
    drafted = kvc("generate", wordy, "Once upon upon", "-n", "40", "--prompt-lookup")
    assert drafted.stdout == plain.stdout
    assert "guesses right" in drafted.stderr
    refused = kvc("generate", wordy, "a", "--prompt-lookup", "--draft", wordy)
    assert refused.exit_code == 2
    assert "--prompt-lookup" in refused.stderr
