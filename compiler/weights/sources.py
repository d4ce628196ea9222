"""Descriptions of where the bytes of constants come from.

Two equal sources give the same data, so shared data is found without reading a byte.
`weight_reader.py` reads the bytes.
"""

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final, Protocol

import torch
from torch import Tensor

from kvc.compiler.weights.int4 import Moments
from kvc.compiler.weights.stored_layout import QuantizedTensor, StoredLayout
from kvc.compiler.weights.tensor_identity import Identity
from kvc.schema.ops.products import QB4_BLOCK, QB4_BYTES, QB4_ROWS
from kvc.schema.ops.row_blocks import weight_blocks

ROTATED: Final = ".rotated"  # the end of the name of a rotated constant


class TensorSource:
    """The bytes of a tensor of the user's model; sources of one tensor are equal."""

    __slots__ = ("identity", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = (
            tensor  # keeps the storage alive, so that its identity stays valid
        )
        self.identity = Identity.of(tensor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSource) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


class StoredTensor(Protocol):
    """A contiguous tensor in a file; equal objects of this class have equal bytes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the tensor."""
        ...

    def elements(self, begin: int, end: int) -> Tensor:
        """Return the elements `begin` to `end`, in memory order, as a flat tensor.

        Raises:
            CheckpointChanged: the file has changed since it was opened.
        """
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class StoredSource:
    """A tensor of a file, cast to the dtype of the model's tensor.

    Attributes:
        stored: the tensor in the file.
        dtype: the model's dtype.
        through: earlier dtypes of the model's tensor, in order. The values are cast to
            each of these dtypes first, because such a cast loses precision.
    """

    stored: StoredTensor
    dtype: torch.dtype
    through: tuple[torch.dtype, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor that the bundle does not have; whoever opens the bundle fills it.

    Attributes:
        name: the tensor's name in the model.
        shape: the sizes of the tensor.
    """

    name: str
    shape: tuple[int, ...]


class Transform(Enum):
    """The ways in which a weight can be transformed before it is stored."""

    INT8 = "int8"  # int8 values, per row of a matrix
    INT8_SCALE = "int8_scale"  # float32 scale of each row
    INT8_BLOCKS = "int8_blocks"  # int8 values, per block of a row
    INT8_BLOCKS_SCALE = "int8_blocks_scale"  # float32 scale of each block of each row
    INT8_CHANNELS = "int8_channels"  # int8 values, per index of the first axis
    INT8_CHANNELS_SCALE = "int8_channels_scale"  # float32 scale of each index
    INT8_OUTPUTS = "int8_outputs"  # int8 values, per index of the second axis
    INT8_OUTPUTS_SCALE = "int8_outputs_scale"  # float32 scale of each index
    INT4 = "int4"  # two int4 values a byte, per block of a row, eight rows together
    INT4_SCALE = "int4_scale"  # bfloat16 scale of each block of each row, positive
    INT4_SIGNED = "int4_signed"  # as INT4, with scales that may be negative
    INT4_SIGNED_SCALE = "int4_signed_scale"  # as INT4_SCALE
    BFLOAT16 = "bfloat16"  # rounded to bfloat16
    TRANSPOSED = "transposed"  # the last two axes exchanged
    STORED_INT8 = "stored_int8"  # int8 values as a checkpoint has them
    STORED_INT8_SCALE = "stored_int8_scale"  # float32 scale of each block of each row
    STORED_INT4 = "stored_int4"  # as INT4, values as a checkpoint has them
    STORED_INT4_SCALE = "stored_int4_scale"  # as INT4_SCALE, in the layout's dtype
    STORED_INT4_MINIMUM = "stored_int4_minimum"  # what a value of zero stands for


# Transform for the values of a matrix -> transform for its scales.
SCALES: Final = {
    Transform.INT8: Transform.INT8_SCALE,
    Transform.INT8_BLOCKS: Transform.INT8_BLOCKS_SCALE,
    Transform.INT8_CHANNELS: Transform.INT8_CHANNELS_SCALE,
    Transform.INT8_OUTPUTS: Transform.INT8_OUTPUTS_SCALE,
    Transform.INT4: Transform.INT4_SCALE,
    Transform.INT4_SIGNED: Transform.INT4_SIGNED_SCALE,
}
# The same, for a matrix that a checkpoint has quantized.
STORED_SCALES: Final = {
    Transform.STORED_INT8: Transform.STORED_INT8_SCALE,
    Transform.STORED_INT4: Transform.STORED_INT4_SCALE,
}
STORED: Final = (
    *STORED_SCALES, *STORED_SCALES.values(), Transform.STORED_INT4_MINIMUM,
)  # fmt: skip
SCALE: Final = "_scale"  # the end of the names of scales
INT4: Final = (Transform.INT4, Transform.INT4_SIGNED)


@dataclass(frozen=True, slots=True)
class Derived:
    """A source that is a transform of another source.

    Attributes:
        transform: the transform.
        base: the source that is transformed.
        moments: second moments of the inputs of the weight's layer, if they guide int4
            rounding.
    """

    transform: Transform
    base: "Source"
    moments: Moments | None = None


@dataclass(frozen=True, slots=True)
class Divided:
    """A matrix divided along its rows into `count` matrices of equal size."""

    base: "Source"
    count: int


class Make(Protocol):
    """A function of float tensors; equal functions must give equal results."""

    @property
    def by_rows(self) -> bool:
        """Tell whether row i of the result needs only row i of the first tensor."""
        ...

    def __call__(self, first: Tensor, /, *rest: Tensor) -> Tensor:
        """Return the result of the function, as a contiguous tensor."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Computed:
    """A tensor computed from the tensors of other sources."""

    make: Make
    bases: tuple["Source", ...]
    shape: tuple[int, ...]


Base = TensorSource | StoredSource | Slot
Source = Base | Derived | Divided | Computed


def shape_of(source: Source) -> tuple[int, ...]:
    """Return the sizes of the tensor of a source."""
    match source:
        case TensorSource():
            return tuple(source.tensor.shape)
        case StoredSource():
            return source.stored.shape
        case Computed() | Slot():
            return source.shape
        case Divided():
            rows, columns = shape_of(source.base)
            return source.count, rows // source.count, columns
        case Derived():
            return _derived_shape(source)


def layout_of(source: Source) -> StoredLayout | None:
    """Return how a checkpoint has a float32 matrix quantized; None: not at all."""
    match source:
        case StoredSource(QuantizedTensor() as stored, torch.float32, ()):
            return stored.layout
        case _:
            return None


def _derived_shape(source: Derived) -> tuple[int, ...]:
    layout = layout_of(source.base)
    match source:
        case Derived(Transform.STORED_INT8_SCALE, base):
            assert layout is not None
            rows, columns = shape_of(base)
            return rows, columns // layout.block
        case Derived(Transform.STORED_INT4_SCALE | Transform.STORED_INT4_MINIMUM, base):
            assert layout is not None
            rows, columns = shape_of(base)
            return rows // QB4_ROWS, columns // layout.block, QB4_ROWS
        case Derived(Transform.INT8_SCALE, base):
            return shape_of(base)[:-1]
        case Derived(Transform.INT8_BLOCKS_SCALE, base):
            *lead, columns = shape_of(base)
            return *lead, weight_blocks(columns)
        case Derived(Transform.INT8_CHANNELS_SCALE, base):
            return shape_of(base)[:1]
        case Derived(Transform.INT8_OUTPUTS_SCALE, base):
            return shape_of(base)[1:2]
        case Derived(Transform.TRANSPOSED, base):
            *count, rows, columns = shape_of(base)
            return *count, columns, rows
        case Derived(
            Transform.INT4 | Transform.INT4_SIGNED | Transform.STORED_INT4, base
        ):
            rows, columns = shape_of(base)
            values = 2 * QB4_BYTES
            return rows // QB4_ROWS, columns // values, QB4_ROWS, QB4_BYTES
        case Derived(Transform.INT4_SCALE | Transform.INT4_SIGNED_SCALE, base):
            rows, columns = shape_of(base)
            return rows // QB4_ROWS, columns // QB4_BLOCK, QB4_ROWS
        case _:
            return shape_of(source.base)


def base_of(source: Source) -> Base:
    """Return the first of the model's tensors from which a source is computed."""
    while not isinstance(source, Base):
        source = source.bases[0] if isinstance(source, Computed) else source.base
    return source


def nbytes_of(base: Base) -> int:
    """Return the number of bytes of a tensor of the model."""
    match base:
        case TensorSource():
            return base.tensor.numel() * base.tensor.itemsize
        case StoredSource():
            return prod(base.stored.shape) * base.dtype.itemsize
        case Slot():
            return 0
