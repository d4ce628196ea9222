"""Settings of other libraries that kvc does not have, and what happens to them.

In: names and values, from a bundle's generation_config or from a caller. Out: what to
warn of, or an error. A value that changes nothing, such as `num_beams: 1`, passes.
"""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Final

from kvc.schema.errors import BadSetting, meant

CACHE_SETTINGS: Final = (
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "use_cache",
    "past_key_values",
)

# Settings of transformers that change what is generated -> the values that do not.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0, 1),
    "eta_cutoff": (0, 1),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "remove_invalid_values": (False,),
    "sequence_bias": ([], {}),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}


class SettingIgnored(UserWarning):
    """A setting is not used; the message says why."""


def missing_settings(found: Mapping[str, object]) -> dict[str, str]:
    """Return the settings that ask for what kvc does not have, with their values."""
    return {
        name: reprlib.repr(value)
        for name, value in found.items()
        if name in _NEUTRAL and value is not None and value not in _NEUTRAL[name]
    }


def refuse_unknown(found: Mapping[str, object], known: frozenset[str]) -> None:
    """Refuse arguments that kvc does not have.

    Raises:
        BadSetting: one is a setting of transformers that would change the result.
        TypeError: one is no setting at all.
    """
    for name, value in missing_settings(found).items():
        expected = "it left out: kvc takes the likeliest token or samples, no more"
        raise BadSetting(name=name, expected=expected, found=value)
    for name in found:
        if name not in known and name not in _NEUTRAL and name not in CACHE_SETTINGS:
            near = meant(name, known)
            message = f"generate() got an unexpected keyword argument {name!r}{near}"
            raise TypeError(message)


def what_is_ignored(
    given: Mapping[str, object], config: Mapping[str, object]
) -> Iterator[str]:
    """Yield what to say of a caller's settings, and of a bundle's generation_config."""
    cache = [name for name in CACHE_SETTINGS if given.get(name) is not None]
    if cache:
        yield (
            f"{', '.join(cache)}: ignored; the session owns the cache, whose kind is "
            "in the bundle and whose size is chosen by program.session(capacity=...)"
        )
    missing = [f"{name}={value}" for name, value in missing_settings(config).items()]
    if missing:
        yield (
            f"the bundle's generation_config: {', '.join(missing)}: ignored; kvc takes "
            "the likeliest token or samples, no more"
        )
