"""`Opened`: a model, its generation settings, and the files that belong to it.

In: a model of transformers, or a folder. Out: an `Opened`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from kvc.compiler.hugging_face.encoder.pooling import MEAN, Pooling
from kvc.compiler.hugging_face.folder import check_supported, open_folder
from kvc.compiler.hugging_face.reading.picture_places import PicturePlaces
from kvc.compiler.hugging_face.reading.tasks import Task, task_of
from kvc.schema.errors import CompileError

# What generation settings hold beside settings: whoever wrote them, what is returned
# beside tokens, and the cache, which is decided here.
_LEFT_OUT: Final = (
    "transformers_version", "_from_model_config", "use_cache", "cache_implementation",
    "cache_config", "max_cache_len", "return_dict_in_generate",
)  # fmt: skip
_TOKENS: Final = (
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Opened:
    """What is compiled.

    Attributes:
        model: the model.
        generation: its generation settings, as generation_config.json has them.
        given: the same with what is said of caches.
        files: files for the bundle, by name.
        spectrum: how a speech model hears, None where nothing says it.
        task: what it is to do.
        pooling: how its embeddings are made.
        pictures: how pixels are made of a picture; None where nothing says it.
        places: where pictures go in prompts; None where nothing says it.
    """

    model: PreTrainedModel
    generation: Mapping[str, object]
    given: Mapping[str, object]
    files: Mapping[str, Path] = field(default_factory=dict)
    spectrum: Mapping[str, int] | None = None
    task: Task = "generate"
    pooling: Pooling = MEAN
    pictures: Mapping[str, object] | None = None
    places: PicturePlaces | None = None


def open_model(
    model: object, asked: Task | None = None, with_pictures: bool = True
) -> Opened:
    """Return a model, or what is in a folder.

    Args:
        model: the model, or the path of a folder.
        asked: what it is to do; None: as the folder says, or the model's class.
        with_pictures: as of `open_folder`.

    Raises:
        CompileError: it is neither.
        UnsupportedModel: it has no plain weights.
        BadModelSetting: the model does something else than is asked.
        BadModelFolder, CheckpointError, UnknownTask: as `open_folder`.
    """
    if isinstance(model, str | os.PathLike):
        folder = open_folder(model, asked, with_pictures)
        found = _settings(folder.model.config, folder.generation)
        return Opened(
            folder.model, found, folder.generation, folder.files, folder.spectrum,
            folder.task, folder.pooling, folder.pictures, folder.places,
        )  # fmt: skip
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        expected = "a model of transformers, or the path of its folder"
        raise CompileError(message=f"export_hf: expected {expected}, found {kind}")
    check_supported(model.config, type(model).__name__)
    task = task_of(model, asked)
    generation: object = getattr(model, "generation_config", None)
    given = dict[str, object]()
    if task == "generate" and isinstance(generation, GenerationConfig):
        given = generation.to_diff_dict()
    return Opened(model, _settings(model.config, given), given, task=task)


def _settings(
    config: PreTrainedConfig, given: Mapping[str, object]
) -> dict[str, object]:
    """Return generation settings; the config may name tokens that they do not."""
    configs = config, config.get_text_config()
    named = [(name, getattr(one, name, None)) for one in configs for name in _TOKENS]
    settings = {name: found for name, found in named if found is not None}
    kept = {
        name: found
        for name, found in given.items()
        if found is not None and name not in _LEFT_OUT and "output_" not in name
    }
    return settings | kept
