"""Fix rotary frequencies that depend on the length of a text.

Some scalings (`dynamic`, `longrope`) change the frequencies when the last position of a
call exceeds a limit. Keys in a cache are rotated by the frequencies of the call that
wrote them, so a text that grows past the limit would mix two sets of frequencies. In: a
model, and the maximum length of its cache. Out: inside `held_still`, the model uses the
frequencies of short texts, which are exact up to the limit; or, with `longrope` and a
cache longer than the limit, the frequencies of long texts for all positions.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kvc.compiler.hugging_face.reading.model_lines import name_of
from kvc.compiler.hugging_face.reading.settings import most_positions
from kvc.compiler.request.feedback import warn_caller
from kvc.schema.errors import UnsupportedModel

_HELD: Final = "held"  # any name that transformers does not know
_LONG: Final = "longrope"


class FrequenciesFixed(UserWarning):
    """The rotary frequencies of a model depend on the length of a text.

    The message tells which frequencies the bundle has.
    """


def longest_short(model: PreTrainedModel) -> int | None:
    """Return the text length up to which frequencies stay the same; None: no limit."""
    found = [
        _changes_at(module, layer)
        for module in model.modules()
        for layer in _moving(module)
    ]
    return min(found, default=None)


def warn_of_frequencies(model: PreTrainedModel, length: int, asked: int | None) -> None:
    """Warn which rotary frequencies a bundle has, if they depend on a text's length.

    Args:
        model: the model that is compiled.
        length: the maximum number of positions in the model's caches.
        asked: the length that the caller requested; None: the default length.
    """
    change = longest_short(model)
    if change is None:
        return
    meant = asked is not None or change >= (most_positions(model.config) or change)
    if length <= change and meant:
        return
    begins = (
        f"{type(model).__name__}: its rotary frequencies are others for texts longer "
        f"than {change} tokens, and keys in a cache cannot follow; the bundle has "
    )
    if length > change:
        which = (
            "those of longer texts, from the first token on, which transformers has "
            f"for no text of up to {change} tokens"
        )
    else:
        which = (
            f"those of shorter texts, up to {length} tokens; --max-length N "
            f"(CacheConfig(max_length=N)) above {change} gives it those of longer ones"
        )
    warn_caller(FrequenciesFixed(begins + which))


@contextmanager
def held_still(model: PreTrainedModel, length: int) -> Iterator[None]:
    """Let a model use one set of frequencies in this context, for texts up to `length`.

    Raises:
        UnsupportedModel: within `length`, frequencies change with each further token.
    """
    with ExitStack() as stack:
        for module in model.modules():
            moving = _moving(module)
            for layer in moving:
                _check_length(model, module, layer, length)
            if moving:
                stack.enter_context(_held(module, moving, length))
        yield


def _moving(module: nn.Module) -> tuple[str, ...]:
    """Return the names of layer types whose frequencies depend on a text's length.

    The name is "" if all layers share the same frequencies.
    """
    kinds = getattr(module, "rope_type", None)
    by_layer = kinds if isinstance(kinds, Mapping) else {"": kinds}
    return tuple(
        layer
        for layer, kind in by_layer.items()
        if isinstance(kind, str) and ("dynamic" in kind or kind == _LONG)
    )


def _kind(module: nn.Module, layer: str) -> str:
    kinds: object = module.rope_type
    return str(kinds[layer] if isinstance(kinds, Mapping) else kinds)


def _settings(module: nn.Module, layer: str) -> Mapping[str, object]:
    settings: Mapping[str, object] = module.config.rope_parameters  # type: ignore[union-attr, assignment]
    return settings[layer] if layer else settings  # type: ignore[return-value]


def _changes_at(module: nn.Module, layer: str) -> int:
    """Return the greatest length of a text that has the frequencies of short texts."""
    if _kind(module, layer) == _LONG:
        return int(_settings(module, layer)["original_max_position_embeddings"])  # type: ignore[call-overload, no-any-return]
    return int(module.original_max_seq_len)  # type: ignore[arg-type]


def _check_length(
    model: PreTrainedModel, module: nn.Module, layer: str, length: int
) -> None:
    change, kind = _changes_at(module, layer), _kind(module, layer)
    if length > change and kind != _LONG:
        reason = (
            f"its rotary frequencies ({kind}) are others for each length of a text "
            f"above {change} tokens, and keys in a cache cannot follow; compile it for "
            f"shorter ones, with CacheConfig(max_length={change}) or "
            f"--max-length {change}"
        )
        raise UnsupportedModel(model=type(model).__name__, reason=reason)


def _frequencies(module: nn.Module, layer: str, length: int) -> Tensor:
    original = f"{layer}_original_inv_freq" if layer else "original_inv_freq"
    short: Tensor = getattr(module, original)
    if length <= _changes_at(module, layer) or name_of(module) in _BY_SCALE:
        return short.clone()
    change = _changes_at(module, layer)
    long, _ = ROPE_INIT_FUNCTIONS[_LONG](
        module.config, short.device, seq_len=change + 1, layer_type=layer or None
    )
    return long


def _scaled(
    module: nn.Module, scale: float, x: Tensor, position_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Replace the rotary forward of Phi-3.5-MoE by one with the constant `scale`.

    In the model's own forward, the scale depends on the length of the text.
    """
    frequencies: Tensor = module.inv_freq  # type: ignore[assignment]
    turned = position_ids[..., None].float() * frequencies
    both = torch.cat((turned, turned), dim=-1)
    return (both.cos() * scale).to(x.dtype), (both.sin() * scale).to(x.dtype)


def _by_scale(module: nn.Module, length: int) -> Callable[..., object]:
    """Return a rotary forward with the scale for texts of `length` tokens."""
    name = "long_mscale" if length > _changes_at(module, "") else "short_mscale"
    return partial(_scaled, module, float(str(_settings(module, "")[name])))


# Here not the frequencies change, but a factor on cosines and sines.
_BY_SCALE: Final = {"phimoe.PhimoeRotaryEmbedding": _by_scale}


@contextmanager
def _held(module: nn.Module, layers: tuple[str, ...], length: int) -> Iterator[None]:
    kinds = module.rope_type
    names = [f"{layer}_inv_freq" if layer else "inv_freq" for layer in layers]
    before = {name: getattr(module, name) for name in names}
    for layer, name in zip(layers, names, strict=True):
        chosen = _frequencies(module, layer, length)
        setattr(module, name, torch.nn.Buffer(chosen, persistent=False))
    if name_of(module) in _BY_SCALE:
        vars(module)["forward"] = _BY_SCALE[name_of(module)](module, length)
    held = dict.fromkeys(layers, _HELD)
    module.rope_type = {**kinds, **held} if isinstance(kinds, Mapping) else _HELD  # type: ignore[assignment]
    try:
        yield
    finally:
        vars(module).pop("forward", None)
        module.rope_type = kinds
        for name, buffer in before.items():
            setattr(module, name, buffer)
