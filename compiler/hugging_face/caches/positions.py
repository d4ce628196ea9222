"""Find the position number that a model gives the first token of a text.

In: the decoder of a transformers model. The decoder runs twice, on tensors without
values. The first run is on a whole text, without further arguments. The second run is
only on the end of the text, with the arguments that kvc passes to a model
(`inputs_of`). Out: the position number of the first token for which both runs compute
the same values; it is 0 for most models. A model without such a number is refused,
since kvc would compute different results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.caches.cache import NotingCache
from kvc.compiler.hugging_face.caches.probe import run_model
from kvc.compiler.hugging_face.encoder.encoder_inputs import EncoderInput
from kvc.compiler.hugging_face.reading.calls import ModelCall
from kvc.compiler.hugging_face.reading.inputs import (
    is_masked,
    of_decoder,
    takes_positions,
)
from kvc.compiler.hugging_face.reading.model_code import model_code
from kvc.compiler.hugging_face.reading.model_lines import name_of
from kvc.compiler.hugging_face.reading.observing import Meeting, observed
from kvc.schema.errors import UnsupportedModel

# Sizes that do not occur in tiny models, so that token axes can be recognized.
_WHOLE: Final = 11
_HELD: Final = 4
_HEARD: Final = 5  # length of an encoder's input, unlike any decoder length
_REST: Final = _WHOLE - _HELD
_TOLERANCE: Final = 1e-5  # of sines, in vectors of other lengths
_SHOWN: Final = 2  # values, in errors
# Without their processors' token types, which make a prompt bidirectional, the masks of
# these models are causal: not as they were trained, and without any error.
_PREFIXED: Final = frozenset({"paligemma.PaliGemmaForConditionalGeneration"})
_SEEING_ITSELF: Final = (
    "a prompt sees all of itself, later tokens too (its processor says so, by "
    "token_type_ids), with a picture or without, and kvc's methods are causal"
)
READ: Final = _WHOLE  # the length of the longest text read here
_FAR: Final = 1 << 24  # a position that no table has; exact in float32
_LOOKED_UP: Final = frozenset(
    {"aten::embedding", "aten::index", "aten::index_select", "aten::gather"}
)


@dataclass(frozen=True, slots=True)
class _Difference:
    """The first value that differs between the run on a text and the run on its end.

    `expected` is the value in the first of these runs, `found` in the second; None if
    that run computes no such value.
    """

    expected: Meeting | None
    found: Meeting | None

    def shift(self) -> int | None:
        """Return the difference of the two values, None if it varies by element."""
        if self.expected is None or self.found is None:
            return None
        expected = _last(self.expected.value, self.found.value)
        found = _numbers(self.found.value)
        if expected.dtype != torch.int64 or expected.shape != found.shape:
            return None
        shifts = set((expected - found).flatten().tolist())
        return int(shifts.pop()) if len(shifts) == 1 else None


def first_position(decoder: PreTrainedModel, given: EncoderInput | None = None) -> int:
    """Return the position number that a model gives the first token of a text.

    Args:
        decoder: the model.
        given: the input of the model's encoder; None without an encoder.

    Raises:
        UnsupportedModel: no position number makes the text's end compute the same.
        ParametersEmpty: the model has no weights.
    """
    if name_of(decoder) in _PREFIXED:
        raise _unsupported(decoder, _SEEING_ITSELF)
    whole = _read(decoder, None, given)
    difference = _difference(whole, _read(decoder, 0, given))
    if difference is None:
        return 0
    shift = difference.shift()
    shifts = _usual(decoder) if shift is None else [shift]
    for shift in shifts:
        if _difference(whole, _read(decoder, shift, given)) is None:
            return shift
    raise _refused(decoder, difference)


def has_position_table(decoder: PreTrainedModel) -> bool:
    """Tell whether a model without an encoder looks its positions up in a table.

    The model runs on two tokens far behind all tables. Tables whose values are known
    refuse such positions; of others it is observed that they are asked for them.

    Raises:
        ParametersEmpty: the model has no weights.
    """
    start = torch.full((1,), _FAR)
    call = ModelCall(start, start + 2)
    tokens = torch.full((1, 2), plain_token(decoder.config.get_text_config()))
    try:
        with (
            model_code(decoder, "it is run on a far position"), stand_ins(decoder),
            observed(decoder) as meetings,
        ):  # fmt: skip
            run_model(decoder, tokens, call, HoldingCache(call))
    except UnsupportedModel:
        return True
    return any(map(_is_far, meetings))


def _is_far(meeting: Meeting) -> bool:
    found = meeting.value
    whole = meeting.op in _LOOKED_UP and found.dtype in (torch.int64, torch.int32)
    return whole and bool((found >= _FAR).any())


def _usual(decoder: PreTrainedModel) -> list[int]:
    """Return common position numbers of a first token: 1, or the padding token plus 1.

    These numbers are tried if the model's own number cannot be observed, as in a model
    that computes sines of positions (Kosmos 2.5).
    """
    if not takes_positions(decoder):
        return []
    padding = getattr(decoder.config.get_text_config(), "pad_token_id", None)
    return sorted({1, padding + 1 if isinstance(padding, int) else 1})


def _read(
    decoder: PreTrainedModel, first: int | None, encoded: EncoderInput | None
) -> list[Meeting]:
    """Return the values that a model computes from a whole text, or from its end.

    Args:
        decoder: the model.
        first: the position number of the text's first token. The model then runs on the
            end of the text, with all of kvc's arguments. None: the model runs on the
            whole text, and only tokens are passed.
        encoded: the input of the decoder's encoder, the same for both runs.
    """
    held = 0 if first is None else _HELD
    seq, start = _WHOLE - held, torch.full((1,), held)
    call = ModelCall(start, start + seq, first=first or 0)
    cache = NotingCache(call) if first is None else HoldingCache(call)
    cross = NotingCache(call, cross=True)
    tokens = torch.full((1, seq), plain_token(decoder.config.get_text_config()))
    encoder = None if encoded is None else {encoded.name: encoded.of_length(_HEARD)}
    how = (
        f"{seq} tokens alone" if first is None else f"{seq} tokens after {held} others"
    )
    with (
        model_code(decoder, f"it is run on {how}"), stand_ins(decoder),
        observed(decoder) as meetings,
    ):  # fmt: skip
        run_model(decoder, tokens, call, cache, cross, encoder, first is None)
    return [*meetings, *map(seen, call.windows)]


def seen(window: tuple[int, int | None]) -> Meeting:
    """Return an attention's window, so that it is compared like an observed value.

    `window` is (number of the layer, number of visible keys).
    """
    layer, width = window
    return Meeting(f"attention of layer {layer}", torch.tensor(width or 0))


def plain_token(config: PreTrainedConfig) -> int:
    """Return a token that is not the padding token, which may have no position."""
    named = [found for name, found in vars(config).items() if "token" in name]
    return next(token for token in range(len(named) + 1) if token not in named)


def _difference(whole: Sequence[Meeting], end: Sequence[Meeting]) -> _Difference | None:
    """Return the first difference of two runs, None if there is none."""
    for expected, found in zip_longest(whole, end):
        if expected is None or found is None or not same_meeting(expected, found):
            return _Difference(expected, found)
    return None


def same_meeting(expected: Meeting, found: Meeting) -> bool:
    """Tell whether a value of the text's end agrees with that of the whole text."""
    one, other = _last(expected.value, found.value), _numbers(found.value)
    if expected.op != found.op or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, _TOLERANCE, _TOLERANCE, equal_nan=True)


def _numbers(values: Tensor) -> Tensor:
    """Return integers as int64, so that different integer dtypes compare as equal."""
    return (
        values if values.is_floating_point() or values.is_complex() else values.long()
    )


def _last(whole: Tensor, end: Tensor) -> Tensor:
    """Return the part of `whole` that belongs to the end of the text.

    `whole` is a value of the whole text, and `end` the same value of the text's end.
    """
    if whole.dim() == end.dim():
        for axis, sizes in enumerate(zip(whole.shape, end.shape, strict=True)):
            if sizes == (_WHOLE, _REST):
                whole = whole.narrow(axis, _HELD, _REST)
    return _numbers(whole)


class HoldingCache(NotingCache):
    """A cache that claims to hold tokens from earlier calls, as kvc's cache may.

    `update` returns keys and values for these tokens, followed by the keys and values
    of the new tokens.
    """

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Return earlier and new keys and values, [batch, heads, held + seq, dim].

        `held` is the number of earlier tokens.
        """
        held = [
            torch.cat([states[:, :, :1].expand(-1, -1, _HELD, -1), states], dim=2)
            for states in (key_states, value_states)
        ]
        return super().update(held[0], held[1], layer_idx)


def _refused(decoder: PreTrainedModel, difference: _Difference) -> UnsupportedModel:
    """Return the error for a model that computes something else by kvc's arguments."""
    name = of_decoder(decoder, "position_ids")
    given = f"no {name}, since its forward takes none"
    if takes_positions(decoder):
        given = f"{name} {_HELD} to {_WHOLE - 1}"
    mask = f" and {of_decoder(decoder, 'attention_mask')}" if is_masked(decoder) else ""
    return _unsupported(
        decoder,
        f"given {given}{mask}, it computes of the last {_REST} of {_WHOLE} tokens "
        f"a different result than of the whole text alone: {_place(difference)}. "
        f"Its forward has to take {name}, and use them as it uses those that it "
        "makes when it is given none; these may count from any constant",
    )


def _place(difference: _Difference) -> str:
    """Describe the first value that differs between two runs."""
    expected, found = difference.expected, difference.found
    if expected is None or found is None or expected.op != found.op:
        ops = [m.op if m else "nothing" for m in (expected, found)]
        return f"it runs {ops[1]}, not {ops[0]}"
    last = _last(expected.value, found.value)
    if last.shape != found.value.shape:
        return f"{found.op} has {list(found.value.shape)}, not {list(last.shape)}"
    return f"{found.op} has {_short(found.value)}, not {_short(last)}"


def _short(values: Tensor) -> str:
    """Return the first elements of a tensor as text."""
    first = [f"{value:.3g}" for value in values.flatten()[:_SHOWN].tolist()]
    return f"[{', '.join(first)}{', ...' if values.numel() > _SHOWN else ''}]"


def _unsupported(decoder: PreTrainedModel, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=type(decoder).__name__, reason=reason)
