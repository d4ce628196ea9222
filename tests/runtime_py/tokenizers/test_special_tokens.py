"""Names of special tokens, in folders of every kind, against transformers."""

import json

import pytest
from small_tokenizers import byte_level
from transformers import AutoTokenizer

from kvc.runtime.tokenizers import chat_template_of
from kvc.runtime.tokenizers.library import JsonTokenizer

USER = [{"role": "user", "content": "Hi"}]
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "tool", "image")
TEMPLATE = "".join(
    f"{name}={{{{ {name}_token | default('undefined') }}}} " for name in NAMES
) + ("{{ sound | default('undefined') }} {{ messages[0].content }}")

PLAIN = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
OTHER = {"bos_token": "<|end|>", "eos_token": "<think>", "pad_token": "<思>"}
TOOL, IMAGE = {"tool_token": "<tool>"}, {"image_token": "<img>"}
DECODER = {"added_tokens_decoder": {"0": {"content": "<|begin|>", "special": True}}}
EMPTY_DECODER = {"added_tokens_decoder": {}}


def added(text, **more):
    """Return a token as transformers saves one in tokenizer_config.json."""
    return {"__type": "AddedToken", "content": text, "lstrip": False, **more}


def in_map(text):
    """Return a token as it stands in special_tokens_map.json."""
    return {"content": text, "lstrip": False, "normalized": True, "rstrip": False}


# What tokenizer_config.json and special_tokens_map.json say; None for no such file.
FOLDERS = {
    "config only": (PLAIN, None),
    "map only": ({}, PLAIN),
    "map only, as objects": ({}, {key: in_map(text) for key, text in PLAIN.items()}),
    "both agree": (PLAIN, PLAIN),
    "both disagree": (PLAIN, OTHER),
    "both disagree, the config has null": ({**PLAIN, "eos_token": None}, OTHER),
    "both disagree, the map has null": (PLAIN, {**OTHER, "eos_token": None}),
    "both disagree, with the decoder": ({**PLAIN, **DECODER}, OTHER),
    "both disagree, with an empty decoder": ({**PLAIN, **EMPTY_DECODER}, OTHER),
    "map only, with the decoder": (DECODER, PLAIN),
    "added tokens": ({key: added(text) for key, text in PLAIN.items()}, None),
    "added tokens against the map": ({"eos_token": added("<think>")}, PLAIN),
    "named": ({**PLAIN, "extra_special_tokens": TOOL}, None),
    "named freely": ({**PLAIN, "extra_special_tokens": {"sound": "<snd>"}}, None),
    "named, as added tokens": (
        {**PLAIN, "extra_special_tokens": {"tool_token": added("<tool>")}},
        None,
    ),
    "named, with the decoder": (
        {**PLAIN, **DECODER, "extra_special_tokens": TOOL},
        OTHER,
    ),
    "named, of old": ({**PLAIN, "additional_special_tokens": TOOL}, None),
    "listed": ({**PLAIN, "extra_special_tokens": ["<tool>", "<img>"]}, None),
    "listed, of old": ({**PLAIN, "additional_special_tokens": ["<tool>"]}, None),
    "listed and named of old": (
        {"extra_special_tokens": ["<a>"], "additional_special_tokens": TOOL},
        None,
    ),
    "model-specific": ({**PLAIN, "model_specific_special_tokens": TOOL}, None),
    "model-specific, and a key of its own": (
        {**PLAIN, **IMAGE, "model_specific_special_tokens": TOOL},
        None,
    ),
    "model-specific, and named": (
        {"extra_special_tokens": IMAGE, "model_specific_special_tokens": TOOL},
        None,
    ),
    "a key of its own": ({**PLAIN, **TOOL}, None),
    "a key of its own, as added token": ({"tool_token": added("<tool>")}, None),
    "a key of its own, and named": (
        {"tool_token": "<a>", "extra_special_tokens": TOOL},
        None,
    ),
    "a key of its own in the map": (PLAIN, TOOL),
    "a key of its own in both": (TOOL, {"tool_token": "<other>"}),
    "named in the config, a key in the map": (
        {"extra_special_tokens": TOOL},
        {"tool_token": "<other>"},
    ),
    "model-specific, a key in the map": (
        {"model_specific_special_tokens": TOOL},
        {"tool_token": "<other>"},
    ),
    "named in the map": (PLAIN, {**PLAIN, "extra_special_tokens": TOOL}),
    "named in both": (
        {"extra_special_tokens": TOOL},
        {"extra_special_tokens": {"tool_token": "<other>", "sound": "<snd>"}},
    ),
    "listed in the map": (
        {**PLAIN, "extra_special_tokens": TOOL},
        {"extra_special_tokens": ["<a>"]},
    ),
    "listed of old in the map": (PLAIN, {"additional_special_tokens": ["<a>"]}),
    "all of the usual names": (
        {f"{name}_token": f"<{name}>" for name in NAMES[:7]} | PLAIN,
        None,
    ),
    "what is no token": ({**PLAIN, "add_bos_token": True, "legacy": False}, None),
}


class Source:
    """What a program says and carries, of the files of a folder."""

    def __init__(self, folder):
        self.metadata = {}
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(params=FOLDERS)
def folder(tmp_path, request):
    config, special_map = FOLDERS[request.param]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (tmp_path / "tokenizer.json").write_text(byte_level().to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    if special_map is not None:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(special_map))
    return tmp_path


def test_templates_have_the_tokens_that_transformers_gives_them(folder):
    peer = AutoTokenizer.from_pretrained(folder)
    template = chat_template_of(Source(folder))
    assert template.special_tokens == peer.special_tokens_map
    expected = peer.apply_chat_template(USER, tokenize=False)
    assert template.render(USER, add_generation_prompt=False) == expected


def test_an_answer_ends_where_transformers_ends_it(folder):
    peer = AutoTokenizer.from_pretrained(folder)
    tokenizer = JsonTokenizer((folder / "tokenizer.json").read_bytes())
    expected = () if peer.eos_token is None else (peer.eos_token_id,)
    assert chat_template_of(Source(folder)).end_tokens(tokenizer) == expected


def test_a_text_begins_with_the_tokens_that_transformers_begins_with(folder):
    peer = AutoTokenizer.from_pretrained(folder)
    tokenizer = JsonTokenizer((folder / "tokenizer.json").read_bytes())
    assert tokenizer.encode("Hi") == peer("Hi")["input_ids"]
