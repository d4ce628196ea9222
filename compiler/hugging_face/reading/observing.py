"""Observe values that a model computes without its weights: positions, tables.

In: code that runs a model. Out: the calls of operators that have both known and unknown
operands, with the values of the known operands. Parameters and persistent buffers are
unknown, since their values are in a checkpoint; so are all tensors computed from them.
Numbers in the code, arguments and other buffers are known; so are all tensors computed
only from known ones. Two runs of a model can thus be compared without the model's
weights.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from kvc.compiler.checkpoints.filled import attached
from kvc.compiler.functional.operators import written_arguments
from kvc.compiler.weights.tensor_identity import memory_of

_COPIED = 1 << 16  # elements; larger tensors are tables that no code writes


@dataclass(frozen=True, slots=True)
class Meeting:
    """A known operand of an operator that also has unknown operands.

    Attributes:
        op: name of the operator.
        value: one of the known tensors among the operator's operands.
    """

    op: str
    value: Tensor


@contextmanager
def observed(model: nn.Module) -> Iterator[list[Meeting]]:
    """Compute known values of a model that runs in this context; list some of them.

    The yielded list gets the known operands of each operator that also has unknown
    operands. Writes of the model to its buffers are not executed; a buffer is unknown
    after a write.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    observer = _Observer(model, fake)
    with torch.no_grad(), fake, observer:
        yield observer.meetings


class _Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook has no types
    def __init__(self, model: nn.Module, fake: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.meetings: list[Meeting] = []
        self._fake = fake
        self._overwritten: list[
            Tensor
        ] = []  # kept alive, so that their memory is not reused
        self._buffers = {memory_of(buffer) for buffer in model.buffers()}
        self._stored = {memory_of(buffer) for buffer in _persistent(model)}

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run one operator, with values if all of its operands are known."""
        given = dict(kwargs or {})
        tensors = _tensors((args, given))
        known = [tensor for tensor in tensors if self._knows(tensor)]
        written = _written(func, args, given)
        spared = self._buffers.isdisjoint(map(memory_of, written))
        if len(known) == len(tensors) and spared:
            with unset_fake_temporarily():
                return func(*args, **given)
        name = func._schema.name
        self.meetings += [Meeting(name, _copied(tensor)) for tensor in known]
        self._overwritten += written
        return self._faked(func, args, given, written)

    def _faked(
        self,
        func: torch._ops.OpOverload,
        args: tuple[object, ...],
        given: Mapping[str, object],
        written: Sequence[Tensor],
    ) -> object:
        """Run an operator without values.

        A tensor that the operator writes stays unchanged, and is returned if the
        operator returns it.
        """
        if not written:
            return func(*args, **given)
        args, given = tree_map_only(Tensor, self._fake.from_tensor, (args, given))
        made = func(*args, **given)
        return written[0] if func._schema.name.endswith("_") else made

    def _knows(self, tensor: Tensor) -> bool:
        if isinstance(tensor, FakeTensor | nn.Parameter) or attached(tensor):
            return False
        place = memory_of(tensor)
        return place not in self._stored and place not in map(
            memory_of, self._overwritten
        )


def _persistent(model: nn.Module) -> Iterator[Tensor]:
    """Yield a model's persistent buffers, whose values are in a checkpoint."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer


def _tensors(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _copied(tensor: Tensor) -> Tensor:
    with unset_fake_temporarily():
        return tensor.detach().clone() if tensor.numel() < _COPIED else tensor


def _written(
    func: torch._ops.OpOverload, args: tuple[object, ...], given: dict[str, object]
) -> list[Tensor]:
    """Return the real tensors that an operator writes."""
    found = _tensors(written_arguments(func, args, given))
    return [tensor for tensor in found if not isinstance(tensor, FakeTensor)]
