"""Kernels of attention: over given keys, and over the valid prefix of a cache.

`kvc::attention` is the same function that eager and capture call, without the dispatch;
so all three agree bit for bit.
"""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvc.runtime.kernels.kernel import Kernel
from kvc.schema.torch_ops import attend_into


def _sdpa(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> None:
    out.copy_(
        scaled_dot_product_attention(
            q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    )


KERNELS: dict[str, Kernel] = {
    "aten::scaled_dot_product_attention": _sdpa,
    "kvc::attention": attend_into,
}
