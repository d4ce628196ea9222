"""Combine the settings of a generation from those of the bundle and the caller.

In: the bundle's generation_config, the caller's arguments. Out: checked and complete
`GenerationSettings`. Names and meanings are those of transformers; `max_tokens` and
`stop_tokens` stand for `max_new_tokens` and `eos_token_id` of transformers.
"""

import json
import reprlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypedDict, TypeVar

from kvc.runtime.generation.constraints import Constraint, constraint_of, doubts_of
from kvc.runtime.generation.logits import Processor, check_processors
from kvc.schema.errors import BadSetting, meant
from kvc.schema.frozen import frozen
from kvc.schema.generation_config import Said, SequenceBias, read_settings
from kvc.schema.setting_checks import EarlyStopping, check_count

_Checked = TypeVar("_Checked")

# The default of transformers if a model's generation_config has no top_k.
_TRANSFORMERS_TOP_K: Final = 50
_CONFIG: Final = "the bundle's generation_config"

_CACHE_SETTINGS: Final = (
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "use_cache",
    "past_key_values",
)

# A caller who gives one of these requests sampling.
_SHAPING: Final = ("temperature", "top_k", "top_p", "min_p", "typical_p")

# Settings of transformers that kvc lacks -> their values without effect.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "constraints": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0, 1),
    "eta_cutoff": (0, 1),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "guidance_scale": (1,),
    "max_time": (),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "remove_invalid_values": (False,),
    "token_healing": (False,),
    "top_h": (),
    "watermarking_config": (),
}
_WHAT: Final = "kvc only takes the likeliest token or samples"
_INSTEAD: Final = {"num_return_sequences": "no value: n= asks for several answers"}


# Names of settings in other libraries -> kvc's.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "eos": "eos_token_id",
    "logits_processor": "processors",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "response_format": "json_schema",
    "stop": "stop_strings",
    "stop_sequences": "stop_strings",
    "temp": "temperature",
    "top_logprobs": "logprobs",
    "typical": "typical_p",
}


class SettingIgnored(UserWarning):
    """A setting of the caller or the bundle, or a part, has no effect; it says why."""


class Arguments(TypedDict, total=False):
    """The caller's settings; if one is missing or None, the bundle's value applies."""

    max_tokens: int | None
    max_new_tokens: int | None
    max_length: int | None
    min_new_tokens: int | None
    min_length: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    no_repeat_ngram_size: int | None
    sequence_bias: "Mapping[Sequence[int], float] | Sequence[object] | None"
    logit_bias: Mapping[int, float] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    processors: Sequence[Processor] | None
    json_schema: Mapping[str, object] | str | None
    regex: str | None
    choices: Sequence[str] | None
    grammar: str | None
    logprobs: int | None
    prompt_logprobs: int | None
    num_beams: int | None
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    seed: int | None
    stop_tokens: Sequence[int] | int | None
    eos_token_id: Sequence[int] | int | None
    stop_strings: Sequence[str] | str | None
    decoder_start_token_id: int | None
    forced_bos_token_id: int | None
    forced_eos_token_id: Sequence[int] | int | None
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None


@frozen
class GenerationSettings:
    """The settings of sampling and of the end of a generation.

    Attributes:
        max_tokens: the greatest number of tokens to generate, None for no limit.
        max_length: the greatest number of tokens of session, prompt and answer
            together, None for no limit.
        min_new_tokens: no stop token is generated before as many tokens.
        min_length: the same, counting the tokens of session, prompt and answer; without
            effect beside `min_new_tokens`.
        temperature: 0 always takes the likeliest token; above 0, tokens are sampled.
        top_k: sample among the `top_k` likeliest tokens, 0 for all tokens.
        top_p: sample among the likeliest tokens: the fewest whose total probability is
            at least `top_p`.
        min_p: sample among tokens whose probability is at least `min_p` times that of
            the likeliest token.
        typical_p: sample among the tokens whose probability is nearest to the one that
            is expected: the fewest whose total probability is at least `typical_p`.
        repetition_penalty: makes tokens that occurred before less likely if above 1; 1
            has no effect.
        frequency_penalty: subtracted from a token's logit for each time that the token
            occurs in the answer.
        presence_penalty: subtracted once from the logits of tokens in the answer.
        no_repeat_ngram_size: no sequence of as many tokens occurs twice; 0 for no rule.
        sequence_bias: pairs of tokens and a number, which is added to the logit of the
            last of the tokens wherever the others precede it.
        logit_bias: the same, for single tokens.
        bad_words_ids: sequences of tokens that are never generated.
        processors: functions of the caller, called in order at each step with the
            tokens so far, int64 [n], and logits float32 [vocab]; they return logits.
        constraint: the form that the answer must have, None for any.
        logprobs: for each token, store its log probability and those of the `logprobs`
            likeliest tokens; None for no log probabilities.
        prompt_logprobs: the same for the tokens of the prompt, whose method must return
            the logits of each.
        num_beams: how many beams are searched for the likeliest answer; 1 for no
            search.
        length_penalty: of beams: the score of an answer is the sum of its log
            probabilities, divided by its length to the power of this number.
        early_stopping: of beams: True ends the search when `num_beams` answers have
            ended; False when a better one is unlikely, "never" when it is impossible.
        seed: the seed of the random numbers; None for a random seed.
        stop_tokens: tokens that end the generation; the caller does not get them.
        stop_strings: strings that end the generation if they occur in the text; the
            text is cut before the string.
        decoder_start_token_id: the first token of the decoder, if there is an encoder.
        forced_bos_token_id: the second token of a session's text: the answer's first
            token is forced to be this token if the session has exactly one token before
            the answer.
        forced_eos_token_id: token ids. The smallest id is forced as the last token of
            an answer that reaches its limit of tokens.
        suppress_tokens: tokens that are never sampled.
        begin_suppress_tokens: tokens that are not sampled as the first token after
            forced tokens.
    """

    max_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int = 0
    min_length: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    sequence_bias: SequenceBias = ()
    logit_bias: SequenceBias = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    processors: tuple[Processor, ...] = ()
    constraint: Constraint | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    seed: int | None = None
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()


def settings_of(
    metadata: Mapping[str, str],
    given: Arguments,
    stacklevel: int = 1,
    rows: int | None = None,
) -> GenerationSettings:
    """Return the settings of a bundle, overridden by the caller's.

    Args:
        metadata: the metadata of the bundle.
        given: the caller's settings.
        stacklevel: the stack level of warnings, 1 for the caller of this function.
        rows: how many rows a session has for beams. The bundle's `num_beams` counts if
            it is the same. None if the caller of this function cannot search for beams.

    Raises:
        BadSetting: a setting is impossible, or kvc does not support it.
        TypeError: an argument is not a setting.
    """
    settings, ignored = settings_and_ignored(metadata, given, rows)
    for message in ignored:
        warnings.warn(message, SettingIgnored, stacklevel=stacklevel + 1)
    return settings


def settings_and_ignored(
    metadata: Mapping[str, str], given: Arguments, rows: int | None = None
) -> tuple[GenerationSettings, Sequence[str]]:
    """Return the settings as `settings_of`, and what has no effect, as sentences."""
    known = frozenset(Arguments.__annotations__)
    for name, value in _missing_settings(given).items():
        raise BadSetting(
            name=name,
            expected=_INSTEAD.get(name, f"no value: {_WHAT}"),
            found=value,
        )
    for name in given:
        if name not in known and name not in _NEUTRAL and name not in _CACHE_SETTINGS:
            other = _ELSEWHERE.get(name)
            near = f" (did you mean {other!r}?)" if other else meant(name, known)
            raise TypeError(
                f"generate() got an unexpected keyword argument {name!r}{near}"
            )
    config = _config_of(metadata)
    bundle = None if config is None else read_settings(config, f"{_CONFIG}, ")
    of_caller: dict[str, Any] = {
        "processors": check_processors(given.get("processors")),
        "constraint": constraint_of(given),
    }
    for name in ("logprobs", "prompt_logprobs"):
        if given.get(name) is not None:
            of_caller[name] = check_count(name, given.get(name))
    said = read_settings(given)
    settings = _combine(bundle, said, of_caller)
    unused = said.num_beams is None and not _fits_beams(settings, rows)
    if unused:
        settings = replace(settings, num_beams=1)
    elif rows is None and settings.num_beams > 1:
        expected = "1: this does not search for beams"
        raise BadSetting(name="num_beams", expected=expected, found=settings.num_beams)
    doubts = doubts_of(settings.constraint)
    ignored = _what_is_ignored(given, config or {}, unused)
    return settings, (*ignored, *[doubts] * bool(doubts))


def _fits_beams(settings: GenerationSettings, rows: int | None) -> bool:
    """Tell whether the bundle's number of beams can be searched, or is 1."""
    fits = settings.num_beams == rows and not settings.temperature
    free = settings.constraint is None and not settings.stop_strings
    return settings.num_beams == 1 or (fits and free)


def bos_of(metadata: Mapping[str, str]) -> int | None:
    """Return the token that begins a text, None if the bundle names none.

    Raises:
        BadSetting: the bundle's "bos_token_id" is not a token, or its generation_config
            is invalid.
    """
    found = (_config_of(metadata) or {}).get("bos_token_id")
    return None if found is None else check_count(f"{_CONFIG}, bos_token_id", found)


def _config_of(metadata: Mapping[str, str]) -> Mapping[str, object] | None:
    text = metadata.get("generation_config")
    if text is None:
        return None
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSetting(name=_CONFIG, expected="JSON", found=repr(text)) from error
    if not isinstance(found, dict):
        raise BadSetting(name=_CONFIG, expected="an object", found=repr(found))
    return found


def _combine(
    bundle: Said | None, given: Said, of_caller: Mapping[str, Any]
) -> GenerationSettings:
    """Return the settings of a generation; the caller's replace the bundle's.

    Args:
        bundle: the settings in the bundle's generation_config; None if the bundle has
            no generation_config.
        given: the caller's settings.
        of_caller: settings that only a caller gives, by name.

    Raises:
        BadSetting: sampling is requested at temperature 0.
    """
    base = bundle or Said()
    combined: dict[str, Any] = {"top_k": _TRANSFORMERS_TOP_K} if bundle else {}
    for name in GenerationSettings.__annotations__:
        value = _first(getattr(given, name, None), getattr(base, name, None))
        if value is not None:
            combined[name] = value
    combined["temperature"] = _temperature(base, given)
    # The caller's limit replaces both of the bundle's; of two limits, max_tokens holds.
    asked = given.max_tokens is not None or given.max_length is not None
    limits = given if asked else base
    combined["max_tokens"] = limits.max_tokens
    combined["max_length"] = limits.max_length if limits.max_tokens is None else None
    return GenerationSettings(**combined, **of_caller)


def _temperature(base: Said, given: Said) -> float:
    """Return the temperature; 0 means that the likeliest token is taken.

    Sampling is requested by a temperature, top_k, top_p, min_p or typical_p of the
    caller. If these settings come from the bundle, sampling also needs the bundle's
    `do_sample`, as in transformers.
    """
    shaping = [getattr(given, name) for name in _SHAPING]
    asked = any(setting is not None for setting in shaping) or base.do_sample
    if not _first(given.do_sample, asked):
        return 0.0
    found = _first(given.temperature, base.temperature)
    temperature = 1.0 if found is None else found
    if temperature == 0 and given.do_sample:
        raise BadSetting(
            name="temperature",
            expected="above 0, since do_sample is True",
            found=temperature,
        )
    return temperature


def _first(given: _Checked | None, base: _Checked | None) -> _Checked | None:
    return base if given is None else given


def _missing_settings(found: Mapping[str, object]) -> dict[str, str]:
    """Return the settings that ask for features kvc lacks: name -> value as text."""
    return {
        name: reprlib.repr(value)
        for name, value in found.items()
        if name in _NEUTRAL and value is not None and value not in _NEUTRAL[name]
    }


def _what_is_ignored(
    given: Mapping[str, object], config: Mapping[str, object], beams: bool
) -> Iterator[str]:
    """Yield warnings about unused settings of the caller and of the bundle.

    `beams` tells whether the bundle's number of beams is unused.
    """
    cache = [name for name in _CACHE_SETTINGS if given.get(name) is not None]
    if cache:
        yield (
            f"{', '.join(cache)}: ignored; the session owns the cache, whose kind is "
            "in the bundle and whose size is set by program.session(capacity=...)"
        )
    missing = [f"{name}={value}" for name, value in _missing_settings(config).items()]
    why = _WHAT
    if beams:
        missing.insert(0, f"num_beams={config['num_beams']}")
        why += " (or searches for beams of one prompt, in as many rows)"
    if missing:
        yield (f"the bundle's generation_config: {', '.join(missing)}: ignored; {why}")
