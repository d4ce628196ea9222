"""Parameters that transformers makes from other tensors when it loads them.

In: one of its `WeightConverter`s and the tensors of a checkpoint that it takes. Out: a
`ConvertedTensor` for each parameter, whose type is known now and whose values are made
when they are read. One conversion's results are kept at a time: memory is bounded by
the largest parameter, or, for stacked experts, by the part of one expert.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    Transpose,
    WeightConverter,
)

from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.schema.errors import BadModelFolder

Collected = Mapping[str, Sequence[FileTensor]]  # by the converter's source pattern
Read = Mapping[str, Sequence[Tensor]]


class Conversion:
    """A converter and all that it takes; equal by identity.

    Attributes:
        name: the first parameter that it makes.
        types: all of them, as tensors on the meta device.
    """

    def __init__(
        self,
        name: str,
        converter: WeightConverter,
        sources: Collected,
        model: PreTrainedModel,
    ) -> None:
        """Find out what a converter makes.

        Raises:
            BadModelFolder: it does not take these tensors.
        """
        self.name, self._converter, self._sources = name, converter, sources
        self._model = model
        self._kept: tuple[int | None, Mapping[str, Tensor]] = (None, {})
        self._by_part = _is_by_part(converter)
        try:
            self.types = self._convert(
                {p: [_meta(t) for t in found] for p, found in sources.items()}
            )
        except Exception as error:
            first = next(iter(sources.values()))[0]
            raise BadModelFolder(
                path=first.path, reason=f"{name} cannot be made of {first.name} and "
                f"others: {type(error).__name__}: {error}",
            ) from error  # fmt: skip

    def values(self, name: str, part: int) -> Tensor:
        """Return a parameter, or the part of it that is made of its nth sources."""
        which = part if self._by_part else 0
        if self._kept[0] != which or name not in self._kept[1]:
            self._kept = (None, {})
            taken = slice(part, part + 1) if self._by_part else slice(None)
            read = {p: [_read(t) for t in f[taken]] for p, f in self._sources.items()}
            self._kept = (which, self._convert(read))
        return self._kept[1][name]

    def forget(self) -> None:
        """Let go of what was made last."""
        self._kept = (None, {})

    @property
    def by_part(self) -> bool:
        """Whether each part along axis 0 is made of sources of its own."""
        return self._by_part

    def _convert(self, tensors: Read) -> dict[str, Tensor]:
        converter = deepcopy(self._converter)
        for pattern, found in tensors.items():
            for tensor in found:
                give = _given(tensor)
                converter.add_tensor(self.name, self.name, pattern, give)  # type: ignore[arg-type]
        made = converter.convert(self.name, self._model, self._model.config)
        return {n: t[0] if isinstance(t, list) else t for n, t in made.items()}


def _given(tensor: Tensor) -> object:
    return lambda: tensor


def _meta(tensor: FileTensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _read(tensor: FileTensor) -> Tensor:
    return tensor.elements(0, prod(tensor.shape)).view(tensor.shape)


def _is_by_part(converter: WeightConverter) -> bool:
    """Tell whether a converter stacks tensors and then works on each by itself."""
    first, *others = converter.operations
    if not isinstance(first, MergeModulelist) or first.dim != 0:
        return False
    return all(
        (isinstance(op, Concatenate) and op.dim > 0)
        or (isinstance(op, Transpose) and min(op.dim0, op.dim1) > 0)
        for op in others
    )


@dataclass(frozen=True, slots=True)
class ConvertedTensor:
    """A parameter that is made of tensors in files; a `NamedTensor`."""

    conversion: Conversion
    name: str
    path: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its sizes."""
        return tuple(self.conversion.types[self.name].shape)

    @property
    def dtype(self) -> torch.dtype | None:
        """Return its dtype."""
        return self.conversion.types[self.name].dtype

    @property
    def kind(self) -> str:
        """Return its dtype, for a message."""
        return str(self.dtype)

    def elements(self, begin: int, end: int) -> Tensor:
        """Make a range of its elements, in order, as a flat tensor."""
        if not self.conversion.by_part:
            whole = self.conversion.values(self.name, 0).reshape(-1)
            return self._released(whole[begin:end], end)
        each = prod(self.shape[1:])
        pieces = []
        for part in range(begin // each, -(-end // each)):
            made = self.conversion.values(self.name, part).reshape(-1)
            pieces.append(made[max(0, begin - part * each) : end - part * each])
        return self._released(torch.cat(pieces), end)

    def _released(self, elements: Tensor, end: int) -> Tensor:
        """Return elements; once the last were read, nothing else is kept."""
        if end < prod(self.shape):
            return elements
        elements = elements.clone()
        if len(self.conversion.types) == 1:
            self.conversion.forget()
        return elements
