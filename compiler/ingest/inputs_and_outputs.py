"""Import the inputs and outputs of a method: arguments, weights, states, results.

In: placeholders and the output node of a traced method; which inputs and results are
states. Out: the values at the start and at the end of the method. `method.py` imports
the nodes between the placeholders and the output node.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.export.graph_signature import (
    InputKind,
    OutputKind,
    OutputSpec,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from kvc.compiler.ingest.signature import input_nodes
from kvc.compiler.ingest.states_and_constants import TensorTable
from kvc.compiler.ingest.symbols import SizeReader
from kvc.compiler.ir import Constant, State, Value
from kvc.compiler.trace import CapturedMethod
from kvc.schema.errors import CaptureError
from kvc.schema.types import TensorType

Bindings = tuple[tuple[Value, str], ...]
Values = Mapping[fx.Node, Value | tuple[Value, ...]]
Pairs = Sequence[tuple[Value, OutputSpec]]

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


@dataclass(frozen=True, slots=True)
class SessionOwned:
    """The inputs and results of a traced method that belong to the session.

    Attributes:
        arguments: index of a tensor argument -> the state that it holds. Writes into
            the argument are dropped, since a result holds the new state.
        buffers: index of a tensor input -> the state that it holds. Buffers that the
            trace made inputs have indices after those of the arguments.
        results: index of a tensor result -> the state that it becomes.
    """

    arguments: Mapping[int, State]
    buffers: Mapping[int, State]
    results: Mapping[int, State]


@dataclass(frozen=True, slots=True)
class MethodEnd:
    """The results of a method, and what states and inputs contain at its end."""

    outputs: tuple[Value, ...]
    state_out: Bindings
    input_out: Bindings


NUMBERS = (SymIntArgument, SymFloatArgument)
NOTHING_LEFT = MethodEnd((), (), ())


class MethodInterface:
    """Collects the values at a method's start, and returns those at its end."""

    def __init__(
        self,
        captured: CapturedMethod,
        tensors: TensorTable,
        sizes: SizeReader,
        owned: SessionOwned,
        new_value: Callable[[TensorType], Value],
    ) -> None:
        self._captured = captured
        self._tensors = tensors
        self._sizes = sizes
        self._owned = owned
        self._new_value = new_value
        signature = captured.exported.graph_signature
        self._specs = {s.arg.name: s for s in signature.input_specs}
        self._bound: dict[str, Value] = {}
        self._numbers: dict[str, int] = {}  # placeholder -> number of a tensor input
        self._callers: dict[int, Value] = {}  # number -> value of a caller's input
        self.inputs: list[Value] = []
        self.constants: list[tuple[Value, str]] = []
        self.state_in: list[tuple[Value, str]] = []

    def enter(self, node: fx.Node) -> Value | None:
        """Return the value of a placeholder; None if no node reads the placeholder.

        Raises:
            CaptureError: the placeholder is no tensor.
        """
        spec = self._specs[node.name]
        if spec.kind is InputKind.USER_INPUT:
            is_tensor = isinstance(spec.arg, TensorArgument)
            return self._argument(node) if is_tensor else None
        if not node.users:
            return None
        kind = spec.kind.name.lower().replace("_tensor", "")
        tensor = tensor_of(self._captured, spec.target, self._tensors.named)
        return self._bind(tensor, kind.replace("constant", "literal"))

    def _argument(self, node: fx.Node) -> Value | None:
        """Return the value of an input, which the caller passes or which is a state.

        The result is None if the input is a state that no node reads.
        """
        number = self._numbers[node.name] = len(self._numbers)
        kind = self._sizes.tensor_type(node.meta["val"])
        state = self._owned.arguments.get(number) or self._owned.buffers.get(number)
        if state is None:
            value = self._callers[number] = self._new_value(kind)
            self.inputs.append(value)
            return value
        return self._bind_entry(state, kind, self.state_in) if node.users else None

    def _bind(self, tensor: Tensor, provenance: str) -> Value:
        """Return the value for a model's tensor, which is a state or a constant.

        Tensors of one state or constant have the same value.
        """
        state = self._tensors.state(tensor)
        if state is None:
            constant = self._tensors.constant(tensor, provenance)
            return self._bind_entry(constant, constant.type, self.constants)
        return self._bind_entry(state, state.type, self.state_in)

    def _bind_entry(
        self,
        entry: Constant | State,
        kind: TensorType,
        bindings: list[tuple[Value, str]],
    ) -> Value:
        if entry.name not in self._bound:
            self._bound[entry.name] = self._new_value(kind)
            bindings.append((self._bound[entry.name], entry.name))
        return self._bound[entry.name]

    def leave(self, values: Values, input_names: tuple[str, ...]) -> MethodEnd:
        """Return the values at the end of the method.

        Args:
            values: the value of each fx node.
            input_names: the name of each value in `self.inputs`, in the same order.
        """
        exported = self._captured.exported
        specs = exported.graph_signature.output_specs
        (nodes,) = next(n for n in exported.graph.nodes if n.op == "output").args
        pairs = [
            (_value_of(node, values), spec)
            for node, spec in zip(nodes, specs, strict=True)
            if isinstance(spec.arg, (TensorArgument, *NUMBERS))
        ]
        results = [v for v, spec in pairs if spec.kind is OutputKind.USER_OUTPUT]
        carried = self._owned.results
        state_out = [
            *self._written_states(pairs),
            *((results[number], state.name) for number, state in carried.items()),
        ]
        names = dict(zip((v.id for v in self.inputs), input_names, strict=True))
        return MethodEnd(
            tuple(v for number, v in enumerate(results) if number not in carried),
            tuple(pair for pair in state_out if pair not in self.state_in),
            tuple((v, names[old.id]) for v, old in self._written_inputs(pairs)),
        )

    def _written_states(self, pairs: Pairs) -> Iterator[tuple[Value, str]]:
        """Yield (new value, state name) for each state that the method writes."""
        for value, spec in pairs:
            state = None
            if spec.kind in _MUTATIONS:
                tensor = tensor_of(self._captured, spec.target, self._tensors.named)
                state = self._tensors.state(tensor)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                state = self._owned.buffers.get(self._number(spec))
            if state is not None:
                yield value, state.name

    def _written_inputs(self, pairs: Pairs) -> Iterator[tuple[Value, Value]]:
        """Yield (new value, input) for each input of the caller that is written."""
        for value, spec in pairs:
            if spec.kind is OutputKind.USER_INPUT_MUTATION:
                old = self._callers.get(self._number(spec))
                if old is not None:
                    yield value, old

    def _number(self, spec: OutputSpec) -> int:
        assert spec.target is not None
        return self._numbers[spec.target]


def mutated_tensors(
    captured: CapturedMethod, named: Mapping[str, Tensor]
) -> list[Tensor]:
    """Return the model's tensors that a method writes."""
    signature = captured.exported.graph_signature
    targets = [s.target for s in signature.output_specs if s.kind in _MUTATIONS]
    lifted = dict(zip(input_nodes(captured)[::-1], captured.lifted[::-1], strict=False))
    through_inputs = [
        named[lifted[spec.target].name]
        for spec in signature.output_specs
        if spec.kind is OutputKind.USER_INPUT_MUTATION and spec.target in lifted
    ]
    return [tensor_of(captured, t, named) for t in targets] + through_inputs


def tensor_of(
    captured: CapturedMethod, target: str | None, named: Mapping[str, Tensor]
) -> Tensor:
    """Return the tensor, of the model or the trace, that a placeholder stands for.

    Complex numbers are returned as real pairs.

    Raises:
        CaptureError: the placeholder is no tensor.
    """
    assert target is not None
    exported = captured.exported
    for table in (named, exported.state_dict, exported.constants):
        tensor = table.get(target)
        if isinstance(tensor, Tensor):
            return tensor if not tensor.is_complex() else real_view(tensor)
    reason = f"its input {target!r} is not a tensor"
    raise CaptureError(method=captured.method.name, place="", reason=reason)


def real_view(tensor: Tensor) -> Tensor:
    """View complex numbers as real pairs [..., 2], the form that graphs read."""
    return torch.view_as_real(tensor.detach().resolve_conj())


def _value_of(node: fx.Node, values: Values) -> Value:
    value = values[node]
    assert isinstance(value, Value)
    return value
