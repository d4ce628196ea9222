"""Find the integers of a program that are never negative.

In: a program. Out: `NonNegative`, a predicate on the values of a method. A state is
non-negative if it starts as zeros and every method stores only non-negative values in
it, assuming that all other states are non-negative: a state to which only sizes are
added qualifies.
"""

from collections.abc import Mapping, Sequence

from kvc.compiler.ir import Argument, Method, Node, Program, Value, bound_to
from kvc.schema.dtypes import DType
from kvc.schema.ops import Keeps, ops_that_keep
from kvc.schema.types import Affine, Symbol, bounds

_INTEGERS = (DType.INT8, DType.INT16, DType.INT32, DType.INT64)
# Operators whose result is never negative if their tensors are not.
_KEEPING = {
    *ops_that_keep(*Keeps), "aten::mul.Tensor", "aten::minimum", "aten::maximum",
    "aten::cat", "aten::stack", "aten::copy", "aten::flip", "aten::amax",
    "aten::sum.dim_IntList", "aten::cumsum",
}  # fmt: skip
# The same, with numbers that must not be negative either.
_WITH_NUMBER = {"aten::add.Tensor", "aten::add.Scalar", "aten::mul.Scalar"}


class NonNegative:
    """Tells whether values are never negative; knows the methods of one program."""

    def __init__(self, program: Program) -> None:
        self._symbols: Mapping[str, Symbol] = {s.name: s for s in program.symbols}
        self._makers = {method.name: method.makers() for method in program.methods}
        self._states = {
            s.name
            for s in program.states
            if s.initial is None and s.type.dtype in _INTEGERS
        }
        while negative := self._possibly_negative(program.methods):
            self._states -= negative

    def holds(self, method: Method, value: Value) -> bool:
        """Tell whether no element of a value of a method can be negative."""
        if value.type.dtype is DType.BOOL or self._starts_non_negative(method, value):
            return True
        node = self._makers[method.name].get(value.id)
        return node is not None and self._makes_non_negative(method, node)

    def _possibly_negative(self, methods: Sequence[Method]) -> set[str]:
        return {
            name
            for method in methods
            for value, name in method.state_out
            if name in self._states and not self.holds(method, value)
        }

    def _starts_non_negative(self, method: Method, value: Value) -> bool:
        named = zip(method.input_names, method.inputs, strict=True)
        filled = any(v.id == value.id and n == method.position for n, v in named)
        return filled or bound_to(method.state_in).get(value.id) in self._states

    def _makes_non_negative(self, method: Method, node: Node) -> bool:
        match node.op, node.arguments:
            case "aten::arange.start_step", (start, _, step, _):
                return self._is_non_negative(start) and self._is_non_negative(step)
            case "aten::full", (_, number, _):
                return self._is_non_negative(number)
            case "aten::remainder.Scalar", (_, divisor):
                return self._is_non_negative(divisor)
            case "aten::div.Scalar_mode", (Value() as divided, divisor, "floor"):
                return self._is_non_negative(divisor) and self.holds(method, divided)
            case "aten::clamp", (_, least, _):
                return self._is_non_negative(least)
            case "aten::index_select" | "aten::index.Tensor", (Value() as picked, *_):
                return self.holds(method, picked)
            case "aten::_to_copy", (Value() as old, DType() as dtype):
                whole = dtype in _INTEGERS and old.type.dtype in _INTEGERS
                wide = dtype.itemsize >= old.type.dtype.itemsize
                return whole and wide and self.holds(method, old)
        numbers = [a for a in node.arguments if not isinstance(a, Value)]
        added = node.op in _WITH_NUMBER and all(map(self._is_non_negative, numbers))
        return (added or node.op in _KEEPING) and all(
            self.holds(method, value) for value in node.inputs
        )

    def _is_non_negative(self, number: Argument) -> bool:
        """Tell whether an argument is a size or an integer that is not negative."""
        if isinstance(number, bool) or not isinstance(number, int | Affine):
            return False
        return bounds(number, self._symbols)[0] >= 0
