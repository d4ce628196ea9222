"""Settings of generation as users of several libraries write them, as kvc's.

In: a row's settings, by kvc's names, OpenAI's or vLLM's; the settings that the batch
has for all rows. Out: complete `GenerationSettings`. A name that is unknown, or asks
for something else than one answer, is refused.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from kvc.runtime.generation import Arguments, GenerationSettings, settings_of
from kvc.schema.errors import BadRow, BadSetting, meant

_RENAMED: Final[Mapping[str, str]] = {
    "max_completion_tokens": "max_tokens",
    "min_tokens": "min_new_tokens",
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "stop": "stop_strings",
    "stop_sequences": "stop_strings",
    "stop_token_ids": "stop_tokens",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "guided_grammar": "grammar",
}
# A setting replaces all of its group that the batch has for all rows.
_GROUPS: Final = (
    frozenset(("max_tokens", "max_new_tokens", "max_length")),
    frozenset(("json_schema", "regex", "choices", "grammar")),
    frozenset(("stop_tokens", "eos_token_id")),
)
# Name -> the values that ask for nothing that kvc lacks.
_WITHOUT_EFFECT: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "stream_options": (),
    "echo": (False,),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True, False),
    "skip_special_tokens": (True,),
    "num_beams": (1,),
}
# Fields of OpenAI's that say nothing about the answer.
_IGNORED: Final = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "safety_identifier",
    )
)
_NOT_HERE: Final = frozenset(("processors", "prompt_logprobs"))
_KNOWN: Final = frozenset(Arguments.__annotations__) - _NOT_HERE
_MOST_KEPT: Final = 64


class RowSettings:
    """Makes the settings of rows; equal ones are read once."""

    def __init__(self, metadata: Mapping[str, str], defaults: Arguments) -> None:
        """Check the settings that rows have by default.

        Args:
            metadata: the metadata of the bundle.
            defaults: the settings of rows that say nothing else.

        Raises:
            BadSetting: a setting is impossible.
        """
        self._metadata = metadata
        self._defaults = {k: v for k, v in defaults.items() if v is not None}
        self._seed = cast("int | None", self._defaults.pop("seed", None))
        self._made = OrderedDict[str, GenerationSettings]()
        self.of({}, 0)

    def of(self, given: Mapping[str, object], place: int) -> GenerationSettings:
        """Return the settings of a row.

        Args:
            given: the settings in the row.
            place: the number of its line, from 0: what is added to the batch's seed.

        Raises:
            BadRow, BadSetting: a setting is unknown or impossible.
        """
        arguments = arguments_of(given)
        seed = arguments.pop("seed", None)
        if seed is None and self._seed is not None:
            seed = self._seed + place
        settings = self._combined(arguments)
        if seed is None:
            return settings
        checked = settings_of({}, cast(Arguments, {"seed": seed})).seed
        return replace(settings, seed=checked)

    def _combined(self, arguments: dict[str, Any]) -> GenerationSettings:
        key = json.dumps(arguments, sort_keys=True)
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        merged = {**_left(self._defaults, arguments), **arguments}
        made = settings_of(self._metadata, cast(Arguments, merged))
        self._made[key] = made
        if len(self._made) > _MOST_KEPT:
            self._made.popitem(last=False)
        return made


def _left(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that a row's settings do not replace."""
    replaced = set[str]().union(*(one for one in _GROUPS if one & set(given)))
    return {name: value for name, value in defaults.items() if name not in replaced}


def arguments_of(given: Mapping[str, object]) -> dict[str, Any]:
    """Return settings by kvc's names; those that are null are left out.

    Raises:
        BadRow: a name is unknown.
        BadSetting: two names are of one setting, or a value asks for something that a
            batch cannot do.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name in _IGNORED:
            continue
        if name in _WITHOUT_EFFECT:
            _check_without_effect(name, value)
            continue
        for own, one in _translated(name, value, given).items():
            if own in found:
                expected = f"nothing beside another name of {own}"
                raise BadSetting(name=name, expected=expected, found=value)
            found[own] = one
    return found


def _translated(
    name: str, value: object, given: Mapping[str, object]
) -> Mapping[str, object]:
    """Return a setting by kvc's name; empty if it asks for nothing.

    Raises:
        BadRow: the name is unknown.
        BadSetting: the value is impossible.
    """
    if name in _SPECIAL:
        return _SPECIAL[name](value, given)
    own = _RENAMED.get(name, name)
    if own not in _KNOWN:
        known = (*_KNOWN, *_RENAMED, *_SPECIAL)
        raise BadRow(reason=f"unknown setting {name!r:.80}{meant(name, known)}")
    return {own: value}


def _check_without_effect(name: str, value: object) -> None:
    """Check that a value asks for nothing that kvc lacks.

    Raises:
        BadSetting: it does.
    """
    allowed = _WITHOUT_EFFECT[name]
    if not any(value == one and type(value) is type(one) for one in allowed):
        expected = " or ".join(map(json.dumps, allowed)) or "nothing"
        expected += ": a row has one answer, which is written when it is complete"
        raise BadSetting(name=name, expected=expected, found=repr(value)[:80])


def _logprobs(value: object, given: Mapping[str, object]) -> Mapping[str, object]:
    """Return `logprobs`: a number, or as chats of OpenAI say it, true."""
    if value is False:
        return {}
    if value is True:
        return {"logprobs": given.get("top_logprobs") or 0}
    return {"logprobs": value}


def _top_logprobs(value: object, given: Mapping[str, object]) -> Mapping[str, object]:
    """Return nothing: `logprobs`, which has to be true beside it, reads it."""
    if given.get("logprobs") is not True:
        expected = "no value unless logprobs is true"
        raise BadSetting(name="top_logprobs", expected=expected, found=value)
    return {}


def _response_format(
    value: object, _given: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the form of an answer, which OpenAI's field asks for."""
    match value:
        case {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"json_schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"json_schema": schema}
    expected = 'an object with the type "text", "json_object" or "json_schema"'
    raise BadSetting(name="response_format", expected=expected, found=repr(value)[:80])


def _logit_bias(value: object, _given: Mapping[str, object]) -> Mapping[str, object]:
    """Return biases by token: keys of JSON are texts."""
    if not isinstance(value, dict):
        return {"logit_bias": value}
    digits = all(isinstance(key, str) and key.isdecimal() for key in value)
    return {"logit_bias": {int(k): v for k, v in value.items()} if digits else value}


def _ignore_eos(value: object, _given: Mapping[str, object]) -> Mapping[str, object]:
    """Return that no token ends the answer, if a row of vLLM's asks for it."""
    if not isinstance(value, bool):
        raise BadSetting(name="ignore_eos", expected="true or false", found=value)
    return {"stop_tokens": []} if value else {}


_Special = Callable[[object, Mapping[str, object]], Mapping[str, object]]
_SPECIAL: Final[Mapping[str, _Special]] = {
    "ignore_eos": _ignore_eos,
    "logit_bias": _logit_bias,
    "logprobs": _logprobs,
    "response_format": _response_format,
    "top_logprobs": _top_logprobs,
}
