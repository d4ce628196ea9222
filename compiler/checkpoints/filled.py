"""Record on the storage of an empty tensor the source of its values.

In: a tensor on the meta device, or its stand-in, and a `StoredTensor`. The record
contains the offset and shape of the tensor in the storage. So every alias of the tensor
has the values, but other views of the storage have none. A cast copies the record to
the result, and the values are cast when they are read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvc.compiler.weights.sources import StoredSource, StoredTensor
from kvc.compiler.weights.tensor_identity import Identity

_ATTRIBUTE = "kvc_values"


@dataclass(frozen=True, slots=True)
class _Values:
    """The record of a source of values, kept on a storage.

    Attributes:
        place: the offset and shape of the tensor in the storage.
        stored: the values of the tensor.
        dtypes: the dtypes to which the values are cast, in order.
        name: the tensor's name in the model.
    """

    place: Identity
    stored: StoredTensor
    dtypes: tuple[torch.dtype, ...]
    name: str


def attach(tensor: Tensor, stored: StoredTensor, name: str = "") -> None:
    """Record the source of a tensor's values."""
    _note(tensor, _Values(Identity.of(tensor), stored, (tensor.dtype,), name))


def attached(tensor: Tensor) -> StoredSource | None:
    """Return the source of a tensor's values; None if the tensor holds them itself."""
    values = _noted(tensor)
    if values is None or values.place != Identity.of(tensor):
        return None
    return StoredSource(values.stored, tensor.dtype, values.dtypes[:-1])


def carry(source: Tensor, target: Tensor) -> None:
    """Record that `target` has the values of `source`, cast to the target dtype."""
    values = _noted(source)
    if values is None or values.place != Identity.of(source):
        return
    dtypes = values.dtypes
    if target.dtype != dtypes[-1]:
        dtypes = (*dtypes, target.dtype)
    _note(target, _Values(Identity.of(target), values.stored, dtypes, values.name))


def is_filled(tensor: Tensor) -> bool:
    """Tell whether a source of values is recorded for a tensor's storage."""
    return _noted(tensor) is not None


def forget(tensor: Tensor) -> str:
    """Remove the record of a tensor's storage; return the name in the record."""
    values = _noted(tensor)
    _note(tensor, None)
    return values.name if values is not None else ""


def _noted(tensor: Tensor) -> _Values | None:
    return getattr(tensor.untyped_storage(), _ATTRIBUTE, None)


def _note(tensor: Tensor, values: _Values | None) -> None:
    # torch keeps one Python object for a storage as long as the storage lives.
    setattr(tensor.untyped_storage(), _ATTRIBUTE, values)
