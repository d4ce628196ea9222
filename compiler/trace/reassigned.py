"""Turn assignments to buffers, `self.k = self.k + x`, into writes into them.

torch does this too, but only for the outermost module, and it forgets that the old
tensor may be among the results. Assignments with other results than in eager are
refused: two names of one tensor afterwards, or no longer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from kvc.compiler.trace.registered import Registered
from kvc.compiler.weights.identity import memory_of

Replaced = Mapping[str, tuple[Tensor, Tensor]]


class Shared(Exception):
    """After the call two names would share memory; the text says which."""


@contextmanager
def unnoticed() -> Iterator[None]:
    """Keep torch from making writes of assignments."""
    hooks = nn.modules.module._global_buffer_registration_hooks
    others = {
        number: hook
        for number, hook in hooks.items()
        if not hook.__module__.startswith("torch._functorch")
    }
    with patch.dict(hooks, others, clear=True):
        yield


def replaced_buffers(before: Registered, after: Registered) -> Replaced:
    """Return name -> (old, new) for the buffers that were assigned anew."""
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
    """Write what buffers were assigned into them, and put them back in their places.

    Args:
        model: the module.
        replaced: these buffers.
        before: all tensors of the module and the arguments, before the call.
        results: what the method returns.
        other_names: of these buffers, another name for the same memory.

    Returns:
        The results; those that show an old value are copies of it.

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
    # Clones, since one buffer may be assigned what another one was.
    values = {name: kept(new) for name, (_, new) in replaced.items()}
    for name, (old, _) in replaced.items():
        old.copy_(values[name])
        owner, _, leaf = name.rpartition(".")
        model.get_submodule(owner)._buffers[leaf] = old
    return results


def _check_apart(
    replaced: Replaced, before: Registered, other_names: Mapping[str, str | None]
) -> None:
    """Check that every buffer has memory of its own before and after."""
    staying = {held: name for name, (_, held) in before.items() if name not in replaced}
    taken: dict[object, str] = {}
    for name, (_, new) in replaced.items():
        if other_names[name]:
            raise Shared(f"{name!r} anew, which was one with {other_names[name]!r}")
        other = staying.get(memory_of(new)) or taken.get(memory_of(new), "")
        if other:
            raise Shared(f"{name!r} the memory of {other!r}")
        taken[memory_of(new)] = name
