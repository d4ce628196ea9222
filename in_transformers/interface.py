"""`Interface`: what a bundle takes in the place of a model of transformers.

In: the methods and the metadata of a program. Out: the names of the arguments of its
forward, as the model has them that it was compiled from.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kvc.schema.errors import UnknownName
from kvc.schema.model import Method

FORWARD: Final = "forward"  # the method of a model without a cache
TOKENS: Final = "input_ids"
FEATURES: Final = "input_features"
PIXELS: Final = "pixel_values"
# What processors return, and no bundle reads: tokens and pictures say it already.
_UNREAD: Final = ("token_type_ids", "mm_token_type_ids", "pixel_attention_mask")
_MASK: Final = "attention_mask"


@dataclass(frozen=True, slots=True)
class Interface:
    """The arguments of a model's forward.

    Attributes:
        main: the name of the first argument.
        encodes: whether an encoder reads it, and the decoder has tokens of its own.
        sees: whether pictures stand among the tokens.
        sized: whether these have sizes of their own.
    """

    main: str
    encodes: bool = False
    sees: bool = False
    sized: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all arguments that hold numbers."""
        found = [self.main, _MASK]
        if self.encodes:
            found += ["decoder_input_ids", "decoder_attention_mask"]
        if self.sees:
            found += [PIXELS, "image_grid_thw"] if self.sized else [PIXELS]
            found += _UNREAD
        return tuple(found)

    @property
    def is_causal(self) -> bool:
        """Return whether tokens are all there is."""
        return not self.encodes and not self.sees


def interface_of(methods: Iterable[Method], metadata: Mapping[str, str]) -> Interface:
    """Return what a program takes.

    Args:
        methods: its methods.
        metadata: its settings, as JSON texts.

    Raises:
        UnknownName: the program does not generate text.
    """
    roles = {method.role: method for method in methods if method.role}
    if not {"prefill", "decode"} <= roles.keys():
        hint = "; a model without a cache is run by ExportedModel"
        raise UnknownName(
            kind="method of the role", name="decode", known=tuple(roles), hint=hint
        )
    if "encode" not in roles:
        places = json.loads(metadata.get("picture_places", "null"))
        sized = places is not None and places.get("sized") is not None
        return Interface(TOKENS, sees=places is not None, sized=sized)
    encode = roles["encode"]
    rank = len(encode.graph.values[encode.graph.inputs[0]].type.dims)
    main = {2: TOKENS, 4: PIXELS}.get(rank, FEATURES)
    return Interface(main, encodes=True)
