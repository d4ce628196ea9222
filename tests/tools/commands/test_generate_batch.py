"""`kvc generate` of several prompts at once."""

import pytest
import torch
from click.testing import CliRunner
from counting_model import counting_program
from drafting_rows import write_checked
from hand_built import write_bundle
from summing_rows import SummingRows, summing_rows

from kvc.compiler import Method, compile_program
from kvc.runtime import generate, load
from kvc.tools.cli import main

PROMPTS = ("1 2", "3", "4 5 6")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.kvc"
    summing_rows(path)
    return path


def test_each_prompt_is_printed_with_its_answer(kvc, rows):
    result = kvc("generate", rows, *PROMPTS, "-n", 4)
    assert result.exit_code == 0
    with load(rows) as program:
        texts = []
        for prompt in PROMPTS:
            with program.session() as session:
                texts.append("".join(generate(session, prompt, max_tokens=4).text()))
    assert len(set(texts)) == 3
    shown = [f"> {p}\n{text}\n" for p, text in zip(PROMPTS, texts, strict=True)]
    assert result.stdout == "\n".join(shown)
    assert "(6 tokens), decode" in result.stderr
    assert "of all prompts together; 3 ended by the limit of tokens" in result.stderr


def test_each_way_to_end_is_told(kvc, rows):
    long = " ".join(["1"] * 22)
    result = kvc("generate", rows, long, "3", "-n", 5)
    assert "1 ended by a full cache, 1 ended by the limit of tokens" in result.stderr


def test_a_seed_makes_rows_differ_and_repeats(kvc, rows):
    options = ("generate", rows, "7", "7", "-n", 6, "--temperature", 3, "--seed", 1)
    first, again = kvc(*options).stdout, kvc(*options).stdout
    one, other = first.split("\n\n")
    assert first == again
    assert one.strip() != other.strip()


def test_stdin_is_one_of_them(kvc, rows):
    options = ["generate", str(rows), "-", "3", "-n", "2"]
    result = CliRunner().invoke(main, options, input="1 2")
    assert result.stdout.startswith("> 1 2\n")
    result = kvc("generate", rows, "-", "-", "-n", 2)
    assert result.exit_code == 2
    assert "- reads all of stdin, so it can be given once" in result.stderr


def test_more_prompts_than_the_bundle_takes_are_refused(kvc, rows):
    result = kvc("generate", rows, *["1"] * 5)
    assert result.exit_code == 1
    assert "5 rows are asked for" in result.stderr
    assert "this bundle takes 1..4 at a time" in result.stderr
    assert "--max-batch N" in result.stderr
    assert result.stdout == ""


def test_a_bundle_of_one_row_says_what_to_do(kvc, tmp_path):
    path = write_bundle(tmp_path / "g.kvc", counting_program())
    result = kvc("generate", path, "1", "2")
    assert result.exit_code == 1
    assert "this bundle takes 1 at a time; kvc compile MODEL" in result.stderr


def test_a_prompt_that_does_not_fit_is_named(kvc, rows):
    result = kvc("generate", rows, "1", " ".join(["1"] * 25))
    assert result.exit_code == 1
    assert "the prompt of row 1 has 25 tokens" in result.stderr


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """Return a bundle that has three rows, always."""
    tokens, lengths = torch.ones(3, 4, dtype=torch.int64), torch.full((3,), 4)
    methods = [
        Method("prefill", args=(tokens, lengths), role="prefill"),
        Method("decode", args=(tokens[:, :1], lengths > 0), role="decode"),
    ]
    model = SummingRows()
    model.kept, model.position = torch.zeros(3, 1, 24, 1), lengths * 0
    path = tmp_path_factory.mktemp("fixed") / "fixed.kvc"
    compile_program(model, methods).save(path)
    return path


def test_a_bundle_of_a_fixed_number_of_rows_runs_as_many(kvc, rows, fixed):
    expected = kvc("generate", rows, *PROMPTS, "-n", 4)
    result = kvc("generate", fixed, *PROMPTS, "-n", 4)
    assert (result.exit_code, result.stdout) == (0, expected.stdout)


def test_another_number_than_a_fixed_one_is_refused(kvc, fixed):
    result = kvc("generate", fixed, *PROMPTS[:2])
    assert result.exit_code == 1
    assert "this bundle takes 3 at a time" in result.stderr


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    return write_checked(tmp_path_factory.mktemp("checked") / "c.kvc", "cache")


def test_drafts_and_lookup_guess_for_each_prompt(kvc, checked):
    asked = ("generate", checked, *PROMPTS, "-n", 9)
    expected = kvc(*asked)
    for more in (("--draft", checked, "--draft-tokens", 3), ("--prompt-lookup",)):
        result = kvc(*asked, *more)
        assert (result.exit_code, result.stdout) == (0, expected.stdout)
    assert "guesses right (100%)" in kvc(*asked, "--draft", checked).stderr


def test_a_draft_of_other_rows_is_named(kvc, checked, fixed):
    result = kvc("generate", checked, *["1"] * 2, "--draft", fixed)
    assert result.exit_code == 1
    assert "the draft's bundle takes 3 at a time" in result.stderr


def test_several_answers_to_one_prompt(kvc, rows):
    drawn = ("-n", 6, "--temperature", 3, "--seed", 1)
    expected = kvc("generate", rows, "7", "7", "7", *drawn)
    result = kvc("generate", rows, "7", "--answers", 3, *drawn)
    assert (result.exit_code, result.stdout) == (0, expected.stdout)
    assert "(1 token), decode" in result.stderr
    assert "of all answers together; 3 ended by the limit" in result.stderr


def test_one_answer_may_be_asked_for(kvc, rows):
    result = kvc("generate", rows, "7", "-N", 1, "-n", 3)
    assert result.stdout.startswith("> 7\n")


def test_beams_print_the_likeliest_text(kvc, rows):
    result = kvc("generate", rows, "1 2", "--beams", 4, "-n", 6)
    assert result.exit_code == 0, result.output
    with load(rows) as program, program.session(batch=4) as session:
        run = generate(session, "1 2", num_beams=4, max_tokens=6)
        assert result.stdout == "".join(run.text()) + "\n"
    assert f"score {run.score:.4f}; --max-tokens was reached" in result.stderr


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ("not with --answers", ["1", "--answers", 2, "--beams", 2]),
        ("--answers takes one PROMPT", ["1", "2", "--answers", 2]),
        ("--beams takes one PROMPT", ["1", "2", "--beams", 2]),
        ("--beams goes without a draft", ["1", "--beams", 2, "--prompt-lookup"]),
    ],
)
def test_options_of_rows_that_do_not_fit_are_refused(kvc, rows, told, options):
    result = kvc("generate", rows, *options)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_bundle_of_a_fixed_number_of_rows_has_no_beams(kvc, fixed):
    result = kvc("generate", fixed, "1", "--beams", 3)
    assert result.exit_code == 1
    assert "a program whose sessions may have one row" in result.stderr
