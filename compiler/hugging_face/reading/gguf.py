"""Read a model of transformers from a GGUF file: configuration, weights, tokenizer.

All that is known of architectures is transformers' own: which settings a key of the
metadata is, which parameter a tensor is, what llama.cpp's converter did to its values,
and which tokenizer a vocabulary makes. Here these rules are applied to tensors that
have not been read yet. A tensor that is a parameter as it is, but for the order of its
rows, keeps its `StoredLayout`.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from kvc.compiler.checkpoints.gguf_file import GgufCheckpoint, GgufTensor
from kvc.compiler.checkpoints.loading import NamedTensor
from kvc.compiler.hugging_face.reading.gguf_settings import FACTORS, complete
from kvc.compiler.hugging_face.reading.model_lines import words_of
from kvc.compiler.hugging_face.reading.weights import match_by
from kvc.compiler.weights.stored_layout import StoredLayout, StoredRows
from kvc.schema.checkpoints.gguf_header import STRING, Metadata
from kvc.schema.errors import BadModelFolder, UnsupportedModel

ARCHITECTURE: Final = "general.architecture"
_READERS: Final = "transformers.integrations.gguf"


def read_config(checkpoint: GgufCheckpoint) -> PreTrainedConfig:
    """Return the configuration that the metadata of a file describes.

    Raises:
        UnsupportedModel: transformers reads no such architecture from GGUF files, or
            the file scales the frequencies of positions in an unknown way.
        BadModelFolder: the metadata has impossible values.
    """
    architecture = checkpoint.metadata.get(ARCHITECTURE)
    if not isinstance(architecture, str):
        reason = f"its metadata has no {ARCHITECTURE}"
        raise BadModelFolder(path=checkpoint.path, reason=reason)
    try:
        with _read_once(checkpoint) as (folder, name):
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                folder, gguf_file=name, local_files_only=True
            )
    except Exception as error:
        if "not supported" in str(error):
            reason = (
                f"transformers reads no GGUF files of architecture {architecture!r}; "
                "compile the model's folder of .safetensors files"
            )
            raise UnsupportedModel(model=checkpoint.path, reason=reason) from error
        reason = f"its metadata makes no configuration: {words_of(error)}"
        raise BadModelFolder(path=checkpoint.path, reason=reason) from error
    complete(config, checkpoint)
    return config


def read_tokenizer(checkpoint: GgufCheckpoint) -> dict[str, bytes]:
    """Return the tokenizer's files by name; {} for a file without a vocabulary.

    Raises:
        BadModelFolder: the metadata makes no tokenizer.
    """
    if "tokenizer.ggml.tokens" not in checkpoint.metadata:
        return {}
    try:
        with _read_once(checkpoint) as (folder, name), TemporaryDirectory() as made:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, gguf_file=name, local_files_only=True
            )
            tokenizer.save_pretrained(made)
            files = sorted(Path(made).iterdir())
            return {file.name: file.read_bytes() for file in files}
    except Exception as error:
        reason = f"its metadata makes no tokenizer: {words_of(error)}"
        raise BadModelFolder(path=checkpoint.path, reason=reason) from error


# A file's metadata as the gguf package's reader has it.


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    types: list[int]
    parts: "_Parts"

    @property
    def data(self) -> range:
        return range(len(self.parts))


class _Parts:
    """The elements of a list of metadata, each as the reader has it: bytes or [n]."""

    def __init__(self, values: Sequence[Metadata]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> object:
        value = self._values[index]
        return value.encode() if isinstance(value, str) else [value]


@dataclass(frozen=True, slots=True)
class _Reader:
    fields: Mapping[str, _Field]
    tensors: Sequence[GgufTensor]


@contextmanager
def _read_once(checkpoint: GgufCheckpoint) -> Iterator[tuple[str, str]]:
    """Give transformers the header that is read already, in this context.

    Yields the path of a folder that has nothing but a link to the file, since
    transformers prefers a tokenizer.json beside it, and the name of the file there.
    """
    fields = {
        key: _Field(
            key,
            list(checkpoint.types[key]),
            _Parts(value if isinstance(value, list) else [value]),
        )
        for key, value in checkpoint.metadata.items()
    }
    reader = _Reader(fields, list(checkpoint.tensors.values()))

    def metadata(
        _: str, lists: Container[str] = ()
    ) -> tuple[dict[str, object], tuple[str, ...]]:
        found = {key: _told(checkpoint, key, lists) for key in checkpoint.metadata}
        return found, tuple(checkpoint.tensors)

    with (
        TemporaryDirectory() as folder,
        mock.patch("gguf.GGUFReader", return_value=reader),
        mock.patch("transformers.integrations.gguf.read_gguf_metadata", metadata),
        mock.patch(
            "transformers.integrations.gguf.reader.read_gguf_metadata", metadata
        ),
    ):
        path = Path(checkpoint.path).resolve()
        (Path(folder) / path.name).symlink_to(path)
        yield folder, path.name


def _told(checkpoint: GgufCheckpoint, key: str, lists: Container[str]) -> object:
    """Return an entry of metadata; a list of texts that is not asked for by length."""
    value = checkpoint.metadata[key]
    by_length = isinstance(value, list) and checkpoint.types[key][-1] == STRING
    return len(value) if by_length and key not in lists else value  # type: ignore[arg-type]


# From a file's tensors to parameters.


def gguf_tensors(
    model: PreTrainedModel, checkpoint: GgufCheckpoint
) -> dict[str, NamedTensor]:
    """Return a model's name -> tensor of the file for that name.

    Raises:
        UnsupportedModel: the gguf package has no names for the model's tensors.
        BadModelFolder: tensors cannot be converted to the model's parameters.
    """
    architecture = str(checkpoint.metadata[ARCHITECTURE])
    tensors = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if name != FACTORS  # which the configuration has
    }
    if architecture in GGUF_ARCHS:
        return match_by(GGUF_ARCHS[architecture](model.config), model, tensors)
    kind: type[TensorProcessor] = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    processor = kind(config=model.config.to_dict())
    try:
        names = get_gguf_hf_weights_map(model, processor)
    except NotImplementedError as error:
        raise UnsupportedModel(model=checkpoint.path, reason=words_of(error)) from error
    found = dict[str, NamedTensor]()
    sources = dict[str, list[GgufTensor]]()
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    for name, tensor in tensors.items():
        # The parameters of experts have no ".weight".
        target = names.get(name) or names.get(name.removesuffix(".weight"))
        if target in shapes:
            sources.setdefault(target, []).append(tensor)
        else:
            found[name] = tensor  # refused with the others that the model lacks
    for target, parts in sources.items():
        found[target] = _made_of(target, parts, shapes[target], processor, names)
    return found


def _made_of(
    target: str,
    parts: Sequence[GgufTensor],
    shape: tuple[int, ...],
    processor: TensorProcessor,
    names: Mapping[str, str],
) -> NamedTensor:
    """Return the parameter `target` [shape], which is made of tensors of a file."""
    first = parts[0]
    if prod(first.shape) > prod(shape):
        return first  # refused with its sizes
    order = _order_of_rows(processor, first) if len(parts) == 1 else None
    if order is None:
        return _Processed(target, tuple(parts), processor, names, shape)
    if torch.equal(order, torch.arange(len(order))):
        return first
    return _Reordered(first, order)


def _order_of_rows(processor: TensorProcessor, tensor: GgufTensor) -> Tensor | None:
    """Return which row of a tensor each row of the parameter is: int64 [rows].

    None if the parameter is made of the tensor's values in any other way.
    """
    if type(processor).process is TensorProcessor.process:
        return torch.arange(tensor.shape[0] if tensor.shape else 1)
    rows = tensor.shape[0] if tensor.shape else 0
    shape = (rows,) if len(tensor.shape) < 2 else (rows, 1)
    numbers = np.arange(rows).reshape(shape)
    try:
        made = processor.process(  # type: ignore[no-untyped-call]
            numbers.copy(), tensor.name, parsed_parameters={"tensors": {}}
        )
    except Exception:  # whatever arithmetic makes of a matrix with one column
        return None
    if made.name != tensor.name or made.weights.shape != shape:
        return None
    order = made.weights.reshape(-1)
    whole = np.array_equal(np.sort(order), numbers.reshape(-1))
    return torch.from_numpy(np.ascontiguousarray(order)) if whole else None


@dataclass(frozen=True)
class _Reordered:
    """A tensor of a file whose rows are in another order than a parameter's."""

    tensor: GgufTensor
    order: Tensor = field(compare=False)

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def path(self) -> str:
        return self.tensor.path

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def kind(self) -> str:
        return self.tensor.kind

    @property
    def layout(self) -> StoredLayout | None:
        return self.tensor.layout

    def elements(self, begin: int, end: int) -> Tensor:
        width = _row(self.shape)
        first, last = begin // width, -(-end // width)
        order, low, high = self._span(first, last)
        read = self.tensor.elements(low * width, high * width).view(-1, width)
        flat = read[order - low].reshape(-1)
        return flat[begin - first * width : end - first * width]

    def stored_rows(self, begin: int, end: int) -> StoredRows:
        order, low, high = self._span(begin, end)
        read = self.tensor.stored_rows(low, high)
        least = None if read.minimums is None else read.minimums[order - low]
        return StoredRows(read.values[order - low], read.scales[order - low], least)

    def _span(self, first: int, last: int) -> tuple[Tensor, int, int]:
        """Return the rows to read for some rows, and the least span that has them."""
        order = self.order[first:last]
        if not len(order):
            return order, 0, 0
        return order, int(order.min()), int(order.max()) + 1


def _row(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a row along the first axis."""
    return max(1, prod(shape[1:]))


@dataclass(frozen=True)
class _Processed:
    """A parameter that one of transformers' processors makes of tensors of a file."""

    target: str
    parts: tuple[GgufTensor, ...]
    processor: TensorProcessor = field(compare=False)
    names: Mapping[str, str] = field(compare=False)
    shape: tuple[int, ...]
    _kept: list[Tensor] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def path(self) -> str:
        return self.parts[0].path

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def kind(self) -> str:
        return ", ".join(sorted({part.kind for part in self.parts}))

    def elements(self, begin: int, end: int) -> Tensor:
        if not self._kept:
            self._kept.append(self._made())
        part = self._kept[0][begin:end]
        if end < len(self._kept[0]):
            return part
        self._kept.clear()
        return part.clone()

    def _made(self) -> Tensor:
        parsed: dict[str, dict[str, Tensor]] = {"tensors": {}}
        whole: object = None
        for part in self.parts:
            values = part.elements(0, prod(part.shape)).view(part.shape).float()
            try:
                done = self.processor.process(  # type: ignore[no-untyped-call]
                    values.numpy(),
                    part.name,
                    tensor_key_mapping=self.names,
                    parsed_parameters=parsed,
                )
            except Exception as error:  # whatever its sizes do to arithmetic
                reason = f"{part.name} makes no {self.target}: {words_of(error)}"
                raise BadModelFolder(path=self.path, reason=reason) from error
            whole = done.weights if done.name is not None else None
        found = (
            torch.from_numpy(np.ascontiguousarray(whole))
            if whole is not None
            else parsed["tensors"][self.target]
        )
        if tuple(found.shape) != self.shape:
            made = f"{self.name} makes {list(found.shape)}"
            reason = f"{self.target} needs {list(self.shape)}, {made}"
            raise BadModelFolder(path=self.path, reason=reason)
        return found.float().reshape(-1)
