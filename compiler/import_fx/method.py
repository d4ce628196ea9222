"""One exported program to one IR method."""

import operator
from collections.abc import Mapping

import torch
from torch import Tensor, fx
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)

from kvc.compiler.capture import CapturedMethod
from kvc.compiler.import_fx.calls import Call, Made, Unsupported
from kvc.compiler.import_fx.normalize import (
    DROPPED,
    FORWARDED,
    arguments_of,
    is_known,
    normalize,
    why_unknown,
)
from kvc.compiler.import_fx.sources import source_of
from kvc.compiler.import_fx.symbols import TORCH_DTYPES, SizeReader
from kvc.compiler.import_fx.tensors import TensorTable
from kvc.compiler.import_fx.writes import refuse_masks
from kvc.compiler.ir import Constant, Method, Node, State, Value
from kvc.schema.errors import CaptureError
from kvc.schema.types import TensorType


class MethodImporter:
    """Builds the nodes of one method; `missing` collects ops that have no kernel."""

    def __init__(
        self, captured: CapturedMethod, tensors: TensorTable, sizes: SizeReader
    ) -> None:
        self._captured = captured
        self._tensors = tensors
        self._sizes = sizes
        self._count = 0
        self._values: dict[fx.Node, Value | tuple[Value, ...]] = {}
        self._bound: dict[str, Value] = {}
        self._unknown: set[fx.Node] = set()
        self.inputs: list[Value] = []
        self.constants: list[tuple[Value, str]] = []
        self.state_in: list[tuple[Value, str]] = []
        self.nodes: list[Node] = []
        self.missing: list[tuple[str, str, str]] = []

    def run(
        self,
        named: Mapping[str, Tensor],
        input_names: tuple[str, ...],
        trees: tuple[str, str],
    ) -> Method:
        """Return the method; look at `missing` before using it.

        Args:
            named: the model's tensors by each of their names.
            input_names: a name for each tensor argument, in order.
            trees: how arguments and results nest.
        """
        exported = self._captured.exported
        specs = {s.arg.name: s for s in exported.graph_signature.input_specs if s.arg}
        for node in exported.graph.nodes:
            if node.op == "placeholder":
                self._import_placeholder(node, specs[node.name], named)
            elif node.op == "call_function":
                self._import_call(node)
            elif node.op == "get_attr":
                self._unknown.add(node)
        outputs, state_out = (
            self._import_outputs(named) if not self.missing else ((), ())
        )
        return Method(
            name=self._captured.method.name,
            role=self._captured.method.role,
            inputs=tuple(self.inputs),
            input_names=input_names,
            input_tree=trees[0],
            output_tree=trees[1],
            constants=tuple(self.constants),
            state_in=tuple(self.state_in),
            state_out=state_out,
            nodes=tuple(self.nodes),
            outputs=outputs,
        )

    def _new_value(self, kind: TensorType) -> Value:
        self._count += 1
        return Value(self._count - 1, kind)

    def _import_placeholder(
        self, node: fx.Node, spec: InputSpec, named: Mapping[str, Tensor]
    ) -> None:
        kind, target = spec.kind, spec.target
        if kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, TensorArgument):
                value = self._new_value(self._sizes.tensor_type(node.meta["val"]))
                self.inputs.append(value)
                self._values[node] = value
        elif node.users:
            provenance = (
                kind.name.lower().replace("_tensor", "").replace("constant", "literal")
            )
            self._values[node] = self._bind(
                _tensor_of(self._captured, target, named), provenance
            )

    def _bind(self, tensor: Tensor, provenance: str) -> Value:
        """Return the value of a state or constant, one for each."""
        entry: Constant | State
        state = self._tensors.state(tensor)
        if state is None:
            entry, bindings = self._tensors.constant(tensor, provenance), self.constants
        else:
            entry, bindings = state, self.state_in
        if entry.name not in self._bound:
            self._bound[entry.name] = self._new_value(entry.type)
            bindings.append((self._bound[entry.name], entry.name))
        return self._bound[entry.name]

    def _import_call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self._import_item(node)
            return
        if _is_size(node.meta.get("val")) or not isinstance(
            node.target, torch._ops.OpOverload
        ):
            if _is_tensor(node.meta.get("val")):
                self._unknown.add(node)
                name = f"torch.{node.target}"
                self._miss(name, "control flow is not supported yet", node)
            return
        op = op_name(node.target)
        if op in DROPPED:
            return
        source = node.args[0] if node.args else None
        if op in FORWARDED and isinstance(source, fx.Node) and source in self._values:
            self._values[node] = self._values[source]
            return
        self._import_op(op, node)

    def _import_item(self, node: fx.Node) -> None:
        """Name one result of a call that has several."""
        source, index = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(index, int)
        parts = self._values.get(source)
        if isinstance(parts, tuple) and index < len(parts):
            self._values[node] = parts[index]
            return
        self._unknown.add(node)
        if parts is not None:
            self._miss(str(source.target), "only its first result is supported", node)

    def _import_op(self, op: str, node: fx.Node) -> None:
        """Add the node of a call, or note that it cannot be made.

        What reads the result of a call that cannot be made is not looked at further.
        """
        if any(source in self._unknown for source in node.all_input_nodes):
            self._unknown.add(node)
            if not is_known(op):
                self._miss(op, why_unknown(op), node)
            return
        try:
            named = self._named_arguments(node)
            refuse_masks(op, named)
            types = self._result_types(node)
            call = normalize(op, named, types[0] if types else None)
            arguments = arguments_of(self._with_made(call, source_of(node.meta)))
        except (Unsupported, CaptureError) as error:
            self._unknown.add(node)
            reason = getattr(error, "reason", str(error))
            self._miss(op, reason if is_known(op) else why_unknown(op), node)
            return
        outputs = tuple(self._new_value(kind) for kind in types[: call.results])
        self.nodes.append(Node(call.op, arguments, outputs, source_of(node.meta)))
        several = not isinstance(node.meta.get("val"), Tensor)
        self._values[node] = outputs if several or not outputs else outputs[0]

    def _with_made(self, call: Call, source: str) -> Call:
        """Return the call after the calls that make its arguments."""
        named = dict(call.named)
        for name, argument in call.named.items():
            if isinstance(argument, Made):
                value = named[name] = self._new_value(argument.type)
                made = argument.call
                self.nodes.append(Node(made.op, arguments_of(made), (value,), source))
        return Call(call.op, named, call.results)

    def _miss(self, op: str, reason: str, node: fx.Node) -> None:
        self.missing.append((op, reason, source_of(node.meta)))

    def _result_types(self, node: fx.Node) -> tuple[TensorType, ...]:
        result = node.meta.get("val")
        results = result if isinstance(result, tuple | list) else (result,)
        return tuple(
            self._sizes.tensor_type(r) for r in results if isinstance(r, Tensor)
        )

    def _named_arguments(self, node: fx.Node) -> dict[str, object]:
        assert isinstance(node.target, torch._ops.OpOverload)
        named: dict[str, object] = {}
        for i, parameter in enumerate(node.target._schema.arguments):
            if i < len(node.args):
                raw = node.args[i]
            elif parameter.name in node.kwargs:
                raw = node.kwargs[parameter.name]
            else:
                raw = parameter.default_value
            named[parameter.name] = self._convert(raw)
        return named

    def _convert(self, raw: object) -> object:
        if isinstance(raw, list | tuple):
            return tuple(self._convert(item) for item in raw)
        if isinstance(raw, fx.Node):
            value = self._values.get(raw)
            if value is not None:
                return value
            size = raw.meta.get("val")
            if isinstance(size, bool | float):
                return size
            if isinstance(size, int | torch.SymInt):
                return self._sizes.dim(size)
            if isinstance(size, torch.SymFloat | torch.SymBool):
                raise Unsupported(
                    "a number computed from a size, other than by + and *"
                )
            raise Unsupported(f"an argument that depends on values ({raw.name})")
        if isinstance(raw, torch.dtype):
            return TORCH_DTYPES.get(raw, raw)
        return raw

    def _import_outputs(
        self, named: Mapping[str, Tensor]
    ) -> tuple[tuple[Value, ...], tuple[tuple[Value, str], ...]]:
        exported = self._captured.exported
        (output,) = next(n for n in exported.graph.nodes if n.op == "output").args
        outputs: list[Value] = []
        state_out: list[tuple[Value, str]] = []
        for node, spec in zip(
            output, exported.graph_signature.output_specs, strict=True
        ):
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                tensor = _tensor_of(self._captured, spec.target, named)
                state = self._tensors.state(tensor)
                assert state is not None
                state_out.append((self._output_value(node), state.name))
            elif spec.kind is OutputKind.USER_OUTPUT:
                if isinstance(spec.arg, TensorArgument):
                    outputs.append(self._output_value(node))
            else:
                reason = (
                    f"it writes into its input {spec.target!r}; return the new value, "
                    "or keep it in a buffer"
                )
                raise CaptureError(
                    method=self._captured.method.name, place="", reason=reason
                )
        return tuple(outputs), tuple(state_out)

    def _output_value(self, node: fx.Node) -> Value:
        value = self._values[node]
        assert isinstance(value, Value)
        return value


def op_name(target: torch._ops.OpOverload) -> str:
    """Return an operator's full name, `.default` left out."""
    name: str = target.name()  # type: ignore[no-untyped-call]
    return name.removesuffix(".default")


def mutated_tensors(
    captured: CapturedMethod, named: Mapping[str, Tensor]
) -> list[Tensor]:
    """Return the model's tensors that a method writes."""
    signature = captured.exported.graph_signature
    targets = [
        spec.target
        for spec in signature.output_specs
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    ]
    return [_tensor_of(captured, target, named) for target in targets if target]


def _tensor_of(
    captured: CapturedMethod, target: str | None, named: Mapping[str, Tensor]
) -> Tensor:
    """Return the tensor that a placeholder stands for: the model's own if it can be."""
    assert target is not None
    exported = captured.exported
    for table in (named, exported.state_dict, exported.constants):
        tensor = table.get(target)
        if isinstance(tensor, Tensor):
            return tensor
    reason = f"its input {target!r} is not a tensor"
    raise CaptureError(method=captured.method.name, place="", reason=reason)


def _is_size(result: object) -> bool:
    return result is None or isinstance(
        result, torch.SymInt | torch.SymBool | torch.SymFloat | int | float
    )


def _is_tensor(result: object) -> bool:
    return isinstance(result, Tensor | tuple | list)
