"""One exported program to one IR method."""

import operator

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from kvc.compiler.capture import CapturedMethod
from kvc.compiler.import_fx.borders import NOTHING_LEFT, Borders, Owned
from kvc.compiler.import_fx.calls import Call, Made, Unsupported
from kvc.compiler.import_fx.normalize import (
    DROPPED,
    FORWARDED,
    arguments_of,
    is_known,
    normalize,
    why_unknown,
)
from kvc.compiler.import_fx.read_numbers import SIZE_FROM_VALUES, NumberReader
from kvc.compiler.import_fx.sources import source_of
from kvc.compiler.import_fx.symbols import TORCH_DTYPES, SizeReader
from kvc.compiler.import_fx.tensors import TensorTable
from kvc.compiler.import_fx.writes import refuse_masks
from kvc.compiler.ir import Argument, Method, Node, Value
from kvc.schema.errors import CaptureError
from kvc.schema.types import TensorType

READ = torch.ops.aten._local_scalar_dense.default


class MethodImporter:
    """Builds the nodes of one method; `missing` collects ops that have no kernel."""

    def __init__(
        self,
        captured: CapturedMethod,
        tensors: TensorTable,
        sizes: SizeReader,
        owned: Owned,
    ) -> None:
        self._captured = captured
        self._sizes = sizes
        ranges = captured.exported.range_constraints
        self._numbers = NumberReader(sizes, ranges)
        self._borders = Borders(captured, tensors, sizes, owned, self._new_value)
        self._count = 0
        self._values: dict[fx.Node, Value | tuple[Value, ...]] = {}
        self._unknown: set[fx.Node] = set()
        self.nodes: list[Node] = []
        self.missing: list[tuple[str, str, str]] = []

    def run(self, input_names: tuple[str, ...], trees: tuple[str, str]) -> Method:
        """Return the method; look at `missing` before using it.

        Args:
            input_names: a name for each tensor that is passed, in order.
            trees: how arguments and results nest.
        """
        for node in self._captured.exported.graph.nodes:
            if node.op == "placeholder":
                value = self._borders.enter(node)
                if value is not None:
                    self._values[node] = value
            elif node.op == "call_function":
                self._import_call(node)
            elif node.op == "get_attr":
                self._unknown.add(node)
        borders = self._borders
        known = not self.missing
        left = borders.leave(self._values, input_names) if known else NOTHING_LEFT
        return Method(
            name=self._captured.method.name,
            role=self._captured.method.role,
            inputs=tuple(borders.inputs),
            input_names=input_names,
            position=self._captured.method.position,
            input_tree=trees[0],
            output_tree=trees[1],
            constants=tuple(borders.constants),
            state_in=tuple(borders.state_in),
            state_out=left.state_out,
            input_out=left.input_out,
            nodes=tuple(self.nodes),
            outputs=left.outputs,
        )

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

    def _import_read(self, node: fx.Node) -> None:
        """Note a number that is read from a tensor."""
        (source,) = node.args
        assert isinstance(source, fx.Node)
        value = self._values.get(source)
        if isinstance(value, Value):
            self._numbers.note(node, value)
        else:
            self._unknown.add(node)

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
            arguments = self._arguments(call, source_of(node.meta))
        except (Unsupported, CaptureError) as error:
            self._unknown.add(node)
            reason = getattr(error, "reason", str(error))
            self._miss(op, reason if is_known(op) else why_unknown(op), node)
            return
        outputs = tuple(self._new_value(kind) for kind in types[: call.results])
        self.nodes.append(Node(call.op, arguments, outputs, source_of(node.meta)))
        several = not isinstance(node.meta.get("val"), Tensor)
        self._values[node] = outputs if several or not outputs else outputs[0]

    def _arguments(self, call: Call, source: str) -> tuple[Argument, ...]:
        """Return a call's arguments, after the calls that make or check them."""
        for check in call.checks:
            self.nodes.append(
                Node(check.op, self._arguments(check, source), (), source)
            )
        named = {name: self._made(a, source) for name, a in call.named.items()}
        return arguments_of(Call(call.op, named))

    def _made(self, argument: object, source: str) -> object:
        """Return an argument after the call that makes it, if one does."""
        if isinstance(argument, tuple):
            return tuple(self._made(item, source) for item in argument)
        if not isinstance(argument, Made):
            return argument
        arguments = self._arguments(argument.call, source)
        value = self._new_value(argument.type)
        self.nodes.append(Node(argument.call.op, arguments, (value,), source))
        return value

    def _miss(self, op: str, reason: str, node: fx.Node) -> None:
        self.missing.append((op, reason, source_of(node.meta)))

    def _result_types(self, node: fx.Node) -> tuple[TensorType, ...]:
        result = node.meta.get("val")
        results = result if isinstance(result, tuple | list) else (result,)
        tensors = [r for r in results if isinstance(r, Tensor)]
        if any(free_unbacked_symbols(n) for t in tensors for n in t.shape):
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
            if value is not None:
                return value
            size = raw.meta.get("val")
            if isinstance(size, bool | float):
                return size
            if isinstance(size, int):
                return size
            if isinstance(size, torch.SymInt):
                return self._numbers.number(size)
            if isinstance(size, torch.SymFloat):
                return self._numbers.real(raw)
            if isinstance(size, torch.SymBool):
                raise Unsupported("a condition on sizes or values; use torch.where")
            raise Unsupported(f"an argument that depends on values ({raw.name})")
        if isinstance(raw, torch.dtype):
            return TORCH_DTYPES.get(raw, raw)
        return raw


def op_name(target: torch._ops.OpOverload) -> str:
    """Return an operator's full name, `.default` left out."""
    name: str = target.name()  # type: ignore[no-untyped-call]
    return name.removesuffix(".default")


def _is_size(result: object) -> bool:
    return result is None or isinstance(
        result, torch.SymInt | torch.SymBool | torch.SymFloat | int | float
    )


def _is_tensor(result: object) -> bool:
    return isinstance(result, Tensor | tuple | list)
