"""Record on the storage of an empty tensor where its values are.

In: a tensor on the meta device, or its stand-in, and a `StoredTensor`. The record says
which place in the storage it is for, so that every alias of the tensor has its values,
and no other view has. A cast keeps the record, and is repeated when values are read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvc.compiler.weights.identity import Identity
from kvc.compiler.weights.sources import StoredSource, StoredTensor

_ATTRIBUTE = "kvc_values"


@dataclass(frozen=True, slots=True)
class _Values:
    """What is noted on a storage.

    Attributes:
        place: the tensor over the storage that this speaks of.
        stored: its values.
        dtypes: what they are cast to, one after the other.
        name: what the model calls it.
    """

    place: Identity
    stored: StoredTensor
    dtypes: tuple[torch.dtype, ...]
    name: str


def attach(tensor: Tensor, stored: StoredTensor, name: str = "") -> None:
    """Say where the values of a tensor are."""
    _note(tensor, _Values(Identity.of(tensor), stored, (tensor.dtype,), name))


def attached(tensor: Tensor) -> StoredSource | None:
    """Return where the values of a tensor are; None where they are its own."""
    values = _noted(tensor)
    if values is None or values.place != Identity.of(tensor):
        return None
    return StoredSource(values.stored, tensor.dtype, values.dtypes[:-1])


def carry(source: Tensor, target: Tensor) -> None:
    """Say of a tensor that it has the values of another one, cast to its dtype."""
    values = _noted(source)
    if values is None or values.place != Identity.of(source):
        return
    dtypes = values.dtypes
    if target.dtype != dtypes[-1]:
        dtypes = (*dtypes, target.dtype)
    place = Identity.of(target)
    _note(target, _Values(place, values.stored, dtypes, values.name))


def is_filled(tensor: Tensor) -> bool:
    """Tell whether values are noted for the storage of a tensor."""
    return _noted(tensor) is not None


def forget(tensor: Tensor) -> str:
    """Take the values of a storage away; return what the model calls their tensor."""
    values = _noted(tensor)
    _note(tensor, None)
    return values.name if values is not None else ""


def _noted(tensor: Tensor) -> _Values | None:
    return getattr(tensor.untyped_storage(), _ATTRIBUTE, None)


def _note(tensor: Tensor, values: _Values | None) -> None:
    # torch keeps one Python object for a storage as long as the storage lives.
    setattr(tensor.untyped_storage(), _ATTRIBUTE, values)
