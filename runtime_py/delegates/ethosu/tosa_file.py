"""Write a graph as a file of TOSA 1.0, by the layout of `tosa.fbs` (Arm, 2026-08).

In: a graph. Out: the bytes of the file, equal for equal graphs. Only operators that
this backend uses can be written.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from kvc.runtime.delegates.ethosu.tosa import (
    Element,
    Operator,
    Tensor,
    TosaGraph,
)

if TYPE_CHECKING:
    from flatbuffers.builder import Builder

VERSION: Final = (1, 0, 0)
_ELEMENTS: Final = {  # the enum DType
    Element.INT8: 3,
    Element.INT16: 4,
    Element.INT32: 5,
    Element.INT48: 6,
}
_INT48_NBYTES: Final = 6
# For each operator: its number in the enum Op and in the union Attribute, and the
# fields of its attribute in order.
KINDS: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    "CONV2D": (3, ("pad", "stride", "dilation", "local_bound", "acc_type")),
    "DEPTHWISE_CONV2D": (5, ("pad", "stride", "dilation", "local_bound", "acc_type")),
    "MATMUL": (7, ()),
    "ADD": (15, ()),
    "ARITHMETIC_RIGHT_SHIFT": (16, ("round",)),
    "LOGICAL_LEFT_SHIFT": (22, ()),
    "MAXIMUM": (26, ("nan_mode",)),
    "MINIMUM": (27, ("nan_mode",)),
    "MUL": (28, ()),
    "SUB": (30, ()),
    "TABLE": (31, ()),
    "CLZ": (35, ()),
    "REDUCE_MAX": (51, ("axis", "nan_mode")),
    "REDUCE_SUM": (54, ("axis",)),
    "CONCAT": (55, ("axis",)),
    "RESHAPE": (57, ()),
    "SLICE": (59, ()),
    "TILE": (60, ()),
    "TRANSPOSE": (61, ("perms",)),
    "SCATTER": (63, ()),
    "RESCALE": (
        66,
        (
            "scale32",
            "rounding_mode",
            "per_channel",
            "input_unsigned",
            "output_unsigned",
        ),
    ),
    "CONST": (67, ()),
    "IDENTITY": (68, ()),
    "CONST_SHAPE": (75, ()),
}
_ALIGN: Final = 8
_UNSIGNED: Final = ("rounding_mode", "acc_type", "nan_mode")  # enums of uint32


def tosa_bytes(graph: TosaGraph) -> bytes:
    """Encode a graph as a TOSA file."""
    from flatbuffers.builder import Builder  # reading bundles does without

    builder = Builder(1 << 12)
    constants = [one for one in graph.tensors.values() if one.content is not None]
    operators = [
        Operator(
            "CONST_SHAPE" if one.element is Element.SHAPE else "CONST", (), one.name, {}
        )
        for one in constants
    ]
    written = [_operator(builder, one) for one in (*operators, *graph.operators)]
    tensors = [
        one for one in graph.tensors.values() if one.element is not Element.SHAPE
    ]
    shapes = [one for one in graph.tensors.values() if one.element is Element.SHAPE]
    fields = {
        0: builder.CreateString("main"),
        1: _list(builder, written),
        2: _list(builder, [_tensor(builder, one) for one in tensors]),
        3: _names(builder, graph.inputs),
        4: _names(builder, graph.outputs),
        5: _list(builder, [_shape(builder, one) for one in shapes]),
    }
    block = _table(builder, fields)
    region = _table(
        builder, {0: builder.CreateString("main"), 1: _list(builder, [block])}
    )
    builder.StartObject(4)
    for slot, number in enumerate(VERSION):
        builder.PrependInt32Slot(slot, number, -1)
    builder.PrependBoolSlot(3, False, True)  # not a draft
    version: int = builder.EndObject()
    regions = _list(builder, [region])
    builder.Finish(_table(builder, {0: version, 1: regions}), file_identifier=b"TOSA")
    return bytes(builder.Output())


def _operator(builder: "Builder", operator: Operator) -> int:
    number, fields = KINDS[operator.kind]
    assert operator.attributes.keys() == {*fields}, (
        "an operator has all of its attributes"
    )
    vectors = {
        name: builder.CreateNumpyVector(np.array(value, np.int32))
        for name, value in operator.attributes.items()
        if isinstance(value, tuple)
    }
    builder.StartObject(len(fields))
    for slot, name in enumerate(fields):
        value = operator.attributes[name]
        if name in vectors:
            builder.PrependUOffsetTRelativeSlot(slot, vectors[name], 0)
        elif isinstance(value, bool):
            builder.PrependBoolSlot(slot, value, False)
        elif name in _UNSIGNED:
            builder.PrependUint32Slot(slot, value, 0)
        else:
            builder.PrependInt32Slot(slot, value, 0)
    attribute: int = builder.EndObject()
    inputs, outputs = (
        _names(builder, operator.inputs),
        _names(builder, [operator.output]),
    )
    builder.StartObject(6)
    builder.PrependUint32Slot(0, number, 0)
    builder.PrependUint8Slot(1, number, 0)
    builder.PrependUOffsetTRelativeSlot(2, attribute, 0)
    builder.PrependUOffsetTRelativeSlot(3, inputs, 0)
    builder.PrependUOffsetTRelativeSlot(4, outputs, 0)
    made: int = builder.EndObject()
    return made


def _tensor(builder: "Builder", tensor: Tensor) -> int:
    name = builder.CreateString(tensor.name)
    shape = builder.CreateNumpyVector(np.array(tensor.shape, np.int32))
    content = None if tensor.content is None else _octets(builder, _raw(tensor))
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUOffsetTRelativeSlot(1, shape, 0)
    builder.PrependUint32Slot(2, _ELEMENTS[tensor.element], 0)
    if content is not None:
        builder.PrependUOffsetTRelativeSlot(3, content, 0)
    made: int = builder.EndObject()
    return made


def _raw(tensor: Tensor) -> bytes:
    """Return the bytes of a constant; an int48 has six bytes."""
    assert tensor.content is not None, "a constant"
    raw = tensor.content.tobytes()
    if tensor.element is not Element.INT48:
        return raw
    return np.frombuffer(raw, np.uint8).reshape(-1, 8)[:, :_INT48_NBYTES].tobytes()


def _shape(builder: "Builder", shape: Tensor) -> int:
    assert shape.content is not None, "shapes are constants"
    name = builder.CreateString(shape.name)
    content = _octets(builder, shape.content.astype("<i8").tobytes())
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUint32Slot(1, len(shape.content), 0)
    builder.PrependUOffsetTRelativeSlot(2, content, 0)
    made: int = builder.EndObject()
    return made


def _octets(builder: "Builder", raw: bytes) -> int:
    """Write bytes at an offset that is a multiple of 8."""
    builder.StartVector(1, len(raw), _ALIGN)
    builder.head -= len(raw)
    builder.Bytes[builder.head : builder.head + len(raw)] = raw
    made: int = builder.EndVector()
    return made


def _names(builder: "Builder", names: Sequence[str]) -> int:
    return _list(builder, [builder.CreateString(name) for name in names])


def _list(builder: "Builder", offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    made: int = builder.EndVector()
    return made


def _table(builder: "Builder", fields: Mapping[int, int]) -> int:
    builder.StartObject(max(fields) + 1)
    for slot, offset in fields.items():
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    made: int = builder.EndObject()
    return made
