"""Read models in ONNX's form, and run them with numpy: a device for tests.

Models are read by the field numbers of `onnx.proto`, with no code of kvc's writer.
Results are computed in float64 and rounded to float16, as a device may do, or to
integers where the model says so.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy_operators import ONE, TWO, gelu, softmax

Array = np.ndarray
_DTYPES = {
    1: np.float32, 3: np.int8, 4: np.uint16, 5: np.int16, 7: np.int64, 10: np.float16
}  # fmt: skip


@dataclass
class Node:
    op: str = ""
    domain: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, object] = field(default_factory=dict)


@dataclass
class Model:
    opsets: dict[str, int] = field(default_factory=dict)
    version: int = 0
    name: str = ""
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)


def fields(raw: bytes) -> Iterator[tuple[int, object]]:
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(raw, at)
            yield number, value - (1 << 64) if value >> 63 else value
        elif kind == 5:
            yield number, struct.unpack("<f", raw[at : at + 4])[0]
            at += 4
        else:
            assert kind == 2
            size, at = _varint(raw, at)
            assert at + size <= len(raw)
            yield number, raw[at : at + size]
            at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] & 0x80:
        value |= (raw[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | raw[at] << shift, at + 1


def read_model(raw: bytes, folder: Path | None = None) -> Model:
    """Return a model read from its bytes; its weights lie in files of `folder`."""
    model = Model()
    for number, value in fields(raw):
        if number == 1:
            model.version = value
        elif number == 8:
            parts = dict(fields(value))
            model.opsets[parts.get(1, b"").decode()] = parts[2]
        elif number == 7:
            _read_graph(value, model, folder)
    return model


def _read_graph(raw: bytes, model: Model, folder: Path | None) -> None:
    for number, value in fields(raw):
        if number == 1:
            model.nodes.append(_read_node(value))
        elif number == 2:
            model.name = value.decode()
        elif number == 5:
            name, array = _read_tensor(value, folder)
            model.constants[name] = array
        elif number in (11, 12):
            name, shape = _read_value(value)
            (model.inputs if number == 11 else model.outputs)[name] = shape


def _read_node(raw: bytes) -> Node:
    node = Node()
    for number, value in fields(raw):
        if number == 1:
            node.inputs.append(value.decode())
        elif number == 2:
            node.outputs.append(value.decode())
        elif number == 4:
            node.op = value.decode()
        elif number == 5:
            name, content = _read_attribute(value)
            node.attributes[name] = content
        elif number == 7:
            node.domain = value.decode()
    return node


def _read_attribute(raw: bytes) -> tuple[str, object]:
    each = list(fields(raw))
    parts, whole = dict(each), tuple(value for number, value in each if number == 8)
    content = {1: parts.get(2), 2: parts.get(3), 3: parts.get(4), 7: whole}
    found = content[parts[20]]
    return parts[1].decode(), found.decode() if isinstance(found, bytes) else found


def _read_tensor(raw: bytes, folder: Path | None) -> tuple[str, Array]:
    each = list(fields(raw))
    parts, shape = dict(each), [value for number, value in each if number == 1]
    entries = (dict(fields(value)) for number, value in each if number == 13)
    apart = {entry[1].decode(): entry[2].decode() for entry in entries}
    dtype, content = np.dtype(_DTYPES[parts[2]]), parts.get(9, b"")
    if parts.get(14) == 1:
        assert folder is not None
        with (folder / apart["location"]).open("rb") as file:
            file.seek(int(apart["offset"]))
            content = file.read(int(apart["length"]))
    return parts[8].decode(), np.frombuffer(content, dtype).reshape(shape)


def _read_value(raw: bytes) -> tuple[str, tuple[int, ...]]:
    parts = dict(fields(raw))
    tensor = dict(fields(dict(fields(parts[2]))[1]))
    dims = (dict(fields(dim))[1] for number, dim in fields(tensor[2]) if number == 1)
    assert tensor[1] in (4, 5, 10), "tensors are float16, or integers of 16 bits"
    return parts[1].decode(), tuple(dims)


def run_model(model: Model, given: Mapping[str, Array]) -> dict[str, Array]:
    assert {name: array.shape for name, array in given.items()} == model.inputs
    values: dict[str, Array] = {**model.constants, **given}
    for node in model.nodes:
        arrays = [values[name] for name in node.inputs]
        floats = [a.astype(np.float64) if a.dtype == np.float16 else a for a in arrays]
        with np.errstate(all="ignore"):
            made = np.asarray(_OPS[node.op](node.attributes, *floats))
            if any(a.dtype == np.float16 for a in arrays):
                made = made.astype(np.float16)
        values[node.outputs[0]] = made
    found = {name: values[name] for name in model.outputs}
    assert {name: array.shape for name, array in found.items()} == model.outputs
    return found


Attributes = Mapping[str, object]


def _softmax(attributes: Attributes, x: Array) -> Array:
    assert attributes["axis"] == -1
    return softmax(x, -1)


def _rms(attributes: Attributes, x: Array, weight: Array) -> Array:
    mean = (x * x).mean(-1, keepdims=True)
    return x / np.sqrt(mean + attributes["epsilon"]) * weight


def _layer(attributes, x, weight, bias=0) -> Array:
    x = x - x.mean(-1, keepdims=True)
    variance = (x * x).mean(-1, keepdims=True)
    return x / np.sqrt(variance + attributes["epsilon"]) * weight + bias


def _slice(_, x: Array, start: Array, end: Array, axis: Array, step: Array) -> Array:
    spans = [slice(None)] * x.ndim
    spans[int(axis[0])] = slice(int(start[0]), int(end[0]), int(step[0]))
    return x[tuple(spans)]


def _widen(attributes: Attributes, x: Array, scale: Array, zero: Array) -> Array:
    assert x.dtype == zero.dtype
    assert scale.dtype == np.float32
    if scale.ndim:
        assert attributes == {"axis": 1}
        assert scale.shape == zero.shape == x.shape[1:]
    return (x.astype(np.int64) - zero.astype(np.int64)) * scale.astype(np.float64)


def _narrow(attributes: Attributes, x: Array, scale: Array, zero: Array) -> Array:
    assert x.dtype == np.float64, "what is rounded has been computed"
    ends = np.iinfo(zero.dtype)
    steps = np.rint(x / scale.astype(np.float64)) + int(zero)
    return np.clip(steps, ends.min, ends.max).astype(zero.dtype)


def _reduced(fold, attributes, x, axes) -> Array:
    assert attributes == {"keepdims": 1}
    return fold(x, axis=tuple(axes.tolist()), keepdims=True)


def _plain(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda _, *arrays: function(*arrays)


_OPS: dict[str, Callable[..., Array]] = {
    "DequantizeLinear": _widen,
    "QuantizeLinear": _narrow,
    "ReduceMax": partial(_reduced, np.max),
    "ReduceMean": partial(_reduced, np.mean),
    "ReduceSum": partial(_reduced, np.sum),
    **{name: _plain(TWO[name.lower()]) for name in ("Add", "Sub", "Mul", "MatMul")},
    "Div": _plain(np.divide),
    "Max": _plain(np.maximum),
    "Min": _plain(np.minimum),
    **{name.capitalize(): _plain(function) for name, function in ONE.items()},
    "Gelu": lambda attributes, x: gelu(x, attributes["approximate"] == "tanh"),
    "Softmax": _softmax,
    "RMSNormalization": _rms,
    "LayerNormalization": _layer,
    "Concat": lambda attributes, *xs: np.concatenate(xs, attributes["axis"]),
    "Reshape": lambda _, x, shape: x.reshape(shape),
    "Transpose": lambda attributes, x: x.transpose(attributes["perm"]),
    "Expand": lambda _, x, shape: np.broadcast_to(x, shape),
    "Slice": _slice,
}
