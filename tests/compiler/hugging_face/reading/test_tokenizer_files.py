"""Tokenizers in other files than tokenizer.json."""

import json

import pytest
from hf_folders import save_folder, tiny_llama
from tokenizers import Tokenizer

from kvc.compiler.hugging_face.folder import open_folder
from kvc.compiler.hugging_face.reading.tokenizer_files import (
    TokenizerLeftOut,
    converted,
)


def test_a_vocabulary_and_merges_become_tokenizer_json(tmp_path):
    letters = {letter: number for number, letter in enumerate("abcd")}
    (tmp_path / "vocab.json").write_text(json.dumps(letters | {"ab": 4, "<|e|>": 5}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    described = {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<|e|>"}
    named = dict.fromkeys(("bos_token", "eos_token"), "<|e|>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described | named))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    made = Tokenizer.from_str(converted(tmp_path)["tokenizer.json"].decode())
    assert made.encode("abcab").ids == [4, 2, 4]


def test_a_tokenizer_that_cannot_be_converted_is_left_out_and_told(tmp_path):
    save_folder(tmp_path, tiny_llama())
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(b"nothing of a tokenizer")
    with pytest.warns(TokenizerLeftOut, match="tokenizer.model and no tokenizer.json"):
        opened = open_folder(tmp_path)
    assert "tokenizer.json" not in opened.files
