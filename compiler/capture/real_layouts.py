"""Check layouts in memory that torch's trace may have wrong, where a write needs them.

While torch traces, a rule says how the result of each operator lies in memory; a few
rules are wrong (torch 2.13: `max_unpool2d`, batch norm of turned tensors). It matters
where a result is written through `reshape`, which is a view of some layouts and a copy
of others. In: a trace that still writes. Out: nothing, or a refusal where the operator
itself, run on zeros that lie in memory as its inputs do, gives another layout. Inputs
in plain order are not tried: rules hold for them.
"""

from collections.abc import Sequence

import torch
from torch import SymInt, Tensor, fx
from torch._prims_common import is_contiguous_or_false
from torch.utils._pytree import tree_leaves, tree_map_only

from kvc.schema.errors import CaptureError

_REASON = (
    "it writes through a view of what {operator} gives, whose order in memory torch's "
    "trace has wrong; use .clone(memory_format=torch.contiguous_format) of the result "
    "before it is reshaped and written"
)


def check_layout(method: str, maker: fx.Node) -> None:
    """Refuse a result that lies in memory otherwise than its trace says.

    Raises:
        CaptureError: it does.
    """
    target, given = maker.target, maker.all_input_nodes
    inputs = [node.meta.get("val") for node in given]
    turned = [x for x in inputs if isinstance(x, Tensor) and not _is_plain(x)]
    if not turned or not isinstance(target, torch._ops.OpOverload):
        return
    args, kwargs = tree_map_only(fx.Node, _example, (maker.args, maker.kwargs))
    try:
        made = target(*args, **kwargs)
    except Exception:  # of zeros there is nothing
        return
    traced = [x for x in tree_leaves(maker.meta["val"]) if isinstance(x, Tensor)]
    real = [x for x in tree_leaves(made) if isinstance(x, Tensor)]
    if not all(map(_alike, traced, real)):
        reason = _REASON.format(operator=target._opname)
        raise CaptureError(method=method, place="", reason=reason)


def _is_plain(x: Tensor) -> bool:
    return is_contiguous_or_false(x)


def _example(node: fx.Node) -> object:
    """Return what stands for what a node gives, zeros for tensors."""
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        sizes, strides = _numbers(value.shape), _numbers(value.stride())
        return torch.empty_strided(sizes, strides, dtype=value.dtype).zero_()
    return value.node.hint if isinstance(value, SymInt) else value


def _numbers(some: Sequence[int | SymInt]) -> list[int]:
    """Return sizes, those of the example for dynamic ones."""
    return [int(n.node.hint) if isinstance(n, SymInt) else n for n in some]


def _alike(traced: Tensor, real: Tensor) -> bool:
    sizes = zip(real.shape, _numbers(traced.stride()), real.stride(), strict=True)
    return all(size < 2 or one == other for size, one, other in sizes)
