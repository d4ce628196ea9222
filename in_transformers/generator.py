"""`Generator`: a bundle that transformers' `generate` drives.

In: an `ExportedModel` of a model with a cache. Out: logits, for `GenerationMixin`. All
that it does works: sampling, beams, processors, streamers, assistants. The cache is a
`KvcCache`.
"""

import copy
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, cast

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.exporters.base import ExportedModel

from kvc.runtime import BadSetting, Program, SettingIgnored
from kvc.transformers.cache import Beside, KvcCache, Mask
from kvc.transformers.interface import Interface, interface_of
from kvc.transformers.opening import Path, exported_of, opened

_CACHE_SETTINGS: Final = ("cache_implementation", "cache_config", "max_cache_len")
_UNKNOWN: Final = ("output_attentions", "output_hidden_states")


class Generator(GenerationMixin):
    """A bundle in the place of a model of transformers that generates text.

    Attributes:
        exported: the export that it runs.
        program: the loaded bundle.
        config: the configuration of the model.
        generation_config: the settings of `generate` where a call gives none.
    """

    main_input_name = "input_ids"
    base_model_prefix = ""
    input_modalities: "tuple[str, ...]" = ("text",)
    output_modalities = ("text",)
    device = torch.device("cpu")
    _is_stateful = False

    def __init__(self, source: ExportedModel | Program) -> None:
        """Take an export with a cache, as `KvcExporter` makes it, or a loaded bundle.

        Raises:
            BadSetting: the export has no runner of kvc, or is of another kind.
            UnknownName: the export does not generate text.
        """
        self.program = _program_of(source)
        self.exported: ExportedModel = (
            source if isinstance(source, ExportedModel) else exported_of(self.program)
        )
        methods = self.program.methods.values()
        self._interface = interface_of(methods, self.program.metadata)
        self._check(self._interface)
        self.config: Any = self.exported.config
        settings = self.exported.generation_config or _no_settings()
        self.generation_config, _ = _without_caches(settings)
        with self.program.session() as session:
            self._capacity = session.capacity

    @classmethod
    def from_pretrained(
        cls, source: Path, *, recipe: object = None, **options: object
    ) -> Self:
        """Open a bundle, or a folder with one; compile a folder without.

        Args:
            source: the path of a bundle; of a folder that `save_pretrained` wrote; or
                of a folder of transformers, which is compiled. Or the name of such a
                folder on the Hub.
            recipe: the recipe to compile by, a name or a `KvcConfig`. None: `cpu_q8`,
                and for a bundle what it was compiled by.
            options: options of the runner (`threads`, `mode`), or of a download from
                the Hub (`revision`, `token`, `cache_dir`).

        Raises:
            BadModelFolder: the folder has no model, or a damaged export.
            BadModelSetting: a recipe is given for a bundle.
            TypeError: an option is unknown.
            CompileError: as `export_hf`.
            LoadError, FormatError: as `kvc.runtime.load`.
        """
        return cls(opened(source, recipe, options))

    def save_pretrained(self, folder: Path, **options: Any) -> None:  # noqa: ANN401
        """Write bundle and configuration into a folder; see `ExportedModel`."""
        self.exported.save_pretrained(os.fspath(folder), **options)

    @classmethod
    def _check(cls, interface: Interface) -> None:
        """Check that this class is the one for a bundle.

        Raises:
            BadSetting: it is not.
        """

    @property
    def dtype(self) -> torch.dtype:
        """Return float32, the dtype of logits."""
        return torch.float32

    def generate(  # type: ignore[override]  # the others are in `settings`
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        **settings: Any,  # noqa: ANN401  all that transformers knows
    ) -> Any:  # noqa: ANN401
        """Generate tokens; see `GenerationMixin.generate`.

        Warns:
            SettingIgnored: settings of caches are given, which sessions do not take.
        """
        given = {name for name in _CACHE_SETTINGS if settings.pop(name, None)}
        if settings.get("use_cache") is False:
            given.add("use_cache")
            del settings["use_cache"]
        if generation_config is not None:
            generation_config, more = _without_caches(generation_config)
            given |= more
        _warn_of(given)
        whole: Any = super()  # which asks for a PreTrainedModel
        return whole.generate(inputs, generation_config, **settings)

    def new_cache(self) -> KvcCache:
        """Return an empty cache."""
        return KvcCache(self.program)

    def run(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        cache: object,
        keep: int | Tensor,
        beside: Beside,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, KvcCache]:
        """Run new tokens of each row.

        Args:
            tokens: int64 [rows, n].
            mask: [rows, columns] for all columns or the new ones; None shows all.
            cache: the cache before; None for an empty one.
            keep: of how many last columns to return logits, 0 for all.
            beside: what rows have beside tokens, in a first call.
            positions: [rows, n], which are checked; None for those that kvc counts.

        Returns:
            The logits, float32 [rows, n or keep, vocab], and the cache.

        Raises:
            BadSetting: an argument does not fit the others, or the bundle.
            ExecutionError: as `Session.call`.
        """
        held = self._own(cache) or self.new_cache()
        rows, count = tokens.shape
        wanted = _count_of(keep)
        wanted = count if wanted == 0 else min(wanted, count)
        shown = _shown(mask, rows, held.get_seq_length(), count)
        if positions is not None:
            _check_positions(positions, shown[:, shown.shape[1] - count :], shown)
        found = held.feed(tokens.numpy(), shown, wanted, beside)
        return torch.from_numpy(found), held

    def _own(self, cache: object) -> KvcCache | None:
        """Return a cache of this program; None for none.

        Raises:
            BadSetting: it is of another program, or of transformers.
        """
        if cache is None:
            return None
        if not isinstance(cache, KvcCache) or cache.program is not self.program:
            expected = "a KvcCache of this program, or None"
            raise BadSetting(
                name="past_key_values", expected=expected, found=type(cache).__name__
            )
        return cache

    def _prepare_cache_for_generation(  # type: ignore[override]  # None there, too
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, object],
        generation_mode: object,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """Let `generate` use a `KvcCache`; transformers calls this.

        Raises:
            BadSetting: attentions or hidden states are asked for.

        Warns:
            SettingIgnored: another cache is given, or the length exceeds the capacity.
        """
        for name in _UNKNOWN:
            if getattr(generation_config, name):
                expected = "False: a bundle returns logits alone"
                raise BadSetting(name=name, expected=expected, found=True)
        given = model_kwargs.get("past_key_values")
        if not isinstance(given, KvcCache):
            if given is not None:
                _warn_of({"past_key_values"})
            given = self.new_cache()
        else:
            given._is_user_defined = True
        model_kwargs["past_key_values"] = self._own(given)
        if generation_config.is_assistant:
            given.activate_past_recording()
        self._limit(generation_config, max_cache_length)

    def _prepare_position_ids_for_generation(self, *_: object) -> None:
        """Let sessions count positions; transformers calls this."""

    def _limit(self, generation_config: GenerationConfig, needed: int) -> None:
        """Lower the length of a text to what sessions hold."""
        if self._capacity is None or needed <= self._capacity:
            return
        generation_config.max_length = self._capacity + 1  # the last one does not run
        warnings.warn(
            f"max_length is lowered to {self._capacity + 1}, as the bundle was "
            f"compiled for {self._capacity} positions (KvcConfig(max_length=))",
            SettingIgnored,
            stacklevel=4,
        )

    def __call__(self, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run the forward."""
        return self.forward(**kwargs)

    forward: Callable[..., Any]  # runs new tokens, returns their logits

    def to(self, device: object) -> Self:
        """Return this, for the processor.

        Raises:
            BadSetting: another device is asked for.
        """
        if torch.device(cast(str, device)).type != "cpu":
            expected = "cpu: a bundle runs where its recipe says"
            raise BadSetting(name="device", expected=expected, found=f"{device}")
        return self

    def eval(self) -> Self:
        """Return this: a bundle is never trained."""
        return self

    @classmethod
    def can_generate(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def is_remote_code(cls) -> bool:
        """Return False."""
        return False

    @property
    def name_or_path(self) -> str:
        """Return the path of the bundle."""
        return self.program.path

    def get_experts_implementation(self) -> dict[str, str]:
        """Return nothing: experts are compiled."""
        return {}


def _no_settings() -> GenerationConfig:
    made: GenerationConfig = GenerationConfig.from_dict({})
    return made


def _program_of(exported: object) -> Program:
    """Return the loaded bundle of an export, or the bundle that is given.

    Raises:
        BadSetting: it is no export to kvc.
    """
    if isinstance(exported, Program):
        return exported
    if isinstance(exported, ExportedModel):
        programs = [getattr(one, "program", None) for one in exported.runners.values()]
        if len(programs) == 1 and isinstance(programs[0], Program):
            return programs[0]
    expected = "an export to kvc, or a loaded bundle"
    raise BadSetting(name="source", expected=expected, found=f"{exported!r}")


def _without_caches(
    config: GenerationConfig,
) -> tuple[GenerationConfig, set[str]]:
    """Return settings without those of caches, and the names of the latter."""
    given = {name for name in _CACHE_SETTINGS if getattr(config, name, None)}
    if config.use_cache is False:
        given.add("use_cache")
    if not given:
        return config, given
    config = copy.deepcopy(config)
    for name in _CACHE_SETTINGS:
        setattr(config, name, None)
    config.use_cache = True
    return config, given


def _warn_of(names: set[str]) -> None:
    if names:
        listed = ", ".join(sorted(names))
        message = f"{listed}: ignored, since sessions of kvc own the cache"
        warnings.warn(message, SettingIgnored, stacklevel=4)


def _count_of(keep: int | Tensor) -> int:
    """Return `logits_to_keep` as a number.

    Raises:
        BadSetting: it lists places.
    """
    if (isinstance(keep, Tensor) and keep.dim()) or int(keep) < 0:
        expected = "a number of last tokens, 0 for all"
        raise BadSetting(name="logits_to_keep", expected=expected, found=f"{keep}")
    return int(keep)


def _shown(mask: Tensor | None, rows: int, past: int, new: int) -> Mask:
    """Return which columns each row sees, bool [rows, past + new].

    Raises:
        BadSetting: the mask has another shape.
    """
    if mask is None:
        return np.ones((rows, past + new), np.bool_)
    if mask.shape != (rows, past + new):
        expected = f"[{rows}, {past + new}], cached columns and new ones"
        raise BadSetting(
            name="attention_mask", expected=expected, found=f"{list(mask.shape)}"
        )
    return mask.numpy().astype(np.bool_)


def _check_positions(positions: Tensor, new: Mask, shown: Mask) -> None:
    """Check that positions are those that kvc counts.

    Raises:
        BadSetting: they are not.
    """
    counted = (np.cumsum(shown, axis=1) - 1)[:, shown.shape[1] - new.shape[1] :]
    given = positions.numpy()
    fits = given.ndim == 2 and given.shape[1] == new.shape[1]
    if not fits or ((given != counted) & new).any():
        expected = "none, or the numbers of the tokens that are not hidden, from 0 on"
        raise BadSetting(name="position_ids", expected=expected, found=f"{given}")


def rows_of(given: Tensor, mask: Tensor | None) -> Sequence[np.ndarray[Any, Any]]:
    """Return the input of each row's encoder, without padding."""
    rows = [row.numpy() for row in given]
    if mask is None or given.is_floating_point():
        return rows
    pairs = zip(rows, mask.numpy().astype(np.bool_), strict=True)
    return [row[shown] for row, shown in pairs]
