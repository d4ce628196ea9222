"""The methods of a `CachedDecoder` as `compile_program` takes them, and its states."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvc.compiler.hugging_face.cache import AXIS
from kvc.compiler.hugging_face.decoder import CACHE, POSITION
from kvc.compiler.hugging_face.settings import LEAST_LENGTH, Sizes
from kvc.compiler.spec import Dim, Method, StateSpec


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
        methods.append(_method("prefill_all", "tokens", tokens, sizes))
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
    counts, counted = "lengths", torch.ones(1, dtype=torch.int64)
    if role == "decode":
        counts, counted = "active", torch.ones(1, dtype=torch.bool)
    dynamic = {argument: rows | dims, counts: rows}
    return Method(name, args=(example, counted), dynamic=dynamic, role=role)


def states_of(sizes: Sizes) -> tuple[StateSpec, ...]:
    """Return what a session chooses: the positions of caches, and rows if many."""
    capacity = Dim("capacity", min(LEAST_LENGTH, sizes.length), sizes.length)
    rows = Dim("batch", 1, sizes.batch) if sizes.batch > 1 else None
    caches = StateSpec(f"{CACHE}.*", axis=AXIS, capacity=capacity, batch=rows)
    if rows is None:
        return (caches,)
    return (caches, StateSpec(POSITION, batch=rows))
