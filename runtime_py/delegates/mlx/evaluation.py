"""Compute a block with arrays of MLX: input arrays in, result arrays out.

MLX is lazy: it computes an array when the array's content is read. Indices and
positions are read when they are checked, all other arrays at the end of the block.
Nothing is written before all results have been computed.
"""

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np

from kvc.runtime.delegates.host_checks import check_of
from kvc.runtime.delegates.mlx.functions import (
    FUNCTIONS,
    VIEWS,
    Packed,
    Result,
    checked,
    packed,
)
from kvc.runtime.execution.executor import fail
from kvc.runtime.memory.arrays import Array
from kvc.schema.dtypes import DType
from kvc.schema.graph import Argument, Constant, Graph, Instruction, Ref
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Affine, evaluate

DTYPES: Mapping[DType, mx.Dtype] = {
    DType.FLOAT32: mx.float32,
    DType.FLOAT16: mx.float16,
    DType.INT64: mx.int64,
    DType.INT32: mx.int32,
    DType.INT8: mx.int8,
    DType.BOOL: mx.bool_,
}
_SPLIT = "aten::split_with_sizes"


class Weights:
    """The named data of partitions, as arrays of MLX; each array is created once.

    Args:
        read: returns named data by id.
    """

    def __init__(self, read: Callable[[int], Array]) -> None:
        self._read = read
        self._plain: dict[int, mx.array] = {}
        self._packed: dict[tuple[int, int], Packed] = {}

    def plain(self, name: int) -> mx.array:
        """Return named data as an array with the same elements."""
        if name not in self._plain:
            self._plain[name] = mx.array(self._read(name))
        return self._plain[name]

    def packed(self, weight: int, scale: int) -> Packed:
        """Return an int8 matrix with its scales, rearranged for MLX's products."""
        if (weight, scale) not in self._packed:
            values = np.ascontiguousarray(self._read(weight))
            self._packed[weight, scale] = packed(values, self._read(scale))
        return self._packed[weight, scale]

    def nbytes(self) -> Mapping[int, int]:
        """Return the number of bytes of the created arrays, by id of the named data."""
        found = {name: array.nbytes for name, array in self._plain.items()}
        for (weight, _), one in self._packed.items():
            found[weight] = found.get(weight, 0) + one.weight.nbytes
        return found

    def clear(self) -> None:
        """Release all arrays."""
        self._plain.clear()
        self._packed.clear()


class Evaluation:
    """One run of a block at some sizes.

    Args:
        method: name of the block's method, for messages.
        graph: the block's code.
        sizes: the sizes of the program's symbols.
        weights: the named data of the partitions.
        given: the graph's inputs.
    """

    def __init__(
        self,
        method: str,
        graph: Graph,
        sizes: Mapping[str, int],
        weights: Weights,
        given: Sequence[mx.array],
    ) -> None:
        self._method, self._graph, self._sizes = method, graph, sizes
        self._weights = weights
        self._values = dict(zip(graph.inputs, given, strict=True))

    def run(self) -> None:
        """Compute all instructions.

        Raises:
            KvcError: an instruction fails.
        """
        for index, step in enumerate(self._graph.instructions):
            try:
                self._run(step)
            except Exception as error:
                fail(self._method, index, step, error)

    def value(self, value: int) -> mx.array:
        """Return the array of a value that is a constant or has been computed."""
        storage = self._graph.values[value].storage
        if isinstance(storage, Constant) and value not in self._values:
            return self._weights.plain(storage.name)
        return self._values[value]

    def _run(self, step: Instruction) -> None:
        if OPS[step.op].aliasing is Aliasing.CHECK:
            self._check(step)
        elif step.op == _SPLIT:
            self._split(step)
        else:
            (result,) = step.results
            made = self._made(result)
            found = self._computed(step, made).astype(made.dtype)
            if 0 in made.shape:  # checked, but MLX does not compute empty arrays
                found = mx.zeros(made.shape, dtype=made.dtype)
            self._values[result] = found.reshape(made.shape)

    def _computed(self, step: Instruction, made: Result) -> mx.array:
        if step.op == "kvc::linear_w8":
            x, weight, scale, bias = step.arguments
            found = self._packed(weight, scale).times(self._tensor(x))
            return found if bias is None else found + self._tensor(bias)
        if step.op == "kvc::embedding_q8":
            weight, scale, at = step.arguments
            table, scales = self._tensor(weight), self._tensor(scale)
            rows = checked(self._tensor(at), table.shape[0])
            wide = mx.take(table, rows, axis=0).astype(mx.float32)
            return wide * mx.take(scales, rows, axis=0)[..., None]
        arguments = [self._argument(each) for each in step.arguments]
        function = VIEWS.get(step.op) or FUNCTIONS[step.op]
        return function(made, *arguments)

    def _packed(self, weight: Argument, scale: Argument) -> Packed:
        names = [self._name(each) for each in (weight, scale)]
        return self._weights.packed(*names)

    def _name(self, argument: Argument) -> int:
        assert isinstance(argument, Ref)
        storage = self._graph.values[argument.value].storage
        assert isinstance(storage, Constant), "the list has checked this"
        return storage.name

    def _made(self, value: int) -> Result:
        kind = self._graph.values[value].type
        return Result(kind.shape(self._sizes), DTYPES[kind.dtype])

    def _split(self, step: Instruction) -> None:
        x, counts, axis = step.arguments
        held, start = self._tensor(x), 0
        assert isinstance(counts, tuple)
        assert isinstance(axis, int)
        for result, count in zip(step.results, counts, strict=True):
            assert isinstance(count, int | Affine)
            size = evaluate(count, self._sizes)
            where = [slice(None)] * held.ndim
            where[axis] = slice(start, start + size)
            self._values[result] = held[tuple(where)]
            start += size

    def _check(self, step: Instruction) -> None:
        check = check_of(self._graph, step, self._sizes)
        assert check is not None, step.op
        given = (self._argument(each) for each in step.arguments)
        check(*(np.array(x) if isinstance(x, mx.array) else x for x in given))

    def _argument(self, argument: Argument) -> object:
        match argument:
            case tuple():
                return tuple(self._argument(item) for item in argument)
            case Ref():
                return self.value(argument.value)
            case Affine():
                return argument.evaluate(self._sizes)
            case _:
                return argument

    def _tensor(self, argument: Argument) -> mx.array:
        assert isinstance(argument, Ref)
        return self.value(argument.value)
