"""Calls that write: their functional forms, and what is written then."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from kvc.compiler.functional.by_size import is_dynamic
from kvc.compiler.functional.memory import steps_of
from kvc.compiler.functional.operators import (
    Kind,
    form_arguments,
    functional_form,
    kind_of,
    with_defaults,
    written_arguments,
)
from kvc.compiler.functional.stores import Stores
from kvc.compiler.functional.undone import REPEATED, through, write_box
from kvc.compiler.functional.views import Box, Picked, Unwritable, equal

_aten = torch.ops.aten
# Writes of one number, which may reach an element several times.
_UNIFORM = {_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default}


def write(
    stores: Stores,
    op: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> object:
    """Record a call that writes, by its functional form; return what the call returns.

    Raises:
        Unwritable: the operator has no functional form, or a tensor cannot be written.
    """
    if op is _aten.detach_.default:
        return args[0]
    if torch.Tag.inplace_view in op.tags:
        return _reshape_in_place(stores, op, args, kwargs)
    if op is _aten.copy_.default:
        return _copy(stores, args)
    if _write_places(stores, op, args):
        return args[0]
    form = functional_form(op)
    if form is None:
        raise Unwritable(_without_form(op))
    targets = _targets(op, args, kwargs)
    named = form_arguments(op, form, kwargs, targets[0])
    with stores:
        made = form(*with_defaults(op, args, kwargs), **named)
    results = [made] if isinstance(made, Tensor) else [*made]
    fresh = sum(each.alias_info is None for each in op._schema.returns)
    is_out = any(argument.is_out for argument in op._schema.arguments)
    for target, new in zip(targets, results[fresh:], strict=True):
        if is_out:
            stores.resize(target, new.shape)
        _check(stores, op, target)
        with stores:
            cast = new.to(target.dtype)
        stores.store(target, cast, uniform=op in _UNIFORM)
    return _returned(op, results, targets)


def _without_form(op: OpOverload) -> str:
    """Return why an operator that writes cannot be recorded."""
    if torch.Tag.nondeterministic_seeded in op.tags:
        return f"{op} draws random numbers; pass them as an argument"
    return (
        f"{op} writes into its arguments, and kvc knows no operator that returns what "
        "it writes; use such operators"
    )


def _returned(
    op: OpOverload, results: Sequence[Tensor], targets: Sequence[Tensor]
) -> object:
    """Return what a call returns: written tensors, others, or nothing."""
    new, old = iter(results), iter(targets)
    returned = [
        next(new if each.alias_info is None else old) for each in op._schema.returns
    ]
    if len(returned) == 1:
        return returned[0]
    return tuple(returned) if returned else None


def _targets(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[Tensor]:
    """Return the tensors that a call writes, also those in lists."""
    found: list[Tensor] = []
    for each in written_arguments(op, args, kwargs):
        listed = each if isinstance(each, list | tuple) else [each]
        found += [tensor for tensor in listed if isinstance(tensor, Tensor)]
    return found


def _check(stores: Stores, op: OpOverload, target: Tensor) -> None:
    """Check that a written tensor repeats no element by a stride of 0.

    Other repeats are found on its path. Inputs are checked where they are imported.
    """
    if op in _UNIFORM or stores.is_input(target):
        return
    for size, step in zip(target.shape, target.stride(), strict=True):
        if equal(step, 0) and not equal(size, 1):
            raise Unwritable(REPEATED)


def _reshape_in_place(
    stores: Stores,
    op: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Tensor:
    """Give a tensor other sizes or strides in the same memory."""
    tensor, *rest = args
    assert isinstance(tensor, Tensor)
    if op is _aten.resize_.default:
        stores.resize(tensor, rest[0])  # type: ignore[arg-type]  # sizes
        return tensor
    form, name = functional_form(op), op._schema.name.removeprefix("aten::")
    reason = f"it gives a tensor another shape by {name}; use the new value"
    if form is None or kind_of(form) is not Kind.VIEW:
        raise Unwritable(reason)
    made = stores.call(form, args, kwargs)
    assert isinstance(made, Tensor)
    if stores.is_input(tensor):
        if is_dynamic(tensor) or not _is_alike(tensor, made):
            raise Unwritable(reason)
        return tensor
    stores.let_go(tensor)
    stores.computed(op, args, kwargs)
    stores.become(tensor, made)
    return tensor


def _is_alike(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors of one memory have the same elements in one shape."""
    starts = one.storage_offset(), other.storage_offset()
    if one.dim() != other.dim() or not equal(*starts):
        return False
    axes = zip(one.shape, one.stride(), other.shape, other.stride(), strict=True)
    return all(
        equal(a, b) and (equal(a, 1) or equal(step, other_step))
        for a, step, b, other_step in axes
    )


def _copy(stores: Stores, args: Sequence[object]) -> Tensor:
    """Give a tensor the content of another one, cast and broadcast."""
    target, source = args[:2]
    assert isinstance(target, Tensor)
    assert isinstance(source, Tensor)
    one, other = stores.place(target), stores.place(source)
    if one.is_same(other):
        return target
    _check(stores, _aten.copy_.default, target)
    with stores:
        new = source.to(target.dtype)
        same = len(new.shape) == target.dim()
        if not same or not all(map(equal, new.shape, target.shape)):
            new = new.expand(target.shape)
    # A tensor may be copied into one that may be the same.
    whole = one.view is None and other.view is None
    stores.store(target, new, same=whole and other.memory in one.memory.linked)
    return target


def _write_places(stores: Stores, op: OpOverload, args: Sequence[object]) -> bool:
    """Write places of an axis of a view at once; False if a call does not do that."""
    found, target = _picked(op, args), args[0]
    if found is None or not isinstance(target, Tensor):
        return False
    (dim, picked, new), place = found, stores.place(target)
    path = place.path()
    if not path:
        return False
    base, last = steps_of(path)[-1]
    if not isinstance(last, Box) or last.repeats() or not last.pick(dim, picked):
        return False
    sizes = [*target.shape]
    sizes[dim] = picked.count
    with stores:
        new = new.to(target.dtype).expand(sizes)
    new = write_box(stores, base, last, new)
    before = path[: path.index(base) + 1] if base in path else ()
    stores.store_whole(place.memory, through(stores, before, new))
    return True


def _picked(
    op: OpOverload, args: Sequence[object]
) -> tuple[int, Picked, Tensor] | None:
    """Return what a call writes: an axis, the places of it, and their new content.

    Return None for a call that writes others than places along one axis.
    """
    if op not in (_aten.index_copy_.default, _aten.index_put_.default):
        return None
    dim: object = 0
    places: object = None
    if op is _aten.index_copy_.default:
        target, dim, places, new = args
    else:
        target, indices, new, *rest = args
        assert isinstance(indices, Sequence)
        used = [i for i, index in enumerate(indices) if index is not None]
        if len(used) == 1 and not any(rest):
            dim, places = used[0], indices[used[0]]
    if not isinstance(places, Tensor) or places.dim() != 1:
        return None
    assert isinstance(target, Tensor)
    assert isinstance(new, Tensor)
    assert isinstance(dim, int)
    if places.dtype not in (torch.int64, torch.int32) or not target.dim():
        return None
    from_back = op is _aten.index_put_.default
    return dim % target.dim(), Picked(places, places.shape[0], from_back), new
