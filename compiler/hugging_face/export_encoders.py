"""Compile a model without a cache: from an `Opened` to a bundle.

Opened --read_model--> Encoders --methods_of--> methods --compile_program--> Bundle
"""

from collections.abc import Sequence

from transformers import PreTrainedConfig

from kvc.compiler.emit.bundle import Bundle
from kvc.compiler.emit.files import TOKENIZER
from kvc.compiler.hugging_face.attention.rotary import (
    held_still,
    longest_short,
    warn_of_frequencies,
)
from kvc.compiler.hugging_face.encoder.encoding_methods import (
    Encoders,
    EncoderSpec,
    methods_of,
    read_model,
)
from kvc.compiler.hugging_face.opened import Opened
from kvc.compiler.hugging_face.pictures.sized_pictures import as_products
from kvc.compiler.hugging_face.reading.left_out import PICTURES, warn_of_left_out
from kvc.compiler.hugging_face.reading.model_code import traced_code
from kvc.compiler.hugging_face.reading.picture_settings import size_of
from kvc.compiler.hugging_face.reading.settings import (
    PREFILL_CHUNK,
    CacheConfig,
    text_length,
)
from kvc.compiler.hugging_face.reading.tasks import Task
from kvc.compiler.hugging_face.replacing import using_kvc
from kvc.compiler.lower.calibration import Calibrator
from kvc.compiler.pipeline import compile_program
from kvc.compiler.trace import Unchanged
from kvc.recipes import Wanted
from kvc.schema.container import Progress
from kvc.schema.errors import BadModelSetting

_ROWS = 64  # default maximum of a call; rows take memory only when used


def export_encoders(
    opened: Opened,
    recipe: Wanted,
    asked: CacheConfig,
    progress: Progress | None,
    calibrate: Calibrator | None,
    fit: int | None,
) -> Bundle:
    """Compile a model without a cache.

    Raises:
        UnsupportedModel: kvc cannot express the model's computation.
        BadModelSetting: the requested text length exceeds the model's.
        CompileError: as `compile_program`.
    """
    model = opened.model
    with Unchanged(model), using_kvc(model), as_products(model):
        with held_still(model, 1):
            reading = read_model(model, opened.task, size_of(opened.pictures))
        warn_of_left_out(model, {PICTURES} if reading.pictures else set())
        if reading.texts:
            usual = _least(opened.pooling.longest, longest_short(model))
            reading = reading.of_length(text_length(asked, reading.length, usual))
            warn_of_frequencies(model, reading.length, asked.max_length)
        with held_still(model, reading.length), traced_code(model):
            return compile_program(
                Encoders(model, reading, opened.pooling),
                methods_of(reading, asked.batch or _ROWS),
                recipe=recipe,
                metadata=_metadata(opened, reading),
                progress=progress,
                files=opened.files,
                calibrate=calibrate,
                fit=fit,
            )


def _least(*numbers: int | None) -> int | None:
    """Return the least of the numbers that are not None; None if all are None."""
    return min((one for one in numbers if one is not None), default=None)


def check_unused(
    task: Task,
    asked: CacheConfig,
    prefill_chunk: int,
    prefill_sizes: Sequence[int],
    all_logits: bool,
    inputs_embeds: bool,
    pictures: bool,
) -> None:
    """Check that the caller gave no setting that only a model with a cache has.

    Raises:
        BadModelSetting: a setting needs a cache.
    """
    usual = CacheConfig()
    given: dict[str, object] = {
        name: getattr(asked, name)
        for name in ("dtype", "slack", "encoder_length", "window", "keep")
        if getattr(asked, name) != getattr(usual, name)
    }
    if prefill_chunk != PREFILL_CHUNK:
        given["prefill_chunk"] = prefill_chunk
    others = {
        "prefill_sizes": tuple(prefill_sizes),
        "all_logits": all_logits,
        "inputs_embeds": inputs_embeds,
    }
    given |= {name: value for name, value in others.items() if value}
    if not pictures:
        given["pictures"] = pictures
    for name, value in given.items():
        expected = f"nothing, as a model for the task {task} has no cache"
        raise BadModelSetting(
            place="export_hf", setting=name, expected=expected, found=repr(value)
        )


def _labels_of(config: PreTrainedConfig) -> Sequence[tuple[int, str]]:
    """Return (number, name) of each label of a classifier."""
    named = config.id2label or {}
    return [(int(number), str(name)) for number, name in named.items()]


def _scores(config: PreTrainedConfig) -> str:
    """Return the name of the function that turns a classifier's logits into scores.

    The function is the same as in transformers' pipelines.
    """
    kind = getattr(config, "problem_type", None)
    if kind == "regression":
        return "none"
    several = kind != "multi_label_classification" and len(_labels_of(config)) > 1
    return "softmax" if several else "sigmoid"


def _metadata(opened: Opened, reading: EncoderSpec) -> dict[str, object]:
    config, pooling = opened.model.config, opened.pooling
    metadata: dict[str, object] = {
        "architecture": config.model_type,
        "task": opened.task,
    }
    if TOKENIZER in opened.files:
        metadata["tokenizer"] = TOKENIZER
    if reading.texts:
        metadata["texts"] = {
            "method": reading.texts,
            "padding": reading.padding,
            "prompts": dict(pooling.prompts),
            "prompt": pooling.prompt,
            "lower": pooling.lower,
        }
    if reading.pictures:
        metadata["pictures"] = {"method": reading.pictures, **(opened.pictures or {})}
    if reading.pools:
        metadata["pooling"] = {
            "ways": list(pooling.ways),
            "normalized": pooling.normalized,
            "stated": pooling.stated,
        }
    if opened.task in ("classify", "classify_tokens"):
        metadata["labels"] = [name for _, name in sorted(_labels_of(config))]
        metadata["scores"] = _scores(config)
    return metadata
