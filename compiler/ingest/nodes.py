"""Import the nodes of one traced graph: of a method, or of a body of control flow.

In: the fx nodes of a graph, and the IR values of the graph's inputs. Out: IR nodes in
the same order, and the operators that have no kernel. Bodies of `torch.cond` and other
higher-order operators become blocks: separate methods whose inputs are the operands of
the call. Weights are not operands; a block reads them directly.
"""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from kvc.compiler.ingest.calls import MadeArgument, OpCall, Unsupported, full
from kvc.compiler.ingest.control import Higher, higher_call, op_name
from kvc.compiler.ingest.indexing import refuse_masks
from kvc.compiler.ingest.merged_sizes import with_joined_outputs
from kvc.compiler.ingest.normalize import (
    arguments_of,
    is_known,
    normalize,
    why_unknown,
)
from kvc.compiler.ingest.read_numbers import (
    SIZE_FROM_VALUES,
    Number,
    NumberReader,
    Real,
)
from kvc.compiler.ingest.states_and_constants import Model
from kvc.compiler.ingest.symbols import TORCH_DTYPES, define_slice_size
from kvc.compiler.ir import Argument, Method, Node, Value
from kvc.compiler.trace.sources import source_of
from kvc.schema.dtypes import DType
from kvc.schema.errors import CaptureError
from kvc.schema.ops import COND
from kvc.schema.types import Affine, TensorType

READ = torch.ops.aten._local_scalar_dense.default
SLICE = torch.ops.aten.slice.Tensor
ALIAS = torch.ops.aten.alias.default


class NodeImporter:
    """Builds the IR nodes of one graph.

    `missing` collects the operators for which kvc has no kernel.
    """

    def __init__(self, model: Model, module: torch.nn.Module, place: str = "") -> None:
        self._model, self._module = model, module
        self._place = place  # the source line for nodes without one
        self._sizes = model.sizes
        self._numbers = NumberReader(model.sizes, model.ranges)
        self._count = 0
        self._values: dict[fx.Node, Value | tuple[Value, ...]] = {}
        self._unknown: set[fx.Node] = set()
        self.constants: list[tuple[Value, str]] = []
        self.nodes: list[Node] = []
        self.missing: list[tuple[str, str, str]] = []

    def _import_node(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._enter(node)
        elif node.op == "call_function":
            self._import_call(node)
        elif node.op == "get_attr":
            held = getattr(self._module, str(node.target), None)
            if isinstance(held, Tensor):
                constant = self._model.tensors.constant(held, "literal")
                value = self._new_value(constant.type)
                self.constants.append((value, constant.name))
                self._values[node] = value
            else:
                self._unknown.add(node)

    def _enter(self, node: fx.Node) -> None:
        """Assign an IR value to a placeholder of the graph."""
        raise NotImplementedError

    def _new_value(self, kind: TensorType) -> Value:
        self._count += 1
        return Value(self._count - 1, kind)

    def _import_call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self._import_item(node)
            return
        if node.target is READ:
            self._import_read(node)
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._import_control(node)
            return
        if _is_size(node.meta.get("val")) or not isinstance(
            node.target, torch._ops.OpOverload
        ):
            return
        if node.target is ALIAS and node.all_input_nodes[0] in self._values:
            self._values[node] = self._values[node.all_input_nodes[0]]
            return
        self._import_op(op_name(node.target), node)

    def _import_read(self, node: fx.Node) -> None:
        """Record that an fx node is a number that is read from a tensor."""
        (source,) = node.args
        assert isinstance(source, fx.Node)
        value = self._values.get(source)
        if isinstance(value, Value):
            self._numbers.note(node, value)
        else:
            self._unknown.add(node)

    def _import_number(self, node: fx.Node) -> None:
        """Assign to an fx node that is a number a tensor without dims that holds it."""
        try:
            number = self._convert(node)
            if isinstance(number, int | Affine):
                made: Value | MadeArgument = full((), number, DType.INT64)
            else:
                assert isinstance(number, Number | Real)
                made = number.tensor()
            value = self._made(made, self._source(node))
        except (Unsupported, CaptureError) as error:
            self._miss("a result that is a number", error.reason, node)
            return
        assert isinstance(value, Value)
        self._values[node] = value

    def _import_item(self, node: fx.Node) -> None:
        """Assign an IR value to an fx node that takes one result of several results."""
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
        """Add the IR node of an operator's call, or record the call as unsupported.

        A call that reads the result of an unsupported call is not examined further.
        """
        if any(source in self._unknown for source in node.all_input_nodes):
            self._unknown.add(node)
            if not is_known(op):
                self._miss(op, _why(op, node), node)
            return
        try:
            named = self._named_arguments(node)
            refuse_masks(op, named)
            types = self._result_types(node)
            call = normalize(op, named, types[0] if types else None)
            arguments = self._arguments(call, self._source(node))
        except (Unsupported, CaptureError) as error:
            self._unknown.add(node)
            self._miss(op, error.reason if is_known(op) else _why(op, node), node)
            return
        outputs = tuple(self._new_value(kind) for kind in types[: call.results])
        self.nodes.append(Node(call.op, arguments, outputs, self._source(node)))
        several = not isinstance(node.meta.get("val"), Tensor)
        self._values[node] = outputs if several or not outputs else outputs[0]

    def _arguments(self, call: OpCall, source: str) -> tuple[Argument, ...]:
        """Return a call's arguments, and add the calls that compute or check them."""
        for check in call.checks:
            self.nodes.append(
                Node(check.op, self._arguments(check, source), (), source)
            )
        named = {name: self._made(a, source) for name, a in call.named.items()}
        return arguments_of(OpCall(call.op, named))

    def _made(self, argument: object, source: str) -> object:
        """Return an argument of a call.

        If the argument must be computed first, add the call that computes it.
        """
        if isinstance(argument, tuple):
            return tuple(self._made(item, source) for item in argument)
        if not isinstance(argument, MadeArgument):
            return argument
        arguments = self._arguments(argument.call, source)
        value = self._new_value(argument.type)
        self.nodes.append(Node(argument.call.op, arguments, (value,), source))
        return value

    def _miss(self, op: str, reason: str, node: fx.Node) -> None:
        self.missing.append((op, reason, self._source(node)))

    def _result_types(self, node: fx.Node) -> tuple[TensorType, ...]:
        result = node.meta.get("val")
        results = result if isinstance(result, tuple | list) else (result,)
        tensors = [r for r in results if isinstance(r, Tensor)]
        if node.target is SLICE:
            define_slice_size(node, self._sizes)
        if not all(self._sizes.knows(n) for t in tensors for n in t.shape):
            raise Unsupported(SIZE_FROM_VALUES)
        return tuple(self._sizes.tensor_type(tensor) for tensor in tensors)

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
            return self._convert_number(raw) if value is None else value
        if isinstance(raw, torch.SymInt):
            return self._numbers.number(raw)
        if isinstance(raw, torch.dtype):
            return TORCH_DTYPES.get(raw, raw)
        return raw

    def _convert_number(self, node: fx.Node) -> object:
        number = node.meta.get("val")
        if isinstance(number, bool | int | float):
            return number
        if isinstance(number, torch.SymInt):
            return self._numbers.number(number)
        if isinstance(number, torch.SymFloat):
            return self._numbers.real(node)
        if isinstance(number, torch.SymBool):
            raise Unsupported("a condition on sizes or values; use torch.where")
        raise Unsupported(f"an argument that depends on values ({node.name})")

    def _source(self, node: fx.Node) -> str:
        return source_of(node.meta) or self._place

    def _import_control(self, node: fx.Node) -> None:
        """Add the node of a control-flow call and its blocks.

        A call that reads the result of an unsupported call is left out.
        """
        # The bodies are input nodes too, but no tensors.
        unknown = self._unknown.intersection(node.all_input_nodes)
        if any(isinstance(one.meta.get("val"), Tensor) for one in unknown):
            self._unknown.add(node)
            return
        try:
            self._add_control(node, higher_call(node))
        except (Unsupported, CaptureError) as error:
            self._unknown.add(node)
            self._miss(f"torch.{node.target}", error.reason, node)

    def _add_control(self, node: fx.Node, call: Higher) -> None:
        """Add the node of a control-flow call, after importing its bodies as blocks."""
        source = self._source(node)
        held = {value.id: name for value, name in self.constants}
        given: list[Value | str | None] = []
        for i, raw in enumerate(call.operands):
            value = self._values.get(raw) if isinstance(raw, fx.Node) else None
            if not isinstance(value, Value):
                given.append(None)
                continue
            name = held.get(value.id) if i >= call.kept else None
            given.append(value if name is None else name)
        operands = tuple(value for value in given if isinstance(value, Value))
        types = self._result_types(node)
        pred = self._pred(call)
        numbers = [self._block(body, call, given, source) for body in call.bodies]
        if call.op == COND and not self.missing:
            # Give the outputs of branches one size if a branch has no past.
            blocks = self._model.blocks
            joined = with_joined_outputs([blocks[n] for n in numbers], types)
            for number, block in zip(numbers, joined, strict=True):
                blocks[number] = block
        arguments = call.arguments(pred, tuple(numbers), operands, len(types))
        outputs = tuple(self._new_value(kind) for kind in types)
        self.nodes.append(Node(call.op, arguments, outputs, source))
        self._values[node] = outputs

    def _pred(self, call: Higher) -> Value | None:
        if call.pred is None:
            return None
        value = self._values.get(call.pred) if isinstance(call.pred, fx.Node) else None
        if not isinstance(value, Value):
            raise Unsupported(
                "its condition is a size, or a number; pass a tensor of one bool"
            )
        return value

    def _block(
        self,
        body: fx.Node,
        call: Higher,
        given: list[Value | str | None],
        source: str,
    ) -> int:
        """Import a body of a control-flow call as a block; return its number."""
        module = getattr(self._module, str(body.target))
        assert isinstance(module, fx.GraphModule)
        inside = BodyImporter(self._model, module, given, source)
        through = range(call.carried, call.carried + call.scanned)
        number = len(self._model.blocks)
        self._model.blocks.append(_PENDING)
        block = inside.run(number, tuple(through))
        self.missing += inside.missing
        self._model.blocks[number] = block
        return number


class BodyImporter(NodeImporter):
    """Builds the block that a body of a control-flow call becomes."""

    def __init__(
        self,
        model: Model,
        module: fx.GraphModule,
        given: Sequence[Value | str | None],
        place: str,
    ) -> None:
        """Store the operands of the control-flow call.

        Each item of `given` is a value, the name of a constant, or None.
        """
        super().__init__(model, module, place)
        self._graph = module.graph
        self._given = iter(given)
        self._inputs: list[Value] = []

    def run(self, number: int, filled: tuple[int, ...]) -> Method:
        """Return the block, which is valid only if `missing` is empty."""
        for node in self._graph.nodes:
            self._import_node(node)
        outputs = self._outputs() if not self.missing else ()
        return Method(
            name=f"{self._model.method}/{number}",
            role="",
            inputs=tuple(self._inputs),
            input_names=tuple(f"%{value.id}" for value in self._inputs),
            position="",
            input_tree="",
            output_tree="",
            constants=tuple(self.constants),
            state_in=(),
            state_out=(),
            input_out=(),
            nodes=tuple(self.nodes),
            outputs=outputs,
            block=number,
            filled=filled,
        )

    def _enter(self, node: fx.Node) -> None:
        given, held = next(self._given), node.meta.get("val")
        if not isinstance(held, Tensor):
            return
        if given is None:
            raise Unsupported("a body takes a tensor that its call does not pass")
        value = self._new_value(self._sizes.tensor_type(held))
        self._values[node] = value
        if isinstance(given, str):
            self.constants.append((value, given))
        else:
            self._inputs.append(value)

    def _outputs(self) -> tuple[Value, ...]:
        (left,) = next(n for n in self._graph.nodes if n.op == "output").args
        nodes = left if isinstance(left, tuple | list) else (left,)
        values = [
            self._values.get(n) if isinstance(n, fx.Node) else None for n in nodes
        ]
        if not all(isinstance(value, Value) for value in values):
            raise Unsupported("a body returns something other than tensors")
        return tuple(value for value in values if isinstance(value, Value))


_PENDING = Method("", "", (), (), "", "", "", (), (), (), (), (), ())


def _why(op: str, node: fx.Node) -> str:
    """Return why kvc never supports an operator."""
    assert isinstance(node.target, torch._ops.OpOverload)
    if not node.target._schema.returns:
        return "an operator with side effects; leave it out"
    return why_unknown(op)


def _is_size(result: object) -> bool:
    return isinstance(
        result, torch.SymInt | torch.SymBool | torch.SymFloat | int | float
    )
