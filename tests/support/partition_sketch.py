"""Small partitions for the backend xnnpack, written one op at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from sample_programs import GraphBuilder

from kvc.schema.backends.operands import Operand
from kvc.schema.backends.xnnpack import why_not
from kvc.schema.dtypes import DType
from kvc.schema.graph import Alias, Caller, Constant, Graph, Instruction, Ref, Value
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Affine, Symbol, TensorType, affine, evaluate

SEQ = Affine(0, (("seq", 1),))


def _renamed(value: Value, first: int) -> Value:
    storage = value.storage
    if not isinstance(storage, Constant):
        return value
    return replace(value, storage=Constant(first + storage.name))


class Sketch(GraphBuilder):
    """The code of a partition that is being written; its values are `Ref`s.

    `symbols` gives the bounds of each symbol.
    """

    def __init__(self, **symbols: tuple[int, int]) -> None:
        bounds = symbols or {"seq": (1, 64)}
        super().__init__({n: Symbol(n, *ends) for n, ends in bounds.items()})
        self._inputs: list[int] = []
        self.arrays: dict[str, np.ndarray] = {}

    def input(self, *dims: int | Affine) -> Ref:
        """Add a float32 input of these dims."""
        return self.input_of(TensorType(DType.FLOAT32, dims))

    def input_of(self, kind: TensorType) -> Ref:
        self._inputs.append(self.value(kind, Caller()))
        return Ref(self._inputs[-1])

    def constant(self, array: np.ndarray) -> Ref:
        name = len(self.arrays)
        self.arrays[f"c{name}"] = array
        kind = TensorType(DType.from_numpy(array.dtype), array.shape)
        return Ref(self.value(kind, Constant(name)))

    def __call__(self, op: str, *arguments: object) -> Ref | tuple[Ref, ...]:
        kinds = self._results_of(op, arguments)
        refused = why_not(op, self._operands(arguments), kinds)
        assert not refused, f"{op}: {refused}"
        view = OPS[op].aliasing is Aliasing.VIEW
        base = arguments[0].value if view else None
        ids = [
            self.scratch(kind) if base is None else self.value(kind, Alias(base))
            for kind in kinds
        ]
        self.instructions.append(Instruction(op, arguments, tuple(ids), "test:1"))
        results = tuple(map(Ref, ids))
        return results if len(results) > 1 or OPS[op].variadic else results[0]

    def graph(self, *outputs: Ref, first_name: int = 0) -> Graph:
        """Return the code, with these values as its results.

        The names of its constants are numbers from `first_name` on.
        """
        values = tuple(_renamed(value, first_name) for value in self.values)
        ends = tuple(self._inputs), tuple(output.value for output in outputs)
        return Graph(values, *ends, tuple(self.instructions), self.top, self.top)

    def dims(self, value: Ref) -> tuple[int | Affine, ...]:
        """Return the dims of a value, which may depend on symbols."""
        return self.values[value.value].type.dims

    def _operands(self, argument: object) -> object:
        if isinstance(argument, Ref):
            value = self.values[argument.value]
            return Operand(value.type, isinstance(value.storage, Constant))
        if isinstance(argument, tuple):
            return tuple(self._operands(item) for item in argument)
        return argument

    def _results_of(self, op: str, arguments: tuple[object, ...]) -> list[TensorType]:
        """Return the types of an op's results, whose dims are linear in the symbols.

        They are computed from the shapes at several sizes.
        """
        least = {name: symbol.lower + 3 for name, symbol in self.symbols.items()}
        origin = self._shapes(op, arguments, least)
        slopes = {
            name: self._shapes(op, arguments, {**least, name: size + 1})
            for name, size in least.items()
        }
        kinds = []
        for i, (dtype, shape) in enumerate(origin):
            dims = []
            for axis, size in enumerate(shape):
                terms = {n: made[i][1][axis] - size for n, made in slopes.items()}
                constant = size - sum(c * least[n] for n, c in terms.items())
                dims.append(affine(constant, terms))
            kinds.append(TensorType(dtype or DType.FLOAT32, tuple(dims)))
        return kinds

    def _shapes(
        self, op: str, arguments: tuple[object, ...], sizes: Mapping[str, int]
    ) -> Sequence[tuple[DType | None, tuple[int, ...]]]:
        def concrete(argument: object) -> object:
            if isinstance(argument, Ref):
                kind = self.values[argument.value].type
                return TensorType(kind.dtype, kind.shape(sizes))
            if isinstance(argument, tuple):
                return tuple(concrete(item) for item in argument)
            if isinstance(argument, Affine):
                return evaluate(argument, sizes)
            return argument

        return OPS[op].rule(*(concrete(argument) for argument in arguments))
