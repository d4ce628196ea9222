"""The methods of a `CachedDecoder` as `compile_program` takes them, and its states."""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from kvc.compiler.hugging_face.cache import AXIS, LayerShape
from kvc.compiler.hugging_face.decoder import CACHE, POSITION
from kvc.compiler.hugging_face.settings import LEAST_LENGTH, Sizes
from kvc.compiler.spec import Dim, Method, StateSpec

_ALL: Final = f"{CACHE}.*"


def methods_of(
    sizes: Sizes,
    prefill_sizes: Sequence[int],
    all_logits: bool,
    embeds: Tensor | None,
) -> tuple[Method, ...]:
    """Return what to compile.

    Args:
        sizes: of the program.
        prefill_sizes: lengths that get a prefill of their own, `prefill_N`.
        all_logits: also `prefill_all`, which returns the logits of every position.
        embeds: an example [1, 1, hidden] for `prefill_embeds`; None: without it.
    """
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    methods = [
        _method("prefill", "tokens", tokens, sizes, role="prefill"),
        _method("decode", "token", tokens[:, :1], sizes, role="decode", seq=False),
    ]
    for size in prefill_sizes:
        fixed = torch.zeros(1, size, dtype=torch.int64)
        name, role = f"prefill_{size}", "prefill"
        methods.append(_method(name, "tokens", fixed, sizes, role, seq=False))
    if all_logits:
        methods.append(
            _method("prefill_all", "tokens", tokens, sizes, role="prefill_all")
        )
    if embeds is not None:
        example = embeds.expand(1, 2, -1).contiguous()
        methods.append(_method("prefill_embeds", "inputs_embeds", example, sizes))
    return tuple(methods)


def _method(
    name: str,
    argument: str,
    example: Tensor,
    sizes: Sizes,
    role: str = "",
    seq: bool = True,
) -> Method:
    dims = {1: Dim("seq", 1, sizes.chunk)} if seq else {}
    if sizes.batch == 1:
        dynamic = {argument: dims} if dims else {}
        return Method(name, args=(example,), dynamic=dynamic, role=role)
    rows = {0: Dim("batch", 1, sizes.batch)}
    row_lengths, counted = "lengths", torch.ones(1, dtype=torch.int64)
    if role == "decode":
        row_lengths, counted = "active", torch.ones(1, dtype=torch.bool)
    dynamic = {argument: rows | dims, row_lengths: rows}
    return Method(name, args=(example, counted), dynamic=dynamic, role=role)


def ring_layers(shapes: Mapping[int, LayerShape], sizes: Sizes) -> list[int]:
    """Return the layers whose caches are rings."""
    return [i for i, shape in shapes.items() if shape.ring_slots(sizes) is not None]


def states_of(shapes: Mapping[int, LayerShape], sizes: Sizes) -> tuple[StateSpec, ...]:
    """Return what a session chooses: the positions of caches, and rows if many.

    A ring has as many slots in every session.
    """
    capacity = Dim("capacity", min(LEAST_LENGTH, sizes.length), sizes.length)
    rows = Dim("batch", 1, sizes.batch) if sizes.batch > 1 else None
    rings = ring_layers(shapes, sizes)
    linear = [f"{CACHE}.{i}.*" for i in shapes if i not in rings] if rings else [_ALL]
    specs = [StateSpec(n, axis=AXIS, capacity=capacity, batch=rows) for n in linear]
    if rows is not None:
        specs += [StateSpec(f"{CACHE}.{i}.*", batch=rows) for i in rings]
        specs.append(StateSpec(POSITION, batch=rows))
    return tuple(specs)
