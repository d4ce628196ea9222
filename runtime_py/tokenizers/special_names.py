"""The special tokens that have names, such as "bos_token", for chat templates.

In: the content of tokenizer_config.json and special_tokens_map.json. Out: name -> text,
as `special_tokens_map` of transformers (5.23) has them.
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
        config: the content of tokenizer_config.json.
        special_map: the content of special_tokens_map.json, which older models have; it
            is used if the config has no entry "added_tokens_decoder".
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
    """Return the special tokens that the model itself has named: name -> text."""
    return {
        key: text
        for key, text in _texts(config).items()
        if key.endswith("_token") and key not in _STANDARD
    }


def _named(found: object) -> dict[str, str]:
    """Return the texts of an object by name; empty for a list, which has no names."""
    return _texts(found) if isinstance(found, dict) else {}


def _texts(tokens: _Config) -> dict[str, str]:
    texts = {}
    for name, value in tokens.items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            texts[name] = text
    return texts
