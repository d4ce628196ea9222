"""From operators of quantized rows and weights to steps of shaders.

Kernels are as those of `kernels.py`. Integer sums are exact; the rest rounds as the
device does.
"""

import math
from collections.abc import Sequence
from typing import Final

from kvc.runtime.delegates.vulkan.kernels import Kernel
from kvc.runtime.delegates.vulkan.steps import Steps, seen_as
from kvc.runtime.memory.arrays import Array

_ROWS, _CACHE, _LINEAR = range(3)
_MOST_ROWS: Final = 8  # that quantized.comp takes together


def quantize_rows(steps: Steps, out: Sequence[Array], x: Array) -> None:
    q, scale, zero = out
    rows = x.size // x.shape[-1]
    tensors = [q, scale, zero, x]
    steps.add("quantized", _ROWS, tensors, count=rows, groups=rows)


def quantize_cache(steps: Steps, out: Sequence[Array], x: Array) -> None:
    rows = math.prod(x.shape[:-1])
    steps.add("quantized", _CACHE, [*out, x], count=rows, groups=rows)


def linear_qd8(
    steps: Steps,
    out: Sequence[Array],
    q: Array,
    scale: Array,
    zero: Array,
    weight: Array,
    weight_scale: Array,
    bias: Array | None,
) -> None:
    (made,) = out
    rows, columns = math.prod(q.shape[:-1]), weight.shape[0]
    flat = steps.packed(q).reshape(rows, q.shape[-1])
    scale, zero = (steps.packed(each).reshape(rows) for each in (scale, zero))
    target = seen_as(made, (rows, columns))
    to = steps.temporary((rows, columns), made.dtype) if target is None else target
    count = columns * -(-rows // _MOST_ROWS)
    tensors = [to, flat, scale, zero, weight, weight_scale, bias]
    steps.add("quantized", _LINEAR, tensors, count=count, groups=count)
    if target is None:
        steps.copy(made, to.reshape(made.shape))


QUANTIZED: dict[str, Kernel] = {
    "kvc::quantize_rows": quantize_rows,
    "kvc::quantize_cache": quantize_cache,
    "kvc::linear_qd8": linear_qd8,
}
