"""Give rows of a model with an encoder separate positions.

A decoder with an encoder computes positions by itself, from the number of tokens in its
cache. In: a model. Out: inside `rows_apart`, the model accepts a separate number of
cached tokens for each row, int64 [batch, 1]. Caches return these numbers if
`ModelCall.apart` is set. `check_apart` checks, on tensors without values, that the
model computes the same for all rows together and for each row alone.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.attention.replaced import NAME
from kvc.compiler.hugging_face.caches.cache import NotingCache
from kvc.compiler.hugging_face.caches.positions import HoldingCache, plain_token
from kvc.compiler.hugging_face.caches.probe import run_model
from kvc.compiler.hugging_face.encoder.encoder_inputs import EncoderInput
from kvc.compiler.hugging_face.reading.calls import ModelCall, current_call
from kvc.compiler.hugging_face.reading.model_code import model_code
from kvc.compiler.hugging_face.reading.observing import Meeting, observed
from kvc.schema.errors import UnsupportedModel

_HELD: Final = (4, 6)  # cached tokens of each row before the test's tokens
_SEQ: Final = 7
_HEARD: Final = 5
# Method names in models with T5's attention, and with a table of sines.
_BIAS: Final = "compute_bias"
_SINES: Final = "create_position_ids_from_input_ids"
# Arguments of position tables: the number of cached tokens, and positions.
_HELD_NAME: Final = "past_key_values_length"
_PLACES: Final = "position_ids"
_Places = Callable[..., Tensor]


@contextmanager
def rows_apart(model: PreTrainedModel) -> Iterator[None]:
    """Make a model's position tables and biases accept a position for each row."""
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                stack.enter_context(_without_masks(module.config))
            bias: object = getattr(module, _BIAS, None)
            if callable(bias):
                vars(module)[_BIAS] = partial(_biased, bias)
                stack.callback(vars(module).pop, _BIAS)
            if _has_sines(module) and "forward" not in vars(module):
                vars(module)["forward"] = partial(_sines, module)
                stack.callback(vars(module).pop, "forward")
            if isinstance(module, nn.Embedding):
                stack.callback(module.register_forward_hook(_of_rows).remove)
            if {_HELD_NAME, _PLACES} <= set(
                inspect.signature(module.forward).parameters
            ):
                hook = module.register_forward_pre_hook(_within, with_kwargs=True)
                stack.callback(hook.remove)
        yield


@contextmanager
def _without_masks(config: PreTrainedConfig) -> Iterator[None]:
    """Let transformers make no masks for a model whose attention needs none."""
    before = config._attn_implementation_internal
    config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        config._attn_implementation_internal = before


def _biased(
    bias: Callable[..., Tensor],
    query_length: int,
    key_length: int,
    device: torch.device | None = None,
    past_seen_tokens: Tensor | int = 0,
) -> Tensor:
    """Return a bias [batch, heads, seq, slots] for rows with different positions.

    `bias` is the model's function, which is called as if each query of each row were
    the only query.
    """
    if not isinstance(past_seen_tokens, Tensor) or past_seen_tokens.dim() == 0:
        return bias(
            query_length, key_length, device=device, past_seen_tokens=past_seen_tokens
        )
    places = past_seen_tokens + torch.arange(query_length)
    flat = bias(1, key_length, device=device, past_seen_tokens=places.reshape(-1, 1))
    return flat[0].view(-1, *places.shape, key_length).transpose(0, 1)


def _has_sines(module: nn.Module) -> bool:
    return hasattr(module, _SINES) and isinstance(
        getattr(module, "weights", None), Tensor
    )


def _sines(
    module: nn.Module,
    input_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    past_key_values_length: Tensor | int = 0,
) -> Tensor:
    """Replace a sine table's forward, which checks the table's length (M2M-100)."""
    given, padding = past_key_values_length, cast(int, module.padding_idx)
    if input_ids is not None:
        counted: object = getattr(module, _SINES)
        places = cast(_Places, counted)(input_ids, padding, given)
    else:
        counted = module.create_position_ids_from_inputs_embeds
        places = cast(_Places, counted)(inputs_embeds, given, padding)
    table = module.weights
    assert isinstance(table, Tensor), "the module makes it"
    if isinstance(given, Tensor):  # only in the decoder
        places = current_call().within(places, padding + 1)
    return table[places]


def _within(
    _: nn.Module, given: tuple[object, ...], named: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Clamp the positions of padding, so that they lie within a position table."""
    places = named.get(_PLACES)
    if isinstance(places, Tensor):
        call = current_call()
        named = {**named, _PLACES: call.within(places, call.first)}
    return given, named


def _of_rows(_: nn.Module, __: object, made: Tensor) -> Tensor:
    """Return BART's embeddings of positions as [batch, seq, width].

    BART's own code makes them [1, batch, seq, width] for rows of positions.
    """
    return made.squeeze(0) if made.dim() == 4 else made


def check_apart(model: PreTrainedModel, given: EncoderInput) -> None:
    """Check that a model computes the same for rows together and for each row alone.

    Raises:
        UnsupportedModel: the model computes something else for rows together.
    """
    together = _read(model, given, _HELD)
    for row, held in enumerate(_HELD):
        alone = _read(model, given, (held,))
        wrong = next(
            (
                one.op
                for one, other in zip(together, alone, strict=False)
                if one.op != other.op or not _is_of(one.value, row, other.value)
            ),
            None if len(together) == len(alone) else "another number of operations",
        )
        if wrong is not None:
            reason = (
                f"of rows at positions of their own it computes something else than of "
                f"each alone ({wrong}); compile it for one row, with "
                "CacheConfig(batch=1) or --max-batch 1"
            )
            raise UnsupportedModel(model=type(model).__name__, reason=reason)


def _read(
    model: PreTrainedModel, given: EncoderInput, held: Sequence[int]
) -> list[Meeting]:
    """Run a model on rows; return the values that it computes.

    `held` is the number of tokens in the cache of each row.
    """
    rows, start = len(held), torch.tensor(held)
    call = ModelCall(start, start + _SEQ, apart=True)
    token = plain_token(model.config.get_text_config())
    encoded = given.of_length(_HEARD)
    encoder = {given.name: encoded.expand(rows, *encoded.shape[1:])}
    cross = NotingCache(call, cross=True)
    tokens = torch.full((rows, _SEQ), token)
    how = "it is run on rows at positions of their own"
    with model_code(model, how), stand_ins(model), observed(model) as meetings:
        run_model(model, tokens, call, HoldingCache(call), cross, encoder)
    return meetings


def _is_of(together: Tensor, row: int, alone: Tensor) -> bool:
    """Tell whether a value of all rows contains the value of a run on one row alone.

    `row` is the index of that row.
    """
    if torch.equal(together, alone):
        return True
    if together.dim() != alone.dim():
        return False
    for axis, (size, own) in enumerate(zip(together.shape, alone.shape, strict=True)):
        if size == len(_HELD) * own:  # rows, or queries of all rows after each other
            return torch.equal(together.narrow(axis, row * own, own), alone)
    return False
