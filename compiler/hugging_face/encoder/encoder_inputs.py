"""The input of a model's encoder: tokens, the spectrum of a sound, or a picture.

In: a model of transformers. Out: an `EncoderInput`, made from the model's name for the
input and the number of positions in the model's configuration.
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
from kvc.schema.errors import BadModelSetting, UnsupportedModel

_TOKENS: Final = "input_ids"
_PIXELS: Final = "pixel_values"
_EXAMPLE: Final = 2  # tokens of an example


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """The input of a model's encoder, which is the argument of `encode`.

    Attributes:
        name: name of the input in the model's forward.
        argument: name of the input in `encode`.
        example: an example of the input, with one row.
        axis: the axis of the input that has a variable length; None if all sizes are
            fixed.
        positions: the number of encoder positions for an input of fixed length.
    """

    name: str
    argument: str
    example: Tensor
    axis: int | None
    positions: int | None = None

    @property
    def is_picture(self) -> bool:
        """Tell whether the input is a picture."""
        return self.name == _PIXELS

    def dynamic(self, longest: int) -> dict[str, dict[int, Dim]]:
        """Return the input's name -> its axis of variable length -> 1 to `longest`.

        The mapping is empty if the length is fixed.
        """
        if self.axis is None:
            return {}
        return {self.argument: {self.axis: Dim("heard", 1, longest)}}

    def of_length(self, length: int) -> Tensor:
        """Return an example that has the length `length`, if the length is variable."""
        if self.axis is None:
            return self.example
        return self.example.narrow(self.axis, 0, 1).repeat_interleave(length, self.axis)


def encoder_input(
    model: PreTrainedModel, prepared: tuple[int, int] | None = None
) -> EncoderInput:
    """Return the input of a model's encoder.

    Args:
        model: the model.
        prepared: height and width of all pictures; None: as in the configuration.

    Raises:
        UnsupportedModel: kvc cannot provide the encoder's input.
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
    if name == "input_features" and bins and positions:
        features = torch.zeros(1, bins, positions * _frames_of_one(model))
        return EncoderInput(name, "features", features, None, positions)
    what = "tokens, a picture, or a spectrum of one length (max_source_positions)"
    raise _unsupported(model, f"its encoder takes {name}; kvc gives one {what}")


def encodes_pictures(model: PreTrainedModel) -> bool:
    """Tell whether a model has an encoder, and the encoder takes pictures."""
    return has_encoder(model) and model.main_input_name == _PIXELS


def _pixels(model: PreTrainedModel, prepared: tuple[int, int] | None) -> Tensor:
    """Return an example of a picture, float32 [1, channels, height, width].

    Raises:
        UnsupportedModel: the size of pictures is unknown.
    """
    config = model.get_encoder().config
    size = prepared or configured_size(config)
    if size is None:
        raise _unsupported(
            model,
            "its encoder's configuration has no image_size, so each picture has a size "
            "of its own",
        )
    return torch.zeros(1, getattr(config, "num_channels", 3), *size)


def _positions(model: PreTrainedModel, pixels: Tensor) -> int:
    """Return the number of positions that an encoder computes for a picture.

    Raises:
        UnsupportedModel: the encoder cannot run on pixels, does not attend by
            transformers' interface, or does not return one row of positions.
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
        reason = "its encoder does not return a row of positions for a picture"
        raise _unsupported(model, reason)
    return made.shape[1]


def _frames_of_one(model: PreTrainedModel) -> int:
    """Return the number of spectrum frames that become one encoder position."""
    parts = model.get_encoder().modules()
    return prod(part.stride[0] for part in parts if isinstance(part, nn.Conv1d))


def _unsupported(model: PreTrainedModel, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=type(model).__name__, reason=reason)


def check_pictures(pictures: bool, given: EncoderInput) -> None:
    """Check that `pictures` is not false for an encoder that takes pictures.

    Raises:
        BadModelSetting: the encoder takes pictures, and `pictures` is false.
    """
    if given.is_picture and not pictures:
        expected = "True: the model's encoder takes pictures, and nothing else"
        raise BadModelSetting(
            place="export_hf", setting="pictures", expected=expected, found="False"
        )
