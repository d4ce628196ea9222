"""Open a model's folder: config.json, weights, generation settings, tokenizer files.

In: the path of a folder. Out: a `ModelFolder`, whose model has parameters without
memory; each parameter has the location of its values in the folder. No code of the
folder is run, and nothing is downloaded.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.chat_template_utils import (
    _compile_jinja_template as compile_template,
)

from kvc.compiler.checkpoints import Checkpoint, empty_parameters
from kvc.compiler.checkpoints.quantized import unpack
from kvc.compiler.emit.files import TOKENIZER, check_tokenizer
from kvc.compiler.hugging_face.encoder.encoder_inputs import encodes_pictures
from kvc.compiler.hugging_face.encoder.pooling import (
    MEAN,
    MODULES,
    Pooling,
    read_pooling,
)
from kvc.compiler.hugging_face.reading.headless import POOLER, has_pooler, unused
from kvc.compiler.hugging_face.reading.model_lines import line_of, words_of
from kvc.compiler.hugging_face.reading.picture_places import PicturePlaces, read_places
from kvc.compiler.hugging_face.reading.picture_settings import (
    OTHERWISE,
    read_pictures,
    takes_pictures,
)
from kvc.compiler.hugging_face.reading.preprocessor_files import read_json, spectrum_in
from kvc.compiler.hugging_face.reading.tasks import (
    Task,
    class_of,
    config_of,
    find_task,
    has_head,
    maker_of,
)
from kvc.compiler.hugging_face.reading.tokenizer_files import converted
from kvc.compiler.hugging_face.reading.weights import load_matched, match
from kvc.compiler.hugging_face.reading.zero_biases import without_zero_biases
from kvc.schema.checkpoints.hub_names import why_not_fetched
from kvc.schema.checkpoints.quantization import check_method
from kvc.schema.errors import (
    BadModelFolder,
    BadSetting,
    UnsupportedModel,
    reason_of,
)
from kvc.schema.generation_config import read_settings

CONFIG: Final = "config.json"
ADAPTER: Final = "adapter_config.json"
GENERATION: Final = "generation_config.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
PROCESSOR: Final = "processor_config.json"
PREPROCESSOR: Final = "preprocessor_config.json"
TEMPLATE: Final = "chat_template.jinja"
PROCESSOR_TEMPLATE: Final = "chat_template.json"  # the file of older processors
TOKENIZER_FILES: Final = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    TEMPLATE,
    PROCESSOR_TEMPLATE,
)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The content of a model's folder.

    Attributes:
        model: the float32 model, whose parameters are empty.
        generation: the content of generation_config.json, {} if there is no such file.
        files: the tokenizer's files by name, each its path or its content.
        spectrum: the spectrum settings of a speech model; None without such settings.
        task: the model's task.
        pooling: the pooling of the model's embeddings.
        pictures: the settings that convert pictures to pixels; None without such
            settings.
        places: the placeholders of pictures in prompts; None without placeholders.
    """

    model: PreTrainedModel
    generation: Mapping[str, object]
    files: Mapping[str, Path | bytes]
    spectrum: Mapping[str, int] | None = None
    task: Task = "generate"
    pooling: Pooling = MEAN
    pictures: Mapping[str, object] | None = None
    places: PicturePlaces | None = None


def open_folder(
    path: str | os.PathLike[str], asked: Task | None = None, with_pictures: bool = True
) -> ModelFolder:
    """Open a model's folder; only headers of weight files are read.

    Args:
        path: path of the folder.
        asked: the requested task; None: as in the folder.
        with_pictures: whether the model shall take pictures, if it can.

    Raises:
        BadModelFolder: a file is missing, damaged, or does not fit the other files.
        UnsupportedModel: transformers has no such model for the task; or the model
            needs code from the folder; or the folder has an adapter; or the weights are
            quantized in a way that kvc does not read.
        UnknownTask: the task is unknown.
        CheckpointError: weights are missing, pickled, damaged, or not of this model.
        TokenizerTooLarge: the tokenizer has tokens that the model does not have.
    """
    folder = Path(path)
    if not folder.is_dir():
        is_file = "it is a file; give the folder that it lies in"
        raise _bad(folder, is_file if folder.exists() else why_not_fetched(str(path)))
    _check_no_adapter(folder)
    described = read_json(folder, CONFIG)
    check_method(described, str(folder))
    generation = read_json(folder, GENERATION) if _has(folder, GENERATION) else {}
    _check_generation(folder, generation)
    config = _config(folder, described)
    there = {name: folder / name for name in TOKENIZER_FILES if _has(folder, name)}
    files: dict[str, Path | bytes] = {**there}
    if TOKENIZER not in files:
        files |= converted(folder)
    _check_files(folder, files, config)
    spectrum = None
    for name in (PROCESSOR, PREPROCESSOR):
        if _has(folder, name):
            spectrum = spectrum_in(folder, name, read_json(folder, name)) or spectrum
    checkpoint = Checkpoint(folder)
    task = asked or _task(config, folder)
    pooling = read_pooling(folder) if task == "embed" else MEAN
    model = build_model(config, folder, task)
    headless = task == "embed" and has_head(config)
    tensors = unpack(described, checkpoint.tensors, str(folder))
    left_out = unused(model, tensors, headless) if task == "embed" else ()
    given = {n: t for n, t in tensors.items() if n not in left_out}
    matched = without_zero_biases(model, match(model, given))
    load_matched(model, checkpoint.path, matched)
    pictures = places = None
    if with_pictures and takes_pictures(model):
        in_prompts = task == "generate" and not encodes_pictures(model)
        expands = in_prompts and TOKENIZER in files
        pictures, places = _read_pictures(folder, in_prompts, expands)
    return ModelFolder(
        model, generation, files, spectrum, task, pooling, pictures, places
    )


def _read_pictures(
    folder: Path, in_prompts: bool, expands: bool
) -> tuple[Mapping[str, object] | None, PicturePlaces | None]:
    """Return the settings that convert pictures to pixels, and the placeholders.

    The placeholders are those of pictures in prompts.

    Args:
        folder: the model's folder, with the settings of the processor.
        in_prompts: whether pictures are optional parts of prompts.
        expands: whether texts have placeholders for pictures.

    Raises:
        UnsupportedModel: kvc would make other pixels, or other prompts.
        BadModelFolder, MissingPackage: as for `read_pictures` and `read_places`.
    """
    try:
        pictures = read_pictures(folder)
        if not in_prompts and "parts" in (pictures or {}):
            reason = "its pictures are split into parts, which only prompts have"
            raise UnsupportedModel(model=str(folder), reason=reason)
        if pictures is None or not expands:
            return pictures, None
        return pictures, read_places(folder, pictures)
    except UnsupportedModel as error:
        reason = error.reason + (OTHERWISE if in_prompts else "")
        raise UnsupportedModel(model=error.model, reason=reason) from error


def _task(config: PreTrainedConfig, folder: Path) -> Task:
    """Return a model's task; for a folder with modules.json, the task is to embed.

    Raises:
        UnknownTask: the task is unknown.
    """
    return "embed" if _has(folder, MODULES) else find_task(config, str(folder))


def _check_no_adapter(folder: Path) -> None:
    """Check that the folder has no adapter, since kvc would ignore it.

    Raises:
        UnsupportedModel: the folder has an adapter.
        BadModelFolder: the adapter's configuration cannot be read.
    """
    if not _has(folder, ADAPTER):
        return
    described = read_json(folder, ADAPTER)
    kind, base = described.get("peft_type"), described.get("base_model_name_or_path")
    where = "beside the weights" if _has(folder, CONFIG) else "and no model"
    reason = (
        f"it has an adapter ({ADAPTER}: {kind} of {base}) {where}, and kvc applies "
        "none yet; merge it into its model first (peft: merge_and_unload, "
        f"save_pretrained), or, for the model without it, remove {ADAPTER}"
    )
    raise UnsupportedModel(model=str(folder), reason=reason)


def _has(folder: Path, name: str) -> bool:
    return (folder / name).exists()


def _config(folder: Path, described: Mapping[str, object]) -> PreTrainedConfig:
    """Return the configuration of a model that kvc supports.

    Raises:
        BadModelFolder: config.json has impossible values, or no model_type.
        UnsupportedModel: the model needs code of its own, or is unknown to
            transformers.
    """
    kind = described.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise _unsupported(folder, kind, described)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise _bad(folder, f"{CONFIG}: {words_of(error)}") from error
    for part in (config, config.get_text_config()):  # the weights become plain
        if hasattr(part, "quantization_config"):
            del part.quantization_config
    return config


def _unsupported(
    folder: Path, kind: object, described: Mapping[str, object]
) -> BadModelFolder | UnsupportedModel:
    if kind is None:
        return BadModelFolder(path=str(folder), reason=f"{CONFIG} has no model_type")
    if "auto_map" in described:
        reason = (
            f"its model_type {kind!r} needs code from the folder (auto_map), which kvc "
            "never runs"
        )
    else:
        reason = f"transformers has no model_type {kind!r}"
    return UnsupportedModel(model=str(folder), reason=reason)


def build_model(config: PreTrainedConfig, folder: Path, task: Task) -> PreTrainedModel:
    """Return the model, float32, without memory for its parameters.

    Raises:
        UnsupportedModel: transformers has no model of this kind for the task.
        BadModelFolder: the configuration has impossible values.
    """
    maker = maker_of(task, config)
    if maker is None:
        reason = f"transformers has no model {config.model_type!r} for the task {task}"
        if task == "generate":
            reason = f"transformers has no causal language model {config.model_type!r}"
        if task == "generate" and config.is_encoder_decoder:
            reason = (
                f"it has an encoder and a decoder, and transformers has no model "
                f"{config.model_type!r} of both that makes text"
            )
        raise UnsupportedModel(model=str(folder), reason=reason)
    kind = class_of(maker, config)
    without = {POOLER: False} if task == "embed" and has_pooler(kind) else {}
    try:
        with empty_parameters():
            model: PreTrainedModel = kind._from_config(  # type: ignore[no-untyped-call]
                config_of(kind, config), dtype=torch.float32, **without
            )
    except Exception as error:
        reason = f"{CONFIG} makes no model: {line_of(error)} fails ({words_of(error)})"
        raise _bad(folder, reason) from error
    model.train(False)
    return model


def _check_generation(folder: Path, found: Mapping[str, object]) -> None:
    """Check that generation settings are valid.

    Raises:
        BadModelFolder: a setting is invalid.
    """
    try:
        read_settings(found)
    except BadSetting as error:
        raise _bad(folder, f"{GENERATION}: {error}") from error


def _check_files(
    folder: Path, files: Mapping[str, Path | bytes], config: PreTrainedConfig
) -> None:
    """Check that a tokenizer's files are intact, and that the tokenizer fits the model.

    Raises:
        BadModelFolder: a file is damaged.
        BadFile: the tokenizer file is not a tokenizer.
        TokenizerTooLarge: the tokenizer makes tokens outside of the model's vocabulary.
    """
    for name in files:
        if name.endswith(".json") and _has(folder, name):
            read_json(folder, name)
    if TOKENIZER in files:
        check_tokenizer(files[TOKENIZER], config.get_text_config().vocab_size)
    if TEMPLATE in files:
        _check_template(folder, TEMPLATE, _read_text(folder, TEMPLATE))
        return
    named = (name for name in (PROCESSOR_TEMPLATE, TOKENIZER_CONFIG) if name in files)
    for name in named:
        found = read_json(folder, name).get("chat_template")
        listed = found if isinstance(found, list) else [{"template": found}]
        texts = [one.get("template") for one in listed if isinstance(one, dict)]
        for text in [text for text in texts if isinstance(text, str)]:
            _check_template(folder, name, text)


def _read_text(folder: Path, name: str) -> str:
    """Return the content of a text file.

    Raises:
        BadModelFolder: the file cannot be read, or is not UTF-8.
    """
    try:
        return (folder / name).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(folder, f"{name} is not UTF-8: {error}") from error
    except OSError as error:
        raise _bad(folder, f"cannot read {name}: {reason_of(error)}") from error


def _check_template(folder: Path, name: str, text: str) -> None:
    """Check that transformers accepts a chat template, without running the template.

    Raises:
        BadModelFolder: the template has an error.
    """
    try:
        compile_template(text)
    except ImportError:  # templates cannot be checked without jinja2
        return
    except Exception as error:  # any error of parsing, such as too deep nesting
        raise _bad(folder, f"the chat template in {name}: {words_of(error)}") from error


def _bad(folder: Path, reason: str) -> BadModelFolder:
    return BadModelFolder(path=str(folder), reason=reason)
