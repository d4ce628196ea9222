"""`kvc eval`: bits per byte of bundles on a file."""

import json
import math

import pytest
import torch
from counting_model import VOCAB, counting_program
from hand_built import write_bundle
from scored_model import CONFIG, scored_model, write_scored
from small_tokenizers import byte_fallback, byte_level, word_piece
from torch.nn import functional

from kvc.runtime import load
from kvc.runtime.scoring import evaluate, score_tokens

TEXT = "def bits(text):\n    return 8 * len(text)  # naïve, 100 €\n"
RAW = TEXT.encode()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_scored(tmp_path_factory.mktemp("eval") / "whole.kvc", "forward")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(RAW)
    return path


def eager_bits_per_byte(raw):
    tokens = torch.tensor([list(raw)])
    with torch.no_grad():
        logits = scored_model()(tokens[:, :-1])[0]
    nats = functional.cross_entropy(logits.double(), tokens[0, 1:])
    return nats.item() / math.log(2)


def test_bits_per_byte_are_those_of_the_eager_model(kvc, whole, file):
    done = kvc("eval", whole, file, "--max-bytes", 30, "--json")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    (one,) = report["bundles"]
    expected = eager_bits_per_byte(RAW[:30])
    assert one["bits_per_byte"] == pytest.approx(expected, rel=1e-4)
    assert one["bits_per_token"] == one["bits_per_byte"]
    assert one["perplexity"] == pytest.approx(2**expected, rel=1e-3)
    assert (one["tokens"], one["scored_nbytes"]) == (29, 29)
    assert (one["window"], one["stride"]) == (CONFIG.capacity + 1, 20)
    assert (one["recipe"], one["method"]) == ("fp32", "forward")
    assert one["weights_nbytes"] > 4 * CONFIG.vocab * CONFIG.dim
    assert report["file"] == str(file)


def test_several_bundles_are_a_table(kvc, whole, tiny, file):
    done = kvc("eval", whole, tiny, file, "--window", 16, "--stride", 8)
    title, first, second = done.stdout.splitlines()
    columns = "bundle recipe weights bits per byte perplexity tokens/s"
    assert title.split() == columns.split()
    with load(tiny) as program:
        expected = score_tokens(program, list(RAW), 16, 8)
    assert second.split()[0] == str(tiny)
    assert f"{expected.bits_per_token:.4f}" in second.split()
    assert str(whole) in first


def test_a_character_that_max_bytes_cuts_is_left_out(kvc, whole, file):
    cut = RAW.index("€".encode()) + 2
    done = kvc("eval", whole, file, "--max-bytes", cut, "--json")
    assert json.loads(done.stdout)["bundles"][0]["scored_nbytes"] == cut - 2 - 1


def test_without_a_tokenizer_a_file_is_ids(kvc, tmp_path):
    path, file = tmp_path / "untold.kvc", tmp_path / "ids.txt"
    kvc("compile", "tiny_decoder:untold", "-q", "-o", path)
    file.write_text("1 2 3\n4, 5\n")
    (one,) = json.loads(kvc("eval", path, file, "--json").stdout)["bundles"]
    assert (one["tokens"], one["bits_per_byte"], one["scored_nbytes"]) == (
        4,
        None,
        None,
    )
    with load(path) as program:
        expected = score_tokens(program, [1, 2, 3, 4, 5])
    assert one["bits_per_token"] == expected.bits_per_token
    assert kvc("eval", path, file).stdout.splitlines()[1].split()[4] == "-"


@pytest.mark.parametrize("content", [b"", b"a"])
def test_a_file_with_nothing_to_score_is_an_error(kvc, whole, tmp_path, content):
    file = tmp_path / "short.txt"
    file.write_bytes(content)
    done = kvc("eval", whole, file)
    assert done.exit_code == 1
    assert "text: expected 2 tokens or more" in done.stderr


def test_a_file_that_is_not_there_is_an_error(kvc, whole, tmp_path):
    done = kvc("eval", whole, tmp_path / "nowhere")
    assert done.exit_code == 1
    assert "nowhere: No such file" in done.stderr
    assert kvc("eval", whole, "").exit_code == 1


class Tokenized:
    """A program with another tokenizer, and logits that are all alike."""

    def __init__(self, program, library):
        self._program = program
        self.metadata = {"tokenizer": '"tokenizer.json"'}
        self.files = {"tokenizer.json": library.to_str().encode()}

    def __getattr__(self, name):
        return getattr(self._program, name)


def even_score(program, tokens, window, stride, start, progress, against):
    """Every token costs one bit."""
    from kvc.runtime.scoring import Score

    count = len(tokens) - (not start)
    Tokenized.start = start
    return Score(count, count, 9, 8, "even", 1.0)


@pytest.mark.parametrize(
    ("make", "start", "unscored"),
    [(byte_level, [0], 0), (byte_fallback, [1], 0), (word_piece, [], 1)],
)
def test_bytes_are_those_of_the_text_that_counts(
    whole, monkeypatch, make, start, unscored
):
    library = make()
    monkeypatch.setattr("kvc.runtime.scoring.evaluation.score_tokens", even_score)
    with load(whole) as program:
        one = evaluate("m.kvc", Tokenized(program, library), b"Once upon a time")
    assert Tokenized.start == start
    plain = library.encode("Once upon a time", add_special_tokens=False)
    first = len(plain.tokens[0]) if unscored else 0
    assert one.scored_nbytes == len("Once upon a time") - first
    assert one.tokens == len(plain.ids) - unscored
    assert one.bits_per_byte == one.tokens / one.scored_nbytes


def test_how_far_a_bundle_is_from_another_is_told(kvc, whole, tiny, file):
    done = kvc("eval", "--against", whole, whole, tiny, file, "--json")
    own, other = json.loads(done.stdout)["bundles"]
    assert (own["divergence"], own["divergence_error"], own["same_tokens"]) == (0, 0, 1)
    with load(tiny) as program, load(whole) as reference:
        apart = score_tokens(program, list(RAW), against=reference).divergence
    assert other["divergence"] == apart.nats > 0
    assert other["divergence_error"] == apart.error
    shown = kvc("eval", "--against", whole, tiny, file).stdout.splitlines()
    assert shown[0].split()[-3:] == ["divergence", "same", "tokens"]
    assert f"{apart.nats:.5f} ± {apart.error:.5f}" in shown[1]
    assert shown[1].split()[-1] == f"{apart.same:.1%}"


def test_a_model_of_other_tokens_is_nothing_to_compare_with(kvc, whole, tmp_path):
    other, file = tmp_path / "counting.kvc", tmp_path / "ids.txt"
    write_bundle(other, counting_program())
    file.write_text("1 2 3 4 5 6")
    done = kvc("eval", "--against", whole, other, file)
    assert done.exit_code == 1
    assert f"against: expected a model of {VOCAB} tokens, got one of 256" in done.stderr


def test_a_bundle_with_another_tokenizer_is_nothing_to_compare_with(
    kvc, whole, tmp_path, file
):
    tokenizer = byte_level().to_str().encode()
    other = write_scored(
        tmp_path / "other.kvc", "forward", files={"tokenizer.json": tokenizer}
    )
    done = kvc("eval", "--against", other, whole, file)
    assert done.exit_code == 1
    expected = "against: expected a bundle to which the text is the same tokens as to"
    told = " ".join(done.stderr.split())
    assert f"{expected} {whole}, got other tokens" in told
