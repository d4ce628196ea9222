"""The scores of attention: products of queries and keys, which no value of a graph is.

In: the operands of an attention. Out: its scores as they are before a soft cap, and
before anything is hidden. Those of positions that a query does not see are among them.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from kvc.runtime.memory.arrays import Array


def _attention(
    q: Array, k: Array, _: Array, total: Array, scale: float | None, *rest: object
) -> Array:
    """Return the scores of all positions that the cache holds."""
    if k.dtype == np.int8:  # whose scales are another operand: nobody asks
        return np.empty(0, np.float32)
    held = min(int(np.max(total, initial=0)), k.shape[2])
    return _products(q, k[:, :, :held], scale)


def _attention_product(
    q: Array,
    k: Array,
    _: Array,
    mask: Array,
    causal: bool,
    scale: float | None,
    *rest: object,
) -> Array:
    return _products(q, k, scale)


def _products(q: Array, k: Array, scale: float | None) -> Array:
    """Multiply queries with keys; their other axes are broadcast.

    Args:
        q: [..., heads, queries, width], or fewer axes.
        k: [..., groups, keys, width]; neighbouring heads share a group.
        scale: factor, None for one over the root of the width.
    """
    import torch  # whose threads the reference has; numpy's own would wait for them

    factor = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    made = torch.matmul(
        torch.from_numpy(_grouped(q, k).astype(np.float32) * np.float32(factor)),
        torch.from_numpy(np.swapaxes(k, -1, -2).astype(np.float32)),
    )
    return made.numpy()


def _grouped(q: Array, k: Array) -> Array:
    """Return queries with the heads of a group as rows, where groups are shared."""
    if min(q.ndim, k.ndim) < 3 or not 1 < k.shape[-3] < q.shape[-3]:
        return q
    *batch, heads, queries, width = q.shape
    groups = k.shape[-3]
    return q.reshape(*batch, groups, heads // groups * queries, width)


SCORES: Final[Mapping[str, Callable[..., Array]]] = {
    "kvc::attention": _attention,
    "aten::scaled_dot_product_attention": _attention_product,
}
