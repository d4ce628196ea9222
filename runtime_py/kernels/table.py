"""The table of kernels: one torch function for each operator.

A family of kernels is a module with a table from operator name to function. The first
call of `load_kernels` imports the families. Torch is slow to import, and a program
whose operators are all delegated never needs torch. `kvc::delegate` has no kernel:
delegates run it.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from kvc.runtime.kernels.kernel import Kernel, Preparation


@cache
def load_kernels() -> Mapping[str, Kernel]:
    """Return the kernel of each operator by name; the first call imports torch."""
    from kvc.runtime.kernels import (
        elementwise,
        experts,
        fused,
        index,
        linear_algebra,
        quantized,
        quantized_blocks,
        reductions,
        shape,
        updates,
        views,
    )

    return MappingProxyType(
        {
            **elementwise.KERNELS,
            **reductions.KERNELS,
            **linear_algebra.KERNELS,
            **quantized.KERNELS,
            **quantized_blocks.KERNELS,
            **experts.KERNELS,
            **fused.KERNELS,
            **shape.KERNELS,
            **index.KERNELS,
            **views.KERNELS,
            **updates.KERNELS,
        }
    )


@cache
def load_row_check() -> Kernel:
    """Return the kernel of `kvc::check_index` for slots where cache writes begin."""
    from kvc.runtime.kernels.updates import check_rows

    return check_rows


@cache
def load_preparations() -> Mapping[str, Preparation]:
    """Return the operators whose kernels can be prepared from a constant argument.

    The result maps an operator's name to the index of that argument, and the function
    that makes the kernel from the constant.
    """
    from kvc.runtime.kernels.experts import prepare_expert_linear_qd8
    from kvc.runtime.kernels.quantized import prepare_linear_qd8

    return MappingProxyType(
        {
            "kvc::linear_qd8": (3, prepare_linear_qd8),
            "kvc::expert_linear_qd8": (3, prepare_expert_linear_qd8),
        }
    )
