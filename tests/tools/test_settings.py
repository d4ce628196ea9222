import pytest

from kvc.schema.errors import BadSetting
from kvc.tools.settings import Sampling, sampling_of, stop_tokens_of
from kvc.tools.tokenizers import tokenizer_of


def test_what_is_not_said_has_a_default():
    assert sampling_of({}) == Sampling(0.0, None)
    assert stop_tokens_of({}) == ()
    assert tokenizer_of({}).encode("1, 2 3") == [1, 2, 3]


def test_what_is_said_counts():
    said = {"generation": '{"temperature": 0.5, "top_k": 4}', "stop_tokens": "[0, 7]"}
    assert sampling_of(said) == Sampling(0.5, 4)
    assert stop_tokens_of(said) == (0, 7)


@pytest.mark.parametrize(
    "text", ["", "3", '{"seed": 1}', '{"temperature": -1}', '{"top_k": 0}', "[" * 9000]
)
def test_wrong_settings_name_the_key(text):
    with pytest.raises(BadSetting, match="metadata generation"):
        sampling_of({"generation": text})


@pytest.mark.parametrize("text", ["3", "[true]", '["a"]'])
def test_wrong_stop_tokens_name_the_key(text):
    with pytest.raises(BadSetting, match="metadata stop_tokens"):
        stop_tokens_of({"stop_tokens": text})


def test_bytes_go_both_ways_and_other_tokenizers_are_refused():
    tokenizer = tokenizer_of({"tokenizer": '"bytes"'})
    assert bytes(tokenizer.encode("dé\udcff")) == b"d\xc3\xa9\xff"
    assert tokenizer.decode(100) == b"d"
    assert tokenizer.decode(300) == b""
    with pytest.raises(BadSetting, match="metadata tokenizer"):
        tokenizer_of({"tokenizer": '"words"'})
