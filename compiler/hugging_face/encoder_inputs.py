"""What the encoder of a model is given: tokens, or the features of a sound.

In: a model of transformers. Out: an `EncoderInput`, by what the model itself calls its
main input and how many positions its configuration allows.
"""

from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.compiler.spec import Dim
from kvc.schema.errors import UnsupportedModel

_TOKENS: Final = "input_ids"
_FEATURES: Final = "input_features"
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


def encoder_input(model: PreTrainedModel) -> EncoderInput:
    """Return what a model's encoder takes.

    Raises:
        UnsupportedModel: it is something that kvc cannot give it.
    """
    name = model.main_input_name
    if name == _TOKENS:
        tokens = torch.zeros(1, _EXAMPLE, dtype=torch.int64)
        return EncoderInput(name, "tokens", tokens, 1)
    bins = getattr(model.config, "num_mel_bins", None)
    positions = getattr(model.config, "max_source_positions", None)
    if name == _FEATURES and bins and positions:
        features = torch.zeros(1, bins, positions * _frames_of_one(model))
        return EncoderInput(name, "features", features, None, positions)
    reason = f"its encoder takes {name}, and kvc gives an encoder tokens or a spectrum"
    raise UnsupportedModel(model=type(model).__name__, reason=reason)


def _frames_of_one(model: PreTrainedModel) -> int:
    """Return of how many frames of a spectrum an encoder makes one position."""
    parts = model.get_encoder().modules()
    return prod(part.stride[0] for part in parts if isinstance(part, nn.Conv1d))
