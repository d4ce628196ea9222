"""Match the tensors of a checkpoint with those of a model, then fill the model.

In: a model and named tensors in files. Out: every empty parameter has a source of
values, and every other tensor holds its values. All checks are made before the first
change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from kvc.compiler.checkpoints.empty import can_be_empty, make_empty, storage_before
from kvc.compiler.checkpoints.filled import attach
from kvc.compiler.request.spec import tensors_of
from kvc.compiler.weights.sources import StoredSource, StoredTensor
from kvc.compiler.weights.tensor_identity import Identity, overlaps_itself
from kvc.compiler.weights.weight_reader import WeightReader
from kvc.schema.checkpoints.problems import shown
from kvc.schema.errors import CheckpointError, CheckpointMismatch

Rename = Callable[[str], str] | Mapping[str, str] | None
_SHOWN = 10  # problems of a kind in a message
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class NamedTensor(StoredTensor, Protocol):
    """A tensor of a checkpoint, with the facts that errors print.

    Attributes:
        name: the name in the checkpoint.
        dtype: the dtype of the tensor; None if torch or kvc does not have it.
        kind: the checkpoint's name of the dtype.
        path: the path of the file that contains the tensor.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def dtype(self) -> torch.dtype | None: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def path(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Loaded:
    """The names of the tensors that `load_into` left out, with `strict=False`.

    Attributes:
        missing: names of tensors of the model that the checkpoint lacks.
        unexpected: names of tensors of the checkpoint that the model lacks.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


@dataclass(slots=True)
class _Slot:
    """One tensor of the model: all its names, and the checkpoint's tensor for each."""

    tensors: list[Tensor]
    names: list[str] = field(default_factory=list)
    found: list[NamedTensor] = field(default_factory=list)


def load_model(
    model: nn.Module,
    path: str,
    tensors: Mapping[str, NamedTensor],
    rename: Rename,
    strict: bool,
) -> Loaded:
    """Fill a model; see `Checkpoint.load_into`."""
    _check_rename(rename, path)
    slots = _slots(model)
    by_name = {name: slot for slot in slots for name in slot.names}
    problems, unexpected = _assign(tensors, rename, by_name)
    missing = [name for slot in slots if not slot.found for name in slot.names]
    for slot in slots:
        problems += _misfits(slot)
    problems += [*_overlaps(slots), *_was_shared(slots, model)]
    lacking, foreign = _left_out(missing, unexpected) if strict else ([], [])
    groups = [problems, lacking, foreign]
    if not any(groups):
        groups = [[text for slot in slots for text in _differing(slot)]]
    problems = [text for group in groups for text in group]
    if problems:
        raise CheckpointMismatch(
            path=path,
            model=type(model).__name__,
            problems=tuple(problems),
            missing=tuple(missing),
            unexpected=tuple(unexpected),
            listing="\n".join(line for group in groups for line in _lines(group)),
        )
    for slot in slots:
        if slot.found:
            _fill(slot)
    return Loaded(tuple(missing), tuple(unexpected))


def _left_out(
    missing: Sequence[str], unexpected: Mapping[str, NamedTensor]
) -> tuple[list[str], list[str]]:
    """Return messages for tensors that only the model or only the checkpoint has.

    Returns:
        The messages for the names in `missing`, and those for the names in
        `unexpected`.
    """
    return (
        [f"{shown(name)}: the checkpoint lacks it" for name in missing],
        [
            f"{_told(name, found)}: the model does not have it, {found.path} does"
            for name, found in unexpected.items()
        ],
    )


def _lines(problems: Sequence[str]) -> list[str]:
    """Return lines of a message: the first problems, and the number of further ones."""
    lines = [f"  {text}" for text in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"  and {len(problems) - _SHOWN} more like this")
    return lines


def _check_rename(rename: object, path: str) -> None:
    """Check that `rename` is None, a function or a mapping.

    Raises:
        CheckpointError: `rename` is something else.
    """
    if not (rename is None or callable(rename) or isinstance(rename, Mapping)):
        raise CheckpointError(
            path=path, reason=f"rename is {rename!r}, it can be a function or a mapping"
        )


def _slots(model: nn.Module) -> list[_Slot]:
    """Return a slot for each tensor of a model that a checkpoint can fill."""
    slots: dict[Identity, _Slot] = {}
    for name, tensor in _saved_tensors(model):
        slot = slots.setdefault(Identity.of(tensor), _Slot([]))
        slot.names.append(name)
        slot.tensors.append(tensor)
    return list(slots.values())


def _saved_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and persistent buffers of a model, with their names.

    A tensor with several names is yielded once under each of them.
    """
    for prefix, module in model.named_modules(remove_duplicate=False):
        unsaved = module._non_persistent_buffers_set
        kept = {n: b for n, b in module._buffers.items() if n not in unsaved}
        for name, tensor in (*module._parameters.items(), *kept.items()):
            if tensor is not None:
                yield f"{prefix}.{name}" if prefix else name, tensor


def _assign(
    tensors: Mapping[str, NamedTensor], rename: Rename, by_name: Mapping[str, _Slot]
) -> tuple[list[str], dict[str, NamedTensor]]:
    """Assign a checkpoint's tensors to slots of the model by name.

    `by_name`: a name in the model -> its slot.

    Returns:
        The problems found, and the checkpoint's tensors without a slot.
    """
    problems, unexpected, taken = [], dict[str, NamedTensor](), dict[str, str]()
    for stored_name, stored in tensors.items():
        name = _renamed(stored_name, rename)
        if not isinstance(name, str):
            problems.append(f"{shown(stored_name)}: rename returns {name!r}")
            continue
        if name in taken:
            both = f"both {shown(taken[name])} and {shown(stored_name)}"
            problems.append(f"{shown(name)}: {both} are renamed to it")
        elif name in by_name:
            by_name[name].found.append(stored)
        else:
            unexpected[name] = stored
        taken[name] = stored_name
    return problems, unexpected


def _renamed(name: str, rename: Rename) -> object:
    """Apply a user's function or mapping to a name; the result may be anything."""
    if rename is None:
        return name
    return rename(name) if callable(rename) else rename.get(name, name)


def _misfits(slot: _Slot) -> Iterator[str]:
    """Yield messages: why stored tensors cannot fill the model's tensor of a slot."""
    tensor = slot.tensors[0]
    for stored in slot.found:
        name = _told(slot.names[0], stored)
        if stored.shape != tuple(tensor.shape):
            shapes = f"{list(tensor.shape)} in the model, {list(stored.shape)}"
            yield f"{name}: {shapes} in {stored.path}"
        elif not (
            stored.dtype == tensor.dtype
            or (stored.dtype in _FLOATS and tensor.dtype in _FLOATS)
        ):
            kinds = f"{tensor.dtype} in the model, {shown(stored.kind)}"
            yield f"{name}: {kinds} in {stored.path}"
    for tensor in slot.tensors if slot.found else ():
        if tensor.is_meta and not can_be_empty(tensor):
            kind = type(tensor).__name__
            yield f"{slot.names[0]}: a {kind} on the meta device, no plain parameter"
        elif not tensor.is_meta and overlaps_itself(tensor):
            yield f"{slot.names[0]}: its elements share memory, as expand() makes them"


def _overlaps(slots: list[_Slot]) -> Iterator[str]:
    """Yield messages for empty parameters that share memory with different views of it.

    The views differ in shape or offset. Each of these parameters would be read from the
    checkpoint separately, so their values could differ.
    """
    first: dict[int, _Slot] = {}
    for slot in slots:
        if slot.tensors[0].is_meta:
            other = first.setdefault(slot.tensors[0].untyped_storage()._cdata, slot)
            if other is not slot:
                yield (
                    f"{slot.names[0]}: it shares memory with {other.names[0]} in "
                    "another shape or place; keep one, and views of it in the code"
                )


def _was_shared(slots: list[_Slot], model: nn.Module) -> Iterator[str]:
    """Yield messages for real tensors over memory that an empty parameter had before.

    In the original model, filling the parameter would have changed these tensors too.
    """
    emptied: dict[int, list[_Slot]] = {}
    for slot in slots:
        storage = storage_before(slot.tensors[0])
        if storage is not None:
            emptied.setdefault(storage, []).append(slot)
    for name, tensor in tensors_of(model).items():
        storage = None if tensor.is_meta else tensor.untyped_storage()._cdata
        for slot in [] if storage is None else emptied.get(storage, []):
            yield (
                f"{name}: it shared memory with {slot.names[0]}, which is empty; "
                "make one of the other after the checkpoint is loaded"
            )


def _differing(slot: _Slot) -> Iterator[str]:
    """Yield messages for names of one tensor that have different stored values."""
    for stored in slot.found[1:]:
        if not have_same_values(slot.found[0], stored, slot.tensors[0].dtype):
            names = f"{shown(slot.found[0].name)} and {shown(stored.name)}"
            yield f"{names}: one tensor in the model, different values here"


def have_same_values(one: NamedTensor, other: NamedTensor, dtype: torch.dtype) -> bool:
    """Tell whether two stored tensors are equal after a conversion to a dtype."""
    sources = (StoredSource(one, dtype), StoredSource(other, dtype))
    blocks = zip(*map(WeightReader().chunks, sources), strict=True)
    return all(a == b for a, b in blocks)


def _fill(slot: _Slot) -> None:
    """Fill the model's tensor of a slot with its values from the checkpoint."""
    for tensor in slot.tensors:
        if tensor.is_meta:
            make_empty(tensor)
            attach(tensor, slot.found[0], slot.names[0])
    target = slot.tensors[0].detach()
    if target.is_meta or not target.numel():
        return
    whole = (
        target
        if target.is_contiguous()
        else torch.empty_like(target, memory_format=torch.contiguous_format)
    )
    flat, at = whole.view(-1), 0
    for block in WeightReader().blocks(StoredSource(slot.found[0], target.dtype)):
        flat[at : at + block.numel()] = block
        at += block.numel()
    if whole is not target:
        target.copy_(whole)


def _told(name: str, stored: NamedTensor) -> str:
    if name == stored.name:
        return shown(name)
    return f"{shown(name)} ({shown(stored.name)} in the checkpoint)"
