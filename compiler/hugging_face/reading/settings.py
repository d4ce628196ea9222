"""Sizes of caches and of prompt chunks: asked for, or found in the model's settings.

In: a `CacheConfig`, the model's configuration, its generation settings. Out: `Sizes`.
The caller's wishes come first, then generation_config.json, then the model's own limit.
Those of an encoder are apart from the decoder's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from transformers import PreTrainedConfig

from kvc.schema.errors import BadModelSetting
from kvc.schema.verify.limits import MAX_DIM

PREFILL_CHUNK: Final = 512
LEAST_LENGTH: Final = 16  # of the shortest cache that a session may ask for
_EXAMPLE_LENGTH: Final = 64  # of caches in a trace that sessions have of any length
_NO_LIMIT: Final = 4096  # where nothing says how long a text may be
_UNSET_MAX_LENGTH: Final = 20  # what transformers takes max_length for by default
# What configurations call the most positions of a model.
_LIMITS: Final = (
    "max_target_positions", "max_position_embeddings", "max_seq_len", "seq_length"
)  # fmt: skip
_ENCODER_LIMITS: Final = ("max_source_positions", "max_position_embeddings")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How large the caches of a session may be, and what they are made of.

    Attributes:
        max_length: the most positions; None: what generation_config.json says, else
            the model's own limit.
        batch: the most rows; a session has one unless it asks for more. Above 1,
            methods also take row lengths. None: 1, or 64 of a model without a cache.
        dtype: "float32", "float16" or "int8"; None: what the recipe says.
        slack: extra slots in the rings of sliding-window layers, by which a session
            can be rewound further, and its calls may be longer.
        encoder_length: the most positions of an encoder; None: the model's own limit.
    """

    max_length: int | None = None
    batch: int | None = None
    dtype: str | None = None
    slack: int = 0
    encoder_length: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            BadModelSetting: one is no whole number, or too small or too large.
        """
        if self.max_length is not None:
            _check("CacheConfig", "max_length", self.max_length, LEAST_LENGTH, MAX_DIM)
        if self.batch is not None:
            _check("CacheConfig", "batch", self.batch, 1, MAX_DIM)
        _check("CacheConfig", "slack", self.slack, 0, MAX_DIM)
        if self.encoder_length is not None:
            _check("CacheConfig", "encoder_length", self.encoder_length, 1, MAX_DIM)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a model is compiled for.

    Attributes:
        length: positions.
        batch: rows.
        chunk: tokens of one prefill.
        spare: slots that a ring has beside its window.
        heard: positions of an encoder; 0: there is none.
    """

    length: int
    batch: int
    chunk: int
    spare: int
    heard: int = 0

    def example_slots(self) -> int:
        """Return how many positions caches have in a trace, of those of any length.

        The longest call must fit.
        """
        return min(self.length, max(_EXAMPLE_LENGTH, self.spare + 1))

    def of_encoder(self) -> "Sizes":
        """Return those of caches of what an encoder makes."""
        return replace(self, length=self.heard)


def find_sizes(
    cache: CacheConfig,
    chunk: int,
    config: PreTrainedConfig,
    generation: Mapping[str, object],
    prefill_sizes: Sequence[int] = (),
    first: int = 0,
    together: int = 0,
    usual: int | None = None,
) -> Sizes:
    """Return the sizes to compile for.

    Args:
        cache: what the caller asks for.
        chunk: the most tokens of one prefill.
        config: the model's configuration.
        generation: its generation settings, as generation_config.json has them.
        prefill_sizes: lengths that are to have a method of their own.
        first: the number of the first position; those below it hold no token.
        together: positions of a picture that one call takes, 0 for none.
        usual: the most positions where the caller asks for none; None: as many as the
            settings say.

    Raises:
        BadModelSetting: one is no sensible number, or more than the model can.
    """
    limit = most_positions(config, first)
    length, place = _length(cache, generation, limit)
    if cache.max_length is None and usual is not None:
        length = min(length, usual)
    _check(place, "max_length", length, LEAST_LENGTH, MAX_DIM)
    if limit is not None and length > limit:
        expected = (
            f"at most {limit}, the model's own limit (a model that can do more says so "
            "in its config.json)"
        )
        raise _bad(place, "max_length", expected, length)
    if length < together:
        expected = f"{together} or more, which one picture takes"
        raise _bad(place, "max_length", expected, length)
    _check("export_hf", "prefill_chunk", chunk, 1, MAX_DIM)
    _check_prefill_sizes(prefill_sizes, length)
    chunk = min(chunk, length)
    # The first token of the longest call sees its window when the last one is written.
    spare = max((chunk, together, *prefill_sizes)) - 1 + cache.slack
    return Sizes(length, cache.batch or 1, chunk, spare)


def encoder_length(
    cache: CacheConfig, config: PreTrainedConfig, only: int | None = None
) -> int:
    """Return the most positions of a model's encoder.

    Args:
        cache: what the caller asks for.
        config: the model's configuration.
        only: how many the encoder always has, None where it depends on the input.

    Raises:
        BadModelSetting: the caller asks for more than the model can, or for another
            number than the one that it always has.
    """
    if only is not None:
        if cache.encoder_length not in (None, only):
            expected = f"{only}, which the model's encoder always has"
            found = cache.encoder_length
            raise _bad("CacheConfig", "encoder_length", expected, found)
        return only
    encoder = getattr(config, "encoder", config)  # of a model that is made of two
    limit = _limit(
        encoder if isinstance(encoder, PreTrainedConfig) else config, 0, _ENCODER_LIMITS
    )
    heard = cache.encoder_length or limit or _NO_LIMIT
    if limit is not None and heard > limit:
        expected = f"at most {limit}, the limit of the model's encoder"
        raise _bad("CacheConfig", "encoder_length", expected, heard)
    return heard


def text_length(cache: CacheConfig, limit: int, usual: int | None) -> int:
    """Return the most tokens of a text that a model without a cache takes.

    Args:
        cache: what the caller asks for.
        limit: the model's own limit, 0 for none.
        usual: what the folder says, None for nothing.

    Raises:
        BadModelSetting: the caller asks for more than the model can.
    """
    if cache.max_length is None:
        length = usual or limit or _NO_LIMIT
        return min(length, limit) if limit else length
    if limit and cache.max_length > limit:
        expected = f"at most {limit}, the model's own limit"
        raise _bad("CacheConfig", "max_length", expected, cache.max_length)
    return cache.max_length


def _check_prefill_sizes(prefill_sizes: Sequence[int], length: int) -> None:
    """Check lengths that are to have a method of their own.

    Raises:
        BadModelSetting: one is no number of tokens that the caches hold, or is twice.
    """
    for size in prefill_sizes:
        _check("export_hf", "prefill_sizes", size, 1, length)
    if len(set(prefill_sizes)) < len(prefill_sizes):
        raise _bad("export_hf", "prefill_sizes", "different numbers", prefill_sizes)


def _length(
    cache: CacheConfig, generation: Mapping[str, object], limit: int | None
) -> tuple[int, str]:
    """Return the most positions, and who says so."""
    if cache.max_length is not None:
        return cache.max_length, "CacheConfig"
    place, nested = "generation_config", generation.get("cache_config")
    for settings in (nested if isinstance(nested, Mapping) else {}, generation):
        found = settings.get("max_cache_len")
        if found is not None:
            return _number(place, "max_cache_len", found), place
    longest = generation.get("max_length")
    if longest not in (None, _UNSET_MAX_LENGTH):
        found = _number(place, "max_length", longest)
        return (found if limit is None else min(found, limit)), place
    return limit or _NO_LIMIT, "the model's configuration"


def most_positions(config: PreTrainedConfig, first: int = 0) -> int | None:
    """Return how many positions a model has, None where nothing says it."""
    return _limit(config.get_text_config(), first)


def _limit(
    config: PreTrainedConfig, first: int, names: Sequence[str] = _LIMITS
) -> int | None:
    for name in names:
        found = getattr(config, name, None)
        if isinstance(found, int) and found > 0:
            return found - first
    return None


def _number(place: str, setting: str, found: object) -> int:
    if isinstance(found, bool) or not isinstance(found, int):
        raise _bad(place, setting, "a whole number", found)
    return found


def _check(place: str, setting: str, found: int, least: int, most: int) -> None:
    number = _number(place, setting, found)
    if number < least:
        raise _bad(place, setting, f"{least} or more", found)
    if number > most:
        raise _bad(place, setting, f"at most {most}", found)


def _bad(place: str, setting: str, expected: str, found: object) -> BadModelSetting:
    return BadModelSetting(
        place=place, setting=setting, expected=expected, found=repr(found)
    )
