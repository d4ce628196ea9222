"""A program of MIL, Core ML's language, as plain values.

`translation.py` makes the program from a method's code, and `worker.py` passes it to
coremltools. Calls use the names and parameters of MIL's operators (iOS 18). A tensor
has at least one axis.
"""

import hashlib
from collections.abc import Callable, Sequence
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
_FLOATS: Final = ("fp16", "fp32")
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

    def numbers(self, array: Array, dtype: str) -> Numbers:
        """Return an array as a constant of the given dtype, with at least one axis."""
        found = np.ascontiguousarray(np.atleast_1d(array).astype(DTYPES[dtype]))
        content = found.tobytes()
        mark = hashlib.sha256(f"{dtype}{found.shape}".encode() + content).hexdigest()
        return Numbers(f"c{mark[:24]}", dtype, found.shape, content)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """Return a tensor in another dtype."""
        if x.dtype == dtype:
            return x
        if isinstance(x, Data) and x.dtype in _FLOATS and dtype in _FLOATS:
            return Data(_renamed(x, dtype), x.data, dtype, x.shape)
        return self.call("cast", dtype, x.shape, x=x, dtype=dtype)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the same elements in another shape."""
        if x.shape == tuple(shape):
            return x
        return self.call("reshape", x.dtype, shape, x=x, shape=tuple(shape))

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Return a tensor with its axes in another order."""
        shape = [x.shape[axis] for axis in order]
        return self.call("transpose", x.dtype, shape, x=x, perm=tuple(order))

    def part(self, x: Tensor, axis: int, span: range) -> Tensor:
        """Return a slice of a tensor: the indices `span`, ascending, of an axis."""
        if span == range(x.shape[axis]):
            return x
        begin, end = [0] * len(x.shape), list(x.shape)
        begin[axis], end[axis] = (
            span.start,
            span.start + (len(span) - 1) * span.step + 1,
        )
        stride = [span.step if a == axis else 1 for a in range(len(x.shape))]
        shape = [len(span) if a == axis else n for a, n in enumerate(x.shape)]
        return self.call(
            "slice_by_index",
            x.dtype,
            shape,
            x=x,
            begin=tuple(begin),
            end=tuple(end),
            stride=tuple(stride),
        )

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Concatenate tensors along an axis."""
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.call(
            *("concat", parts[0].dtype, shape), values=tuple(parts), axis=axis
        )

    def spread(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Repeat a tensor along axes of size 1, and along new leading axes."""
        wide = self.reshape(x, (*(1,) * (len(shape) - len(x.shape)), *x.shape))
        times = tuple(a // b for a, b in zip(shape, wide.shape, strict=True))
        if set(times) <= {1}:
            return wide
        return self.call("tile", x.dtype, shape, x=wide, reps=times)

    def pair(self, kind: str, x: Operand, y: Operand, dtype: str = "") -> Var:
        """Apply an operator to two operands that broadcast."""
        shapes = [each.shape for each in (x, y) if isinstance(each, Tensor)]
        made = dtype or next(e.dtype for e in (x, y) if isinstance(e, Tensor))
        return self.call(kind, made, np.broadcast_shapes(*shapes), x=x, y=y)

    def same(self, kind: str, x: Tensor, **settings: Input) -> Var:
        """Apply an operator to each element."""
        return self.call(kind, x.dtype, x.shape, x=x, **settings)


def _renamed(x: Data, dtype: str) -> str:
    stem, _, _ = x.name.rpartition("_")
    return f"{stem}_{dtype}"


# The instruction that is being translated to MIL.


class NotTaken(Exception):
    """Raised if code cannot be expressed in MIL; the message has the reason."""


@frozen
class Step:
    """An instruction that is being translated, and access to its operands.

    Attributes:
        emitter: collects the calls of the function.
        read: takes an operand and a dtype of MIL, and returns the operand in that
            dtype.
        constant: takes an operand that is named data and a dtype, and returns the data
            as stored in that dtype.
        common: takes operands, and returns the dtype in which to compare them.
        dtype: the dtype of the instruction's results.
        shapes: the shapes of the instruction's results.
    """

    emitter: Emitter
    read: Callable[[object, str], Tensor]
    constant: Callable[[object, str], Data]
    common: Callable[[Sequence[object]], str]
    dtype: str
    shapes: Sequence[Shape]

    @property
    def shape(self) -> Shape:
        """Return the shape of the instruction's only result."""
        return self.shapes[0]
