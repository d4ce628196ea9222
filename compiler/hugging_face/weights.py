"""Which tensor of a checkpoint becomes which of a model's, by transformers' own rules.

In: a model of transformers and an open checkpoint. Out: the model, filled. Names of
older or other versions are renamed, tensors stored in other pieces are converted when
they are read, tied tensors are one. Tensors that fit nowhere are refused by name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from kvc.compiler.checkpoints import Checkpoint
from kvc.compiler.checkpoints.loading import NamedTensor, load_model
from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.compiler.hugging_face.conversions import Conversion, ConvertedTensor
from kvc.schema.errors import BadModelFolder


def load_weights(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """Fill a model that was made without memory; nothing is read but headers.

    Raises:
        CheckpointMismatch: with every tensor that does not fit.
        BadModelFolder: tensors cannot be converted to what the model has.
    """
    tensors = match(model, checkpoint.tensors)
    load_model(model, checkpoint.path, tensors, None, strict=True)


@dataclass(slots=True)
class _Group:
    """What one converter takes to make one set of parameters."""

    converter: WeightConverter
    sources: dict[str, list[FileTensor]] = field(default_factory=dict)


def match(
    model: PreTrainedModel, tensors: Mapping[str, FileTensor]
) -> dict[str, NamedTensor]:
    """Return the tensors of a checkpoint by the names that the model has for them.

    Raises:
        BadModelFolder: two become one, or some cannot be converted.
    """
    rules = get_model_conversion_mapping(model)
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
    """Return the error for two tensors of which nobody says which one counts."""
    reason = f"both {one.name} and {other} become {name}"
    return BadModelFolder(path=one.path, reason=reason)


def _renamed(
    name: str,
    renamings: list[WeightRenaming],
    converters: list[WeightConverter],
    model: PreTrainedModel,
    wanted: dict[str, Tensor],
) -> tuple[str, str | None]:
    """Return the model's name for a tensor, and the pattern of a converter for it."""
    prefix = model.base_model_prefix
    renamed, pattern = rename_source_key(name, renamings, converters, prefix, wanted)
    if renamed not in wanted and name in wanted:
        return rename_source_key(name, [], [], prefix, wanted)
    return renamed, pattern


def _without_ignored(
    model: PreTrainedModel, tensors: Mapping[str, NamedTensor]
) -> dict[str, NamedTensor]:
    """Return tensors without those that the model makes itself, or says to ignore.

    Older versions saved buffers that are computed now, and in other places.
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
    """Return the last two parts of a name: a module's and its tensor's."""
    return tuple(name.split(".")[-2:])
