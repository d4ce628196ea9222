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
from kvc.compiler.hugging_face.folder import open_folder
from kvc.compiler.hugging_face.gguf_model import holds_gguf, open_gguf
from kvc.compiler.hugging_face.reading.picture_places import PicturePlaces
from kvc.compiler.hugging_face.reading.tasks import Task, task_of
from kvc.schema.errors import CompileError, UnsupportedModel

# Entries of a generation config that are no settings for kvc: its origin, results
# beside tokens, and the cache, which the compiler decides.
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
    """A model to compile, with its settings and files.

    Attributes:
        model: the model.
        generation: the model's generation settings, as in generation_config.json.
        given: the generation settings, including the settings of caches, which are not
            in `generation`.
        files: files for the bundle by name, each its path or its content.
        spectrum: the spectrum settings of a speech model; None if unknown.
        task: the model's task.
        pooling: the pooling of the model's embeddings.
        pictures: the settings that convert pictures to pixels; None if unknown.
        places: the placeholders of pictures in prompts; None if unknown.
    """

    model: PreTrainedModel
    generation: Mapping[str, object]
    given: Mapping[str, object]
    files: Mapping[str, Path | bytes] = field(default_factory=dict)
    spectrum: Mapping[str, int] | None = None
    task: Task = "generate"
    pooling: Pooling = MEAN
    pictures: Mapping[str, object] | None = None
    places: PicturePlaces | None = None


def open_model(
    model: object, asked: Task | None = None, with_pictures: bool = True
) -> Opened:
    """Open a model, or a folder with a model.

    Args:
        model: the model, or the path of a folder.
        asked: the requested task; None: as in the folder, or by the model's class.
        with_pictures: as for `open_folder`.

    Raises:
        CompileError: `model` is neither a model nor a path.
        UnsupportedModel: the weights are quantized.
        BadModelSetting: the model is for another task than requested.
        BadModelFolder, CheckpointError, UnknownTask: as `open_folder`.
    """
    if isinstance(model, str | os.PathLike):
        folder = (
            open_gguf(model, asked)
            if holds_gguf(model)
            else open_folder(model, asked, with_pictures)
        )
        found = _settings(folder.model.config, folder.generation)
        return Opened(
            folder.model, found, folder.generation, folder.files, folder.spectrum,
            folder.task, folder.pooling, folder.pictures, folder.places,
        )  # fmt: skip
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        expected = "a model of transformers, or the path of its folder"
        raise CompileError(message=f"export_hf: expected {expected}, found {kind}")
    if getattr(model.config, "quantization_config", None):
        reason = "its weights are quantized; give the path of its folder or file"
        raise UnsupportedModel(model=type(model).__name__, reason=reason)
    task = task_of(model, asked)
    generation: object = getattr(model, "generation_config", None)
    given = dict[str, object]()
    if task == "generate" and isinstance(generation, GenerationConfig):
        given = generation.to_diff_dict()
    return Opened(model, _settings(model.config, given), given, task=task)


def _settings(
    config: PreTrainedConfig, given: Mapping[str, object]
) -> dict[str, object]:
    """Return generation settings, completed with token ids that only `config` has."""
    configs = config, config.get_text_config()
    named = [(name, getattr(one, name, None)) for one in configs for name in _TOKENS]
    settings = {name: found for name, found in named if found is not None}
    kept = {
        name: found
        for name, found in given.items()
        if found is not None and name not in _LEFT_OUT and "output_" not in name
    }
    return settings | kept
