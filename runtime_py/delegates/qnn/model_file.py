"""Models in ONNX's format, for ONNX Runtime, written without the onnx package.

In: nodes, inputs, outputs, weights. Out: the bytes of a `ModelProto` (`onnx.proto`, IR
version 10), equal for equal models. Weights lie in a file beside the model
(`external_data`), so that several models share them; small constants lie in the model
itself.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.schema.frozen import frozen

IR_VERSION: Final = 10
OPSETS: Final = (("", 23), ("com.microsoft", 1))
KINDS: Final = {  # TensorProto.DataType
    "float32": 1,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int64": 7,
    "float16": 10,
}

Attribute = int | float | str | tuple[int, ...]


@frozen
class Node:
    """An operator of ONNX.

    Attributes:
        op: type of the operator, such as `MatMul`.
        inputs: names of the operands; "" for an omitted operand.
        outputs: names of the results.
        attributes: the attributes, by name.
        domain: domain of the operator, "" for ONNX's own.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    domain: str = ""


@frozen
class Value:
    """An input or output of a model: its name, dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@frozen
class Weight:
    """A constant of a model; its bytes lie in a file beside the model, at an offset."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@frozen
class Model:
    """A model with fixed shapes.

    Attributes:
        name: name of the model's graph.
        nodes: the nodes in running order.
        inputs: the inputs of the model.
        outputs: the outputs of the model.
        weights: constants in the file of weights.
        constants: small constants, by name.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Weight, ...] = ()
    constants: Mapping[str, Array] | None = None


def encode_model(model: Model, weights_file: str = "") -> bytes:
    """Return a model as a `ModelProto`.

    Args:
        model: the model.
        weights_file: name of the file of weights, beside the model.
    """
    graph = [_field(1, _node(node)) for node in model.nodes]
    graph.append(_field(2, model.name.encode()))
    graph += [_field(5, _weight(weight, weights_file)) for weight in model.weights]
    constants = sorted((model.constants or {}).items())
    graph += [_field(5, _constant(name, array)) for name, array in constants]
    graph += [_field(11, _value(value)) for value in model.inputs]
    graph += [_field(12, _value(value)) for value in model.outputs]
    opsets = (
        _field(8, _field(1, domain.encode()) + _number(2, version))
        for domain, version in OPSETS
    )
    return b"".join(
        [_number(1, IR_VERSION), _field(2, b"kvc"), _field(7, b"".join(graph)), *opsets]
    )


def _node(node: Node) -> bytes:
    parts = [_field(1, name.encode()) for name in node.inputs]
    parts += [_field(2, name.encode()) for name in node.outputs]
    parts.append(_field(3, node.outputs[0].encode()))
    parts.append(_field(4, node.op.encode()))
    parts += [_field(5, _attribute(*each)) for each in sorted(node.attributes.items())]
    if node.domain:
        parts.append(_field(7, node.domain.encode()))
    return b"".join(parts)


def _attribute(name: str, value: Attribute) -> bytes:
    """Return an `AttributeProto`; the attribute's type is field 20."""
    said, kind = _attribute_value(value)
    return _field(1, name.encode()) + said + _number(20, kind)


def _attribute_value(value: Attribute) -> tuple[bytes, int]:
    match value:
        case float():
            return b"\x15" + struct.pack("<f", value), 1
        case int():
            return _number(3, value), 2
        case str():
            return _field(4, value.encode()), 3
        case tuple():
            return b"".join(_number(8, item) for item in value), 7


def _weight(weight: Weight, file: str) -> bytes:
    where = {
        "location": file,
        "offset": str(weight.offset),
        "length": str(weight.nbytes),
    }
    parts = [_number(1, size) for size in weight.shape]
    parts += [_number(2, KINDS[weight.dtype]), _field(8, weight.name.encode())]
    for key, text in where.items():
        parts.append(_field(13, _field(1, key.encode()) + _field(2, text.encode())))
    return b"".join([*parts, _number(14, 1)])


def _constant(name: str, array: Array) -> bytes:
    parts = [_number(1, size) for size in array.shape]
    parts += [_number(2, KINDS[array.dtype.name]), _field(8, name.encode())]
    return b"".join([*parts, _field(9, np.ascontiguousarray(array).tobytes())])


def _value(value: Value) -> bytes:
    dims = b"".join(_field(1, _number(1, size)) for size in value.shape)
    tensor = _number(1, KINDS[value.dtype]) + _field(2, dims)
    return _field(1, value.name.encode()) + _field(2, _field(1, tensor))


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    return bytes([*_varint(number << 3 | 2), *_varint(len(content))]) + content


def _number(number: int, value: int) -> bytes:
    """Return an integer field; a negative integer is encoded in 64 bits."""
    return bytes([*_varint(number << 3), *_varint(value % (1 << 64))])


def _varint(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
