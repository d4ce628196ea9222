"""What the encoder of a model is given: tokens, the features of a sound, or a picture.

In: a model of transformers. Out: an `EncoderInput`, by what the model itself calls its
main input and how many positions its configuration allows.
"""

from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.encoder.encoding_methods import call_of, run_pictures
from kvc.compiler.hugging_face.reading.inputs import has_encoder
from kvc.compiler.hugging_face.reading.model_code import model_code
from kvc.compiler.hugging_face.reading.observing import observed
from kvc.compiler.hugging_face.reading.picture_settings import configured_size
from kvc.compiler.request.spec import Dim
from kvc.schema.errors import UnsupportedModel

_TOKENS: Final = "input_ids"
_FEATURES: Final = "input_features"
_PIXELS: Final = "pixel_values"
_EXAMPLE: Final = 2  # tokens of an example


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """The argument of `encode`.

    Attributes:
        name: what the model's forward calls it.
        argument: what `encode` calls it.
        example: with one row.
        axis: along which its length may be any; None: it has one length.
        positions: how many the encoder makes of an input of one length.
    """

    name: str
    argument: str
    example: Tensor
    axis: int | None
    positions: int | None = None

    @property
    def is_picture(self) -> bool:
        """Tell whether it is a picture."""
        return self.name == _PIXELS

    def dynamic(self, longest: int) -> dict[str, dict[int, Dim]]:
        """Return the axis whose length is chosen at each call, 1 to `longest`."""
        if self.axis is None:
            return {}
        return {self.argument: {self.axis: Dim("heard", 1, longest)}}

    def of_length(self, length: int) -> Tensor:
        """Return an example of so many positions, if it may have any number."""
        if self.axis is None:
            return self.example
        first = self.example.narrow(self.axis, 0, 1)
        return first.repeat_interleave(length, self.axis)


def encoder_input(
    model: PreTrainedModel, prepared: tuple[int, int] | None = None
) -> EncoderInput:
    """Return what a model's encoder takes.

    Args:
        model: the model.
        prepared: height and width of all pictures; None: as its configuration says.

    Raises:
        UnsupportedModel: it is something that kvc cannot give it.
    """
    name = model.main_input_name
    if name == _TOKENS:
        tokens = torch.zeros(1, _EXAMPLE, dtype=torch.int64)
        return EncoderInput(name, "tokens", tokens, 1)
    if name == _PIXELS:
        pixels = _pixels(model, prepared)
        return EncoderInput(name, "pixels", pixels, None, _positions(model, pixels))
    bins = getattr(model.config, "num_mel_bins", None)
    positions = getattr(model.config, "max_source_positions", None)
    if name == _FEATURES and bins and positions:
        features = torch.zeros(1, bins, positions * _frames_of_one(model))
        return EncoderInput(name, "features", features, None, positions)
    what = "tokens, a picture, or a spectrum of one length (max_source_positions)"
    raise _unsupported(model, f"its encoder takes {name}; kvc gives one {what}")


def encodes_pictures(model: PreTrainedModel) -> bool:
    """Tell whether a model has an encoder, and that takes pictures."""
    return has_encoder(model) and model.main_input_name == _PIXELS


def _pixels(model: PreTrainedModel, prepared: tuple[int, int] | None) -> Tensor:
    """Return an example of a picture, float32 [1, channels, height, width].

    Raises:
        UnsupportedModel: nothing says how large pictures are.
    """
    config = model.get_encoder().config
    size = prepared or configured_size(config)
    if size is None:
        reason = (
            "its encoder's configuration has no image_size, so each picture has a size "
            "of its own"
        )
        raise _unsupported(model, reason)
    return torch.zeros(1, getattr(config, "num_channels", 3), *size)


def _positions(model: PreTrainedModel, pixels: Tensor) -> int:
    """Return how many positions an encoder makes of a picture.

    Raises:
        UnsupportedModel: it cannot be run on pixels, attends by code of its own, or
            makes something else than a row of positions.
    """
    encoder, call = model.get_encoder(), call_of(None)
    how = f"its encoder is run on a picture of {pixels.shape[2]} x {pixels.shape[3]}"
    with model_code(model, how), stand_ins(model), observed(model):
        made: object = getattr(
            run_pictures(encoder, call, pixels), "last_hidden_state", None
        )
    if not call.among:
        raise _unsupported(model, "its encoder attends by code of its own")
    if not isinstance(made, Tensor) or made.dim() != 3:
        reason = "its encoder makes something else of a picture than a row of positions"
        raise _unsupported(model, reason)
    return made.shape[1]


def _frames_of_one(model: PreTrainedModel) -> int:
    """Return of how many frames of a spectrum an encoder makes one position."""
    parts = model.get_encoder().modules()
    return prod(part.stride[0] for part in parts if isinstance(part, nn.Conv1d))


def _unsupported(model: PreTrainedModel, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=type(model).__name__, reason=reason)
