"""Map a checkpoint's tensors to a model's parameters, by transformers' own rules.

In: a model of transformers and an open checkpoint. Out: the same model, whose
parameters have values from the checkpoint. Names that older or other versions of
transformers gave to tensors are renamed, and tied tensors become one tensor. Tensors
that belong to no parameter are refused; the error names them. Parameters that
transformers computes from other tensors, with a `WeightConverter`, are
`ConvertedTensor`s: their types are known at once, and their values are computed when
they are read. Memory holds the results of one conversion at a time: at most the size of
the largest parameter, or, for stacked experts, of one expert's part of the parameter.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    Transpose,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    dot_natural_key,
    rename_source_key,
)

from kvc.compiler.checkpoints.loading import (
    NamedTensor,
    have_same_values,
    load_model,
)
from kvc.schema.errors import BadModelFolder

# Tensors that a model computes if a checkpoint lacks them, such as tables of sines.


@dataclass(frozen=True, slots=True)
class ComputedTensor:
    """A tensor in memory that can be used as a `NamedTensor`."""

    name: str
    path: str
    values: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the tensor's shape."""
        return tuple(self.values.shape)

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the tensor's dtype."""
        return self.values.dtype

    @property
    def kind(self) -> str:
        """Return the name of the tensor's dtype, for a message."""
        return str(self.dtype)

    def elements(self, begin: int, end: int) -> Tensor:
        """Return the elements `begin` to `end` - 1, in order, as a flat tensor."""
        return self.values.reshape(-1)[begin:end]


def computed(
    model: PreTrainedModel, found: Mapping[str, NamedTensor], path: str
) -> dict[str, NamedTensor]:
    """Return name -> tensor, for tensors that a checkpoint lacks and a model computes.

    Args:
        model: the model with empty parameters.
        found: the checkpoint's tensors, by the model's names.
        path: path of the checkpoint.
    """
    patterns = model._keys_to_ignore_on_load_missing or ()
    missing = [name for name in model.state_dict() if name not in found]
    made = dict[str, NamedTensor]()
    for name in missing:
        if any(re.search(pattern, name) for pattern in patterns):
            values = _values(model, name)
            if values is not None:
                made[name] = ComputedTensor(name, path, values)
    return made


def _values(model: PreTrainedModel, name: str) -> Tensor | None:
    """Return a tensor as the model initializes it; None if it is a trained weight."""
    place, _, own = name.rpartition(".")
    module = model.get_submodule(place)
    buffer = module._buffers.get(own)
    if buffer is not None:
        return buffer.detach().clone()
    before = module._parameters[own]
    if before is None or before.requires_grad:
        return None
    real = nn.Parameter(torch.empty(before.shape, dtype=before.dtype), False)
    module._parameters[own] = real
    try:
        # Initialization draws random numbers, which must not change the caller's
        # generator.
        with torch.random.fork_rng(devices=[]):
            model._init_weights(module)  # type: ignore[no-untyped-call]
    finally:
        module._parameters[own] = before
    return real.detach()


# Mapping of a checkpoint's tensors to parameters.


Collected = Mapping[
    str, Sequence[NamedTensor]
]  # keyed by the converter's source pattern
ReadTensors = Mapping[str, Sequence[Tensor]]


class Conversion:
    """A converter and the tensors that it converts; compared by identity.

    Attributes:
        name: name of the first parameter that the converter computes.
        types: name -> tensor on the meta device, for all parameters that the converter
            computes.
    """

    def __init__(
        self,
        name: str,
        converter: WeightConverter,
        sources: Collected,
        model: PreTrainedModel,
    ) -> None:
        """Determine the types of the parameters that a converter computes.

        Raises:
            BadModelFolder: the converter does not accept these tensors.
        """
        self.name, self._converter, self._sources = name, converter, sources
        self._model = model
        self._kept: tuple[int | None, Mapping[str, Tensor]] = (None, {})
        self._by_part = _is_by_part(converter)
        try:
            self.types = self._convert(
                {
                    p: [
                        torch.empty(t.shape, dtype=t.dtype, device="meta")
                        for t in found
                    ]
                    for p, found in sources.items()
                }
            )
        except Exception as error:
            first = next(iter(sources.values()))[0]
            raise BadModelFolder(
                path=first.path, reason=f"{name} cannot be made of {first.name} and "
                f"others: {type(error).__name__}: {error}",
            ) from error  # fmt: skip

    def values(self, name: str, part: int) -> Tensor:
        """Return the values of a parameter, or of its part at the index `part`.

        Only a parameter that is converted by parts is returned in parts.
        """
        which = part if self._by_part else 0
        if self._kept[0] != which or name not in self._kept[1]:
            self._kept = (None, {})
            taken = slice(part, part + 1) if self._by_part else slice(None)
            read = {
                p: [t.elements(0, prod(t.shape)).view(t.shape) for t in f[taken]]
                for p, f in self._sources.items()
            }
            self._kept = (which, self._convert(read))
        return self._kept[1][name]

    def forget(self) -> None:
        """Drop the values of the last conversion."""
        self._kept = (None, {})

    @property
    def by_part(self) -> bool:
        """Tell whether a parameter's parts along axis 0 are converted separately."""
        return self._by_part

    def _convert(self, tensors: ReadTensors) -> dict[str, Tensor]:
        converter = deepcopy(self._converter)
        for pattern, found in tensors.items():
            for tensor in found:
                converter.add_tensor(self.name, self.name, pattern, _given(tensor))  # type: ignore[arg-type]
        made = converter.convert(self.name, self._model, self._model.config)
        return {n: t[0] if isinstance(t, list) else t for n, t in made.items()}


def _given(tensor: Tensor) -> object:
    return lambda: tensor


def _is_by_part(converter: WeightConverter) -> bool:
    """Tell whether a converter stacks tensors, and converts each tensor separately."""
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
    """A parameter computed from tensors in files; usable as a `NamedTensor`."""

    conversion: Conversion
    name: str
    path: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the tensor's shape."""
        return tuple(self.conversion.types[self.name].shape)

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the tensor's dtype."""
        return self.conversion.types[self.name].dtype

    @property
    def kind(self) -> str:
        """Return the name of the tensor's dtype, for a message."""
        return str(self.dtype)

    def elements(self, begin: int, end: int) -> Tensor:
        """Compute the elements `begin` to `end` - 1, in order, as a flat tensor."""
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
        """Return `elements`, and drop the conversion's values after the last element.

        `end` is the index in the tensor of the element after `elements`.
        """
        if end < prod(self.shape):
            return elements
        elements = elements.clone()
        if len(self.conversion.types) == 1:
            self.conversion.forget()
        return elements


def load_matched(
    model: PreTrainedModel, path: str, found: Mapping[str, NamedTensor]
) -> None:
    """Give values to a model that was made without memory.

    Args:
        model: the model.
        path: path of the checkpoint.
        found: a model's name -> tensor of the checkpoint for that name.

    Raises:
        CheckpointMismatch: tensors do not fit the model; the error lists all of them.
    """
    tensors = {**found, **computed(model, found, path)}
    # transformers also separates them: tied by config.json, with values of their own.
    for target, source in model.all_tied_weights_keys.items():
        if not {target, source} <= tensors.keys():
            continue
        one, other = tensors[target], tensors[source]
        tied = model.get_parameter(target)
        if one.shape == other.shape and not have_same_values(one, other, tied.dtype):
            module, _, name = target.rpartition(".")
            own = torch.empty(tied.shape, dtype=tied.dtype, device="meta")
            setattr(model.get_submodule(module), name, nn.Parameter(own))
    load_model(model, path, tensors, None, strict=True)


@dataclass(slots=True)
class _Group:
    """The tensors of a checkpoint that a converter turns into a set of parameters."""

    converter: WeightConverter
    sources: dict[str, list[NamedTensor]] = field(default_factory=dict)


def match(
    model: PreTrainedModel, tensors: Mapping[str, NamedTensor]
) -> dict[str, NamedTensor]:
    """Return a model's name -> tensor of the checkpoint for that name.

    Raises:
        BadModelFolder: two tensors get the same name, or a tensor cannot be converted.
    """
    return match_by(get_model_conversion_mapping(model), model, tensors)


def match_by(
    rules: Sequence[WeightTransform],
    model: PreTrainedModel,
    tensors: Mapping[str, NamedTensor],
) -> dict[str, NamedTensor]:
    """Return a model's name -> tensor of a checkpoint, by rules of transformers.

    Raises:
        BadModelFolder: two tensors get the same name, or a tensor cannot be converted.
    """
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {p: rule for rule in converters for p in rule.source_patterns}
    wanted = model.state_dict()
    matched, groups = dict[str, NamedTensor](), dict[str, _Group]()
    for name in sorted(tensors, key=dot_natural_key):
        renamed, pattern = _renamed(name, renamings, converters, model, wanted)
        if renamed not in wanted or pattern is None:
            if renamed in wanted and renamed in matched:
                raise _both(matched[renamed], tensors[name].name, renamed)
            matched[renamed] = tensors[name]
            continue
        group = groups.setdefault(renamed, _Group(by_pattern[pattern]))
        group.sources.setdefault(pattern, []).append(tensors[name])
    for name, group in groups.items():
        conversion = Conversion(name, group.converter, group.sources, model)
        path = next(iter(group.sources.values()))[0].path
        for made in conversion.types:
            if made in matched:
                first = next(iter(group.sources.values()))[0]
                raise _both(matched[made], first.name, made)
            matched[made] = ConvertedTensor(conversion, made, path)
    return _without_ignored(model, matched)


def _both(one: NamedTensor, other: str, name: str) -> BadModelFolder:
    """Return the error for two tensors that get the same name."""
    reason = f"both {one.name} and {other} become {name}"
    return BadModelFolder(path=one.path, reason=reason)


def _renamed(
    name: str,
    renamings: list[WeightRenaming],
    converters: list[WeightConverter],
    model: PreTrainedModel,
    wanted: dict[str, Tensor],
) -> tuple[str, str | None]:
    """Return a model's name for a checkpoint's tensor, and a converter's pattern.

    The pattern is the source pattern of the converter that takes the tensor; None if no
    converter does. `wanted`: the model's tensors by name.
    """
    prefix = model.base_model_prefix
    renamed, pattern = rename_source_key(name, renamings, converters, prefix, wanted)
    if renamed not in wanted and name in wanted:
        return rename_source_key(name, [], [], prefix, wanted)
    return renamed, pattern


def _without_ignored(
    model: PreTrainedModel, tensors: Mapping[str, NamedTensor]
) -> dict[str, NamedTensor]:
    """Return the tensors without those that a model computes or ignores.

    Older versions of transformers saved some buffers under other names; newer versions
    compute these buffers.
    """
    patterns: Iterable[str] = model._keys_to_ignore_on_load_unexpected or ()
    saved = model.state_dict()
    computed = {_end(name) for name, _ in model.named_buffers() if name not in saved}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name in saved
        or not (_end(name) in computed or any(re.search(p, name) for p in patterns))
    }


def _end(name: str) -> tuple[str, ...]:
    """Return the last two parts of a tensor's name: of the module and of the tensor."""
    return tuple(name.split(".")[-2:])
