"""Which of torch's operators a trace takes apart, and into what.

torch's own table takes most composite operators apart. Those with fast kernels stay
whole; copies of views become views and clones; some that torch's table leaves whole,
and kvc has no kernel for, are taken apart too.
"""

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.utils._pytree import tree_map_only

from kvc.compiler.decompose.complex_numbers import MAKERS, with_complex
from kvc.compiler.decompose.evenly_spaced import SPACED
from kvc.compiler.decompose.margin_losses import MARGINS
from kvc.compiler.decompose.matrix_decompositions import MATRICES
from kvc.compiler.decompose.own_decompositions import OWN
from kvc.compiler.decompose.without_axes import WITHOUT_AXES

Decomposition = Callable[..., object]

_aten = torch.ops.aten
# Full decomposition makes two to three times the nodes and runs 1.2 to 1.3 times
# slower (measured on a 30-layer decoder); these stay whole.
_KEPT_WHOLE = (
    _aten.scaled_dot_product_attention.default,
    _aten.linear.default,
    _aten.rms_norm.default,
    _aten.layer_norm.default,
    _aten.group_norm.default,
    _aten.silu.default,
    _aten.index_copy.default,
    _aten.index_add.default,
    _aten.index_fill.int_Scalar,
    _aten.index_fill.int_Tensor,
    _aten.select_scatter.default,
    _aten.roll.default,
    _aten.matmul.default,
    _aten.softmax.int,
    _aten.log_softmax.int,
    _aten.split.Tensor,
    _aten.transpose.int,
    # Their parts check what these make in operators of their own.
    _aten.linalg_cholesky.default,
    _aten.linalg_inv.default,
    _aten.linalg_solve.default,
    _aten.linalg_solve_ex.default,
)
_TAKEN_APART = (
    _aten._addmm_activation,
    _aten.addmv,
    _aten.bucketize.Scalar,
    _aten.dist,
    _aten.narrow_copy,
    _aten.upsample_bicubic2d,
    _aten.upsample_trilinear3d,
)
_VIEWS = (
    _aten.alias,
    _aten.diagonal,
    _aten.expand,
    _aten.permute,
    _aten.select,
    _aten.slice,
    _aten.split,
    _aten.split_with_sizes,
    _aten.squeeze,
    _aten.t,
    _aten.transpose,
    _aten.unbind,
    _aten.unfold,
    _aten.unsqueeze,
    _aten.view,
)


def decompositions() -> dict[torch._ops.OperatorBase, Decomposition]:
    """Return what each operator that does not stay whole is computed by."""
    return dict(_table())


@functools.cache
def _table() -> dict[torch._ops.OperatorBase, Decomposition]:
    """Return the table; making it takes 0.1 s."""
    table = torch.export.default_decompositions()
    for op in _KEPT_WHOLE:
        table.pop(op, None)  # type: ignore[no-untyped-call]
    kept = dict(table.items())  # type: ignore[no-untyped-call]
    more = get_decompositions(_TAKEN_APART)
    own = {**OWN, **SPACED, **MARGINS, **WITHOUT_AXES, **MATRICES, **MAKERS}
    return with_complex({**more, **dict(_copies()), **kept, **own})


def _copies() -> Iterator[tuple[torch._ops.OperatorBase, Decomposition]]:
    for view in _VIEWS:
        copy = getattr(_aten, f"{view.__name__}_copy")
        overloads: list[str] = copy.overloads()
        for overload in overloads:
            if hasattr(view, overload):
                yield getattr(copy, overload), _cloned(getattr(view, overload))


def _cloned(view: Decomposition) -> Decomposition:
    """Return what copies what a view shows, in the order of its elements."""
    whole = functools.partial(torch.clone, memory_format=torch.contiguous_format)

    def copy(*args: object, **kwargs: object) -> object:
        return tree_map_only(Tensor, whole, view(*args, **kwargs))

    return copy
