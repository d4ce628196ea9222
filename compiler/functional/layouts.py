"""Layouts of results for which torch's rules are wrong.

A rule of torch gives the strides of each result without values. The rules of some
operators are wrong where operands are not contiguous; these run on zeros, in the sizes
of the example. Tensors of more than 64 MiB are taken as the rule says. A test compares
the rules of all other operators with the operators.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import SymInt, Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

_aten = torch.ops.aten
_MOST_NBYTES = 1 << 26  # of all operands and results, so that the run is quick
WRONG = {
    _aten._batch_norm_with_update.default,
    _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit.no_stats,
    _aten.batch_norm.default,
    _aten.binary_cross_entropy.default,
    _aten.channel_shuffle.default,
    _aten.copysign.Tensor,
    _aten.div.Tensor_mode,
    _aten.floor_divide.default,
    _aten.heaviside.default,
    _aten.instance_norm.default,
    _aten.isin.Tensor_Tensor,
    _aten.ldexp.Tensor,
    _aten.log_sigmoid.default,
    _aten.logaddexp.default,
    _aten.logaddexp2.default,
    _aten.logical_and.default,
    _aten.logical_or.default,
    _aten.logical_xor.default,
    _aten.max_pool1d.default,
    _aten.max_unpool2d.default,
    _aten.max_unpool3d.default,
    _aten.native_batch_norm.default,
    _aten.native_dropout_backward.default,
    _aten.one_hot.default,
    _aten.pad.default,
    _aten.roll.default,
    _aten.rrelu.default,
    _aten.special_xlog1py.default,
    _aten._upsample_nearest_exact1d.vec,
    _aten.upsample_nearest1d.vec,
    _aten.upsample_nearest2d.vec,
    _aten.upsample_nearest3d.vec,
    _aten.xlogy.Tensor,
}


def real_orders(
    op: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    made: object,
) -> list[Sequence[int] | None]:
    """Return, for each result, the order of its axes in memory, the outermost first.

    None stands for the order that torch's rule gives.

    Args:
        op: an operator.
        args: its arguments; tensors have no values.
        kwargs: its named arguments.
        made: its results, by torch's rule.
    """
    results = [*made] if isinstance(made, list | tuple) else [made]
    usual: list[Sequence[int] | None] = [None] * len(results)
    tensors = [x for x in tree_leaves((args, kwargs, made)) if isinstance(x, Tensor)]
    if all(map(_is_contiguous, tensors)):
        return usual
    try:
        if sum(map(_nbytes, tensors)) > _MOST_NBYTES:
            return usual
        zeros, named = tree_map_only((Tensor, SymInt), _at_example, (args, kwargs))
        with torch.random.fork_rng(devices=()):
            real = op(*zeros, **named)
    except Exception:  # a size is not known, or the operator refuses zeros
        return usual
    found = [*real] if isinstance(real, list | tuple) else [real]
    return [_order(each) for each in found]


def _is_contiguous(tensor: Tensor) -> bool:
    sizes, steps = ([_hint(n) for n in x] for x in (tensor.shape, tensor.stride()))
    reach = 1
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if size != 1 and step != reach:
            return False
        reach *= size
    return True


def _hint(size: int | SymInt) -> int:
    if isinstance(size, int):
        return size
    if size.node.hint is None:
        raise ValueError("a size that depends on values")
    return int(size.node.hint)


def _nbytes(tensor: Tensor) -> int:
    reach = [
        (_hint(size) - 1) * _hint(step)
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return (sum(reach) + 1) * tensor.itemsize


def _at_example(each: Tensor | SymInt) -> object:
    """Return zeros in the layout of a tensor, with the sizes of the example."""
    if isinstance(each, SymInt):
        return _hint(each)
    sizes, steps = ([_hint(n) for n in x] for x in (each.shape, each.stride()))
    return torch.empty_strided(sizes, steps, dtype=each.dtype).zero_()


def _order(tensor: Tensor) -> Sequence[int] | None:
    """Return the order of axes in which a tensor is contiguous, None without one."""
    steps = tensor.stride()
    order = sorted(range(tensor.ndim), key=steps.__getitem__, reverse=True)
    return order if tensor.permute(order).is_contiguous() else None
