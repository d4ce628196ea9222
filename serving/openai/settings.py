"""The settings of an answer, from the fields of OpenAI and those of kvc.

In: the fields of a request. Out: the `Arguments` of `kvc.runtime.generate`. Fields
that kvc lacks are refused unless their value changes nothing.
"""

from collections.abc import Mapping
from typing import Final, cast

from kvc.runtime.generation import Arguments
from kvc.serving.openai.fields import Fields, bad

MOST_ANSWERS: Final = 128
MOST_TOP: Final = 20  # log probabilities of other tokens at each place
_SEEDS: Final = (1 << 63) - 1
_COUNT: Final = (1 << 31) - 1
_STRINGS: Final = 64
_LONGEST: Final = 1024  # characters of a stop string, searched for at each token
_BIASES: Final = 1024
_CHOICES: Final = 1024
_FORM: Final = 1 << 16  # characters, as building a form takes a second for a million
_LOGPROBS: Final = 1 << 19  # of all answers to a request

# Fields of OpenAI that cannot change an answer of this server.
IGNORED: Final = frozenset(
    {
        "metadata", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "service_tier", "store",
    }
)  # fmt: skip

_NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 1000),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "repetition_penalty": (1e-3, 1000),
    "frequency_penalty": (-1000, 1000),
    "presence_penalty": (-1000, 1000),
}
_COUNTS: Final[Mapping[str, tuple[int, int]]] = {
    "top_k": (-1, _COUNT),
    "no_repeat_ngram_size": (0, _COUNT),
    "min_new_tokens": (0, _COUNT),
    "seed": (-_SEEDS - 1, _SEEDS),
}
SETTINGS: Final = frozenset(
    {
        *_NUMBERS, *_COUNTS, "choices", "grammar", "logit_bias", "max_tokens", "regex",
        "stop",
    }
)  # fmt: skip


def settings_in(fields: Fields, most: int) -> Arguments:
    """Return the settings that a request asks for.

    Args:
        fields: the fields of the request.
        most: the greatest number of tokens of an answer; a request for more gets as
            many.

    Raises:
        BadSetting: a value is impossible.
    """
    made: dict[str, object] = {
        name: fields.number(name, *bounds) for name, bounds in _NUMBERS.items()
    }
    made |= {name: fields.whole(name, *bounds) for name, bounds in _COUNTS.items()}
    if made["top_k"] == -1:  # what other servers take for all tokens
        made["top_k"] = 0
    if isinstance(made["seed"], int):
        made["seed"] = made["seed"] & _SEEDS
    for name in ("grammar", "regex"):
        made[name] = fields.text(name)
        if len(fields.text(name) or "") > _FORM:
            raise fields.bad(name, f"at most {_FORM} characters")
    made["choices"] = fields.listed("choices")
    if len(fields.listed("choices") or ()) > _CHOICES:
        raise fields.bad("choices", f"at most {_CHOICES} texts")
    made["stop_strings"] = _stops(fields)
    made["logit_bias"] = _biases(fields)
    asked = [fields.whole(one, 1, _COUNT) for one in _LIMITS if one in fields.value]
    told = [one for one in asked if one is not None]
    made["max_tokens"] = min([most, *told])
    kept = {name: value for name, value in made.items() if value is not None}
    return cast("Arguments", kept)


_LIMITS: Final = ("max_tokens", "max_completion_tokens")


def check_logprobs(fields: Fields, settings: Arguments, answers: int) -> None:
    """Check that the answers to a request have no more log probabilities than fit.

    Raises:
        BadSetting: they may have too many.
    """
    top, most = settings.get("logprobs"), settings.get("max_tokens")
    if top is None or most is None or answers * most * (top + 1) <= _LOGPROBS:
        return
    expected = f"less: all answers have at most {_LOGPROBS} log probabilities"
    raise bad(fields.name("max_tokens"), expected, most)


def _stops(fields: Fields) -> list[str] | None:
    found = fields.get("stop")
    listed = [found] if isinstance(found, str) else fields.listed("stop")
    if not listed:
        return None
    texts = [one for one in listed if isinstance(one, str) and one]
    if len(texts) != len(listed) or len(texts) > _STRINGS:
        raise fields.bad("stop", f"a text, or at most {_STRINGS} texts, none empty")
    if max(map(len, texts)) > _LONGEST:
        raise fields.bad("stop", f"texts of at most {_LONGEST} characters")
    return texts


def _biases(fields: Fields) -> dict[int, float] | None:
    found = fields.inner("logit_bias")
    if found is None:
        return None
    if len(found.value) > _BIASES:  # each costs something at each token
        raise fields.bad("logit_bias", f"at most {_BIASES} tokens")
    made = {}
    for name in found.value:
        if not name.isdecimal() or len(name) > len(str(_COUNT)):
            raise bad(fields.name("logit_bias"), "token ids and numbers", name)
        made[int(name)] = found.number(name, -1000, 1000) or 0.0
    return made or None


def check_neutral(fields: Fields, neutral: Mapping[str, tuple[object, str]]) -> None:
    """Check fields of OpenAI that kvc lacks: they must have a value without effect.

    Args:
        fields: the fields of the request.
        neutral: name -> the value without effect, and what is true instead.

    Raises:
        BadSetting: a field has another value.
    """
    for name, (value, reason) in neutral.items():
        found = fields.get(name)
        if found is not None and found != value:
            raise fields.bad(name, f"no value: {reason}")
