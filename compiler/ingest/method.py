"""Import one exported program as an IR method and its blocks."""

from torch import fx

from kvc.compiler.ingest.inputs_and_outputs import (
    NOTHING_LEFT,
    NUMBERS,
    MethodInterface,
    SessionOwned,
)
from kvc.compiler.ingest.nodes import NodeImporter
from kvc.compiler.ingest.states_and_constants import Model, TensorTable
from kvc.compiler.ingest.symbols import SizeReader
from kvc.compiler.ir import Method
from kvc.compiler.trace import CapturedMethod


class MethodImporter(NodeImporter):
    """Builds the IR nodes of one method.

    `missing` collects the operators for which kvc has no kernel.
    """

    def __init__(
        self,
        captured: CapturedMethod,
        tensors: TensorTable,
        sizes: SizeReader,
        owned: SessionOwned,
        blocks: list[Method],
    ) -> None:
        exported = captured.exported
        model = Model(
            captured.method.name, tensors, sizes, exported.range_constraints, blocks
        )
        super().__init__(model, exported.graph_module)
        self._captured = captured
        self._interface = MethodInterface(
            captured, tensors, sizes, owned, self._new_value
        )
        self.constants = self._interface.constants

    def run(self, input_names: tuple[str, ...], trees: tuple[str, str]) -> Method:
        """Return the method, which is valid only if `missing` is empty.

        Args:
            input_names: a name for each tensor that the caller passes, in order.
            trees: how the arguments are nested in containers, and how the results are.
        """
        for node in self._captured.exported.graph.nodes:
            self._import_node(node)
        # Make tensors of the numbers that the method returns.
        exported = self._captured.exported
        (nodes,) = next(n for n in exported.graph.nodes if n.op == "output").args
        specs = exported.graph_signature.output_specs
        for node, spec in zip(nodes, specs, strict=True):
            if isinstance(spec.arg, NUMBERS) and node not in self._values:
                self._import_number(node)
        interface = self._interface
        known = not self.missing
        left = interface.leave(self._values, input_names) if known else NOTHING_LEFT
        return Method(
            name=self._captured.method.name,
            role=self._captured.method.role,
            inputs=tuple(interface.inputs),
            input_names=input_names,
            position=self._captured.method.position,
            input_tree=trees[0],
            output_tree=trees[1],
            constants=tuple(interface.constants),
            state_in=tuple(interface.state_in),
            state_out=left.state_out,
            input_out=left.input_out,
            nodes=tuple(self.nodes),
            outputs=left.outputs,
            adapts=self._captured.method.adapts,
        )

    def _enter(self, node: fx.Node) -> None:
        value = self._interface.enter(node)
        if value is not None:
            self._values[node] = value
