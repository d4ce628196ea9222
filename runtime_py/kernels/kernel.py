"""The type of kernels: how the executor calls one torch function for an operator.

The executor calls a kernel with positional arguments, one for each parameter of the
operator's signature: tensors, `torch.dtype`s, tuples, numbers. The form of the call
depends on `OpSpec.aliasing`:

- fresh: `kernel(out, *arguments)` writes into the contiguous `out`, which has the
  result's shape and dtype; with several results `out` is a tuple of tensors.
- view: `kernel(*arguments)` returns a view of the operand, or a tuple of views.
- update: `kernel(target, *arguments)` writes into `target`, which holds operand 0
  already; `arguments` are those after operand 0. Indices are checked first: if one is
  out of range, nothing has been written. A growing `target` already has the result's
  length, so `kvc::append` writes only the new rows.
- check: `kernel(*arguments)` raises or does nothing.

`out` of a pointwise operator may be the same memory as an operand.

Kernels check neither shapes nor dtypes, which the verifier has checked.

A kernel can do part of its work ahead of time if an argument is a constant: for such
operators, `load_preparations` returns the argument's index, and a function that makes
the kernel from the constant.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


Kernel: TypeAlias = "Callable[..., Tensor | tuple[Tensor, ...] | None]"

Preparation: TypeAlias = "tuple[int, Callable[[Tensor], Kernel]]"


# Torch functions as kernels that write into a given tensor


def into(function: Callable[..., object]) -> Kernel:
    """Return a kernel that gives its first argument to `function` as `out=`."""

    def kernel(out: "Tensor | tuple[Tensor, ...]", *arguments: object) -> None:
        function(*arguments, out=out)

    return kernel


def copied(function: "Callable[..., Tensor]") -> Kernel:
    """Return a kernel that copies the tensor that `function` returns into `out`."""

    def kernel(out: "Tensor", *arguments: object) -> None:
        out.copy_(function(*arguments))

    return kernel
