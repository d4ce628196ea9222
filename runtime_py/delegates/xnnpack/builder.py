"""Record the nodes of a subgraph: each method adds one node and returns its result.

In: tensors, numbers and shapes. Out: `Builder.nodes`. The builder computes the shapes
of results by the library's rules, so that callers need not compute them.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence

import numpy as np

from kvc.runtime.delegates.xnnpack.functions import (
    INVALID_ID as NONE,
)
from kvc.runtime.delegates.xnnpack.functions import (
    TRANSPOSE_WEIGHTS,
    Binary,
    Reduction,
    Unary,
    UnaryParameters,
)
from kvc.runtime.delegates.xnnpack.layouts import (
    broadcast,
    order_of,
    signed_array,
    size_array,
    unshaped,
)
from kvc.runtime.delegates.xnnpack.nodes import Constant, Dims, Literal, Node, Tensor
from kvc.runtime.delegates.xnnpack.reshaping import (
    Fuse,
    Insert,
    Split,
    Step,
    Whole,
    apply_step,
    reshape_steps,
)
from kvc.runtime.memory.arrays import Array
from kvc.schema.types import Dim, add_dims

KEEP_DIMS = 0x40
ALIGN_CORNERS = 0x8
MAX_JOINED = 5  # XNN_MAX_INPUTS
MAX_PARTS = 4  # XNN_MAX_OUTPUTS


class Builder:
    """Collects nodes in running order.

    Attributes:
        nodes: the nodes so far.
        sizes: the sizes of the symbols, for shapes that cannot be symbolic.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.nodes: list[Node] = []
        self.sizes = sizes
        self._scalars: dict[bytes, Literal] = {}

    def literal(self, array: Array) -> Literal:
        """Return numbers as a constant, float32 of any shape."""
        return Literal(array.shape, array=np.ascontiguousarray(array, np.float32))

    def scalar(self, value: float) -> Literal:
        """Return a number as a constant without dims; equal numbers share it."""
        array = np.array(value, np.float32)
        key = array.tobytes()
        if key not in self._scalars:
            self._scalars[key] = Literal((), array=array)
        return self._scalars[key]

    def unary(
        self, op: Unary, x: Tensor, first: float | None = None, second: float = 0
    ) -> Tensor:
        """Apply an operator with parameters `first`, `second` to each element."""
        y = Tensor(x.dims)
        given = None if first is None else UnaryParameters(first, second)
        parameters = None if given is None else ctypes.byref(given)
        return self._add("unary", op, parameters, x, y, 0, result=y)

    def clamp(self, x: Tensor, least: float, greatest: float) -> Tensor:
        """Clip each element; infinite bounds have no effect."""
        return self.unary(Unary.CLAMP, x, least, greatest)

    def binary(self, op: Binary, a: Tensor, b: Tensor) -> Tensor:
        """Apply an operator to pairs of elements of two tensors, with broadcasting."""
        y = Tensor(broadcast(a.dims, b.dims))
        return self._add("binary", op, None, a, b, y, 0, result=y)

    def reduce(
        self, op: Reduction, x: Tensor, axes: Sequence[int], keep: bool = True
    ) -> Tensor:
        """Reduce a tensor along axes.

        With `keep`, the reduced axes keep size 1 in the result; otherwise they are
        removed.
        """
        kept = [(i, d) for i, d in enumerate(x.dims) if keep or i not in axes]
        y = Tensor(tuple(1 if i in axes else d for i, d in kept))
        given = (len(axes), signed_array(axes), x, y, KEEP_DIMS if keep else 0)
        return self._add("static_reduce_v2", op, *given, result=y)

    def softmax(self, x: Tensor) -> Tensor:
        """Return the softmax of each row (the last axis)."""
        y = Tensor(x.dims)
        return self._add("softmax", x, y, 0, result=y)

    def copy(self, x: Tensor) -> Tensor:
        """Copy a tensor into separate memory."""
        y = Tensor(x.dims)
        return self._add("copy", x, y, 0, result=y)

    def quantize(self, x: Tensor) -> Tensor:
        """Quantize each row of x [..., columns] by the range of the row's elements."""
        y = Tensor(x.dims, rows=True)
        return self._add("convert", x, y, 0, result=y)

    def fully_connected(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, in_out: bool = False
    ) -> Tensor:
        """Multiply x [..., in] by a weight [out, in], transposed; add a bias [out].

        Args:
            x: float32, or quantized rows.
            weight: a weight of a kind that the library can multiply by `x`.
            bias: float32 [out]; None for no bias.
            in_out: whether the weight is [in, out] instead of [out, in].
        """
        y = Tensor((*x.dims[:-1], weight.dims[1 if in_out else 0]))
        flags = TRANSPOSE_WEIGHTS if in_out else 0
        bounds = (-math.inf, math.inf)
        return self._add(
            "fully_connected", *bounds, x, weight, bias or NONE, y, flags, result=y
        )

    def product(self, a: Tensor, b: Tensor, b_transposed: bool = False) -> Tensor:
        """Multiply a [..., m, k] by b [..., k, n].

        With `b_transposed`, b is [..., n, k].
        """
        columns = b.dims[-2 if b_transposed else -1]
        y = Tensor((*broadcast(a.dims[:-2], b.dims[:-2]), a.dims[-2], columns))
        flags = TRANSPOSE_WEIGHTS if b_transposed else 0
        return self._add("batch_matrix_multiply", a, b, y, flags, result=y)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Put the axes of a tensor in another order.

        A transpose of a transpose becomes one transpose. If only axes of size 1 move,
        the result is a reshape.
        """
        before = order_of(x)
        if before is not None:
            (base,) = x.producer.inputs  # type: ignore[union-attr]  # it has an order
            return self.transpose(base, [before[axis] for axis in order])
        dims = tuple(x.dims[axis] for axis in order)
        moved = [axis for axis in order if x.dims[axis] != 1]
        if moved == sorted(moved):
            return self.reshape(x, dims)
        y = Tensor(dims)
        places = size_array(order)
        return self._add("static_transpose", len(order), places, x, y, 0, result=y)

    def reshape(self, x: Tensor, dims: Dims) -> Tensor:
        """Reshape a tensor; a reshape of a reshape becomes one reshape."""
        base = unshaped(x)
        if base.dims == dims:
            return base
        if isinstance(base, Constant):
            return Constant(dims, name=base.name)
        steps = reshape_steps(base.dims, dims)
        if steps is None:
            base, steps = x, reshape_steps(x.dims, dims)
        assert steps is not None, f"{base.dims} as {dims}"
        for step in steps:
            base = self._step(step, base, dims)
        base.dims = dims
        return base

    def _step(self, step: Step, x: Tensor, dims: Dims) -> Tensor:
        y = Tensor(apply_step(step, x.dims, dims, self.sizes))
        name, given = _call_of(step)
        return self._add(name, *given, x, y, 0, result=y)

    def slice(self, x: Tensor, axis: int, begin: int, end: int, size: Dim) -> Tensor:
        """Return the elements of an axis from index `begin` to index `end`.

        Args:
            x: any tensor.
            axis: index of the axis, not negative.
            begin: index of the first element; negative to count from the axis's end.
            end: index after the last element; zero or negative to count from the axis's
                end.
            size: the number of elements from `begin` to `end`.
        """
        rank = len(x.dims)
        y = Tensor((*x.dims[:axis], size, *x.dims[axis + 1 :]))
        begins = signed_array([begin if i == axis else 0 for i in range(rank)])
        ends = signed_array([end if i == axis else 0 for i in range(rank)])
        return self._add("static_slice_v3", rank, begins, ends, None, x, y, 0, result=y)

    def split(self, x: Tensor, axis: int, count: int) -> tuple[Tensor, ...]:
        """Cut a tensor into `count` equal parts along an axis whose size is a number.

        `count` is at most `MAX_PARTS`.
        """
        whole = x.dims[axis]
        assert isinstance(whole, int)
        dims = (*x.dims[:axis], whole // count, *x.dims[axis + 1 :])
        parts = tuple(Tensor(dims) for _ in range(count))
        self._record("even_split", (axis, x, count, parts, 0), parts)
        return parts

    def join(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Concatenate tensors along an axis."""
        rest = list(tensors)
        while len(rest) > 1:
            some, rest = tuple(rest[:MAX_JOINED]), rest[MAX_JOINED:]
            size: Dim = 0
            for each in some:
                size = add_dims(size, each.dims[axis])
            y = Tensor((*some[0].dims[:axis], size, *some[0].dims[axis + 1 :]))
            self._record("concatenate", (axis, len(some), some, y, 0), (y,))
            rest.insert(0, y)
        return rest[0]

    def pad(
        self, x: Tensor, before: Sequence[int], after: Sequence[int], value: float
    ) -> Tensor:
        """Pad axes with `value`.

        `before` and `after` have, for each axis, the number of elements to add at its
        begin and end.
        """
        widths = zip(before, x.dims, after, strict=True)
        y = Tensor(tuple(add_dims(b + a, size) for b, size, a in widths))
        given = (len(before), size_array(before), size_array(after), value)
        return self._add("static_constant_pad_v2", *given, x, y, 0, result=y)

    def resize(
        self, x: Tensor, size: tuple[int, int], corners: bool, dims: Dims
    ) -> Tensor:
        """Interpolate x [batch, height, width, channels] to a height and a width.

        Args:
            x: float32.
            size: height and width of the result.
            corners: whether corner elements keep their positions.
            dims: shape of the result.
        """
        y = Tensor(dims)
        flags = ALIGN_CORNERS if corners else 0
        return self._add("static_resize_bilinear_2d", *size, x, y, flags, result=y)

    def convolution(
        self,
        name: str,
        numbers: Sequence[Dim],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dims: Dims,
    ) -> Tensor:
        """Convolve x [batch, height, width, channels].

        Args:
            name: name of the function: `convolution_2d`, `depthwise_convolution_2d`,
                which convolves each channel separately, or `deconvolution_2d`.
            numbers: the function's numbers, in order: padding (top, right, bottom,
                left); output padding, only for a deconvolution; kernel, stride and
                dilation, each as height and width; then the number of groups, and the
                channels in and out of a group. For a depthwise convolution, the last
                three are two: results per channel, and the number of channels.
            x: float32.
            weight: the weight in a layout of `layouts.py`.
            bias: float32 [channels of the result].
            dims: shape of the result.
        """
        y = Tensor(dims)
        bounds = (-math.inf, math.inf)
        return self._add(
            name, *numbers, *bounds, x, weight, bias or NONE, y, 0, result=y
        )

    def _add(self, function: str, *arguments: object, result: Tensor) -> Tensor:
        self._record(function, arguments, (result,))
        return result

    def _record(
        self, function: str, arguments: tuple[object, ...], outputs: tuple[Tensor, ...]
    ) -> None:
        node = Node(function, arguments, outputs)
        for output in outputs:
            output.producer = node
        self.nodes.append(node)


def _call_of(step: Step) -> tuple[str, tuple[object, ...]]:
    """Return the function for a step, and its arguments that precede the tensors."""
    match step:
        case Whole(shape):
            return "static_reshape", (len(shape), size_array(shape))
        case Fuse(axis, count):
            return "fuse_dims", (axis, count)
        case Split(axis, parts):
            return "split_dim", (axis, len(parts), size_array(parts))
        case Insert(axes):
            return "static_expand_dims", (len(axes), size_array(axes))
