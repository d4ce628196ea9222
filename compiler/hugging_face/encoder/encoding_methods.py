"""`Encoders`: models without a cache, which embed or classify texts or pictures.

In: a model of transformers, the model's task, and the pooling of token states. Out: a
module whose methods are traced, and a description of these methods. Each text of a
batch has a length of its own. Padding is on the right and can be any tokens; no token
attends to padding, and padding does not change an embedding. No mask of all pairs of
tokens is made.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.encoder.pooling import Pooling
from kvc.compiler.hugging_face.reading.calls import ModelCall, attending
from kvc.compiler.hugging_face.reading.inputs import has_encoder
from kvc.compiler.hugging_face.reading.model_code import model_code, without_interface
from kvc.compiler.hugging_face.reading.observing import observed
from kvc.compiler.hugging_face.reading.picture_settings import configured_size
from kvc.compiler.hugging_face.reading.tasks import Task
from kvc.compiler.request.spec import Dim, Method
from kvc.schema.errors import UnsupportedModel

# A token before the patches of a picture, whose state represents the picture.
_CLASS_TOKENS: Final = ("embeddings.cls_token", "embeddings.class_embedding")
_READ: Final = 7  # length of a text that is read to find the first position
_TEXTS: Final = "input_ids"
# Attributes of models with two towers, and of their results.
_TEXT_FEATURES: Final = "get_text_features"
PICTURE_FEATURES: Final = "get_image_features"
_FEATURES: Final = "pooler_output"
_STATES: Final = "last_hidden_state"


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """The inputs of a model's methods.

    Attributes:
        texts: name of the method that takes texts, "" if there is none.
        pictures: name of the method that takes pictures, "" if there is none.
        length: the maximum number of tokens of a text.
        fixed: whether a text is always padded to `length`, and padding counts as real
            tokens.
        padding: the padding token.
        size: height and width of a picture.
        channels: number of channels of a picture.
        pools: whether kvc pools the states of tokens into embeddings of texts.
        pooled: whether the model itself pools all states into a picture's embedding.
    """

    texts: str = ""
    pictures: str = ""
    length: int = 0
    fixed: bool = False
    padding: int = 0
    size: tuple[int, int] = (0, 0)
    channels: int = 3
    pools: bool = False
    pooled: bool = False

    def of_length(self, length: int) -> "EncoderSpec":
        """Return a copy for texts of at most `length` tokens."""
        return replace(self, length=length)

    def pixels(self) -> Tensor:
        """Return an example of pictures, float32 [1, channels, height, width]."""
        return torch.zeros(1, self.channels, *self.size)


class Encoders(nn.Module):
    """A model without a cache, with the methods that kvc compiles."""

    def __init__(
        self, model: PreTrainedModel, reading: EncoderSpec, pooling: Pooling
    ) -> None:
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        for name, buffer in model._buffers.items():
            self.register_buffer(name, buffer)
        for name, parameter in model._parameters.items():
            self.register_parameter(name, parameter)
        self._model = (
            model,
        )  # in a tuple, so that its modules are not registered twice
        self._reading, self._pooling = reading, pooling
        self.train(False)

    def embed(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return embeddings float32 [batch, n] of tokens int64 [batch, seq].

        Args:
            tokens: the texts, padded on the right.
            lengths: int64 [batch], the number of real tokens of each row; None: all.
        """
        made = self._run(tokens, lengths)
        if makes_features(self._model[0]):
            return _tensor(made, _FEATURES)
        assert lengths is not None, "only features are made of texts of one length"
        return self._pooling.pool(_tensor(made, _STATES), lengths)

    def classify(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return logits float32 [batch, labels] of texts; arguments as for `embed`."""
        return _tensor(self._run(tokens, lengths), "logits")

    def classify_tokens(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return logits of each token, float32 [batch, seq, labels].

        The arguments are as for `embed`.
        """
        return _tensor(self._run(tokens, lengths), "logits")

    def fill_mask(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return logits of the token at each position, float32 [batch, seq, vocab].

        The arguments are as for `embed`.
        """
        return _tensor(self._run(tokens, lengths), "logits")

    def embed_image(self, pixels: Tensor) -> Tensor:
        """Return embeddings float32 [batch, n] of pixels [batch, 3, height, width].

        The embeddings are the picture features that the model computes. If the model
        computes none, they are the states of the model's class token. If the model has
        no class token, they are its own pooled result.
        """
        made = run_pictures(self._model[0], call_of(None), pixels)
        if makes_features(self._model[0]) or self._reading.pooled:
            return _tensor(made, _FEATURES)
        return _tensor(made, _STATES)[:, 0]

    def classify_image(self, pixels: Tensor) -> Tensor:
        """Return logits float32 [batch, labels]; arguments as for `embed_image`."""
        return _tensor(run_pictures(self._model[0], call_of(None), pixels), "logits")

    def _run(self, tokens: Tensor, lengths: Tensor | None) -> object:
        padding = self._reading.padding
        return _run_texts(self._model[0], call_of(lengths), tokens, padding)


def call_of(lengths: Tensor | None) -> ModelCall:
    """Return a call without a cache, for texts of `lengths` tokens.

    If `lengths` is None, no text has padding.
    """
    nothing = torch.zeros(0, dtype=torch.int64)  # of a cache
    return ModelCall(nothing, nothing, lengths, uncached=True)


def _run_texts(
    model: PreTrainedModel, call: ModelCall, tokens: Tensor, padding: int
) -> object:
    """Run a model on tokens int64 [batch, seq], with a mask for its own pooling."""
    given = {_TEXTS: tokens}
    if call.row_lengths is not None:
        real = torch.arange(tokens.shape[1]) < call.row_lengths[:, None]
        given[_TEXTS] = tokens.masked_fill(~real, padding)
        given["attention_mask"] = real.to(torch.int64)
    with attending(call):
        run = getattr(model, _TEXT_FEATURES) if makes_features(model) else model
        made: object = run(**given)
        return made


def run_pictures(model: PreTrainedModel, call: ModelCall, pixels: Tensor) -> object:
    """Run a model on pixels float32 [batch, channels, height, width]."""
    with attending(call):
        return (getattr(model, PICTURE_FEATURES, None) or model)(pixel_values=pixels)


def features_of(model: PreTrainedModel) -> Callable[..., object] | None:
    """Return a model's function that computes picture features, None if it has none.

    In some models that generate text, the base model below the head has this function
    (DeepSeek-VL).
    """
    inner: object = model.base_model
    found: object = getattr(model, PICTURE_FEATURES, None)
    found = found or getattr(inner, PICTURE_FEATURES, None)
    return found if callable(found) else None


def picture_features(model: PreTrainedModel, call: ModelCall, pixels: Tensor) -> Tensor:
    """Return a generating model's embeddings of pictures, float32 [tokens, hidden].

    Args:
        model: a model for which `features_of` finds a function.
        call: a call without a cache.
        pixels: float32 [1, channels, height, width].
    """
    run = features_of(model)
    assert run is not None, "it was found"
    with attending(call):
        made: object = getattr(run(pixel_values=pixels), _FEATURES)
    parts = [made] if isinstance(made, Tensor) else list(cast(Iterable[Tensor], made))
    flat = [part.reshape(-1, part.shape[-1]) for part in parts]
    return (flat[0] if len(flat) == 1 else torch.cat(flat)).float()


def _tensor(made: object, name: str) -> Tensor:
    """Return the part of a model's result that has a name, in float32."""
    tensor: object = getattr(made, name)
    assert isinstance(tensor, Tensor), "the class of the model says so"
    return tensor.float()


def read_model(
    model: PreTrainedModel, task: Task, size: tuple[int, int] | None = None
) -> EncoderSpec:
    """Return the inputs of a model's methods.

    Args:
        model: the model.
        task: the task for which the model is compiled.
        size: height and width of pictures; None: as in the configuration.

    Raises:
        UnsupportedModel: the model's input is neither texts nor pictures, the model has
            a decoder, or its attention is unknown to kvc.
    """
    if has_encoder(model):
        reason = f"it has an encoder and a decoder, and kvc has no task {task} for it"
        raise UnsupportedModel(model=type(model).__name__, reason=reason)
    reading = EncoderSpec()
    both = makes_features(model)
    if both or model.main_input_name == _TEXTS:
        reading = _read_texts(model, task)
    if both or model.main_input_name == "pixel_values":
        reading = _read_pictures(model, task, reading, size)
    if not (reading.texts or reading.pictures):
        given = model.main_input_name
        reason = f"it takes {given}, and kvc gives a model texts or pictures"
        raise UnsupportedModel(model=type(model).__name__, reason=reason)
    return reading


def makes_features(model: PreTrainedModel) -> bool:
    """Tell whether a model has a tower for texts and one for pictures (CLIP)."""
    return hasattr(model, _TEXT_FEATURES) and hasattr(model, PICTURE_FEATURES)


def _read_texts(model: PreTrainedModel, task: Task) -> EncoderSpec:
    config = model.config.get_text_config()
    padding = getattr(config, "pad_token_id", None)
    if type(padding) is not int or not 0 <= padding < config.vocab_size:
        padding = 0
    # SigLIP embeds a text by its last position, which may be padding.
    fixed = model.config.model_type.startswith("siglip")
    pools = task == "embed" and not makes_features(model)
    reading = EncoderSpec(task, "", 0, fixed, padding, pools=pools)
    first = _probe(model, reading)
    limit = getattr(config, "max_position_embeddings", None)
    length = limit - first if type(limit) is int and limit > first else 0
    return replace(reading, length=length)


def _read_pictures(
    model: PreTrainedModel,
    task: Task,
    reading: EncoderSpec,
    prepared: tuple[int, int] | None,
) -> EncoderSpec:
    """Return `reading`, completed with the model's input of pictures.

    Raises:
        UnsupportedModel: the model's configuration lacks the size of pictures, or the
            task is not for pictures.
    """
    config = getattr(model.config, "vision_config", model.config)
    size = prepared or configured_size(model.config)
    methods = {"embed": "embed_image", "classify": "classify_image"}
    if task not in methods or size is None:
        reason = (
            "its configuration has no image_size, or it is not to embed or classify"
        )
        raise UnsupportedModel(model=type(model).__name__, reason=reason)
    channels = getattr(config, "num_channels", 3)
    alone = task == "embed" and not makes_features(model)
    pooled = alone and not any(
        name.endswith(_CLASS_TOKENS) for name, _ in model.named_parameters()
    )
    made = replace(
        reading,
        pictures=methods[task],
        size=size,
        channels=channels,
        pooled=pooled,
    )
    _probe(model, replace(made, texts=""))
    return made


def _probe(model: PreTrainedModel, reading: EncoderSpec) -> int:
    """Run a method on tensors without values; return the first position's number.

    Raises:
        UnsupportedModel: the model cannot run, does not attend by transformers'
            interface, or computes no embedding of a picture.
    """
    tokens, pixels = torch.full((1, _READ), reading.padding + 1), reading.pixels()
    how = f"{_READ} tokens" if reading.texts else f"pictures {[*pixels.shape]}"
    with (
        model_code(model, f"it is run on {how}"), stand_ins(model),
        observed(model) as meetings,
    ):  # fmt: skip
        lengths = None if reading.fixed else torch.full((1,), _READ)
        call = call_of(lengths if reading.texts else None)
        if reading.texts:
            made = _run_texts(model, call, tokens, reading.padding)
        else:
            made = run_pictures(model, call, pixels)
    if not call.among:
        raise without_interface(model)
    if reading.pooled and not isinstance(getattr(made, _FEATURES, None), Tensor):
        reason = (
            "it has no class token before the patches of a picture, and pools none of "
            "their states, so nothing says what its embedding is"
        )
        raise UnsupportedModel(model=type(model).__name__, reason=reason)
    return max((_first(meeting.value) for meeting in meetings), default=0)


def methods_of(reading: EncoderSpec, rows: int) -> tuple[Method, ...]:
    """Return the methods to compile, for at most `rows` rows."""
    methods, batch = list[Method](), {0: Dim("batch", 1, rows)}
    if reading.fixed:
        tokens = torch.zeros(1, reading.length, dtype=torch.int64)
        method = Method(reading.texts, args=(tokens,), dynamic={"tokens": batch})
        methods.append(method)
    elif reading.texts:
        tokens = torch.zeros(1, 2, dtype=torch.int64)
        dynamic = {
            "tokens": batch | {1: Dim("seq", 1, reading.length)},
            "lengths": batch,
        }
        args = tokens, torch.ones(1, dtype=torch.int64)
        methods.append(Method(reading.texts, args=args, dynamic=dynamic))
    if reading.pictures:
        method = Method(
            reading.pictures, args=(reading.pixels(),), dynamic={"pixels": batch}
        )
        methods.append(method)
    return tuple(methods)


def _first(values: Tensor) -> int:
    """Return the first of the position numbers `values`, 0 if they are no positions."""
    if values.dtype != torch.int64 or values.numel() != _READ:
        return 0
    first = int(values.flatten()[0])
    counted = torch.arange(first, first + _READ)
    return first if torch.equal(values.flatten(), counted) else 0
