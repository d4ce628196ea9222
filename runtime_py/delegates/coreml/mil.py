"""A program of MIL, Core ML's language, as plain values.

`calls.py` makes the program of a lowered method, and `worker.py` passes it to
coremltools. Calls use the names and parameters of MIL's operators (iOS 18). A tensor
has at least one axis.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.schema.frozen import frozen

DTYPES: Final = {
    "fp16": "<f2",
    "fp32": "<f4",
    "int32": "<i4",
    "int8": "i1",
    "bool": "?",
}
Shape = tuple[int, ...]


@frozen
class Var:
    """The result of a call, or an input of a function."""

    name: str
    dtype: str
    shape: Shape


@frozen
class Data:
    """A constant that is named data of the program, as stored in the package.

    Attributes:
        name: name in the package.
        data: id of the named data.
        dtype: dtype in the package, to which floats are rounded.
        shape: shape in the package; the elements have the same order as in the program.
    """

    name: str
    data: int
    dtype: str
    shape: Shape


@frozen
class Numbers:
    """A constant made by the translation; `content` is its bytes, little endian."""

    name: str
    dtype: str
    shape: Shape
    content: bytes

    @property
    def array(self) -> Array:
        """Return the constant's elements."""
        return np.frombuffer(self.content, DTYPES[self.dtype]).reshape(self.shape)


@frozen
class Number:
    """A single number; it broadcasts like a tensor without axes."""

    value: float
    dtype: str


Tensor = Var | Data | Numbers
Operand = Tensor | Number | tuple[Tensor, ...]
Setting = bool | str | tuple[int, ...] | int
Input = Operand | Setting


@frozen
class Call:
    """A call of an operator of MIL."""

    kind: str
    result: Var
    inputs: tuple[tuple[str, Input], ...]


@frozen
class Function:
    """A function of a package.

    Attributes:
        name: name of the function, an identifier.
        inputs: the inputs that the caller passes.
        states: the float16 states that Core ML keeps between calls.
        calls: the calls of operators, in running order.
        outputs: the outputs that the caller gets.
    """

    name: str
    inputs: tuple[Var, ...]
    states: tuple[Var, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Var, ...]

    @property
    def constants(self) -> dict[str, Data | Numbers]:
        """Return the constants that the function's calls read, by name."""
        read = (
            each
            for call in self.calls
            for _, given in call.inputs
            for each in (given if isinstance(given, tuple) else (given,))
        )
        return {each.name: each for each in read if isinstance(each, Data | Numbers)}


class Emitter:
    """Collects the calls of a function; `call` makes equal calls only once."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._made: dict[object, Var] = {}

    def call(
        self, kind: str, dtype: str, shape: Sequence[int], /, **inputs: Input
    ) -> Var:
        """Add a pure call, unless an equal one exists, and return its result."""
        key = (kind, dtype, tuple(shape), tuple(inputs.items()))
        marked = tuple((type(each), each) for each in inputs.values())  # 1 is not True
        if (key, marked) not in self._made:
            self._made[key, marked] = self.act(kind, dtype, shape, **inputs)
        return self._made[key, marked]

    def act(
        self,
        kind: str,
        dtype: str,
        shape: Sequence[int],
        name: str = "",
        /,
        **inputs: Input,
    ) -> Var:
        """Add a call, even if an equal call exists, and return its result."""
        result = Var(name or f"t{len(self.calls)}", dtype, tuple(shape))
        self.calls.append(Call(kind, result, tuple(inputs.items())))
        return result


def numbers(array: Array, dtype: str) -> Numbers:
    """Return an array as a constant of a dtype of MIL."""
    found = np.ascontiguousarray(array.astype(DTYPES[dtype]))
    content = found.tobytes()
    mark = hashlib.sha256(f"{dtype}{found.shape}".encode() + content).hexdigest()
    return Numbers(f"c{mark[:24]}", dtype, found.shape, content)
