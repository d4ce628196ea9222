"""libkvc's tokenizer has the tokens and the text of the package tokenizers."""

import json
import pydoc_data.topics
import random
from functools import cache
from unicodedata import combining

import pytest
from generation_library import Refused
from text_library import Spelling, Tokenizer
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from kvc.runtime.generation.answer import StopStrings
from kvc.tools.dev import gen_unicode

UNSUPPORTED = 28
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
TOPICS = list(pydoc_data.topics.topics.values())
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
POOLS = (
    "abc ABC dé 'll n't 'S 'T 'Re 'VE 0123  \n\t\r",
    "中文字 日本語 한국어 ไทย हिन्दी",
    "🙂👍🏽👨‍👩‍👧 ÄÖÜ ñ \u017f'\u017f",
    "  \n\r\n\t\x0b\x0c\x85\xa0\u2003\u3000\u200b",
    "٣४½Ⅷ²①.,;!?\u2019\u201c<|>_-=+*/\\{}[]()",
    "I'll we've 'LL 1234567 <think> two words é! <|im_",
)


@cache
def trained():
    """Return a small byte-level tokenizer as JSON."""
    made = Library(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=SPECIAL,
        initial_alphabet=letters,
        show_progress=False,
    )
    made.train_from_iterator([*TOPICS, *POOLS], trainer)
    return made.to_str()


def with_rules(rules, **others):
    """Return the tokenizer as JSON, with another pre-tokenizer."""
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(rules), "isolated")
    made = Library.from_str(trained())
    made.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone])
    return changed(made.to_str(), **others)


def changed(text, **others):
    """Return JSON in which some members of the root, or of the model, are others."""
    root = json.loads(text)
    for name, value in others.items():
        (root["model"] if name in root["model"] else root)[name] = value
    return json.dumps(root)


def with_digits():
    made = Library.from_str(trained())
    digits = pre_tokenizers.Digits(individual_digits=True)
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, levels])
    return made.to_str()


def with_added():
    made = Library.from_str(trained())
    made.add_tokens(["<think>", "<think", " two words", "é!"])
    return made.to_str()


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<|end|>", "type_id": 0}},
    ],
    "pair": [],
    "special_tokens": {
        name: {"id": name, "ids": [SPECIAL.index(name)], "tokens": [name]}
        for name in SPECIAL
    },
}
KINDS = {
    "gpt_2": trained,
    "digits": with_digits,
    "llama_3": lambda: with_rules(LLAMA_3, ignore_merges=True, post_processor=TEMPLATE),
    "qwen_2": lambda: with_rules(QWEN_2),
    "added": with_added,
    "nfc": lambda: with_rules(QWEN_2, normalizer={"type": "NFC"}),
}


def encoded(text):
    return Tokenizer(text.encode())


def drawn_text(rng):
    """Return a text: letters of some pools, words, or any characters."""
    kind, count = rng.random(), rng.randint(0, 60)
    if kind < 0.2:
        spans = (1, 0x250), (0x250, 0x3000), (0x3000, 0xD800), (0xE000, 0x20000)
        return "".join(chr(rng.randrange(*rng.choice(spans))) for _ in range(count))
    words = [*SPECIAL, "aaaa", "  ", "\n\n\n", "\r\n", "x" * 50, "e\u0301"]
    return "".join(
        rng.choice(rng.choice(POOLS)) if rng.random() < 0.85 else rng.choice(words)
        for _ in range(count)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_package(kind):
    text = KINDS[kind]()
    library, found = Library.from_str(text), Tokenizer(text.encode())
    rng = random.Random(kind)
    parts = [topic[:2000] for topic in TOPICS[::5]]
    for sample in [*(drawn_text(rng) for _ in range(1500)), *parts]:
        for special in (True, False):
            expected = library.encode(sample, add_special_tokens=special).ids
            assert found.encode(sample, special) == expected, sample


@pytest.mark.parametrize("kind", ["gpt_2", "added"])
def test_text_is_that_of_the_package(kind):
    text = KINDS[kind]()
    library, found = Library.from_str(text), Tokenizer(text.encode())
    rng = random.Random(kind)
    for _ in range(1500):
        count = rng.randint(0, 40)
        tokens = [rng.randrange(library.get_vocab_size()) for _ in range(count)]
        expected = library.decode(tokens)
        spelling = Spelling(found)
        pieces = [spelling.push(token) for token in tokens]
        assert "".join([*pieces, spelling.finish()]) == expected


def test_an_unfinished_character_waits():
    library = Library.from_str(trained())
    spelling = Spelling(Tokenizer(trained().encode()))
    tokens = library.encode("a\U0001f9ff").ids
    assert len(tokens) > 2
    assert [spelling.push(token) for token in tokens][-1] == "\U0001f9ff"
    spelling.push(tokens[1])
    assert spelling.finish() == "\ufffd"


def test_stop_strings_end_a_text_as_in_python():
    library = Library.from_str(trained())
    tokenizer = Tokenizer(trained().encode())
    rng = random.Random(3)
    for _ in range(500):
        text = "".join(rng.choice("abé\n") for _ in range(12))
        stops = ["".join(rng.choice("abé\n") for _ in range(rng.randint(1, 4)))] * 2
        stops[1] = stops[1][1:] or "é"
        expected, spelling = StopStrings(stops), Spelling(tokenizer, stops)
        wanted = made = ""
        stream = Spelling(tokenizer)
        for token in library.encode(text).ids:
            wanted += expected.push(stream.push(token))
            made += spelling.push(token)
            assert (made, spelling.stopped) == (wanted, expected.found)
        assert made + spelling.finish() == wanted + expected.finish()


REFUSED = {
    "model of another type": {"type": "Unigram"},
    "unknown tokens": {"unk_token": "<|end|>"},
    "parts of words": {"continuing_subword_prefix": "##"},
    "marks of ends": {"end_of_word_suffix": "</w>"},
    "byte tokens": {"byte_fallback": True},
    "dropout": {"dropout": 0.1},
    "merges of unknown tokens": {"merges": [["a", "not there"]]},
    "normalizer": {"normalizer": {"type": "Lowercase"}},
    "decoder": {"decoder": {"type": "Fuse"}},
    "no decoder": {"decoder": None},
    "no pre-tokenizer": {"pre_tokenizer": None},
    "pre-tokenizer": {"pre_tokenizer": {"type": "Whitespace"}},
    "post-processor": {"post_processor": {"type": "BertProcessing"}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_does_not_know_is_refused(what):
    text = changed(trained(), **REFUSED[what])
    with pytest.raises(Refused, match=r"^tokenizer\.json: expected ") as caught:
        Tokenizer(text.encode())
    assert caught.value.code == UNSUPPORTED


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip"])
def test_added_tokens_that_look_around_are_refused(flag):
    root = json.loads(trained())
    root["added_tokens"][0][flag] = True
    with pytest.raises(Refused, match=f"expected no {flag}, got true"):
        Tokenizer(json.dumps(root).encode())


@pytest.mark.parametrize("rules", [r"\s+", LLAMA_3 + "|x"])
def test_other_rules_are_refused(rules):
    with pytest.raises(Refused, match="expected a pre_tokenizer as GPT-2, Llama 3"):
        Tokenizer(with_rules(rules).encode())


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"model": 1}', b"\xff"])
def test_files_of_other_kinds_are_refused(raw):
    with pytest.raises(Refused) as caught:
        Tokenizer(raw)
    assert caught.value.code == UNSUPPORTED


def test_marks_are_composed_as_in_the_package():
    library, found = (kind(KINDS["nfc"]()) for kind in (Library.from_str, encoded))
    rng = random.Random(8)
    marks = [chr(code) for code in range(0x300, 0x3100) if combining(chr(code))]
    letters = "aAeo\u1100\u1161\u11a8\uac00\u05d0\u0915\u0b47\u0b57\u0b3e\u1e0b\u0308"
    for _ in range(3000):
        text = "".join(
            rng.choice(marks) if rng.random() < 0.6 else rng.choice(letters)
            for _ in range(rng.randint(1, 8))
        )
        assert found.encode(text) == library.encode(text).ids, ascii(text)


@pytest.mark.exhaustive
def test_every_character_is_composed_as_in_the_package():
    library, found = (kind(KINDS["nfc"]()) for kind in (Library.from_str, encoded))
    for code in gen_unicode.code_points():
        text = f"{chr(code)}\u0334a{chr(code)}"
        assert found.encode(text) == library.encode(text).ids, hex(code)


def test_a_text_that_is_not_utf_8_is_refused():
    found = Tokenizer(trained().encode())
    for raw in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"):
        with pytest.raises(Refused, match="not UTF-8"):
            found.encode(raw)


@pytest.mark.exhaustive
def test_classes_of_characters_are_those_of_the_package():
    written = gen_unicode.WRITTEN.read_text()
    for name in ("kLetters", "kNumbers", "kDigits"):
        assert gen_unicode.table(name, gen_unicode.TABLES[name]()) in written
