"""Tensors that replace empty parameters while a model is traced and imported.

torch cannot trace a model that has both real tensors and tensors on the meta device. A
stand-in has the type of the parameter and lies in reserved address space that is never
read or written, so it costs no memory; the source of its values is recorded with it
(`attach`).
"""

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from kvc.compiler.checkpoints.empty import Empty, refused_in_traces
from kvc.compiler.checkpoints.filled import attached, carry
from kvc.compiler.request.spec import tensors_of
from kvc.compiler.weights.tensor_identity import Identity
from kvc.schema.errors import CompileError, ParametersEmpty, listing

# Linux; not in Python 3.11's mmap.
_NORESERVE = 0x4000 if hasattr(mmap, "MAP_POPULATE") else 0
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
_MOST_NAMES = 20


@contextmanager
def stand_ins(model: nn.Module) -> Iterator[None]:
    """Replace empty parameters and empty buffers by stand-ins in this context.

    Raises:
        ParametersEmpty: tensors are on the meta device and no checkpoint has filled
            them, or a traced method uses empty tensors that are neither parameters nor
            buffers.
    """
    named = tensors_of(model).items()
    empty = [name for name, t in named if t.is_meta and attached(t) is None]
    if empty:
        rest = len(empty) - _MOST_NAMES
        more = [f"and {rest} more"] if rest > 0 else []
        known = listing([*empty[:_MOST_NAMES], *more])
        raise ParametersEmpty(
            names=tuple(empty), what=f"there are no values of {known}"
        )
    places = [
        (module, table, name, tensor)
        for module in model.modules()
        for table in ("_parameters", "_buffers")
        for name, tensor in getattr(module, table).items()
        if tensor is not None and tensor.is_meta
    ]
    made = _stand_ins([tensor for *_, tensor in places])
    try:
        for module, table, name, tensor in places:
            getattr(module, table)[name] = made[id(tensor)]
        with _named(model), refused_in_traces():
            yield
    finally:
        for module, table, name, tensor in places:
            getattr(module, table)[name] = tensor


@contextmanager
def _named(model: nn.Module) -> Iterator[None]:
    """Replace a tracer's error about empty tensors by an error that names the tensors.

    Raises:
        ParametersEmpty: a traced method used an empty tensor.
    """
    try:
        yield
    except CompileError as error:
        met = error.__cause__
        if not isinstance(met, ParametersEmpty):
            raise
        names = tuple(_kept_elsewhere(model))
        known = f"{listing(names)}: " if names else ""
        elsewhere = "it is no parameter or buffer of a module, only refers to one"
        raise ParametersEmpty(
            names=names, what=f"{known}{met.what}; {elsewhere}"
        ) from error


def _kept_elsewhere(model: nn.Module) -> Iterator[str]:
    """Yield the names of modules' attributes that are, or contain, empty tensors."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            if any(isinstance(leaf, Empty) for leaf in tree_leaves(value)):
                yield f"{prefix}.{name}" if prefix else name


def _stand_ins(tensors: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return id of a tensor -> stand-in for the tensor; tied tensors share memory."""
    memories: dict[Identity, Tensor] = {}
    made: dict[int, Tensor] = {}
    for tensor in tensors:
        key = Identity.of(tensor)
        if key not in memories:
            memories[key] = _reserved(tensor)
        if id(tensor) not in made:
            made[id(tensor)] = _stand_in(tensor, memories[key])
    return made


def _stand_in(tensor: Tensor, memory: Tensor) -> Tensor:
    made = memory.view_as(memory)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(memory, requires_grad=tensor.requires_grad)
    carry(tensor, made)
    return made


def _reserved(tensor: Tensor) -> Tensor:
    """Return a tensor of the type of `tensor`, in reserved address space.

    Raises:
        CompileError: the system gives no address space.
    """
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    nbytes = (last + 1) * tensor.itemsize if tensor.numel() else 0
    if not nbytes:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    try:
        space = mmap.mmap(-1, nbytes, flags=_FLAGS)
    except (OSError, OverflowError, ValueError) as error:
        raise CompileError(
            message=f"the system refuses {nbytes} bytes of address space: {error}"
        ) from error
    flat = torch.from_numpy(np.frombuffer(space, np.uint8)).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())
