"""Translate a partition's graph to nodes, one operator at a time, and drop dead nodes.

In: a verified block. Out: `Translated`, which has the nodes, and the tensors of inputs
and outputs.
"""

from collections.abc import Mapping

from kvc.runtime.delegates.xnnpack import (
    convolutions,
    elementwise,
    layout,
    norms,
    pools,
    products,
    spatial,
)
from kvc.runtime.delegates.xnnpack.builder import Builder
from kvc.runtime.delegates.xnnpack.layouts import unshaped
from kvc.runtime.delegates.xnnpack.nodes import (
    Constant,
    Define,
    Node,
    Tensor,
    live_nodes,
)
from kvc.schema import graph as code
from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph, Instruction, Ref

DEFINITIONS: Mapping[str, Define] = {
    **elementwise.DEFINITIONS,
    **norms.DEFINITIONS,
    **layout.DEFINITIONS,
    **products.DEFINITIONS,
    **convolutions.DEFINITIONS,
    **pools.DEFINITIONS,
    **spatial.DEFINITIONS,
}


@frozen
class Translated:
    """Nodes in running order, and the tensors of inputs and outputs.

    Attributes:
        nodes: the nodes, all of which contribute to an output.
        inputs: tensors for the graph's inputs, in order. Their dims can differ from the
            graph's, but the elements are the same in the same order.
        outputs: tensors for the graph's outputs, with dims as for `inputs`. Each output
            is computed by a node, and no tensor occurs twice.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def translate(graph: Graph, sizes: Mapping[str, int]) -> Translated:
    """Return the nodes of a graph whose operators are all in `DEFINITIONS`.

    Args:
        graph: the verified graph.
        sizes: any allowed sizes of the graph's symbols.
    """
    builder = Builder(sizes)
    tensors: dict[int, Tensor] = {}
    for i, value in enumerate(graph.values):
        if isinstance(value.storage, code.Constant):
            tensors[i] = Constant(value.type.dims, name=value.storage.name)
    inputs = [Tensor(graph.values[i].type.dims) for i in graph.inputs]
    tensors.update(zip(graph.inputs, inputs, strict=True))
    for instruction in graph.instructions:
        made = _define(builder, instruction, graph, tensors)
        tensors.update(zip(instruction.results, made, strict=True))
    outputs = _own_outputs(builder, [tensors[i] for i in graph.outputs])
    nodes = live_nodes(builder.nodes, outputs)
    nodes = _without_input_reshapes(nodes, inputs, outputs)
    return Translated(tuple(nodes), tuple(inputs), tuple(outputs))


def _define(
    builder: Builder,
    instruction: Instruction,
    graph: Graph,
    tensors: Mapping[int, Tensor],
) -> tuple[Tensor, ...]:
    def given(argument: object) -> object:
        if isinstance(argument, Ref):
            return tensors[argument.value]
        if isinstance(argument, tuple):
            return tuple(given(item) for item in argument)
        return argument

    dims = graph.values[instruction.results[0]].type.dims
    arguments = [given(argument) for argument in instruction.arguments]
    made = DEFINITIONS[instruction.op](builder, dims, *arguments)
    return made if isinstance(made, tuple) else (made,)


def _own_outputs(builder: Builder, results: list[Tensor]) -> list[Tensor]:
    """Return the tensors to use as outputs, one for each result.

    Each is computed by a node, and none occurs twice; a result that does not fit is
    copied. A result that is a reshape of a computed tensor is that tensor, since a
    reshape does not change the bytes.
    """
    taken: set[Tensor] = set()
    outputs = []
    for result in results:
        for candidate in (unshaped(result), result):
            if candidate.producer is not None and candidate not in taken:
                break
        else:
            candidate = builder.copy(unshaped(result))
        taken.add(candidate)
        outputs.append(candidate)
    return outputs


def _without_input_reshapes(
    nodes: list[Node], inputs: list[Tensor], outputs: list[Tensor]
) -> list[Node]:
    """Remove the reshapes of inputs, and return the remaining nodes.

    Each reshaped input gets the shape of the reshape in its place.
    """
    dropped: set[int] = set()
    for x in inputs:
        readers = [node for node in nodes if x in node.inputs]
        made = {node.outputs[0].dims for node in readers}
        plain = all(
            node.function == "static_reshape" and node.outputs[0] not in outputs
            for node in readers
        )
        if not plain or len(made) != 1:
            continue
        (x.dims,) = made
        for reader in readers:
            dropped.add(id(reader))
            for node in nodes:
                node.read_instead(reader.outputs[0], x)
    return [node for node in nodes if id(node) not in dropped]
