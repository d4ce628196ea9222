"""The kernels: one torch function for each op of the table.

`load_kernels` imports the families on its first call, since torch is slow to import and
a program of delegates alone never needs it. One family is one module with an explicit
table from op name to function. `kvc::delegate` has no kernel: delegates run it.

The executor calls a kernel with positional arguments, one for each parameter of the
op's signature: tensors, `torch.dtype`s, tuples, numbers. How depends on
`OpSpec.aliasing`:

- fresh: `kernel(out, *arguments)` writes into the contiguous `out`, whose shape and
  dtype are already right; with several results `out` is a tuple of tensors.
- view: `kernel(*arguments)` returns a view of the operand, or a tuple of views.
- update: `kernel(target, *arguments)` writes into `target`, which holds operand 0
  already; `arguments` are those after operand 0. Indices are checked first: if one is
  out of range, nothing has been written. Growing memory already has the result's
  length: `kvc::append` writes only the new rows.
- check: `kernel(*arguments)` raises or does nothing.

`out` of a pointwise op may be the same memory as an operand.

Kernels check neither shapes nor dtypes; the verifier has.

A kernel may do part of its work ahead if one of its arguments is a constant:
`load_preparations` says which argument, and what makes the kernel of it.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Kernel: TypeAlias = "Callable[..., Tensor | tuple[Tensor, ...] | None]"

Preparation: TypeAlias = "tuple[int, Callable[[Tensor], Kernel]]"

__all__ = [
    "Kernel",
    "Preparation",
    "load_kernels",
    "load_preparations",
    "load_row_check",
]


@cache
def load_kernels() -> Mapping[str, Kernel]:
    """Return the kernel of each op by the op's name; the first call imports torch."""
    from kvc.runtime.kernels import (
        attention,
        checks,
        elementwise,
        experts,
        fused,
        index,
        linear_algebra,
        matmul,
        normalization,
        quantized,
        quantized_blocks,
        reductions,
        shape,
        spatial,
        updates,
        views,
    )

    return MappingProxyType(
        {
            **elementwise.KERNELS,
            **reductions.KERNELS,
            **normalization.KERNELS,
            **matmul.KERNELS,
            **linear_algebra.KERNELS,
            **attention.KERNELS,
            **quantized.KERNELS,
            **quantized_blocks.KERNELS,
            **experts.KERNELS,
            **fused.KERNELS,
            **shape.KERNELS,
            **spatial.KERNELS,
            **index.KERNELS,
            **views.KERNELS,
            **updates.KERNELS,
            **checks.KERNELS,
        }
    )


@cache
def load_row_check() -> Kernel:
    """Return the kernel of `kvc::check_index` where the index is one of cache rows."""
    from kvc.runtime.kernels.checks import check_rows

    return check_rows


@cache
def load_preparations() -> Mapping[str, Preparation]:
    """Return, by op, which argument to prepare for and what makes the kernel of it."""
    from kvc.runtime.kernels.experts import prepare_expert_linear_qd8
    from kvc.runtime.kernels.quantized import prepare_linear_qd8

    return MappingProxyType(
        {
            "kvc::linear_qd8": (3, prepare_linear_qd8),
            "kvc::expert_linear_qd8": (3, prepare_expert_linear_qd8),
        }
    )
