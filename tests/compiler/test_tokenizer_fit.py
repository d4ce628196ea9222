import json

import pytest
import torch
from small_tokenizers import byte_fallback, byte_level, unigram, word_piece
from tiny_decoder import CONFIG
from tokenizers import AddedToken

from kvc.compiler import compile_program
from kvc.compiler.emit.files import check_tokenizer
from kvc.compiler.models.decoder import Decoder
from kvc.compiler.models.demo import decoder_methods
from kvc.schema.errors import BadFile, TokenizerTooLarge


def raw_of(library) -> bytes:
    return library.to_str().encode()


@pytest.mark.parametrize("make", [byte_level, byte_fallback, unigram, word_piece])
def test_the_last_token_must_be_known(make):
    library = make()
    count = library.get_vocab_size(with_added_tokens=True)
    check_tokenizer(raw_of(library), count)
    check_tokenizer(raw_of(library), count + 100)
    with pytest.raises(TokenizerTooLarge) as caught:
        check_tokenizer(raw_of(library), count - 1)
    assert caught.value.facts["highest"] == count - 1
    assert caught.value.facts["token"] == library.id_to_token(count - 1)


def test_an_added_token_counts():
    library = word_piece()
    count = library.get_vocab_size()
    library.add_tokens([AddedToken("<think>", special=False)])
    with pytest.raises(TokenizerTooLarge, match=rf"up to {count} \('<think>'\)"):
        check_tokenizer(raw_of(library), count)
    check_tokenizer(raw_of(library), count + 1)


def test_an_added_token_within_the_vocabulary_is_no_further_one():
    library = byte_fallback()
    count = library.get_vocab_size(with_added_tokens=False)
    assert len(library.get_added_tokens_decoder()) == 3
    assert library.get_vocab_size(with_added_tokens=True) == count
    check_tokenizer(raw_of(library), count)


def test_an_added_token_may_leave_a_gap():
    library = json.loads(raw_of(word_piece()))
    library["added_tokens"].append({"id": 1000, "content": "<x>", "special": False})
    with pytest.raises(TokenizerTooLarge, match="up to 1000"):
        check_tokenizer(json.dumps(library).encode(), 1000)


def test_a_special_token_beyond_the_vocabulary_is_let_through():
    library = word_piece()
    count = library.get_vocab_size()
    library.add_special_tokens(["<image>"])
    check_tokenizer(raw_of(library), count)


def test_a_path_is_read(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(raw_of(word_piece()))
    with pytest.raises(TokenizerTooLarge):
        check_tokenizer(path, 10)
    with pytest.raises(BadFile, match="No such file"):
        check_tokenizer(tmp_path / "nowhere", 10)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\xfd", "not JSON"),
        (b"[" * 99999, "not JSON"),
        (b"[]", "no model"),
        (b'{"model": 3}', "no model"),
        (b'{"model": {}}', "no vocabulary"),
        (b'{"model": {"vocab": {"a": -1}}}', "-1 is not a token id"),
        (b'{"model": {"vocab": {"a": "1"}}}', "'1' is not a token id"),
        (b'{"model": {"vocab": {}}, "added_tokens": [3]}', "3 is not an added token"),
        (b'{"model": {"vocab": {}}, "added_tokens": [{}]}', "None is not a token id"),
    ],
)
def test_what_is_no_tokenizer_is_refused(raw, reason):
    with pytest.raises(BadFile, match=reason):
        check_tokenizer(raw, 10)


def compile_tiny(files):
    torch.manual_seed(0)
    model = Decoder(CONFIG).eval()
    methods = decoder_methods(CONFIG, max_chunk=4)
    metadata = {"tokenizer": "tokenizer.json"}
    return compile_program(model, methods, metadata=metadata, files=files)


def test_compiling_checks_the_tokenizer_that_is_named():
    fitting = word_piece()
    raw = raw_of(fitting)
    assert fitting.get_vocab_size() <= CONFIG.vocab
    program = compile_tiny({"tokenizer.json": raw}).program
    assert program.names[-1].name == "files/tokenizer.json"
    with pytest.raises(TokenizerTooLarge, match=f"those below {CONFIG.vocab}"):
        compile_tiny({"tokenizer.json": raw_of(byte_level())})
    with pytest.raises(BadFile, match="files= lacks it"):
        compile_tiny({})


def test_a_tokenizer_that_cannot_encode_is_refused():
    library = word_piece()
    parsed = json.loads(library.to_str())
    parsed["model"]["unk_token"] = "[NONE]"
    with pytest.raises(BadFile, match=r"it cannot encode .*Missing \[UNK\] token"):
        check_tokenizer(json.dumps(parsed).encode(), 10_000)
