"""Fix rotary frequencies that depend on the length of a text, or refuse them.

Some scalings (`dynamic`, `longrope`) choose frequencies by the last position of each
call; keys in a cache keep those of their own call, so a text that grows past the change
would mix the two. In: a model, the most positions of its cache. Out: inside
`held_still`, the frequencies of short texts, which are exact up to the length at which
they change.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.schema.errors import UnsupportedModel

_HELD: Final = "held"  # any name that transformers does not look for


@contextmanager
def held_still(model: PreTrainedModel, length: int) -> Iterator[None]:
    """Use the frequencies of short texts, for texts up to `length`.

    Raises:
        UnsupportedModel: they would change before that.
    """
    with ExitStack() as stack:
        for module in model.modules():
            moving = _moving(module)
            for layer in moving:
                _check_length(model, module, layer, length)
            if moving:
                stack.enter_context(_held(module, moving))
        yield


def _moving(module: nn.Module) -> tuple[str, ...]:
    """Return the kinds of layers whose frequencies move; "" where all share them."""
    kinds = getattr(module, "rope_type", None)
    by_layer = kinds if isinstance(kinds, Mapping) else {"": kinds}
    return tuple(
        layer
        for layer, kind in by_layer.items()
        if isinstance(kind, str) and ("dynamic" in kind or kind == "longrope")
    )


def _check_length(
    model: PreTrainedModel, module: nn.Module, layer: str, length: int
) -> None:
    kind, settings = module.rope_type, module.config.rope_parameters  # type: ignore[union-attr]
    if layer:
        kind, settings = kind[layer], settings[layer]  # type: ignore[index]
    if kind == "longrope":
        change = int(settings["original_max_position_embeddings"])  # type: ignore[index]
    else:
        change = int(module.original_max_seq_len)  # type: ignore[arg-type]
    if length > change:
        reason = (
            f"its rotary frequencies ({kind}) are others for texts longer than "
            f"{change} tokens, and keys in a cache cannot follow; compile it for "
            f"shorter ones, with CacheConfig(max_length={change}) or "
            f"--max-length {change}"
        )
        raise UnsupportedModel(model=type(model).__name__, reason=reason)


@contextmanager
def _held(module: nn.Module, layers: tuple[str, ...]) -> Iterator[None]:
    kinds = module.rope_type
    names = [f"{layer}_inv_freq" if layer else "inv_freq" for layer in layers]
    before = {name: getattr(module, name) for name in names}
    for layer, name in zip(layers, names, strict=True):
        original = f"{layer}_original_inv_freq" if layer else "original_inv_freq"
        short: Tensor = getattr(module, original)
        setattr(module, name, torch.nn.Buffer(short.clone(), persistent=False))
    held = dict.fromkeys(layers, _HELD)
    module.rope_type = {**kinds, **held} if isinstance(kinds, Mapping) else _HELD  # type: ignore[assignment]
    try:
        yield
    finally:
        module.rope_type = kinds
        for name, buffer in before.items():
            setattr(module, name, buffer)
