from dataclasses import dataclass, field

import pytest
from small_tokenizers import byte_level

from kvc.runtime.tokenizers import tokenizer_of
from kvc.schema.errors import BadSetting


@dataclass(frozen=True)
class Source:
    """What a program or a session says and carries."""

    metadata: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


def spell(tokenizer, tokens):
    stream = tokenizer.stream()
    return "".join([*map(stream.push, tokens), stream.finish()])


def test_without_a_tokenizer_text_is_ids():
    tokenizer = tokenizer_of(Source())
    assert tokenizer.encode("1, 2 3") == [1, 2, 3]
    assert spell(tokenizer, [15, 8]) == "15 8 "
    with pytest.raises(BadSetting, match=r"token ids such as.*'Once'"):
        tokenizer.encode("Once")


def test_bytes_go_both_ways():
    tokenizer = tokenizer_of(Source({"tokenizer": '"bytes"'}))
    assert bytes(tokenizer.encode("dé\udcff")) == b"d\xc3\xa9\xff"
    assert spell(tokenizer, b"d\xc3\xa9\xe2\x82\xac") == "dé€"
    assert spell(tokenizer, [100, 300, -1]) == "d"


def test_bytes_stream_as_complete_characters():
    stream = tokenizer_of(Source({"tokenizer": '"bytes"'})).stream()
    assert [*map(stream.push, "a€".encode()), stream.finish()] == ["a", "", "", "€", ""]
    assert [*map(stream.push, b"\xe2\x82"), stream.finish()] == ["", "", "\ufffd"]


def test_bytes_may_begin_within_a_character():
    tokenizer = tokenizer_of(Source({"tokenizer": '"bytes"'}))
    stream = tokenizer.stream(after=b"a\xe2\x82")
    assert stream.push(0xAC) == "€"


def test_the_file_of_the_bundle_is_read():
    raw = byte_level().to_str().encode()
    source = Source({"tokenizer": '"tokenizer.json"'}, {"tokenizer.json": raw})
    tokenizer = tokenizer_of(source)
    assert spell(tokenizer, tokenizer.encode("Füße")) == "Füße"


@pytest.mark.parametrize("said", ['"words"', "3", '["bytes"]', '"tokenizer.json"'])
def test_other_tokenizers_are_refused(said):
    with pytest.raises(BadSetting, match="metadata tokenizer: expected"):
        tokenizer_of(Source({"tokenizer": said}))


@pytest.mark.parametrize("said", ["{", "[" * 9000])
def test_what_is_no_json_is_refused(said):
    with pytest.raises(BadSetting, match="metadata tokenizer"):
        tokenizer_of(Source({"tokenizer": said}))
