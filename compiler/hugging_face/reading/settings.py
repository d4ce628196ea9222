"""Sizes of caches and prompt chunks: from the caller, or from the model's settings.

In: a `CacheConfig`, the model's configuration, and the model's generation settings.
Out: `Sizes`. A size is taken from the caller's settings if they give it, else from
generation_config.json, else from the model's own limit. Sizes of an encoder are
separate from those of the decoder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from transformers import PreTrainedConfig

from kvc.schema.errors import BadModelSetting
from kvc.schema.rings import Window
from kvc.schema.verify.limits import MAX_DIM

PREFILL_CHUNK: Final = 512
LEAST_LENGTH: Final = 16  # length of the shortest cache of a session
_EXAMPLE_LENGTH: Final = 64  # length in a trace of caches of variable length
_NO_LIMIT: Final = 4096  # default without any limit
_UNSET_MAX_LENGTH: Final = 20  # transformers' default of max_length
# Names of the maximum number of positions in configurations.
_LIMITS: Final = (
    "max_target_positions", "max_position_embeddings", "max_seq_len", "seq_length"
)  # fmt: skip
_ENCODER_LIMITS: Final = ("max_source_positions", "max_position_embeddings")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The maximum sizes of a session's caches, and the dtype of the caches.

    Attributes:
        max_length: the maximum number of positions; None: as in generation_config.json,
            else the model's own limit.
        batch: the maximum number of rows; a session has one row unless it requests
            more. Above 1, methods also take row lengths. None: 1, or 64 for a model
            without a cache.
        dtype: "float32", "float16" or "int8"; None: as in the recipe.
        slack: number of extra slots in the rings of sliding-window layers. With more
            slots a session can rewind further, and calls can have more tokens.
        encoder_length: the maximum number of encoder positions; None: the model's
            limit.
        window: the number of last positions that a query attends to, in layers in which
            it would attend to more; each of these layers has a ring. Keys stay as they
            were written, rotated by their positions in the text. Texts have no maximum
            length then, unless `max_length` is given, or the model looks its positions
            up in a table. None: as in the model.
        keep: the number of first positions that such a query also attends to, at any
            distance (attention sinks; Xiao et al., 2023); only with `window`.
    """

    max_length: int | None = None
    batch: int | None = None
    dtype: str | None = None
    slack: int = 0
    encoder_length: int | None = None
    window: int | None = None
    keep: int = 0

    def __post_init__(self) -> None:
        """Check the numbers among the settings.

        Raises:
            BadModelSetting: a number is not whole, or too small or too large, or `keep`
                is given without `window`.
        """
        if self.max_length is not None:
            _check("CacheConfig", "max_length", self.max_length, LEAST_LENGTH, MAX_DIM)
        if self.batch is not None:
            _check("CacheConfig", "batch", self.batch, 1, MAX_DIM)
        _check("CacheConfig", "slack", self.slack, 0, MAX_DIM)
        if self.encoder_length is not None:
            _check("CacheConfig", "encoder_length", self.encoder_length, 1, MAX_DIM)
        _check("CacheConfig", "keep", self.keep, 0, MAX_DIM)
        if self.window is not None:
            _check("CacheConfig", "window", self.window, 1, MAX_DIM)
        elif self.keep:
            expected = (
                "0 without a window, beside which first positions are kept (window=N, "
                "--window N)"
            )
            raise _bad("CacheConfig", "keep", expected, self.keep)

    @property
    def asked(self) -> Window | None:
        """Return the window that the caller asked for, None for that of the model."""
        return None if self.window is None else Window(self.window, self.keep)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that a model is compiled for.

    Attributes:
        length: the maximum number of positions; the greatest size of a bundle for texts
            of any length.
        batch: the maximum number of rows.
        chunk: the maximum number of tokens in one call of `prefill`.
        spare: the number of slots of a ring in addition to its window.
        heard: the maximum number of encoder positions; 0: there is no encoder.
        asked: the window that the caller asked for; None: that of the model.
    """

    length: int
    batch: int
    chunk: int
    spare: int
    heard: int = 0
    asked: Window | None = None

    @property
    def limit(self) -> int | None:
        """Return the maximum number of positions, None for texts of any length."""
        return None if self.length == MAX_DIM else self.length

    def example_slots(self) -> int:
        """Return the length that caches of variable length have in a trace.

        The longest call must fit into caches of this length.
        """
        return min(self.length, max(_EXAMPLE_LENGTH, self.spare + 1))

    def of_encoder(self) -> "Sizes":
        """Return the sizes of caches of an encoder's result."""
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
    endless: bool = False,
) -> Sizes:
    """Return the sizes to compile for.

    Args:
        cache: the settings of the caller.
        chunk: the maximum number of tokens in one call of `prefill`.
        config: the model's configuration.
        generation: the model's generation settings, as in generation_config.json.
        prefill_sizes: numbers of tokens N for which a method `prefill_N` is compiled.
        first: the position number of a text's first token; lower position numbers are
            not used.
        together: the number of positions of a bidirectional picture, which one call
            must take; 0 for none.
        usual: the default maximum number of positions; None: as in the settings.
        endless: whether a text may have any length.

    Raises:
        BadModelSetting: a number is not sensible, or more than the model's limit.
    """
    limit = most_positions(config, first)
    _check_window(cache, limit)
    if endless:
        limit, generation = None, {"max_cache_len": MAX_DIM}
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
    # When the last token of the longest call is written, the first still sees its
    # window.
    spare = max((chunk, together, *prefill_sizes)) - 1 + cache.slack
    return Sizes(length, cache.batch or 1, chunk, spare, asked=cache.asked)


def _check_window(cache: CacheConfig, limit: int | None) -> None:
    """Check that the model can have as many positions as a query attends to.

    Raises:
        BadModelSetting: it cannot.
    """
    if cache.window is not None and limit is not None:
        seen = cache.window + cache.keep
        if seen > limit:
            expected = f"at most {limit} with those kept, the model's own limit"
            raise _bad("CacheConfig", "window", expected, cache.window)


def encoder_length(
    cache: CacheConfig, config: PreTrainedConfig, only: int | None = None
) -> int:
    """Return the maximum number of positions of a model's encoder.

    Args:
        cache: the settings of the caller.
        config: the model's configuration.
        only: the number of encoder positions if it is fixed; None if it depends on the
            input.

    Raises:
        BadModelSetting: the caller's number exceeds the model's limit, or differs from
            the fixed number.
    """
    if only is not None:
        if cache.encoder_length not in (None, only):
            expected = f"{only}, which the model's encoder always has"
            raise _bad("CacheConfig", "encoder_length", expected, cache.encoder_length)
        return only
    encoder = getattr(config, "encoder", config)  # for a model composed of two
    limit = _limit(
        encoder if isinstance(encoder, PreTrainedConfig) else config, 0, _ENCODER_LIMITS
    )
    heard = cache.encoder_length or limit or _NO_LIMIT
    if limit is not None and heard > limit:
        expected = f"at most {limit}, the limit of the model's encoder"
        raise _bad("CacheConfig", "encoder_length", expected, heard)
    return heard


def text_length(cache: CacheConfig, limit: int, usual: int | None) -> int:
    """Return the maximum number of tokens of a text for a model without a cache.

    Args:
        cache: the settings of the caller.
        limit: the model's own limit, 0 if it has none.
        usual: the folder's setting, None if there is none.

    Raises:
        BadModelSetting: the caller's number exceeds the model's limit.
    """
    if cache.max_length is None:
        length = usual or limit or _NO_LIMIT
        return min(length, limit) if limit else length
    if limit and cache.max_length > limit:
        expected = f"at most {limit}, the model's own limit"
        raise _bad("CacheConfig", "max_length", expected, cache.max_length)
    return cache.max_length


def _check_prefill_sizes(prefill_sizes: Sequence[int], length: int) -> None:
    """Check the numbers of tokens N for which a method `prefill_N` is compiled.

    Raises:
        BadModelSetting: a length does not fit the caches, or is repeated.
    """
    for size in prefill_sizes:
        _check("export_hf", "prefill_sizes", size, 1, length)
    if len(set(prefill_sizes)) < len(prefill_sizes):
        raise _bad("export_hf", "prefill_sizes", "different numbers", prefill_sizes)


def _length(
    cache: CacheConfig, generation: Mapping[str, object], limit: int | None
) -> tuple[int, str]:
    """Return the maximum number of positions, and the name of the number's source."""
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
    """Return the number of positions that a model can have, None if it is unknown."""
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
