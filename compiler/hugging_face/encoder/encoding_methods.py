"""`Encoders`: models without a cache, which say something of texts or pictures.

In: a model of transformers, its task, how it pools. Out: a module whose methods are
traced, these methods, and what the metadata says of them. Rows of texts have lengths of
their own: padding on the right, with any tokens, neither sees nor is seen, and has no
part in an embedding. No mask of all pairs of tokens is made.
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

# A token of its own before the patches of a picture, whose state is of all of it.
_CLASS_TOKENS: Final = ("embeddings.cls_token", "embeddings.class_embedding")
_READ: Final = 7  # tokens of a text that is read to find the first position
_TEXTS: Final = "input_ids"
# What models with a tower for each have, and where features are in what it returns.
_TEXT_FEATURES: Final = "get_text_features"
PICTURE_FEATURES: Final = "get_image_features"
_FEATURES: Final = "pooler_output"
_STATES: Final = "last_hidden_state"


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """What the methods of a model take.

    Attributes:
        texts: the method that takes texts, "" for none.
        pictures: the one that takes pictures, "" for none.
        length: the most tokens of a text.
        fixed: whether a text always has so many, padding among them, all of which
            count.
        padding: the token that padding is.
        size: height and width of a picture.
        channels: of a picture.
        pools: whether embeddings of texts are made of the states of their tokens.
        pooled: whether the model itself makes an embedding of a picture, of all states.
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
        """Return the same with texts of so many tokens at most."""
        return replace(self, length=length)

    def pixels(self) -> Tensor:
        """Return an example of pictures, float32 [1, channels, height, width]."""
        return torch.zeros(1, self.channels, *self.size)


class Encoders(nn.Module):
    """Methods of a model without a cache."""

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
        self._model = (model,)  # in a tuple, since its modules are here already
        self._reading, self._pooling = reading, pooling
        self.train(False)

    def embed(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return embeddings float32 [batch, n] of tokens int64 [batch, seq].

        Args:
            tokens: padded on the right.
            lengths: int64 [batch], how many of a row's are no padding; None: all.
        """
        made = self._run(tokens, lengths)
        if makes_features(self._model[0]):
            return _tensor(made, _FEATURES)
        assert lengths is not None, "only features are made of texts of one length"
        return self._pooling.pool(_tensor(made, _STATES), lengths)

    def classify(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return logits float32 [batch, labels]; args as of `embed`."""
        return _tensor(self._run(tokens, lengths), "logits")

    def classify_tokens(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return logits float32 [batch, seq, labels]; args as of `embed`."""
        return _tensor(self._run(tokens, lengths), "logits")

    def fill_mask(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return logits float32 [batch, seq, vocab]; args as of `embed`."""
        return _tensor(self._run(tokens, lengths), "logits")

    def embed_image(self, pixels: Tensor) -> Tensor:
        """Return embeddings float32 [batch, n] of pixels [batch, 3, height, width].

        Where a model makes no features, that is the state of its class token, or what
        the model itself pools where it has none.
        """
        made = run_pictures(self._model[0], call_of(None), pixels)
        if makes_features(self._model[0]) or self._reading.pooled:
            return _tensor(made, _FEATURES)
        return _tensor(made, _STATES)[:, 0]

    def classify_image(self, pixels: Tensor) -> Tensor:
        """Return logits float32 [batch, labels]; args as of `embed_image`."""
        made = run_pictures(self._model[0], call_of(None), pixels)
        return _tensor(made, "logits")

    def _run(self, tokens: Tensor, lengths: Tensor | None) -> object:
        padding = self._reading.padding
        return _run_texts(self._model[0], call_of(lengths), tokens, padding)


def call_of(lengths: Tensor | None) -> ModelCall:
    """Return a call without a cache, of rows of these lengths; None: all is real."""
    nothing = torch.zeros(0, dtype=torch.int64)  # of a cache
    return ModelCall(nothing, nothing, lengths, uncached=True)


def _run_texts(
    model: PreTrainedModel, call: ModelCall, tokens: Tensor, padding: int
) -> object:
    """Run a model on tokens int64 [batch, seq]; its own code may pool by the mask."""
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
    """Return what makes embeddings of pictures, None where nothing does.

    Some models that make text leave it to the model below their head (DeepSeek-VL).
    """
    inner: object = model.base_model
    found: object = getattr(model, PICTURE_FEATURES, None)
    found = found or getattr(inner, PICTURE_FEATURES, None)
    return found if callable(found) else None


def picture_features(model: PreTrainedModel, call: ModelCall, pixels: Tensor) -> Tensor:
    """Return what a model that makes text sees in pictures, float32 [tokens, hidden].

    Args:
        model: of which `features_of` returns the embeddings of each.
        call: without a cache.
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
    """Return a part of what a model returns, float32."""
    tensor: object = getattr(made, name)
    assert isinstance(tensor, Tensor), "the class of the model says so"
    return tensor.float()


def read_model(
    model: PreTrainedModel, task: Task, size: tuple[int, int] | None = None
) -> EncoderSpec:
    """Return what the methods of a model are to take.

    Args:
        model: the model.
        task: what it is to do.
        size: height and width of pictures; None: as its configuration says.

    Raises:
        UnsupportedModel: it is something else than texts and pictures, it has a
            decoder, or it attends in a way that kvc does not know.
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


def _has_class_token(model: PreTrainedModel) -> bool:
    return any(name.endswith(_CLASS_TOKENS) for name, _ in model.named_parameters())


def _read_texts(model: PreTrainedModel, task: Task) -> EncoderSpec:
    config = model.config.get_text_config()
    padding = getattr(config, "pad_token_id", None)
    if type(padding) is not int or not 0 <= padding < config.vocab_size:
        padding = 0
    # SigLIP embeds a text by what it makes of the last position, which may be padding.
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
    """Return the same with what a model takes of pictures.

    Raises:
        UnsupportedModel: its configuration does not say it, or it has no such task.
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
    pooled = alone and not _has_class_token(model)
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
    """Run a method on tensors without values; return the number of the first position.

    Raises:
        UnsupportedModel: it cannot be run, attends by code of its own, or makes no
            embedding of a picture.
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
    """Return what to compile, for so many rows at most."""
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
    """Return the first of numbers that count the tokens of a text, else 0."""
    if values.dtype != torch.int64 or values.numel() != _READ:
        return 0
    first = int(values.flatten()[0])
    counted = torch.arange(first, first + _READ)
    return first if torch.equal(values.flatten(), counted) else 0
