"""Streams of tokenizer.json against the library's own decoding of all tokens."""

import json
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import KINDS, TEXTS, byte_fallback, byte_level, unigram
from tokenizers import Tokenizer as Library
from tokenizers import models

from kvc.runtime.tokenizers.library import JsonTokenizer
from kvc.schema.errors import BadTokenizer, MissingPackage

TEXT_KINDS = ["byte_level", "byte_fallback", "unigram", "word_piece"]
EURO = [f"<0x{byte:02X}>" for byte in "€".encode()]


@cache
def pair_of(kind):
    """The library's tokenizer, and ours of its tokenizer.json."""
    library = KINDS[kind]()
    return library, JsonTokenizer(library.to_str().encode())


def pieces_of(tokenizer, tokens, after=()):
    stream = tokenizer.stream(after)
    return [*map(stream.push, tokens), stream.finish()]


@pytest.mark.parametrize("kind", KINDS)
@given(tokens=st.lists(st.integers(0, 449), max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_tokens_stream_as_the_library_decodes_them(kind, tokens):
    library, tokenizer = pair_of(kind)
    # Where nothing is text, some of the library's decoders panic.
    is_text = any(tokenizer.spelling(token) for token in tokens)
    expected = library.decode(tokens) if is_text else ""
    assert "".join(pieces_of(tokenizer, tokens)) == expected


@pytest.mark.parametrize("kind", TEXT_KINDS)
@given(
    texts=st.lists(
        st.sampled_from(TEXTS)
        | st.text(max_size=20)
        | st.text("€👍 ▁a.,'\n", max_size=9)
    )
)
@settings(max_examples=60, deadline=None)
def test_any_text_streams_as_the_library_decodes_it(kind, texts):
    library, tokenizer = pair_of(kind)
    tokens = tokenizer.encode(" ".join(texts))
    assert tokens == library.encode(" ".join(texts)).ids
    assert "".join(pieces_of(tokenizer, tokens)) == library.decode(tokens)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_these_kinds_give_the_text_itself_back(kind, text):
    _, tokenizer = pair_of(kind)
    assert "".join(pieces_of(tokenizer, tokenizer.encode(text))) == text


@pytest.mark.parametrize("kind", TEXT_KINDS)
@given(text=st.text(max_size=30), more=st.text(max_size=30))
@settings(max_examples=40, deadline=None)
def test_what_stands_behind_a_prompt_is_the_rest_of_the_whole(kind, text, more):
    library, tokenizer = pair_of(kind)
    prompt, rest = tokenizer.encode(text), tokenizer.encode(more, special=False)
    before = tokenizer.stream()
    head = "".join(map(before.push, prompt))
    tail = "".join(pieces_of(tokenizer, rest, prompt))
    assert head + tail == library.decode([*prompt, *rest])


def test_a_character_of_several_tokens_comes_when_it_is_complete():
    _, tokenizer = pair_of("byte_level")
    tokens = tokenizer.encode("é𝄞z", special=False)
    assert len(tokens) > 3
    pieces = pieces_of(tokenizer, tokens)
    assert "" in pieces
    assert [piece for piece in pieces if piece] == ["é", "𝄞", "z"]


def test_a_run_of_byte_tokens_comes_when_it_ends():
    library, tokenizer = pair_of("byte_fallback")
    euro = list(map(library.token_to_id, EURO))
    a = library.token_to_id("a")
    assert pieces_of(tokenizer, [*euro, a]) == ["", "", "", "€a", ""]
    assert pieces_of(tokenizer, euro) == ["", "", "", "€"]
    assert pieces_of(tokenizer, [*euro[:2], a]) == ["", "", "\ufffd\ufffda", ""]


def test_the_space_before_the_first_word_goes_only_at_the_start():
    library, tokenizer = pair_of("byte_fallback")
    word = tokenizer.encode("a", special=False)
    assert [library.id_to_token(token) for token in word] == ["▁a"]
    assert "".join(pieces_of(tokenizer, word)) == "a"
    assert "".join(pieces_of(tokenizer, word, after=word)) == " a"


def test_what_one_stage_holds_back_goes_through_those_behind_it():
    library, tokenizer = pair_of("byte_fallback")
    space = library.token_to_id("<0x20>")
    assert library.decode([space, space]) == " "
    assert pieces_of(tokenizer, [space, space]) == ["", "", " "]


def test_text_comes_at_once_and_not_at_the_end():
    for kind in TEXT_KINDS:
        _, tokenizer = pair_of(kind)
        tokens = tokenizer.encode("upon a time there", special=False)
        pieces = pieces_of(tokenizer, tokens)
        # A first ▁ by itself is the one token that is no text.
        assert all(pieces[1:-1])
        assert pieces[-1] == ""


def test_special_tokens_are_no_text_and_added_ones_are():
    library, tokenizer = pair_of("byte_level")
    tokens = tokenizer.encode("a<think>b<思><|end|>c")
    assert tokens[0] == library.token_to_id("<|begin|>")
    assert library.token_to_id("<|end|>") in tokens
    assert "".join(pieces_of(tokenizer, tokens)) == "a<think>b<思>c"


def test_special_tokens_around_a_text_are_left_out_on_request():
    _, tokenizer = pair_of("byte_level")
    assert tokenizer.encode("ab", special=False) == tokenizer.encode("ab")[1:]


@pytest.mark.parametrize("token", [-1, 5000, 2**32, 2**63])
def test_a_token_that_the_tokenizer_does_not_know_is_no_text(token):
    _, tokenizer = pair_of("byte_level")
    a = tokenizer.encode("a", special=False)
    assert pieces_of(tokenizer, [*a, token, *a]) == ["a", "", "a", ""]


def test_what_is_no_unicode_is_replaced():
    _, tokenizer = pair_of("byte_level")
    assert "".join(pieces_of(tokenizer, tokenizer.encode("a\udcffb"))) == "a\ufffdb"


def test_cutting_and_filling_up_are_switched_off():
    library = byte_level()
    library.enable_truncation(4)
    library.enable_padding(length=100)
    tokenizer = JsonTokenizer(library.to_str().encode())
    assert tokenizer.encode(TEXTS[0]) == byte_level().encode(TEXTS[0]).ids


def test_each_piece_costs_the_same_however_long_the_text_is(monkeypatch):
    """The library is asked about one token at a time, never about a prefix."""
    library = unigram()
    tokenizer = JsonTokenizer(library.to_str().encode())
    asked = []
    stream = tokenizer.stream()
    for stage in stream._stages:
        if hasattr(stage, "_decode"):
            ask = stage._decode
            monkeypatch.setattr(
                stage, "_decode", lambda t, ask=ask: asked.append(len(t)) or ask(t)
            )
    for token in tokenizer.encode(TEXTS[0] * 20):
        stream.push(token)
    assert len(asked) > 400
    assert max(asked) <= 2


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"\xff", b'{"version": "1.0", "model": {"type": "Nothing"}}']
)
def test_what_is_no_tokenizer_is_refused(raw):
    with pytest.raises(BadTokenizer, match=r"tokenizer\.json cannot be used"):
        JsonTokenizer(raw)


def test_a_token_that_is_added_twice_is_left_out_if_it_was_special_once():
    told = json.loads(byte_level().to_str())
    again = {**told["added_tokens"][0], "id": 420, "special": False}
    told["added_tokens"] = [*told["added_tokens"][:2], again]
    raw = json.dumps(told).encode()
    stream = JsonTokenizer(raw).stream()
    text = "".join(map(stream.push, [0, 40, 1, 41])) + stream.finish()
    assert text == Library.from_str(raw.decode()).decode([0, 40, 1, 41])
    assert len(text) == 2


@pytest.mark.parametrize(
    "name", ["continuing_subword_prefix", "continuing_subword_prefi\\u0078"]
)
def test_pairs_without_the_prefix_are_refused_which_end_the_library(name):
    told = json.loads(byte_level().to_str())
    del told["model"]["continuing_subword_prefix"]
    told["model"]["NAME"] = "x"
    raw = json.dumps(told).replace("NAME", name).encode()
    with pytest.raises(BadTokenizer, match="has no continuing_subword_prefix 'x'"):
        JsonTokenizer(raw)


def test_pairs_with_the_prefix_are_read():
    vocab = {"a": 0, "##b": 1, "ab": 2}
    library = Library(models.BPE(vocab, [("a", "##b")], continuing_subword_prefix="##"))
    assert JsonTokenizer(library.to_str().encode()).encode("ab") == [2]


def test_without_the_package_the_message_says_how_to_get_it(monkeypatch):
    raw = byte_fallback().to_str().encode()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingPackage, match=r"pip install 'tokenizers>=0"):
        JsonTokenizer(raw)


def faulty(**changes):
    """Return a small tokenizer.json with some parts replaced."""
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"a": 0, "b": 1, "[UNK]": 2},
    }
    return json.dumps({"version": "1.0", "model": model} | changes).encode()


FAULTY = {
    "no unknown token": faulty(
        model={
            "type": "WordPiece",
            "unk_token": "[NONE]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"a": 0},
        }
    ),
    "a template of unknown tokens, which panics": faulty(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    ),
    "an endless regular expression, which panics": faulty(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "(x+x+)+y"},
            "behavior": "Isolated",
            "invert": False,
        }
    ),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_a_tokenizer_that_fails_while_it_encodes_is_an_error_of_kvc(kind):
    tokenizer = JsonTokenizer(FAULTY[kind])
    with pytest.raises(BadTokenizer, match="cannot encode a text") as refused:
        tokenizer.encode("c" + "x" * 5000)
    assert refused.value.file == "tokenizer.json"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_what_is_not_the_tokenizer_s_doing_is_no_error_of_it(monkeypatch, kind):
    tokenizer = JsonTokenizer(faulty())

    class Interrupted:
        def encode(self, *_, **__):
            raise kind

    monkeypatch.setattr(tokenizer, "_library", Interrupted())
    with pytest.raises(kind):
        tokenizer.encode("a")


@pytest.mark.parametrize("special", [True, False])
def test_a_tokenizer_that_lets_others_run_gives_the_same_tokens(special, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    made = JsonTokenizer(byte_level().to_str().encode())
    for text in (TEXTS[0], "\ud800 a<think>b", " ".join(TEXTS * 200)):
        wanted = made.encode(text, special)
        assert made.letting_run().encode(text, special) == wanted
    assert len(wanted) > 10_000


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_the_bytes_of_tokens_are_those_of_the_text(kind):
    _, tokenizer = pair_of(kind)
    text = "aé€👍"
    raw = [tokenizer.raw(token) for token in tokenizer.encode(text, special=False)]
    known = b"".join(one for one in raw if one)
    assert text.encode().endswith(known)
    assert "👍".encode() in known
