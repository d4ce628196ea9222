"""Watch a model's parameters and buffers while a method is traced.

In: the registered tensors before and after the call. Out: a reason to refuse changes
that tracing would lose. `write_back` turns the other changes into writes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from kvc.compiler.weights.tensor_identity import memory_of

Registered = dict[str, tuple[Tensor | None, object]]

_REMEDY = (
    "write into it instead, with copy_, index_copy_ or torch.ops.kvc.cache_update; "
    "a tensor that grows can be an argument and a result that the session keeps, "
    "Method(carry=...)"
)


def registered(model: nn.Module) -> Registered:
    """Return path -> (tensor, identity of its memory) for parameters and buffers."""
    return {
        f"{prefix}.{name}" if prefix else name: (tensor, memory_of(tensor))
        for prefix, module in model.named_modules()
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
    }


def memories(arguments: Sequence[Tensor]) -> Registered:
    """Return label -> (tensor, identity of its memory) for a method's arguments.

    The label of argument i is "argument i".
    """
    return {f"argument {i}": (t, memory_of(t)) for i, t in enumerate(arguments)}


def reshaped(shapes: Mapping[str, torch.Size], now: Registered) -> str | None:
    """Return the reason to refuse a changed shape, None if no shape has changed."""
    for name, shape in shapes_of(now).items():
        if not same_shape(shapes.get(name, shape), shape):
            return other_shape(name)
    return None


def other_shape(name: str) -> str:
    """Return the reason to refuse a change of a tensor's shape in place."""
    return (
        f"it gives {name!r} another shape in place (unsqueeze_, t_, resize_); use a "
        "view of it instead, such as x.unsqueeze(0)"
    )


def shapes_of(slots: Registered) -> dict[str, torch.Size]:
    """Return the sizes of tensors by name."""
    return {name: t.shape for name, (t, _) in slots.items() if t is not None}


def same_shape(a: torch.Size, b: torch.Size) -> bool:
    """Compare sizes by their text, which adds no guards on symbolic sizes."""
    return [*map(str, a)] == [*map(str, b)]


def traced_slots(slots: Registered, traced: Callable[[Tensor], object]) -> Registered:
    """Return `slots` with traced tensors in place of those with real memory."""
    found: Registered = {}
    for name, (tensor, held) in slots.items():
        found[name] = (tensor, held)
        if tensor is not None:
            stand_in = traced(tensor)
            assert isinstance(stand_in, Tensor)
            found[name] = (stand_in, memory_of(stand_in))
    return found


def loss(before: Registered, after: Registered) -> str | None:
    """Return the reason to refuse a change that tracing loses, None without one."""
    for name, (old, old_memory) in before.items():
        new, new_memory = after.get(name, (None, None))
        if name not in after:
            return f"it deletes {name!r}; set what a method needs before compiling"
        if new is old and old_memory != new_memory:
            return other_memory(name)
        if new is not old and (reason := _replaced(name, old, new)):
            return reason
    added = [name for name in after if name not in before]
    return f"it makes {added[0]!r}; register it before compiling" if added else None


def _replaced(name: str, old: Tensor | None, new: Tensor | None) -> str | None:
    """Return why to refuse an assignment, None if a write can take its place."""
    if old is None:
        return f"it makes the buffer {name!r}; register it before compiling"
    if isinstance(old, nn.Parameter):
        return anew(name, "parameter")
    if new is not None and _same_type(old, new):
        return None
    return (
        f"it assigns to the buffer {name!r} a tensor of another shape or dtype "
        f"(self.past = torch.cat(...)); {_REMEDY}"
    )


def _same_type(old: Tensor, new: Tensor) -> bool:
    """Tell whether dtypes and sizes are equal, without guards on symbolic sizes."""
    if old.dim() != new.dim() or old.dtype != new.dtype:
        return False
    return all(map(_same_size, old.shape, new.shape))


def _same_size(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return isinstance(a, int) and isinstance(b, int) and a == b


def other_memory(name: str) -> str:
    """Return the reason to refuse a tensor whose memory is replaced."""
    return f"it gives {name!r} other memory (.data = ...); {_REMEDY}"


def anew(name: str, what: str = "buffer") -> str:
    """Return the reason to refuse a parameter or buffer that is assigned anew."""
    return f"it assigns to the {what} {name!r}, which tracing drops; {_REMEDY}"


def changed_name(before: Registered, after: Registered) -> str | None:
    """Return the first name whose tensor or memory has changed; None if none has."""
    for name, (old, old_memory) in before.items():
        new, new_memory = after.get(name, (None, None))
        if new is not old or new_memory != old_memory or name not in after:
            return name
    return None


# Turn assignments to buffers, `self.k = self.k + x`, into writes into them.


Replaced = Mapping[str, tuple[Tensor, Tensor]]


class Shared(Exception):
    """Two tensors of a model would share memory after the call.

    The error's text names both tensors.
    """


@contextmanager
def unnoticed() -> Iterator[None]:
    """Keep torch from turning assignments to buffers into writes, in this context."""
    hooks = nn.modules.module._global_buffer_registration_hooks
    others = {
        number: hook
        for number, hook in hooks.items()
        if not hook.__module__.startswith("torch._functorch")
    }
    with patch.dict(hooks, others, clear=True):
        yield


def replaced_buffers(before: Registered, after: Registered) -> Replaced:
    """Return name -> (old tensor, new tensor) for buffers that were assigned anew."""
    pairs = {name: (old, after[name][0]) for name, (old, _) in before.items()}
    return {
        name: (old, new)
        for name, (old, new) in pairs.items()
        if new is not old and old is not None and new is not None
    }


def write_back(
    model: nn.Module,
    replaced: Replaced,
    before: Registered,
    results: object,
    other_names: Mapping[str, str | None],
) -> object:
    """Write assigned tensors into the original buffers; register the originals again.

    Args:
        model: the module.
        replaced: the buffers that were assigned anew.
        before: all tensors of the module and the arguments, before the call.
        results: the results of the method.
        other_names: buffer's name -> another name for the memory of the buffer.

    Returns:
        The results of the method; results in the memory of an old buffer are cloned.

    Raises:
        Shared: two names would share memory afterwards.
    """
    _check_apart(replaced, before, other_names)
    memories = [memory_of(old) for old, _ in replaced.values()]

    def kept(result: Tensor) -> Tensor:
        return result.clone() if memory_of(result) in memories else result

    if not replaced:
        return results
    results = tree_map_only(Tensor, kept, results)
    # Clones, since a buffer may be assigned the old tensor of another one.
    values = {name: kept(new) for name, (_, new) in replaced.items()}
    for name, (old, _) in replaced.items():
        old.copy_(values[name])
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner)._buffers[leaf] = old
    return results


def _check_apart(
    replaced: Replaced, before: Registered, other_names: Mapping[str, str | None]
) -> None:
    """Check that no assigned tensor shares memory with a tensor of another name.

    The replaced buffer must have had no other name either.

    Raises:
        Shared: two names would share memory afterwards, or shared memory before.
    """
    staying = {held: name for name, (_, held) in before.items() if name not in replaced}
    taken: dict[object, str] = {}
    for name, (_, new) in replaced.items():
        if other_names[name]:
            raise Shared(f"{name!r} anew, which was one with {other_names[name]!r}")
        other = staying.get(memory_of(new)) or taken.get(memory_of(new), "")
        if other:
            raise Shared(f"{name!r} the memory of {other!r}")
        taken[memory_of(new)] = name
