"""The task of a model: generate text, or embed or classify a text or picture.

In: a configuration, and the caller's task. Out: a `Task` and the class of transformers
that makes such a model. config.json names a class in `architectures`; transformers' own
lists map classes to tasks, so there is no list of names here.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForSpeechSeq2Seq,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.auto_factory import (
    _BaseAutoModelClass,
    _LazyAutoMapping,
)

from kvc.schema.errors import BadModelSetting, UnknownTask

Task = Literal["generate", "embed", "classify", "classify_tokens", "fill_mask"]
Maker = type[_BaseAutoModelClass]

TASKS: Final[tuple[Task, ...]] = get_args(Task)
MAKERS: Final[Mapping[Task, tuple[Maker, ...]]] = {
    "generate": (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForSeq2SeqLM,
        AutoModelForSpeechSeq2Seq,
    ),
    "embed": (AutoModel,),
    "classify": (AutoModelForSequenceClassification, AutoModelForImageClassification),
    "classify_tokens": (AutoModelForTokenClassification,),
    "fill_mask": (AutoModelForMaskedLM,),
}
# Auto classes of models that contain a model without a head; it can use their weights.
_WITH_HEADS: Final = (
    *(maker for task in TASKS if task != "embed" for maker in MAKERS[task]),
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
)


def check_task(asked: object) -> Task | None:
    """Return the task that a caller requests, None if none is requested.

    Raises:
        BadModelSetting: there is no such task.
    """
    for task in TASKS:
        if asked == task:
            return task
    if asked is None:
        return None
    raise BadModelSetting(
        place="export_hf",
        setting="task",
        expected=f"one of {', '.join(TASKS)}",
        found=repr(asked),
    )


def find_task(config: PreTrainedConfig, model: str) -> Task:
    """Return a model's task, by the class that its configuration names.

    Without a named class, the task is to generate text, if the model can.

    Args:
        config: the configuration.
        model: the model's name, for the error.

    Raises:
        UnknownTask: the task is unknown.
    """
    named = tuple(config.architectures or ())
    found = {task for task in TASKS if any(_makes(task, config, n) for n in named)}
    if "generate" in found:  # BART's class for text is listed as one that fills masks
        return "generate"
    if len(found) == 1:
        return found.pop()
    if not found and _can_generate(config):
        return "generate"
    possible = [task for task in TASKS if maker_of(task, config) is not None]
    raise UnknownTask(
        model=model,
        kind=config.model_type,
        named=", ".join(named) or "no class",
        tasks=tuple(possible),
        possible=", ".join(possible) or "none of these",
    )


def task_of(model: PreTrainedModel, asked: Task | None) -> Task:
    """Return the task of a model of transformers, by its class.

    If transformers does not list the class, the task is the requested task, or
    `generate` if no task is requested.

    Raises:
        BadModelSetting: the requested task differs from the task of the class.
    """
    name = type(model).__name__
    found = next((task for task in TASKS if _makes(task, model.config, name)), None)
    if found is not None and asked not in (None, found):
        expected = f"{found!r}, which a {name} does, or its folder in the model's place"
        raise BadModelSetting(
            place="export_hf", setting="task", expected=expected, found=repr(asked)
        )
    return found or asked or "generate"


def maker_of(task: Task, config: PreTrainedConfig) -> Maker | None:
    """Return transformers' auto class for a task; None if transformers has none.

    If there are several auto classes, the result is the one that makes the class named
    by the configuration. There are several for a model that reads pictures and that
    transformers can also make as a text model (Llama 4).
    """
    makers = MAKERS[task]
    if task == "generate":
        alone, pictures, *beside_encoder = makers
        beside = (*beside_encoder, pictures)
        makers = beside if config.is_encoder_decoder else (alone, pictures)
    listed = [one for one in makers if type(config) in _classes(one)]
    named = {*(config.architectures or ())}
    by_name = (one for one in listed if named.intersection(_names(one, config)))
    return next(by_name, listed[0] if listed else None)


def class_of(maker: Maker, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the model class that an auto class makes for a configuration.

    If the auto class has several such classes, the configuration names the class.
    """
    listed: object = _classes(maker)[type(config)]
    kinds = listed if isinstance(listed, tuple) else (listed,)
    named = [kind for kind in kinds if kind.__name__ in (config.architectures or ())]
    kind: type[PreTrainedModel] = (*named, *kinds)[0]
    return kind


def config_of(
    kind: type[PreTrainedModel], config: PreTrainedConfig
) -> PreTrainedConfig:
    """Return the part of a configuration that a model class takes.

    A text model takes the text configuration. transformers does the same for a model
    that contains a text model (Llama 4).
    """
    text: object = type(config).sub_configs.get("text_config")
    of_text = text is not None and getattr(kind, "config_class", None) is text
    return config.get_text_config() if of_text else config


def _classes(maker: Maker) -> _LazyAutoMapping:
    classes: object = maker._model_mapping
    assert isinstance(classes, _LazyAutoMapping), "a class for models has a list"
    return classes


def has_head(config: PreTrainedConfig) -> bool:
    """Tell whether a configuration's `architectures` names a class with a head."""
    named = config.architectures or ()
    return any(name in _names(maker, config) for name in named for maker in _WITH_HEADS)


def _makes(task: Task, config: PreTrainedConfig, name: str) -> bool:
    return any(name in _names(maker, config) for maker in MAKERS[task])


def _names(maker: Maker, config: PreTrainedConfig) -> Iterable[str]:
    """Return the names of classes that transformers lists for a type of model."""
    listed = _classes(maker)._model_mapping.get(config.model_type, ())
    return (listed,) if isinstance(listed, str) else listed


def _can_generate(config: PreTrainedConfig) -> bool:
    """Tell whether a model generates text by default; a plain encoder does not."""
    is_encoder = getattr(config, "is_decoder", None) is False
    return maker_of("generate", config) is not None and (
        config.is_encoder_decoder or not is_encoder
    )
