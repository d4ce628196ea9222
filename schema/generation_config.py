"""Check settings of text generation, from a bundle's generation_config or a caller.

In: names and values, as in a model's generation_config.json. Out: the settings that kvc
supports, each checked. The runtime combines the settings of a bundle and a caller. The
compiler runs the same checks on the settings that it stores in a bundle.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.setting_checks import (
    check_count,
    check_penalty,
    check_share,
    check_strings,
    check_temperature,
    check_tokens,
    check_truth,
)

_Checked = TypeVar("_Checked")


@frozen
class Said:
    """The checked settings of one source, such as a bundle; None for absent ones."""

    max_tokens: int | None = None
    max_length: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_tokens: tuple[int, ...] | None = None
    stop_strings: tuple[str, ...] | None = None
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] | None = None
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None


def read_settings(found: Mapping[str, object], source: str = "") -> Said:
    """Check the settings of text generation that one source gives.

    Args:
        found: values by setting name.
        source: prefix of setting names in messages.

    Raises:
        BadSetting: a value is impossible, or a setting is given under two names.
    """

    def take(
        check: Callable[[str, object], _Checked], name: str, alias: str = ""
    ) -> _Checked | None:
        given = [key for key in (name, alias) if found.get(key) is not None]
        if len(given) == 2:
            expected = f"no value, since {alias} means the same and is given too"
            raise BadSetting(
                name=source + name, expected=expected, found=repr(found[name])
            )
        return check(source + given[0], found[given[0]]) if given else None

    return Said(
        max_tokens=take(check_count, "max_tokens", "max_new_tokens"),
        max_length=take(check_count, "max_length"),
        do_sample=take(check_truth, "do_sample"),
        temperature=take(check_temperature, "temperature"),
        top_k=take(check_count, "top_k"),
        top_p=take(check_share, "top_p"),
        min_p=take(check_share, "min_p"),
        repetition_penalty=take(check_penalty, "repetition_penalty"),
        seed=take(check_count, "seed"),
        stop_tokens=take(check_tokens, "stop_tokens", "eos_token_id"),
        stop_strings=take(check_strings, "stop_strings"),
        decoder_start_token_id=take(check_count, "decoder_start_token_id"),
        forced_bos_token_id=take(check_count, "forced_bos_token_id"),
        forced_eos_token_id=take(check_tokens, "forced_eos_token_id"),
        suppress_tokens=take(check_tokens, "suppress_tokens"),
        begin_suppress_tokens=take(check_tokens, "begin_suppress_tokens"),
    )
