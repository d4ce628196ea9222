"""`KvcConfig`: what to compile a model of transformers for, checked when it is made.

In: a recipe, sizes of caches, methods. Out: the arguments of `export_hf`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from transformers.exporters.configs import ExportConfigMixin

from kvc.compiler.hugging_face import PREFILL_CHUNK, CacheConfig
from kvc.recipes import Wanted, load_recipes
from kvc.schema.errors import BadModelSetting, meant

FORMAT: Final = "kvc"
_PLACE: Final = "KvcConfig"
_SWITCHES: Final = ("all_logits", "inputs_embeds", "pictures", "dynamic")


@dataclass
class KvcConfig(ExportConfigMixin):
    """Settings of an export to kvc.

    Attributes:
        export_format: always "kvc".
        recipe: how numbers are stored and where they are computed: the name of a
            recipe, the path of a recipe file, or a list of these.
        max_length: the maximum number of positions of a session; None: as in the
            model's generation settings, else the model's own limit. For a forward
            without a cache, the maximum length of a text.
        batch: the maximum number of rows that run in one call; None: 1, or 64 for a
            forward without a cache. Generation takes more rows, one after the other.
        cache_dtype: "float32", "float16" or "int8"; None: as in the recipe.
        slack: extra slots in the rings of sliding-window layers.
        encoder_length: the maximum number of positions of an encoder.
        prefill_chunk: the maximum number of tokens in a call of `prefill`.
        prefill_sizes: numbers of tokens N for which to compile a method `prefill_N`.
        all_logits: whether to compile the method that returns the logits of every
            position. Without it they are computed token by token.
        inputs_embeds: whether generation takes embeddings in place of tokens.
        pictures: whether a model that reads texts and pictures takes pictures.
        fit: the most bytes of the bundle; of several recipes the first that fits.
        dynamic: for a forward without a cache, whether rows and tokens may vary.
        quantizer: always None, since recipes quantize.

    Raises:
        BadModelSetting: a setting has an impossible value.
        RecipeError: the recipe is unknown or wrong, or does not support such caches.
    """

    export_format: str = FORMAT
    recipe: Wanted = "cpu_q8"
    max_length: int | None = None
    batch: int | None = None
    cache_dtype: str | None = None
    slack: int = 0
    encoder_length: int | None = None
    prefill_chunk: int = PREFILL_CHUNK
    prefill_sizes: Sequence[int] = ()
    all_logits: bool = True
    inputs_embeds: bool = False
    pictures: bool = True
    fit: int | None = None
    dynamic: bool = True
    quantizer: None = None

    def __post_init__(self) -> None:
        """Check all settings that can be checked without a model."""
        if self.export_format != FORMAT:
            raise _wrong("export_format", f"{FORMAT!r}", self.export_format)
        given: object = self.quantizer
        if given is not None:
            expected = "None, since recipes quantize weights and caches"
            raise _wrong("quantizer", expected, given)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, "True or False", getattr(self, name))
        self.cache()
        load_recipes(self.recipe, self.cache_dtype)

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, object]) -> "KvcConfig":
        """Return the settings in a dict, as `to_dict` returns them.

        Raises:
            BadModelSetting: a name is no setting, or a value is impossible.
        """
        known = [one.name for one in fields(cls)]
        for name in config_dict:
            if name not in known:
                raise _wrong(name, f"no such setting{meant(name, known)}", "one")
        return cls(**config_dict)  # type: ignore[arg-type]  # checked by the class

    def cache(self) -> CacheConfig:
        """Return the sizes of caches.

        Raises:
            BadModelSetting: a size is impossible.
        """
        return CacheConfig(
            max_length=self.max_length,
            batch=self.batch,
            dtype=self.cache_dtype,
            slack=self.slack,
            encoder_length=self.encoder_length,
        )


def _wrong(name: str, expected: str, found: object) -> BadModelSetting:
    return BadModelSetting(
        place=_PLACE, setting=name, expected=expected, found=repr(found)
    )
