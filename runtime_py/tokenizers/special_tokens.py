"""The special tokens of a bundle by name, such as "bos_token" and "eos_token".

In: tokenizer_config.json and special_tokens_map.json, as objects. Out: texts by name,
as an AutoTokenizer has them in its `special_tokens_map` (transformers 5,
tokenization_utils_base.py). A token is a text, or {"content": text}.
"""

from collections.abc import Mapping
from typing import Final

_STANDARD: Final = frozenset(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_NAMED: Final = "model_specific_special_tokens"
_EXTRA: Final = "extra_special_tokens"  # a list, or an object with names
_OLD_EXTRA: Final = "additional_special_tokens"
_ADDED: Final = "added_tokens_decoder"

_Config = Mapping[str, object]


def special_tokens(config: _Config, special_map: _Config) -> dict[str, str]:
    """Return the texts of all special tokens that have names.

    Args:
        config: what tokenizer_config.json has.
        special_map: what special_tokens_map.json has, from before there was `_ADDED`.
            It holds in place of the other file where that has none.
    """
    found = dict(config)
    if not found.get(_EXTRA):
        found[_EXTRA] = found.get(_OLD_EXTRA)
    named = _own_names(found) | _named(found.pop(_EXTRA))
    named = named or _named(found.get(_NAMED))
    if _ADDED not in config:
        found |= special_map
        named |= _named(found.get(_EXTRA))
    standard = {key: found[key] for key in sorted(_STANDARD & found.keys())}
    return _texts(standard) | _own_names(found) | named


def _own_names(config: _Config) -> dict[str, str]:
    """Return the tokens of a file that a model has beside those that all may have."""
    return {
        key: text
        for key, text in _texts(config).items()
        if key.endswith("_token") and key not in _STANDARD
    }


def _named(found: object) -> dict[str, str]:
    """Return tokens that are an object with a name for each; a list names none."""
    return _texts(found) if isinstance(found, dict) else {}


def _texts(tokens: _Config) -> dict[str, str]:
    """Return the texts of what is a token."""
    texts = {}
    for name, value in tokens.items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            texts[name] = text
    return texts
