"""Check settings of text generation, from a bundle's generation_config or a caller.

In: names and values, as in a model's generation_config.json. Out: the settings that kvc
supports, each checked. The runtime combines the settings of a bundle and a caller. The
compiler runs the same checks on the settings that it stores in a bundle.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.setting_checks import (
    EarlyStopping,
    check_beams,
    check_bias,
    check_count,
    check_early_stopping,
    check_logit_bias,
    check_penalty,
    check_sequence_bias,
    check_share,
    check_strings,
    check_temperature,
    check_token_lists,
    check_tokens,
    check_truth,
)

SequenceBias = tuple[tuple[tuple[int, ...], float], ...]  # tokens, number to add


@frozen
class Said:
    """The checked settings of one source, such as a bundle; None for absent ones."""

    max_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    sequence_bias: SequenceBias | None = None
    logit_bias: SequenceBias | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    seed: int | None = None
    stop_tokens: tuple[int, ...] | None = None
    stop_strings: tuple[str, ...] | None = None
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] | None = None
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None


_CHECKS: Final[Mapping[str, Callable[[str, object], object]]] = {
    "max_tokens": check_count,
    "max_length": check_count,
    "min_new_tokens": check_count,
    "min_length": check_count,
    "do_sample": check_truth,
    "temperature": check_temperature,
    "top_k": check_count,
    "top_p": check_share,
    "min_p": check_share,
    "typical_p": check_share,
    "repetition_penalty": check_penalty,
    "frequency_penalty": check_bias,
    "presence_penalty": check_bias,
    "no_repeat_ngram_size": check_count,
    "sequence_bias": check_sequence_bias,
    "logit_bias": check_logit_bias,
    "bad_words_ids": check_token_lists,
    "num_beams": check_beams,
    "length_penalty": check_bias,
    "early_stopping": check_early_stopping,
    "seed": check_count,
    "stop_tokens": check_tokens,
    "stop_strings": check_strings,
    "decoder_start_token_id": check_count,
    "forced_bos_token_id": check_count,
    "forced_eos_token_id": check_tokens,
    "suppress_tokens": check_tokens,
    "begin_suppress_tokens": check_tokens,
}
# The names in transformers of settings that have another name in kvc.
ALIASES: Final[Mapping[str, str]] = {
    "max_tokens": "max_new_tokens",
    "stop_tokens": "eos_token_id",
}


def read_settings(found: Mapping[str, object], source: str = "") -> Said:
    """Check the settings of text generation that one source gives.

    Args:
        found: values by setting name.
        source: prefix of setting names in messages.

    Raises:
        BadSetting: a value is impossible, or a setting is given under two names.
    """
    checked: dict[str, Any] = {}
    for name, check in _CHECKS.items():
        alias = ALIASES.get(name, name)
        given = [key for key in {name: 0, alias: 0} if found.get(key) is not None]
        if len(given) == 2:
            expected = f"no value, since {alias} means the same and is given too"
            raise BadSetting(
                name=source + name, expected=expected, found=repr(found[name])
            )
        if given:
            checked[name] = check(source + given[0], found[given[0]])
    return Said(**checked)
