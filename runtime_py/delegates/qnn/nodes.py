"""Nodes of ONNX for the operations of a lowered function.

In: a function, and an emitter of float16 or of integers. Out: nodes. A transposed
weight is stored transposed. On integers, a result that is no value of the program gets
a grid from the operation that uses the result, or from the operands of the result.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.lowering.function import Function, Operation
from kvc.runtime.delegates.qnn.emitting import Emitter, Shape
from kvc.runtime.delegates.qnn.forms import CHANNELS, HIDDEN_SCORES
from kvc.runtime.delegates.qnn.ranges import HIDING, Reach
from kvc.schema.backends.primitives import Primitive

_P = Primitive
CONVERTED: Final = "converted"  # operation: convert to the result's grid
_SHARES: Final = 1.25  # bound of a row sum of a softmax with rounded terms
_NAMES: Final = {
    _P.ADD: "Add",
    _P.SUB: "Sub",
    _P.MUL: "Mul",
    _P.DIVIDE: "Div",
    _P.NEG: "Neg",
    _P.MAXIMUM: "Max",
    _P.MINIMUM: "Min",
    _P.ABS: "Abs",
    _P.SQRT: "Sqrt",
    _P.RELU: "Relu",
    _P.TANH: "Tanh",
    _P.MATMUL: "MatMul",
    HIDDEN_SCORES: "Add",
}
_ONE_RANK: Final = (_P.ADD, _P.SUB, _P.MUL, _P.DIVIDE, _P.MAXIMUM, _P.MINIMUM)
_MOVES: Final = (_P.RESHAPE, _P.TRANSPOSE, _P.CONCAT)


def plain(name: str) -> str:
    """Return the name that a tensor of the function has in the model."""
    return name.replace("%", "t_")


class NodeWriter:
    """Adds the operations of a function to an emitter."""

    def __init__(
        self,
        function: Function,
        emitter: Emitter,
        numbers: Mapping[str, float],
        scores: Mapping[str, Reach],
        store: Callable[[str, bool], str],
    ) -> None:
        """Prepare to write.

        Args:
            function: the function.
            emitter: collects the nodes; the function's inputs have been added.
            numbers: the constants [1], by name.
            scores: the range of an attention's scores, by the name of their product.
            store: adds the weight with a name, transposed if requested; returns the
                weight's name in the model.

        Raises:
            NotTaken: a constant is not one number [1].
        """
        self._function, self.emitter = function, emitter
        self._numbers, self._scores, self._store = numbers, scores, store
        self._names = {name: plain(name) for name in function.tensors}
        self._weights = {weight.name for weight in function.weights}
        self._makers = {each.output: each for each in function.operations}
        self._users: dict[str, list[Operation]] = defaultdict(list)
        for each in function.operations:
            for name in each.inputs:
                self._users[name].append(each)
        if others := function.constants.keys() - numbers.keys():
            shapes = [function.tensors[name].shape for name in sorted(others)]
            raise NotTaken(f"constants of the shapes {shapes}")
        for name, value in numbers.items():
            emitter.number(plain(name), value)

    def name(self, tensor: str) -> str:
        """Return a tensor's name in the model; a weight is first added to the model."""
        is_weight = tensor in self._weights
        return self._store(tensor, False) if is_weight else self._names[tensor]

    def write(self) -> None:
        """Add all nodes."""
        for each in self._function.operations:
            turns = each.op == _P.TRANSPOSE and each.inputs[0] in self._weights
            if turns and len(self._shape(each.output)) == 2:
                self._names[each.output] = self._store(each.inputs[0], True)
            else:
                self._names[each.output] = self._write(each)

    def result(self, tensor: str) -> str:
        """Return the name of a tensor as an output of the model.

        A tensor that no node computes, such as an input, is copied by a node. `tensor`
        is a key of the function's outputs.
        """
        emitter, name = self.emitter, self.name(self._function.outputs[tensor])
        if name in emitter.made:
            return name
        copy = f"{name}_out"
        if copy not in emitter.made:
            one = emitter.number(f"{copy}_one", 1.0)
            emitter.node("Mul", (name, one), copy, emitter.shapes[name])
        return copy

    def _shape(self, tensor: str) -> Shape:
        return self._function.tensors[tensor].shape

    def _write(self, each: Operation) -> str:
        """Add the nodes of an operation; return the name of the result."""
        emitter, shape = self.emitter, self._shape(each.output)
        output, inputs = self._names[each.output], [*map(self.name, each.inputs)]
        match each.op:
            case _P.MEAN:
                given = inputs[0], emitter.integers(f"{output}_axes", [-1])
                return emitter.node("ReduceMean", given, output, shape, keepdims=1)
            case _P.GELU:
                kind = "gelu_tanh" if each.facts["approximate"] == "tanh" else "gelu"
                return emitter.curve(kind, output, *inputs)
            case _P.SILU | _P.SIGMOID | _P.EXP | _P.SOFTMAX:
                return emitter.curve(each.op, output, *inputs)
            case _P.DIVIDE if each.inputs[1] in self._numbers:
                number = self._numbers[each.inputs[1]]
                return emitter.divided(inputs[0], number, output, shape)
            case op if op == CHANNELS:
                return emitter.channels(inputs[0], inputs[1], shape)
            case op if op == CONVERTED:
                return emitter.on_own_grid(inputs[0], output)
        return self._moved(each, output, inputs)

    def _moved(self, each: Operation, output: str, inputs: Sequence[str]) -> str:
        """Add the node of an operation that may move elements."""
        emitter, shape, facts = self.emitter, self._shape(each.output), each.facts
        match each.op:
            case _P.RESHAPE:
                return emitter.reshape(inputs[0], output, shape)
            case _P.TRANSPOSE:
                return self._node("Transpose", each, inputs, perm=facts["order"])
            case _P.SLICE:
                axis, *ends = (int(facts[n]) for n in ("axis", "start", "end", "by"))  # type: ignore[arg-type]  # whole numbers
                return emitter.part(inputs[0], output, axis, range(*ends))
            case _P.BROADCAST:
                sizes = emitter.integers(f"{output}_shape", shape)
                return emitter.node("Expand", (inputs[0], sizes), output, shape)
            case _P.CONCAT:
                return self._node("Concat", each, inputs, axis=facts["axis"])
        return self._node(_NAMES.get(each.op, each.op), each, inputs, **facts)

    def _node(
        self, op: str, each: Operation, inputs: Sequence[str], **facts: object
    ) -> str:
        emitter, shape = self.emitter, self._shape(each.output)
        output = self._names[each.output]
        if each.op in _ONE_RANK:
            inputs = [
                name
                if tensor in self._numbers
                else self._widened(name, len(shape), f"{output}_wide{number}")
                for number, (name, tensor) in enumerate(
                    zip(inputs, each.inputs, strict=True)
                )
            ]
        shares = each.op == _P.MATMUL and self._are_shares(each.inputs[0])
        return emitter.node(
            op,
            inputs,
            output,
            shape,
            reach=self._reach(each, inputs),
            like=self._like(each.output),
            row_sum=_SHARES if shares else math.inf,
            **facts,  # type: ignore[arg-type]  # attributes
        )

    def _widened(self, name: str, rank: int, output: str) -> str:
        """Return a tensor with leading axes of size 1, up to a rank."""
        shape = self.emitter.shapes[name]
        return self.emitter.reshape(name, output, (*(1,) * (rank - len(shape)), *shape))

    def _like(self, tensor: str) -> str:
        """Return the name of the value that a tensor is or is moved into, or "".

        The tensor gets the grid of this value.
        """
        while not self.emitter.has_grid(self._names[tensor]):
            users = self._users[tensor]
            if len(users) != 1 or users[0].op not in _MOVES:
                return ""
            tensor = users[0].output
        return self._names[tensor]

    def _reach(self, each: Operation, inputs: Sequence[str]) -> Reach | None:
        """Return the range of a result, or None if the result's use does not tell."""
        if each.output in self._scores:
            return self._scores[each.output]
        if each.op == HIDDEN_SCORES:
            seen = self.emitter.reach(inputs[0])
            return None if seen is None else (seen[0] - HIDING, seen[1])
        users = self._users[each.output]
        is_unknown = each.op in (_P.MATMUL, "RMSNormalization")
        if not is_unknown or [user.op for user in users] != [_P.ADD]:
            return None
        # The range of a sum's first operand follows from the ranges of sum and addend.
        one, other = users[0].inputs
        output = self._names[users[0].output]
        is_bias = one == each.output and other in self._weights
        if not (is_bias and self.emitter.has_grid(output)):
            return None
        more = self.emitter.reach(self.name(other))
        made = self.emitter.reach_like(output)
        return None if more is None else (made[0] - more[1], made[1] - more[0])

    def _are_shares(self, tensor: str) -> bool:
        """Tell whether the rows of a tensor are rows of a softmax."""
        made = self._makers.get(tensor)
        while made is not None and made.op == _P.RESHAPE:
            source = made.inputs[0]
            if self._shape(source)[-1] != self._shape(made.output)[-1]:
                return False
            made = self._makers.get(source)
        return made is not None and made.op == _P.SOFTMAX
