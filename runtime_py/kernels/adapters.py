"""Turn torch functions into kernels that write into a given tensor.

Most torch functions take their arguments in the order of the op's signature and an
`out=`; those without one compute first and copy then.
"""

from collections.abc import Callable

from torch import Tensor

from kvc.runtime.kernels.kernel import Kernel


def into(function: Callable[..., object]) -> Kernel:
    """Return a kernel that passes its first argument to `function` as `out=`."""

    def kernel(out: Tensor | tuple[Tensor, ...], *arguments: object) -> None:
        function(*arguments, out=out)

    return kernel


def copied(function: Callable[..., Tensor]) -> Kernel:
    """Return a kernel for a `function` without `out=`: compute, then copy."""

    def kernel(out: Tensor, *arguments: object) -> None:
        out.copy_(function(*arguments))

    return kernel
